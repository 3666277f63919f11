"""Compares runs by the records in their run folders. Pure: no I/O, no clock, and a fixed seed."""
