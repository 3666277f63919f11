"""Pairs of what the operator observes and what it decides, recorded from the state machine and replayed.

    python -m tests.unit.lifecycle.recordings record FILE [--pairs 2000]
    python -m tests.unit.lifecycle.recordings replay FILE

A recording holds the world outside the operator, not the operator's own types, so one that is made before a change of
names and structure is replayed after it: old names become new ones by the table in docs/reference/renamed.md. FILE is
gzipped JSON, one pair a line.
"""

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from finetune_contract import ConvertManifest, HostProgress, Progress
from finetune_operator.lifecycle import (
    AttemptFiles,
    AttemptKey,
    ReadFailure,
    RetryRecord,
    TakeoverRecord,
    decide,
)
from tests.unit.lifecycle.test_machine import Machine
from tests.unit.lifecycle.world import World
from tests.unit.renamed import words

type Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The fields of ``World`` that ``World.observe`` reads."""

    now: datetime
    job: Object
    profiles: list[Object]
    config_map: Object | None
    first_format: Object | None
    takeovers: list[TakeoverRecord]
    neighbours: list[Object]
    unserved: str | None
    source: Object | None
    jobsets: dict[str, Object]
    pods: dict[str, Object]
    attempts: list[tuple[AttemptKey, AttemptFiles]]
    progress: Progress | None
    cache: dict[str, ConvertManifest]
    nodes: dict[str, Object] | None
    unreadable: str | ReadFailure | None
    progress_unknown: ReadFailure | None
    retry: RetryRecord | None
    fingerprint: str
    manifest_fault: str
    live_jobs: int
    workloads: dict[str, Object] | None
    hosts: dict[int, HostProgress]
    object_events: list[Object]

    @classmethod
    def of(cls, world: World) -> "Recorded":
        values = {each.name: getattr(world, each.name) for each in fields(cls)}
        return cls(**values | {"attempts": list(world.attempts.items())})

    def world(self) -> World:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return World(**values | {"attempts": dict(self.attempts)})


_WORLD = TypeAdapter(Recorded)


def decided(world: World) -> Object:
    """What the operator decides, after the closer look that it may ask for, as JSON."""
    observation = world.observe()
    decision = decide(observation)
    if decision.closer is not None:
        decision = decide(world.look_closer(observation, decision.closer))
    made: Object = to_jsonable_python(replace(decision, fault=None))
    return made


def record(pairs: int) -> Iterator[tuple[Object, Object]]:
    """So many different pairs, the same ones at each call."""
    found: dict[str, Object] = {}
    observe = World.observe

    def noted(world: World) -> Any:
        key = _WORLD.dump_json(Recorded.of(world)).decode()
        observation = observe(world)
        if key not in found:
            with patch.object(World, "observe", observe):
                found[key] = decided(_WORLD.validate_json(key).world())
        return observation

    examples = settings(
        max_examples=max(1, pairs // 8), stateful_step_count=30, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with patch.object(World, "observe", noted):
        run_state_machine_as_test(Machine, settings=examples)
    for key in list(found)[:pairs]:
        yield json.loads(key), found[key]


def replayed(world: Mapping[str, Any]) -> Object:
    """What is decided now on a recorded world."""
    return decided(_WORLD.validate_python(world).world())


def renamed(text: str) -> str:
    """A recorded pair with the names of today."""
    for old, new in words().items():
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=["record", "replay"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--pairs", type=int, default=2000)
    options = parser.parse_args()
    if options.work == "record":
        with gzip.open(options.file, "wt") as file:
            count = 0
            for pair in record(options.pairs):
                file.write(json.dumps(pair) + "\n")
                count += 1
        print(f"{count} pairs")
        return 0 if count == options.pairs else 1
    different = 0
    with gzip.open(options.file, "rt") as file:
        for number, line in enumerate(file, start=1):
            world, before = json.loads(renamed(line))
            if (now := replayed(world)) != before:
                different += 1
                names = sorted(key for key in now.keys() | before.keys() if now.get(key) != before.get(key))
                print(f"pair {number} differs in {', '.join(names)}")
    print(f"{different} of {number} pairs differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
