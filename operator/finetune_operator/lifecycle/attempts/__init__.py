"""Attempts of stages: their listing, their results and their usage."""
