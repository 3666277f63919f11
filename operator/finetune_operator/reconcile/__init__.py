"""Observe, decide, apply: one job at a time, safe to repeat after a crash at any point."""
