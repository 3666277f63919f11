"""From the user's datasets to batches: read, check, render, tokenize, lay out, order.

Every step is deterministic in its inputs and a seed, so that every process of a run prepares the same bytes and the
batch of any step can be made at once, without replaying the ones before it.
"""
