"""Tests that serve the exports of the trainer's stages, in the trainer's environment (make test-serving)."""

from tests.trainer.conftest import stages

__all__ = ["stages"]
