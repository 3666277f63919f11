"""Turns the user's datasets into batches: reads, checks, renders, tokenizes, lays out and orders their rows.

Everything is deterministic in its inputs and a seed, so all processes of a run prepare the same bytes, and the batch of
any step can be computed directly, without replaying the steps before it.
"""
