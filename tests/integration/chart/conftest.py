"""Fixtures that run helm from the build cache (built on first use)."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration import helm as helm_program

CHART = Path(__file__).parents[3] / "charts" / "finetune-operator"

type Helm = Callable[..., subprocess.CompletedProcess[str]]
type Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Runs helm with the given arguments; the caller checks the exit code."""
    return helm_program.helm


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """The chart's objects as release ``finetune-operator`` in ``finetune-system``, with these --set values."""

    def objects(*settings: str) -> list[dict[str, Any]]:
        options = [option for setting in settings for option in ("--set", setting)]
        done = helm("template", "finetune-operator", str(CHART), "--namespace", "finetune-system", *options)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return objects
