"""If training stalls, the host that delays the others is named, if there is one."""

from datetime import timedelta

import pytest

from finetune_contract import HostProgress, Stage
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pods import node_of_host, pod_of_host
from tests.unit.lifecycle.world import World, job
from tests.unit.lifecycle.writes import writes

type Words = dict[int, tuple[int, int] | None]
"""By host: the step begun and the batches evaluated; None without a record."""


def hung(words: Words, *, stepped: bool = True, chips: str = "v6e-8") -> World:
    """Training on two hosts of four chips, which has stalled and whose result is recorded."""
    world = World(job=job(resources={"tpu": chips}))
    world.edit(hangPolicy={"noStepSeconds": 300, "startupSeconds": 300})
    name = world.until(Stage.TRAIN)
    for index, pod in enumerate(world.pods_of(name)):
        pod["spec"] = {"nodeName": f"tpu-{index}"}
        pod["metadata"]["labels"] = pod["metadata"]["labels"] | {
            "batch.kubernetes.io/job-completion-index": str(index)
        }
    if stepped:
        world.train(name, 20)
    for host, word in words.items():
        if word is not None:
            step, evaluated = word
            world.hosts[host] = HostProgress(
                attempt=1, host=host, step=step, evaluated=evaluated, updated=world.now
            )
    world.wait(301)
    world._collect = lambda name: None  # type: ignore[method-assign]  # its pods terminate slowly
    world.reconcile()
    return world


def recorded_result(world: World) -> tuple[int, str]:
    record = world.attempts[AttemptKey(Stage.TRAIN, 1)].failure
    assert record is not None
    return record.host, record.message


@pytest.mark.parametrize(
    ("words", "host", "expected"),
    [
        (
            {0: (22, 0), 1: (20, 0)},
            1,
            "Host 1 (pod support-bot-train-1-1 on node tpu-1) got no further than step 20 (at 2026-",
        ),
        ({0: (21, 0), 1: (22, 0)}, 0, "node tpu-0) got no further than step 21"),
        ({0: (20, 7), 1: (20, 5)}, 1, "no further than batch 5 of the evaluation after step 20"),
        ({0: (20, 1), 1: (21, 0)}, 0, "the others were at step 21."),
        ({0: (21, 0), 1: None}, 1, "Host 1 (pod support-bot-train-1-1 on node tpu-1) did not start training"),
        ({0: (22, 0), 1: (22, 0)}, 0, "All 2 hosts were at step 22, so none of them lags"),
    ],
)
def test_the_host_with_the_least_progress_is_named_with_pod_and_node(
    words: Words, host: int, expected: str
) -> None:
    world = hung(words)
    assert recorded_result(world)[0] == host
    assert expected in recorded_result(world)[1]
    assert recorded_result(world)[1].startswith("Training hangs: step 20 of 100")


def test_no_host_is_blamed_if_none_reports_progress() -> None:
    assert "ost" not in recorded_result(hung({}))[1]


def test_a_host_that_is_not_ready_for_the_first_step_is_named() -> None:
    _, message = recorded_result(hung({0: (1, 0), 1: (0, 0)}, stepped=False))
    assert "tpu-1) got no further than the preparation of the first step" in message


def test_the_history_names_the_node_of_the_lagging_host() -> None:
    world = hung({0: (22, 0), 1: (20, 0)})
    world.stop("support-bot-train-1")
    world.reconcile()
    reported = world.status["attempts"]["history"][-1]
    assert (reported["reason"], reported["node"]) == ("Hung", "tpu-1")


def test_host_records_of_an_earlier_attempt_or_run_do_not_count() -> None:
    world = World(job=job(resources={"tpu": "v6e-8"}))
    world.edit(hangPolicy={"noStepSeconds": 300})
    name = world.until(Stage.TRAIN)
    world.train(name, 20)
    earlier = world.now - timedelta(hours=1)
    world.hosts = {
        0: HostProgress(attempt=1, host=0, step=90, updated=earlier),
        1: HostProgress(attempt=2, host=1, step=95, updated=world.now),
    }
    world.wait(301)
    world.reconcile()
    assert "ost 1" not in recorded_result(world)[1]
    assert "step 90" not in recorded_result(world)[1]


def test_the_lagging_host_is_determined_once() -> None:
    world = hung({0: (22, 0), 1: (20, 0)})
    before = recorded_result(world)
    world.hosts = {1: HostProgress(attempt=1, host=1, step=23, updated=world.now)}
    world.wait(5)
    assert writes(world.reconcile()).records == ()
    assert recorded_result(world) == before


def test_host_records_are_read_only_if_training_on_several_hosts_stalls() -> None:
    world = World(job=job(resources={"tpu": "v6e-4"}))
    world.edit(hangPolicy={"noStepSeconds": 300})
    world.train(world.until(Stage.TRAIN), 20)
    world.wait(301)
    world.hosts = {0: HostProgress(attempt=1, host=0, step=21, updated=world.now)}
    world.reconcile()
    assert "ost" not in recorded_result(world)[1]


@pytest.mark.parametrize(("host", "found"), [(0, "0-0"), (1, "0-1"), (2, "1-0"), (3, "1-1"), (4, None)])
def test_hosts_are_counted_slice_by_slice(host: int, found: str | None) -> None:
    pods = [
        Pod.parse(
            {
                "metadata": {
                    "name": f"{index}-{place}",
                    "labels": {
                        "jobset.sigs.k8s.io/job-index": str(index),
                        "batch.kubernetes.io/job-completion-index": str(place),
                    },
                },
                "spec": {"nodeName": f"node-{index}-{place}"},
            }
        )
        for index in (1, 0)
        for place in (1, 0)
    ]
    pod = pod_of_host(pods, host, per_slice=2)
    assert (pod.name if pod else None) == found
    assert node_of_host(pods, host, per_slice=2) == f"node-{found or '1-1'}"
