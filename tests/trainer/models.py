"""Tiny models for tests."""

from pathlib import Path

from tests.doubles.tiny_models import TinyModelSpec, write_model


def qwen3(folder: Path) -> Path:
    return made(folder / "qwen3", "qwen3")


def made(folder: Path, family: str) -> Path:
    write_model(folder, TinyModelSpec(family=family))  # type: ignore[arg-type]  # the table of families is the caller's
    return folder
