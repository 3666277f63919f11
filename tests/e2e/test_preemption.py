"""Training that is stopped saves, exits with 75, and resumes with exactly the losses of an undisturbed run."""

import os
import signal
from collections.abc import Callable

import pytest

from finetune_contract import ExitCode, Outcome, Stage
from tests.e2e.user_client import Object, UserClient, finetune_job

pytestmark = pytest.mark.usefixtures("watches_are_late")

type TrainerPids = Callable[[str, Stage], list[int]]
"""Process ids of a job's trainer in one stage, as the node agent started them."""

STEPS = 400
LONG = {
    "hyperparameters": {
        "steps": STEPS,
        "globalBatchSize": 8,
        "learningRate": 1e-3,
        "computePrecision": "FP32",
    },
    "checkpointing": {"everySteps": 50},
}


@pytest.fixture(scope="module")
def undisturbed(bench: UserClient) -> dict[int, str]:
    """Step -> loss of the same training without a stop."""
    bench.apply(finetune_job("undisturbed", **LONG))
    losses = bench.losses(bench.succeed("undisturbed"))
    assert len(losses) == STEPS
    return losses


def _training(bench: UserClient, name: str) -> Object:
    """Start a job and wait until its training is well under way."""
    bench.apply(finetune_job(name, **LONG))
    job = bench.wait(name, lambda job: job.get("status", {}).get("stage") == "Train")
    progress = bench.wait_for_step(job, 60)
    assert progress.step < STEPS
    return job


def _assert_resumed_exactly(bench: UserClient, job: Object, undisturbed: dict[int, str]) -> None:
    train = next(stage for stage in job["status"]["stages"] if stage["name"] == "Train")
    # JobSet itself has restarted the attempt.
    assert (train["attempt"], train["jobSet"], train["restart"]) == (
        2,
        f"{job['metadata']['name']}-train-1",
        1,
    )
    first = bench.result(job, Stage.TRAIN)
    second = bench.result(job, Stage.TRAIN, restart=1)
    assert (first.outcome, first.exit_code) == (Outcome.STOPPED, ExitCode.STOPPED)
    assert second.outcome == Outcome.SUCCEEDED
    assert first.details is not None
    assert first.details.kind == "Train"
    assert second.details is not None
    assert second.details.kind == "Train"
    assert second.details.start_step == first.details.step > 0
    assert bench.losses(job) == undisturbed
    attempts = job["status"]["attempts"]
    assert attempts["preemption"] == 1
    assert attempts["infrastructure"] == 0
    assert attempts["user"] == 0


def test_sigterm_to_the_trainer_is_resumed_to_the_last_digit(
    bench: UserClient, undisturbed: dict[int, str], trainer_pids: TrainerPids
) -> None:
    _training(bench, "sigterm")
    for pid in trainer_pids("sigterm", Stage.TRAIN):
        os.kill(pid, signal.SIGTERM)

    _assert_resumed_exactly(bench, bench.succeed("sigterm"), undisturbed)


@pytest.mark.thorough
def test_a_pod_deleted_through_the_api_is_resumed_to_the_last_digit(
    bench: UserClient, undisturbed: dict[int, str]
) -> None:
    _training(bench, "deleted")
    (pod,) = bench.list("pods", job="deleted", stage="Train")
    bench.delete("pod", pod["metadata"]["name"])

    _assert_resumed_exactly(bench, bench.succeed("deleted"), undisturbed)


def test_suspend_saves_frees_the_slice_and_resumes_exactly(
    bench: UserClient, undisturbed: dict[int, str]
) -> None:
    _training(bench, "paused")
    bench.kubectl("patch", "finetunejob", "paused", "--type=merge", '-p={"spec":{"suspend":true}}')
    bench.wait("paused", lambda job: job["status"]["phase"] == "Suspended")
    assert not bench.list("pods", job="paused", stage="Train")
    bench.kubectl("patch", "finetunejob", "paused", "--type=merge", '-p={"spec":{"suspend":false}}')
    job = bench.succeed("paused")

    assert bench.losses(job) == undisturbed
    assert job["status"]["attempts"]["preemption"] == 0
