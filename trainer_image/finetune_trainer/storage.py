"""Folders and small files by URI: ``gs://bucket/key`` and ``file:///path``."""
