"""Slices that a job can run on, the choice among them, and what depends on the slice: batch, nodes and memory."""
