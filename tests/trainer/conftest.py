"""Shared by the trainer's tests. They run in the trainer's environment (tests/run trainer)."""

import os

# before anything imports JAX
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
