"""Evaluation of a model: loss over datasets, answers to prompts, and benchmarks."""
