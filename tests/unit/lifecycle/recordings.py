"""Pairs of an observed world and the operator's decision, recorded from the state machine and replayed.

    python -m tests.unit.lifecycle.recordings record FILE [--pairs 2000]
    python -m tests.unit.lifecycle.recordings replay FILE
    python -m tests.unit.lifecycle.recordings time FILE

A recording contains the world outside the operator and none of the operator's own types, so that it can be replayed
after a change of names and structure: the table in docs/reference/renamed.md maps old names to new ones. FILE is
gzipped JSON with one pair per line.
"""

import argparse
import gzip
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import islice
from pathlib import Path
from time import process_time
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
from tests.unit.lifecycle.writes import writes
from tests.unit.renamed import decision_fields, words

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
    """Returns the operator's decision as JSON, made with the details that a first decision requests."""
    observation = world.observe()
    decision = decide(observation)
    if decision.details is not None:
        decision = decide(world.with_details(observation, decision.details))
    made = writes(decision)
    return {
        "status": decision.status.to_document(),
        "retry": to_jsonable_python(made.retry),
        "takeover": to_jsonable_python(made.takeover),
        "plan": to_jsonable_python(made.plan),
        "jobset": to_jsonable_python(made.jobset),
        "deletions": _in_order(to_jsonable_python(made.deletions)),
        "records": to_jsonable_python(made.records),
        "status_first": made.status_first,
        "events": to_jsonable_python(decision.events),
        "requeue_after": decision.requeue_after,
        "details": to_jsonable_python(decision.details),
    }


def _in_order(deletions: list[Object]) -> list[Object]:
    return sorted(deletions, key=lambda each: str(each["uid"]))


def recorded(decision: Object) -> Object:
    """Returns a recorded decision with the present fields. The order of the status and deletions matters only if there
    are deletions."""
    fields_ = {
        decision_fields().get(name, name): value for name, value in decision.items() if name != "fault"
    }
    deletions = _in_order(fields_["deletions"])
    return {**fields_, "deletions": deletions, "status_first": bool(deletions) and fields_["status_first"]}


def record(pairs: int) -> Iterator[tuple[Object, Object]]:
    """Yields ``pairs`` different pairs, the same at each call."""
    found: dict[str, Object] = {}
    observe = World.observe

    def record_observation(world: World) -> Any:
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
    with patch.object(World, "observe", record_observation):
        run_state_machine_as_test(Machine, settings=examples)
    for key in list(found)[:pairs]:
        yield json.loads(key), found[key]


def replayed(world: Mapping[str, Any]) -> Object:
    """Returns the present decision on a recorded world."""
    return decided(_WORLD.validate_python(world).world())


def renamed(text: str) -> str:
    """Returns a recorded pair with the present names."""
    for old, new in words().items():
        text = re.sub(rf"\b{re.escape(old)}\b", new, text)
    return text


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
            count = 0
            for pair in record(options.pairs):
                file.write(json.dumps(pair) + "\n")
                count += 1
        print(f"{count} pairs")
        return 0 if count == options.pairs else 1
    if options.work == "time":
        with gzip.open(options.file, "rt") as file:
            worlds = [
                _WORLD.validate_python(json.loads(renamed(line))[0]).world()
                for line in islice(file, 0, None, 10)
            ]
        observing, deciding = seconds_per_decision(worlds)
        print(
            f"{len(worlds)} worlds: {1000 * observing:.2f} ms to observe, {1000 * deciding:.2f} ms to decide"
        )
        return 0
    different = 0
    with gzip.open(options.file, "rt") as file:
        for number, line in enumerate(file, start=1):
            world, decision = json.loads(renamed(line))
            before = recorded(decision)
            if (now := replayed(world)) != before:
                different += 1
                names = sorted(key for key in now.keys() | before.keys() if now.get(key) != before.get(key))
                print(f"pair {number} differs in {', '.join(names)}")
    print(f"{different} of {number} pairs differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
