"""Observe, decide, apply: one job at a time, from live reads, and safe to repeat after a crash anywhere."""
