"""The state of each stage, derived from its attempts."""
