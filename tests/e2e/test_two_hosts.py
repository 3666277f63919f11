"""A slice of two hosts, one mesh: two pods with a JAX process each, or under Pathways one process on the head.

Locally the head computes on its own CPU, with one device for each chip of its workers, and a program that waits
(devcluster/pathways.py) takes the place of Pathways' servers. The tests therefore cover Kubernetes, the operator and
the trainer, and not Pathways itself.
"""

import pytest

from finetune_contract import Stage
from tests.e2e.user_client import Object, UserClient, finetune_job, stage_of

FULL = {"method": {"type": "SFT"}}
TWO_HOSTS = {"accelerator": "tpu-v6e-slice", "topology": "2x4", "chipsPerHost": 4}


@pytest.fixture(scope="module")
def one_process(bench: UserClient) -> dict[int, str]:
    """Step -> loss of the same training in one process."""
    bench.apply(finetune_job("one", resources={"accelerator": "tpu-v6e-slice", "topology": "2x2"}, **FULL))
    losses = bench.losses(bench.succeed("one"))
    assert len(losses) == 20
    return losses


def assert_same_training(bench: UserClient, job: Object, expected: dict[int, str]) -> None:
    losses = bench.losses(job)
    assert losses.keys() == expected.keys()
    for step, loss in expected.items():
        assert float(losses[step]) == pytest.approx(float(loss), rel=1e-3), step
    last = bench.result(job, Stage.TRAIN).details
    assert last is not None
    assert last.kind == "Train"
    assert last.step == 20


def test_two_hosts_train_to_the_loss_of_one_process_on_the_same_global_batch(
    bench: UserClient, one_process: dict[int, str]
) -> None:
    bench.apply(finetune_job("two", resources=TWO_HOSTS, **FULL))
    train = bench.wait("two", lambda job: job.get("status", {}).get("stage") == "Train")
    pods = bench.list("pods", job="two", stage="Train")
    two = bench.succeed("two")

    assert train["status"]["resolved"]["resources"]["hosts"] == 2
    assert len(pods) <= 2
    assert_same_training(bench, two, one_process)


def test_a_head_of_pathways_trains_to_the_loss_of_one_process(
    bench: UserClient, one_process: dict[int, str]
) -> None:
    bench.apply(finetune_job("pathways", resources={**TWO_HOSTS, "controller": "Pathways"}, **FULL))
    job = bench.succeed("pathways")
    assert_same_training(bench, job, one_process)
    assert stage_of(job, Stage.EVALUATE)["phase"] == "Succeeded"
    assert job["status"]["attempts"]["total"] == len(Stage)
