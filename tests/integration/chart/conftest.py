"""Fixtures that run helm from the build cache (built on first use)."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import build
from devcluster.programs import KUBERNETES_VERSION

CHART = Path(__file__).parents[3] / "charts" / "finetune-operator"

type Helm = Callable[..., subprocess.CompletedProcess[str]]
type Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Runs helm with the given arguments; the caller checks the exit code."""
    program = str(build.ensure()["helm"])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        # What helm believes of a cluster that it is not connected to: one built from source believes in 1.20.
        offline = arguments[0] in {"template", "lint"} and "--kube-version" not in arguments
        if offline:
            arguments = (*arguments, "--kube-version", KUBERNETES_VERSION)
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """The chart's objects as release ``finetune-operator`` in ``finetune-system``, with these --set values."""

    def objects(*settings: str) -> list[dict[str, Any]]:
        options = [option for setting in settings for option in ("--set", setting)]
        done = helm("template", "finetune-operator", str(CHART), "--namespace", "finetune-system", *options)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return objects
