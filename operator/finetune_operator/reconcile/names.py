"""Whose file a name in the run folder is."""
