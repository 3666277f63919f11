"""The ledger of an operator on the real control plane: it outlives jobs, and finetune costs sums it."""

import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from finetune_contract import Stage
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.record import LedgerOutcome, LedgerRecord, TrainedSteps
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, job_path, phase
from tests.integration.test_cli import finetune


def records(cluster: LocalCluster, namespace: str) -> list[LedgerRecord]:
    found = [
        LedgerRecord.parse(path.read_bytes())
        for path in cluster.state.ledger.glob(f"v1/*/{namespace}/*/*.json")
    ]
    assert None not in found
    return [each for each in found if each is not None]


def trains(job: Any) -> bool:
    status = job.get("status", {})
    return (status.get("stage"), status.get("phase")) == ("Train", "Running")


def observed(generation: int, job: Any) -> bool:
    return bool(job["status"].get("observedGeneration") == generation)


def costs(cluster: LocalCluster, namespace: str, *arguments: str) -> Any:
    done = finetune(cluster, "costs", "-n", namespace, "-o", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_records_of_a_job_add_up_to_its_status_and_outlive_it(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    # Kubernetes' times are whole seconds, so a training must last for longer than one to cost anything.
    lasting = fake_trainer.install(runs / "billed", seconds=2, stages=[Stage.TRAIN])
    double.add_image(fake_trainer.IMAGE, lasting)
    path = job_path(namespace, "billed")
    double.apply(fake_trainer.job(namespace, "billed", PROFILE, resources={"tpu": "v6e-4"}))
    status = double.wait(path, phase("Succeeded", "Failed"), seconds=180)["status"]
    assert status["phase"] == "Succeeded", status["summary"]
    hours = Decimal(status["cost"]["chipHours"])
    assert hours > 0
    assert Decimal(status["ledger"]["chipHours"]) == hours
    assert "pending" not in status["ledger"]
    found = records(double, namespace)
    assert sorted(each.stage for each in found) == sorted(each["name"] for each in status["stages"])
    assert {each.outcome for each in found} == {LedgerOutcome.SUCCEEDED}
    assert sum(each.chip_hours for each in found) == hours
    ledger = double.state.ledger.as_uri()
    summed = costs(double, namespace, "--ledger", ledger)
    assert (summed["source"], summed["total"]["chipHours"]) == ("ledger", status["cost"]["chipHours"])
    # The operator of this cluster has no Deployment that names its ledger.
    assert costs(double, namespace)["source"] == "statuses"
    assert costs(double, namespace)["total"]["chipHours"] == status["cost"]["chipHours"]
    double.delete(path)
    double.wait_gone(path, seconds=10)
    assert costs(double, namespace, "--ledger", ledger)["total"] == summed["total"]
    assert costs(double, namespace)["total"]["jobs"] == 0


def test_of_a_job_that_is_deleted_while_it_trains_its_last_usage_is_recorded(
    double: LocalCluster, namespace: str, runs: Path
) -> None:
    slow = fake_trainer.install(runs / "deleted", seconds=3600, stages=[Stage.TRAIN], saves=True)
    double.add_image(fake_trainer.IMAGE, slow)
    path = job_path(namespace, "deleted")
    double.apply(fake_trainer.job(namespace, "deleted", PROFILE, resources={"tpu": "v6e-4"}))
    double.wait(path, lambda job: trains(job) or phase("Failed")(job), seconds=90)
    last: Any = {}
    for number in range(1, 50):
        # An edit has the status, and with it the usage, written anew. Less than a second of it counts as nothing.
        edited = double.patch(path, {"spec": {"childTTLSecondsAfterFinished": 86400 + number}})
        generation = edited["metadata"]["generation"]
        last = double.wait(path, partial(observed, generation), seconds=30)["status"]
        if Decimal((last.get("cost") or {}).get("chipHours", "0")):
            break
    double.delete(path)
    double.wait_gone(path, seconds=10)
    deadline = time.monotonic() + 30
    while not (train := [each for each in records(double, namespace) if each.stage is Stage.TRAIN]):
        assert time.monotonic() < deadline, "the deletion is not recorded"
        time.sleep(0.1)
    (found,) = train
    assert found.outcome is LedgerOutcome.DELETED
    everything = sum(each.chip_hours for each in records(double, namespace))
    assert everything >= Decimal((last.get("cost") or {}).get("chipHours", "0"))


def test_a_deletion_that_no_operator_observes_is_counted_at_the_next_start(
    double: LocalCluster, namespace: str
) -> None:
    path = job_path(namespace, "unseen")
    double.apply(fake_trainer.job(namespace, "unseen", PROFILE, planOnly=True))
    double.wait(path, phase("Planned", "Failed"), seconds=90)
    uid = double.get(path)["metadata"]["uid"]
    before = records(double, namespace)
    double.stop("operator")
    double.delete(path)
    double.wait_gone(path, seconds=10)
    double.start("operator")
    double.wait_gone(f"/api/v1/namespaces/finetune-system/configmaps/finetune-plan-{uid}")
    # It is counted after the API server has answered the deletion.
    counted = (double.metrics("finetune_ledger_deletions_missed_total") for _ in range(100))
    assert any(missed.value >= 1 for (missed,) in counted)
    assert records(double, namespace) == before
    assert [each.stage for each in before] == [Stage.PREFLIGHT]


def test_a_job_shows_what_past_trainings_of_its_namespace_took(double: LocalCluster, namespace: str) -> None:
    trained = TrainedSteps(
        start_step=0,
        end_step=100,
        attempts=1,
        seconds=500,
        method="SFT",
        lora=False,
        max_seq_length=64,
        global_batch_size=8,
    )
    past = LedgerRecord(
        day=datetime.now(UTC).date(), namespace=namespace, job="earlier", uid="earlier", stage=Stage.TRAIN, number=1,
        outcome=LedgerOutcome.SUCCEEDED, end=datetime.now(UTC), model="file:///models/tiny", tpu="v6e-8", chips=8,
        sequence=1, trained=trained,
    )  # fmt: skip
    file = Path(record_uri(str(double.state.ledger), past))
    file.parent.mkdir(parents=True)
    file.write_bytes(past.to_json())
    # The operator reads a namespace's trainings beside its decisions, from the namespace's first job on: the plans of
    # the first jobs may come before the reading ends.
    found = None
    for number in range(20):
        path = job_path(namespace, f"planned-{number}")
        resources, numbers = {"tpu": "v6e-8"}, {"globalBatchSize": 8}
        double.apply(
            fake_trainer.job(
                namespace,
                f"planned-{number}",
                PROFILE,
                planOnly=True,
                resources=resources,
                hyperparameters=numbers,
            )
        )
        planned = double.wait(path, phase("Planned"), seconds=60)
        found = planned["status"].get("estimate", {}).get("pastRuns")
        if found is not None:
            break
    assert found is not None
    total = 5 * fake_trainer.STEPS
    assert (found["attempts"], found["medianSeconds"]) == (1, total)
    assert found["durationSeconds"] == {"low": total, "high": total}
