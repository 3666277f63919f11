"""Injected faults: the operator is killed, a JobSet is deleted, the store is unavailable, all slices are in use."""

import random
import time
from collections.abc import Callable

import pytest

from finetune_contract import Stage
from tests.e2e.user_client import UserClient, condition, finetune_job, folder_of, stage_of

pytestmark = pytest.mark.usefixtures("watches_are_late")


def test_an_operator_killed_at_ten_random_moments_runs_no_stage_twice(
    bench: UserClient, kill_operator: Callable[[], None]
) -> None:
    chance = random.Random(20261121)
    # No cache is used, and training is long enough for the run to outlast the last of the kills.
    steps = 1200
    settings = {"steps": steps, "globalBatchSize": 8, "learningRate": 1e-3}
    bench.apply(finetune_job("survivor", cache="Off", hyperparameters=settings))
    for _ in range(10):
        time.sleep(chance.uniform(0, 2))  # the moment of the kill is random
        kill_operator()
    assert condition(bench.get("finetunejob", "survivor"), "Finished") != "True", (
        "job finished before the last kill"
    )
    job = bench.succeed("survivor")

    for stage in Stage:
        assert stage_of(job, stage)["attempt"] == 1, stage
        assert bench.read(folder_of(job).result(stage.short, 2)) is None, stage
        assert len(bench.list("jobsets", job="survivor", stage=stage)) == 1
    assert job["status"]["attempts"]["total"] == len(Stage)
    assert len(bench.losses(job)) == steps


def test_a_jobset_deleted_by_hand_while_training_is_resumed_once(bench: UserClient) -> None:
    bench.apply(
        finetune_job(
            "handmade",
            hyperparameters={"steps": 300, "globalBatchSize": 8, "learningRate": 1e-3},
            checkpointing={"everySteps": 20},
        )
    )
    job = bench.wait("handmade", lambda job: job.get("status", {}).get("stage") == "Train")
    bench.wait_for_step(job, 40)
    bench.delete("jobset", "handmade-train-1")
    job = bench.succeed("handmade")

    train = stage_of(job, Stage.TRAIN)
    assert train["attempt"] == 2
    assert train["resumedFromStep"] >= 20


@pytest.mark.slow
def test_a_store_that_is_away_for_a_minute_is_waited_for_and_named(
    bench: UserClient, store_outage: Callable[[float], None]
) -> None:
    bench.apply(finetune_job("patient"))
    bench.wait("patient", lambda job: condition(job, "DataReady") == "True")
    store_outage(60)
    states = []
    for job in bench.watch("finetunejob", "patient"):
        states.append(job["status"])
        if condition(job, "Finished") == "True":
            break
    assert any("gs://" in (s.get("waiting") or {}).get("message", "") for s in states), states[-1]
    bench.succeed("patient")


@pytest.mark.thorough
def test_the_third_of_three_jobs_waits_for_a_node_says_why_and_runs(bench: UserClient) -> None:
    names = ["first", "second", "third"]
    for name in names:
        bench.apply(
            finetune_job(name, hyperparameters={"steps": 200, "globalBatchSize": 8, "learningRate": 1e-3})
        )
    waited: dict[str, str] = {}
    unfinished = set(names)
    for job in bench.watch("finetunejob"):
        name = job["metadata"]["name"]
        waiting = job.get("status", {}).get("waiting") or {}
        if waiting.get("reason") == "WaitingForCapacity":
            waited[name] = waiting["message"]
        if condition(job, "Finished") == "True":
            unfinished.discard(name)
        if not unfinished:
            break
    for name in names:
        bench.succeed(name)
    assert any("google.com/tpu" in text or "nodes" in text for text in waited.values()), waited


@pytest.mark.thorough
def test_a_chain_without_the_warm_server_succeeds(cold_bench: UserClient) -> None:
    cold_bench.apply(finetune_job("cold", lora=True))
    cold_bench.succeed("cold", patience=600)
