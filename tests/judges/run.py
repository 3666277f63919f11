"""Runs kstatus and Argo CD's interpreter on objects (main.go beside this file)."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from devcluster.layout import ROOT
from tests.go_modules import module_program

HERE = Path(__file__).parent
SCRIPTS = ROOT / "examples" / "argo-cd" / "tpu-finetune.dev"


@dataclass(frozen=True, slots=True)
class HealthResult:
    """What the two say of one object."""

    kstatus: str
    argo: str
    message: str
    """What Argo CD shows beside the health."""


def check_health(objects: Sequence[Mapping[str, Any]]) -> list[HealthResult]:
    """One verdict each, by the health script of the object's kind that the project ships."""
    questions = [
        {"object": each, "health": (SCRIPTS / each["kind"] / "health.lua").read_text()} for each in objects
    ]
    return [HealthResult(**said) for said in _answers(questions)]


@dataclass(frozen=True, slots=True)
class ActionsResult:
    """What Argo CD offers to do with one object, and what the object then is."""

    enabled: frozenset[str]
    edited: Mapping[str, Mapping[str, Any]]
    """By the name of each action, disabled ones included."""


def try_actions(jobs: Sequence[Mapping[str, Any]]) -> list[ActionsResult]:
    """One result each, by the scripts for FineTuneJobs that the project ships."""
    folder = SCRIPTS / "FineTuneJob"
    scripts = {
        "health": (folder / "health.lua").read_text(),
        "discovery": (folder / "actions" / "discovery.lua").read_text(),
        "actions": {each.parent.name: each.read_text() for each in folder.glob("actions/*/action.lua")},
    }
    return [
        ActionsResult(
            enabled=frozenset(name for name, enabled in said["enabled"].items() if enabled),
            edited=said["edited"],
        )
        for said in _answers([{"object": each, **scripts} for each in jobs])
    ]


def _answers(questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    asked = "".join(json.dumps(each) + "\n" for each in questions)
    done = subprocess.run([_program()], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@cache
def _program() -> Path:
    """20 s where the cluster's programs were built here, 80 s from nothing."""
    return module_program(HERE)
