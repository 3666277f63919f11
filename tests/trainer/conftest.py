"""Shared by the trainer's tests. They run in the trainer's environment (tests/run trainer)."""

import os
from pathlib import Path

# before anything imports JAX
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(os.environ.get("FINETUNE_CACHE", "~/.cache/finetune-tpu")).expanduser() / "jax"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
