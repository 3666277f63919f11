"""Measuring a model: loss over a whole dataset, and answers to prompts."""
