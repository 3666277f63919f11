"""Observe, decide, apply: one job at a time, from live reads, safe to repeat after a crash at any point."""
