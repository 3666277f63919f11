"""Metrics of the fleet: what is counted, that labels are bounded, and that the reference names every metric."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from finetune_operator.ledger.month import MonthlyBudget
from finetune_operator.reconcile.keys import Key
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from finetune_operator.runtime.event_handlers import EventHandlers
from finetune_operator.runtime.metrics import OperatorMetrics
from finetune_operator.runtime.prerequisites import watches
from finetune_operator.runtime.queue import WorkQueue
from tests.unit.runtime.objects import ended, job

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference" / "metrics.md"
HEAD = """<!-- Written by tests/unit/runtime/test_job_metrics.py with UPDATE_SNAPSHOTS=1. Do not edit. -->

# Metrics

Served at `:9090/metrics`. A counter counts from 0 in each process. [observability.md](../observability.md) says which
to alert on.

| metric | type | labels | meaning |
|---|---|---|---|
"""


def version(number: int, name: str = "demo", **status: Any) -> dict[str, Any]:
    """A job as the watch delivers it."""
    made = job(name, profile="small")
    made["metadata"] |= {"resourceVersion": str(number), "creationTimestamp": "2026-11-21T12:00:00Z"}
    made["status"] |= status
    return made


@pytest.fixture
def metrics() -> OperatorMetrics:
    return OperatorMetrics()


@pytest.fixture
def intake(metrics: OperatorMetrics) -> EventHandlers:
    return EventHandlers(lambda _key, _after: None, metrics)


def samples(metrics: OperatorMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Values other than 0 by the values of the labels, in the order of their names."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.value
    }


RUNNING = {
    "phase": "Running",
    "stage": "Train",
    "resolved": {"profile": {"name": "small"}, "resources": {"capacity": "Spot", "chips": 16}},
}


def test_jobs_are_counted_by_phase_and_reason(metrics: OperatorMetrics, intake: EventHandlers) -> None:
    intake.job("ADDED", version(1, "a", phase="Running"))
    intake.job("ADDED", version(1, "b", phase="Running"))
    intake.job("ADDED", version(1, "c", phase="Queued", waiting={"reason": "WaitingForQuota"}))
    intake.job("ADDED", version(1, "d"))
    assert samples(metrics, "finetune_jobs") == {
        ("team", "Running", "small", ""): 2,
        ("team", "Queued", "small", "WaitingForQuota"): 1,
        ("team", "Pending", "small", ""): 1,
    }
    intake.job("MODIFIED", version(2, "a", phase="Succeeded"))
    intake.job("DELETED", version(2, "b", phase="Running"))
    assert samples(metrics, "finetune_jobs")["team", "Succeeded", "small", ""] == 1
    assert ("team", "Running", "small", "") not in samples(metrics, "finetune_jobs")


def test_chips_are_held_while_all_pods_of_a_stage_on_tpu_run(
    metrics: OperatorMetrics, intake: EventHandlers
) -> None:
    intake.job("ADDED", version(1, "a", **RUNNING))
    intake.job("ADDED", version(1, "b", **RUNNING))
    intake.job("ADDED", version(1, "c", **{**RUNNING, "stage": "Export"}))
    intake.job("ADDED", version(1, "d", **{**RUNNING, "phase": "Provisioning"}))
    assert samples(metrics, "finetune_chips_held") == {("Spot", "team", "small"): 32}


@pytest.mark.parametrize(
    ("phase", "condition", "name", "counts"),
    [
        ("Provisioning", {"type": "Stalled", "status": "True"}, "finetune_jobs_stalled", 1),
        ("Failed", {"type": "Stalled", "status": "True"}, "finetune_jobs_stalled", 0),
        ("Pending", {"type": "Stalled", "status": "True"}, "finetune_jobs_invalid", 0),
        (
            "Running",
            {"type": "RunFolderReadable", "status": "Unknown", "reason": "StoreUnavailable"},
            "finetune_jobs_blind",
            1,
        ),
        (
            "Validating",
            {"type": "RunFolderReadable", "status": "Unknown", "reason": "NotStarted"},
            "finetune_jobs_blind",
            0,
        ),
        ("Running", {"type": "RunFolderReadable", "status": "True"}, "finetune_jobs_blind", 0),
        (
            "Running",
            {"type": "RunFolderReadable", "status": "False", "reason": "RecordMalformed"},
            "finetune_jobs_blind",
            0,
        ),
    ],
)
def test_stalled_and_blind_jobs(
    metrics: OperatorMetrics, intake: EventHandlers, phase: str, condition: Any, name: str, counts: int
) -> None:
    intake.job("ADDED", version(1, phase=phase, conditions=[condition]))
    assert sum(samples(metrics, name).values()) == counts


@pytest.mark.parametrize(
    ("labels", "reason", "stalled", "invalid"),
    [
        ({}, "ExceedsMaxQuota", {("team", "small", "ExceedsMaxQuota"): 1}, 0),
        ({"kueue.x-k8s.io/queue-name": "mine"}, "ExceedsMaxQuota", {}, 1),
        ({"kueue.x-k8s.io/queue-name": "mine"}, "KueueNotInstalled", {("team", "small", "KueueNotInstalled"): 1}, 0),
        ({}, "ATenantsWord", {("team", "small", "Other"): 1}, 0),
    ],
)  # fmt: skip
def test_a_job_whose_queue_admits_none_is_its_authors_if_its_own_label_names_the_queue(
    metrics: OperatorMetrics,
    intake: EventHandlers,
    labels: Any,
    reason: str,
    stalled: Any,
    invalid: int,
) -> None:
    made = version(1, phase="Queued", conditions=[{"type": "Stalled", "status": "True", "reason": reason}])
    made["metadata"]["labels"] = labels
    intake.job("ADDED", made)
    assert samples(metrics, "finetune_jobs_stalled") == stalled
    assert sum(samples(metrics, "finetune_jobs_invalid").values()) == invalid


@pytest.mark.parametrize(("reason", "stalled", "invalid"), [("NoFlavorFits", 0, 1), ("ProfileInvalid", 1, 0)])
def test_a_refused_job_is_its_authors_unless_the_profile_is_invalid(
    metrics: OperatorMetrics, intake: EventHandlers, reason: str, stalled: int, invalid: int
) -> None:
    refused = {"type": "Valid", "status": "False", "reason": reason}
    intake.job("ADDED", version(1, conditions=[refused, {"type": "Stalled", "status": "True"}]))
    assert sum(samples(metrics, "finetune_jobs_stalled").values()) == stalled
    assert sum(samples(metrics, "finetune_jobs_invalid").values()) == invalid


def test_values_that_the_api_does_not_define_are_no_labels(
    metrics: OperatorMetrics, intake: EventHandlers
) -> None:
    for number in range(50):
        waiting = {"reason": f"Reason{number}"}
        intake.job("ADDED", version(1, f"j{number}", phase=f"Phase{number}", waiting=waiting))
    assert samples(metrics, "finetune_jobs") == {("team", "Pending", "small", ""): 50}


async def test_counters_of_a_namespace_begin_at_zero_when_its_first_job_is_seen(
    metrics: OperatorMetrics, intake: EventHandlers
) -> None:
    intake.job("ADDED", version(1))
    text = (await metrics.render()).decode()
    labels = 'class="Platform",namespace="team",profile="small"'
    assert f"finetune_attempts_ended_total{{{labels}}} 0.0" in text
    assert f'finetune_jobs_ended_total{{cause="",{labels},result="Failed"}} 0.0' in text
    assert 'finetune_stage_seconds_count{profile="small",result="Failed",stage="Train"} 0.0' in text
    assert 'finetune_training_queue_seconds_count{capacity="",profile="small"} 0.0' in text
    intake.job("MODIFIED", version(2, **RUNNING))
    queue = 'finetune_training_queue_seconds_count{capacity="Spot",profile="small"} 0.0'
    assert queue in (await metrics.render()).decode()


def test_jobs_whose_last_reconcile_failed_are_counted_by_its_reason(metrics: OperatorMetrics) -> None:
    for key, reason in (("a", "TooSlow"), ("b", "TooSlow"), ("a", "InternalError"), ("b", None), ("c", None)):
        metrics.reconciled(key, 0.1, reason)
    assert samples(metrics, "finetune_reconcile_failing") == {("InternalError",): 1}
    metrics.reconciled("a", 0.1, None)
    assert samples(metrics, "finetune_reconcile_failing") == {}


class Ledger:
    pending = 0


class Notifications:
    pending = 0


class Budgets:
    unreadable = 0

    def totals(self) -> list[Any]:
        return []

    def limit(self, _profile: str) -> MonthlyBudget | None:
        return None


@pytest.fixture
def leader(metrics: OperatorMetrics) -> OperatorMetrics:
    """Every metric that a process has."""
    cache = WatchCache(watches([], kueue=True))
    budgets: Any = Budgets()
    ledger: Any = Ledger()
    notifications: Any = Notifications()
    metrics.leads(
        queue=WorkQueue[Key](),
        cache=cache,
        served=ServedNamespaces(),
        leading=lambda: True,
        ledger=ledger,
        budgets=budgets,
        notifications=notifications,
    )
    return metrics


def reference(metrics: OperatorMetrics) -> str:
    labels: dict[str, tuple[str, ...]] = {
        name: tuple(collector._labelnames)
        for name, collector in metrics.registry._names_to_collectors.items()
        if hasattr(collector, "_labelnames")
    }
    rows = []
    for family in sorted(metrics.registry.collect(), key=lambda each: each.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        names = labels.get(name) or getattr(family, "_labelnames", ())
        rows.append(
            f"| `{name}` | {family.type} | {', '.join(f'`{each}`' for each in names)} | {family.documentation} |"
        )
    return HEAD + "\n".join(rows) + "\n"


async def test_series_end_for_one_namespace_with_each_rendering() -> None:
    """The end of one reads all series, which takes seconds for hundreds of namespaces that are deleted together."""
    now = 0.0
    metrics = OperatorMetrics(clock=lambda: now)
    intake = EventHandlers(lambda _key, _after: None, metrics)
    for name in ("a", "b", "c"):
        made = version(1, name)
        made["metadata"]["namespace"] = f"team-{name}"
        intake.job("ADDED", made)
        intake.job("DELETED", made)
    await metrics.render()
    now = 25 * 3600
    remaining = []
    for _ in range(4):
        text = (await metrics.render()).decode()
        remaining.append(sum(f'namespace="team-{name}"' in text for name in ("a", "b", "c")))
    assert remaining == [3, 2, 1, 0]


def test_the_reference_is_that_of_the_registry(leader: OperatorMetrics) -> None:
    text = reference(leader)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        REFERENCE.write_text(text)
    assert REFERENCE.read_text() == text, "run this test with UPDATE_SNAPSHOTS=1"


def test_metrics_follow_the_conventions_of_prometheus(leader: OperatorMetrics, intake: EventHandlers) -> None:
    intake.job("ADDED", version(1, **RUNNING))
    ended(leader)
    leader.requested("get", "pods", 200, 0.1)
    leader.reconciled("a", 0.1, "TooSlow")
    text = asyncio.run(leader.render())
    assert list(text_string_to_metric_families(text.decode()))
    assert b"_created" not in text
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("the names of metrics are not checked: promtool is missing (apt-get install prometheus)")
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
