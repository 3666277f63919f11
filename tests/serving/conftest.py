"""The trainer's stages, whose exports are served here. Runs in the trainer's environment (make test-serving)."""

from tests.trainer.conftest import stages

__all__ = ["stages"]
