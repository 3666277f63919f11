"""Sections of the merged spec, translated into the contract's records."""
