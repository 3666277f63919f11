"""Ownership of files in the run folder by name."""
