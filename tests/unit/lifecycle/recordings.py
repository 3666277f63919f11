"""Pairs of an observed world and the operator's decision, recorded from the state machine and replayed.

    python -m tests.unit.lifecycle.recordings record FILE [--pairs 2000]
    python -m tests.unit.lifecycle.recordings replay FILE
    python -m tests.unit.lifecycle.recordings time FILE

A recording contains the world outside the operator, and of a decision what acts on that world: the phase, the kind of
action, the attempt that is created, deletions, records, conditions and Events. Plans, bodies of JobSets and the layout
of the status have golden files of their own, so they may change without a difference here. FILE is gzipped JSON with
one pair per line.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from finetune_contract import ConvertManifest, HostProgress, Progress, StageProgress
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.observation import AttemptFiles, ReadFailure, RetryRecord, TakeoverRecord
from tests.unit.lifecycle.test_machine import Machine
from tests.unit.lifecycle.world import World
from tests.unit.lifecycle.writes import writes

type Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The fields of ``World`` that ``World.observe`` reads."""

    now: datetime
    job: Object
    profiles: list[Object]
    config_map: Object | None
    takeovers: list[TakeoverRecord]
    neighbours: list[Object]
    unserved: str | None
    source: Object | None
    jobsets: dict[str, Object]
    pods: dict[str, Object]
    attempts: list[tuple[AttemptKey, AttemptFiles]]
    progress: Progress | None
    stage_progress: list[tuple[AttemptKey, StageProgress]]
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
    paused: bool

    @classmethod
    def of(cls, world: World) -> "Recorded":
        values = {field.name: getattr(world, field.name) for field in fields(cls)}
        return cls(**values | {name: list(values[name].items()) for name in _BY_ATTEMPT})

    def world(self) -> World:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return World(**values | {name: dict(values[name]) for name in _BY_ATTEMPT})


#: Mappings whose keys are no text, and which JSON therefore holds as pairs.
_BY_ATTEMPT = ("attempts", "stage_progress")
_WORLD = TypeAdapter(Recorded)


class _EnoughError(BaseException):
    """The recording is complete. Not an ``Exception``, of which Hypothesis would search the shortest example."""


def decided(world: World) -> Object:
    """Returns what the operator's decision does, as JSON. It is made with the details that a first one requests."""
    observation = world.observe()
    decision = decide(observation)
    if decision.details is not None:
        decision = decide(world.with_details(observation, decision.details))
    made, status = writes(decision), decision.status.to_document()
    stored = {"retry": made.retry, "takeover": made.takeover, "plan": made.plan}
    return {
        "action": type(decision.action).__name__,
        "stores": [name for name, value in stored.items() if value is not None],
        "creates": None if made.jobset is None else made.jobset["metadata"]["name"],
        "deletes": sorted([each.name, each.uid] for each in made.deletions),
        "records": to_jsonable_python(made.records),
        "status first": bool(made.deletions) and made.status_first,
        "phase": status.get("phase"),
        "conditions": status.get("conditions"),
        "events": to_jsonable_python(decision.events),
        "requeue after": decision.requeue_after,
    }


def record(pairs: int, keep: Callable[[tuple[Object, Object]], None]) -> None:
    """Passes ``pairs`` different pairs to ``keep``, the same at each call."""
    kept: set[str] = set()
    observe = World.observe

    def record_observation(world: World) -> Any:
        # The machine may suppress an error once.
        if len(kept) == pairs:
            raise _EnoughError
        key = _WORLD.dump_json(Recorded.of(world)).decode()
        observation = observe(world)
        if key not in kept:
            kept.add(key)
            with patch.object(World, "observe", observe):
                keep((json.loads(key), decided(_WORLD.validate_json(key).world())))
        return observation

    examples = settings(
        max_examples=max(1, pairs), stateful_step_count=30, deadline=None, derandomize=True, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with patch.object(World, "observe", record_observation), suppress(_EnoughError):
        run_state_machine_as_test(Machine, settings=examples)


def replayed(world: Mapping[str, Any]) -> Object:
    """Returns the present decision on a recorded world."""
    return decided(_WORLD.validate_python(world).world())


def seconds_per_decision(worlds: Sequence[World]) -> tuple[float, float]:
    """Returns the average CPU seconds to observe a world and to decide about it, in the best of five rounds."""
    rounds = []
    for _ in range(5):
        begin = process_time()
        observations = [world.observe() for world in worlds]
        observed = process_time()
        for observation in observations:
            decide(observation)
        rounds.append((observed - begin, process_time() - observed))
    observing, deciding = min(rounds, key=sum)
    return observing / len(worlds), deciding / len(worlds)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", choices=["record", "replay", "time"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--pairs", type=int, default=2000)
    options = parser.parse_args()
    if options.work == "record":
        with gzip.open(options.file, "wt") as file:
            record(options.pairs, lambda pair: print(json.dumps(pair), file=file, flush=True))
        return 0
    with gzip.open(options.file, "rt") as file:
        lines = file.readlines()
    if options.work == "time":
        worlds = [_WORLD.validate_python(json.loads(line)[0]).world() for line in lines[::10]]
        observing, deciding = seconds_per_decision(worlds)
        print(
            f"{len(worlds)} worlds: {1000 * observing:.2f} ms to observe, {1000 * deciding:.2f} ms to decide"
        )
        return 0
    different = 0
    for number, line in enumerate(lines, start=1):
        world, before = json.loads(line)
        if (now := replayed(world)) != before:
            different += 1
            names = [name for name in now.keys() | before.keys() if now.get(name) != before.get(name)]
            print(f"pair {number} differs in {', '.join(sorted(names))}")
    print(f"{different} of {len(lines)} pairs differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
