"""For any content of a run folder and its cache, the status is true and every action has a cause.

Hypothesis draws 300 contents by default. For more, run
``FINETUNE_FUZZ=10000 pytest tests/unit/reconcile/test_hostile_folders.py --hypothesis-seed=20261122``. The counts of
outcomes are written to the file that FINETUNE_FUZZ_FIGURES names.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from finetune_contract import Stage
from tests.fuzz.folders import EXAMPLES, Change, Mutation, Put, contents
from tests.unit.reconcile.folder_oracle import FolderOracle
from tests.unit.reconcile.folder_world import MOMENTS, FolderWorld, at

pytestmark = pytest.mark.slow

FIGURES: Counter[str] = Counter()


def _of_live(world: FolderWorld, deed: Callable[[str], None]) -> None:
    for name in world.live():
        if (
            "deletionTimestamp" not in world.jobsets[name]["metadata"]
            and not world.jobsets[name]["spec"]["suspend"]
        ):
            world.run(name)
            deed(name)


def _train(world: FolderWorld, name: str) -> None:
    if world.key_of(name).stage is Stage.TRAIN:
        world.train(name, world.progress.step + 10 if world.progress else 10)


def _retry(world: FolderWorld, **more: str) -> None:
    world.edit(retry={"generation": world.job["spec"].get("retry", {}).get("generation", 0) + 1, **more})


#: Events that may follow after another client has changed files, by name.
STEPS: dict[str, Callable[[FolderWorld], None]] = {
    "seconds pass": lambda world: world.wait(10),
    "an hour passes": lambda world: world.wait(3600),
    "days pass": lambda world: world.wait(3 * 86_400),
    "suspend": lambda world: world.edit(suspend=True),
    "resume": lambda world: world.edit(suspend=False),
    "cancel": lambda world: world.edit(cancel=True),
    "a budget": lambda world: world.edit(budget={"maxChipHours": 0.01}),
    "a deadline": lambda world: world.edit(activeDeadlineSeconds=60),
    "retry": _retry,
    "retry Convert": lambda world: _retry(world, fromStage="Convert"),
    "the operator restarts": FolderWorld.restart_operator,
    "the files are restored": FolderWorld.heal,
    "training progresses": lambda world: _of_live(world, lambda name: _train(world, name)),
    "the stage succeeds": lambda world: _of_live(world, world.succeed),
    "the stage fails": lambda world: _of_live(world, lambda name: world.fail(name, 69)),
    "the process is killed": lambda world: _of_live(world, world.kill),
    "the node is lost": lambda world: _of_live(world, world.stop),
}


@pytest.fixture(scope="module", autouse=True)
def figures() -> Iterator[None]:
    yield
    if path := os.environ.get("FINETUNE_FUZZ_FIGURES"):
        Path(path).write_text(json.dumps(dict(FIGURES.most_common()), indent=1))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(
    moment=st.sampled_from(MOMENTS),
    restarted=st.booleans(),
    changes=contents,
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=4),
)
@example(  # a progress record from before the JobSet
    moment="Train runs", restarted=False, changes=(Put("133", "own", (Mutation("like", 2063),)),), steps=[]
)
def test_the_status_says_something_true_of_any_content(
    moment: str, restarted: bool, changes: tuple[Change, ...], steps: list[str]
) -> None:
    world = at(moment)
    watch = FolderOracle(world, figures=FIGURES)
    if restarted:
        world.restart_operator()
    world.tamper(changes)
    watch.keep_untouched()
    watch.look()
    for step in steps:
        if step.startswith("retry"):
            watch.kept.clear()
        STEPS[step](world)
        watch.look()
    watch.settle()
    if world.live():
        world.edit(suspend=True)
        watch.stops()
    FIGURES["contents"] += 1
    FIGURES[f"phase: {world.status['phase']}"] += 1
    readable = world.condition("RunFolderReadable")
    FIGURES[f"readable: {readable['status']}, {readable['reason']}"] += 1
