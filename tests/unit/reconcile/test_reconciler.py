"""Errors are reported in the status, and each stage gets one JobSet even if any call fails or crashes the operator."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_contract import Failure, Stage
from finetune_operator.api import Condition, ConditionStatus, ConditionType, FineTuneJobStatus, Phase
from finetune_operator.api.status_stages import ActiveTime, AttemptsStatus, CostStatus
from finetune_operator.api.timestamps import stamp
from finetune_operator.artifacts.port import NAMES_LIMIT, StorageDenied
from finetune_operator.artifacts.tenant_shares import share_of
from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    JOBSETS,
    PODS,
    AlreadyExists,
    ClusterError,
    Conflict,
    NotFound,
    Rejected,
    ResponseTooLarge,
    Unavailable,
)
from finetune_operator.lifecycle.attempts.pending_records import pending_records
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.decision import (
    Admit,
    Create,
    Decision,
    Delete,
    Deletion,
    EventType,
    Finish,
    JobEvent,
    Wait,
)
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.children import ManyChildren
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.nodes import ListedNodes
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import ReconcileError, Reconciler
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.watch_cache import WatchCache
from tests.unit.reconcile.fakes import NOW, OWN, Crash, FakeCluster, FakeStore, child, job, plan

KEY = JobKey("team", "demo")
RUNNING = FineTuneJobStatus(observed_generation=1, phase=Phase.RUNNING)


def make(
    cluster: FakeCluster,
    decide: Callable[[Observation], Decision],
    store: FakeStore | None = None,
    *,
    crowded: bool = False,
    postpone: Callable[[JobKey], bool] = lambda _: True,
) -> Reconciler:
    store = store or FakeStore()

    return Reconciler(
        Observer(
            cluster,
            Plans(cluster, OWN),
            RunFolderReader(store),
            WatchCache(),
            utc_now=lambda: NOW,
            live_jobs=lambda: 3,
        ),
        decide,
        Applier(cluster, Plans(cluster, OWN), store, WatchCache()),
        utc_now=lambda: NOW,
        crowded=lambda _: crowded,
        postpone=postpone,
    )


class LargeJobs(Observer):
    """Observes jobs that do not exist any more, and that have children which take much memory."""

    def __init__(self) -> None:
        self.observed: list[JobKey] = []
        self.ended = asyncio.Event()

    async def observe(self, key: JobKey, *, large: bool = False, earlier: ListedNodes | None = None) -> None:
        if not large:
            raise ManyChildren("pods take more than 1 MiB")
        self.observed.append(key)
        await self.ended.wait()


async def test_of_jobs_with_many_children_a_few_are_observed_at_once_and_one_of_a_namespace() -> None:
    jobs, cluster = LargeJobs(), FakeCluster()
    applier = Applier(cluster, Plans(cluster, OWN), FakeStore(), WatchCache())
    reconciler = Reconciler(jobs, lambda _: pytest.fail("nothing is decided"), applier, utc_now=lambda: NOW)
    keys = [JobKey(namespace, name) for namespace in "abcd" for name in ("one", "other")]
    reconciles = [asyncio.ensure_future(reconciler.reconcile(key, retry_in=0)) for key in keys]
    for _ in range(20):
        await asyncio.sleep(0)
    assert jobs.observed == [JobKey(namespace, "one") for namespace in "abc"]
    jobs.ended.set()
    await asyncio.gather(*reconciles)
    assert sorted(jobs.observed) == keys


def condition(cluster: FakeCluster) -> dict[str, Any]:
    conditions = cluster.of(JOBS)[0]["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == "Reconciling"), {})


@pytest.fixture
def cluster() -> FakeCluster:
    """Returns a cluster with an admitted job."""
    made = FakeCluster()
    made.put(JOBS, job())
    made.put(CONFIG_MAPS, plan())
    return made


async def test_a_job_that_is_gone_needs_no_further_look() -> None:
    assert await make(FakeCluster(), lambda _: pytest.fail("decided")).reconcile(KEY, retry_in=1) is None


async def test_the_decision_says_when_to_look_again(cluster: FakeCluster) -> None:
    reconciler = make(cluster, lambda _: Decision(action=Wait(), status=RUNNING, requeue_after=15))
    assert await reconciler.reconcile(KEY, retry_in=1) == 15


@pytest.mark.parametrize(
    "action",
    [Wait(), Delete(jobsets=(Deletion(name="demo-prep-1", uid="uid-demo-prep-1"),), status_first=True)],
    ids=["wait", "delete"],
)
async def test_a_job_deleted_before_its_status_is_written_is_no_internal_error(
    cluster: FakeCluster, action: Wait | Delete
) -> None:
    def decide(_: Observation) -> Decision:
        cluster.objects.clear()
        return Decision(action=action, status=RUNNING)

    with pytest.raises(ReconcileError, match="deleted") as caught:
        await make(cluster, decide).reconcile(KEY, retry_in=30)
    assert caught.value.reason == "ChangedMeanwhile"
    assert await make(cluster, decide).reconcile(KEY, retry_in=30) is None


@pytest.mark.parametrize(
    ("error", "reason", "says"),
    [
        (Rejected("webhook denied it", status=422), "RefusedByAPIServer", "webhook denied it. Fix"),
        (ResponseTooLarge("pods: more than 64 MiB"), "TooManyObjects", "pods: more than 64 MiB. Retried"),
        (Unavailable("503 etcd is away", status=503), "APIServerUnavailable", "503 etcd is away"),
        (
            NotFound("404 the server could not find the requested resource"),
            "RefusedByAPIServer",
            "404 the server",
        ),
        (
            Unavailable(
                'POST /jobsets: 500 Internal error occurred: failed calling webhook "w": failed to call webhook: '
                'Post "https://jobset-webhook-service.jobset-system.svc:443/m?timeout=10s": refused',
                status=500,
            ),
            "WebhookUnavailable",
            "POST /jobsets: the API server works, but cannot call JobSet's webhook",
        ),
        (StorageDenied("gs://b/x", "no role"), "StoragePermissionDenied", "gs://b/x: no role"),
        (ValueError("secret detail"), "InternalError", "internal error of the operator (ValueError)"),
    ],
)
async def test_an_error_is_in_the_status_with_what_to_do_and_when(
    cluster: FakeCluster, error: Exception, reason: str, says: str
) -> None:
    cluster.fault = lambda moment, call: error if (moment, call) == ("before", "create jobsets") else None
    decision = Decision(status=RUNNING, action=Create(jobset=child("JobSet", "demo-prep-1")))
    with pytest.raises(ReconcileError) as caught:
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=30)
    assert caught.value.reason == reason
    shown = condition(cluster)
    assert (shown["type"], shown["status"], shown["reason"]) == ("Reconciling", "True", reason)
    assert says in shown["message"]
    assert shown["message"].endswith("Retried every minute.")
    assert "secret" not in shown["message"]
    assert cluster.of(JOBS)[0]["status"]["summary"] == shown["message"]


def valid(status: ConditionStatus) -> Condition:
    return Condition(
        type=ConditionType.VALID,
        status=status,
        observed_generation=1,
        last_transition_time=NOW,
        reason="Accepted" if status is ConditionStatus.TRUE else "PolicyViolation",
        message="checked",
    )


def condition_of(cluster: FakeCluster, kind: ConditionType) -> tuple[str, str]:
    conditions = cluster.of(JOBS)[0]["status"]["conditions"]
    (found,) = (each for each in conditions if each["type"] == kind)
    return found["status"], found["reason"]


async def refuse(cluster: FakeCluster, decision: Decision, call: str = "create jobsets") -> dict[str, Any]:
    """Returns the job's status after the API server has refused the call."""
    cluster.fault = lambda _, request: Rejected("no", status=403) if request == call else None
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    status: dict[str, Any] = cluster.of(JOBS)[0]["status"]
    return status


async def test_a_refused_jobset_leaves_what_was_decided_of_the_job_and_no_attempt(
    cluster: FakeCluster,
) -> None:
    decided = FineTuneJobStatus(
        observed_generation=1,
        phase=Phase.PROVISIONING,
        stage=Stage.TRAIN,
        conditions=(valid(ConditionStatus.TRUE),),
        attempts=AttemptsStatus(total=1),
    )
    create = Create(jobset=child("JobSet", "demo-train-1"))
    status = await refuse(cluster, Decision(status=decided, action=create))
    assert (status["phase"], status["stage"], status["observedGeneration"]) == ("Provisioning", "Train", 1)
    assert condition_of(cluster, ConditionType.VALID) == ("True", "Accepted")
    assert condition_of(cluster, ConditionType.RUNNING) == ("Unknown", "NotStarted")
    # The attempt does not exist, and the Event of an end would be lost.
    assert "attempts" not in status


async def test_a_refusal_that_was_not_reported_is_not_in_the_status(cluster: FakeCluster) -> None:
    """Its Event is derived from the difference of two statuses."""
    decided = RUNNING.model_copy(update={"conditions": (valid(ConditionStatus.FALSE),)})
    jobset = cluster.put(JOBSETS, child("JobSet", "demo-train-1"))
    leftover = Deletion(name="demo-train-1", uid=jobset["metadata"]["uid"])
    await refuse(cluster, Decision(status=decided, action=Delete(jobsets=(leftover,))), "delete jobsets")
    assert condition_of(cluster, ConditionType.VALID) == ("Unknown", "NotStarted")


STARTED = JobEvent(type=EventType.NORMAL, reason="PreflightStarted", message="Preflight is starting.")
UNREACHABLE = {
    "type": "Reconciling",
    "status": "True",
    "observedGeneration": 1,
    "reason": "APIServerUnavailable",
    "message": "no answer",
    "lastTransitionTime": "2026-11-27T12:00:00Z",
}
FIRST = Decision(
    status=RUNNING,
    action=Create(jobset=child("JobSet", "demo-prep-1")),
    events=(STARTED,),
    requeue_after=5,
)


ADMITTED = Decision(status=FineTuneJobStatus(observed_generation=-1), action=Admit(write=plan()))


def start(observation: Observation) -> Decision:
    """Admits the job and creates its first JobSet."""
    if observation.stored is None:
        return ADMITTED
    if observation.report_later:
        return Decision(status=observation.status, action=FIRST.action, reported=False)
    return replace(FIRST, action=Wait()) if observation.jobsets else FIRST


@pytest.fixture
def unplanned() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    return cluster


async def test_a_first_jobset_is_reported_when_the_other_jobs_of_the_namespace_have_theirs(
    unplanned: FakeCluster,
) -> None:
    cluster, store, postponed = unplanned, FakeStore(), list[JobKey]()

    def postpone(key: JobKey) -> bool:
        postponed.append(key)
        return True

    reconciler = make(cluster, start, store, crowded=True, postpone=postpone)
    assert await reconciler.reconcile(KEY, retry_in=1) is None
    assert postponed == [KEY]
    assert cluster.of(JOBSETS)
    assert cluster.of(JOBS)[0]["status"] == {"observedGeneration": -1}
    assert (cluster.of(EVENTS), store.files) == ([], {})
    await reconciler.reconcile(KEY, retry_in=1)
    assert cluster.of(JOBS)[0]["status"] == RUNNING.to_document()
    assert [event["reason"] for event in cluster.of(EVENTS)] == [STARTED.reason]
    assert [uri.rpartition("/")[2] for uri in store.files] == ["jobset.json"]
    assert postponed == [KEY]


@pytest.mark.parametrize(
    ("seconds", "busy", "answered", "lists"),
    [(5, True, 3, 0), (5, False, 3, 1), (90, True, 3, 1), (5, True, None, 1), (5, True, 4.5, 1)],
    ids=["new", "at low load", "of a restored etcd", "no answer of the store", "none since the creation"],
)
async def test_the_run_folder_of_a_new_job_is_not_read_in_a_burst(
    unplanned: FakeCluster, seconds: int, busy: bool, answered: float | None, lists: int
) -> None:
    unplanned.of(JOBS)[0]["metadata"]["creationTimestamp"] = stamp(NOW)
    stored, store = plan(), FakeStore()
    stored["metadata"]["creationTimestamp"] = stamp(NOW + timedelta(seconds=seconds))
    store.answer_age = answered

    def decide(observation: Observation) -> Decision:
        admitted = replace(ADMITTED, action=Admit(write=stored))
        return start(observation) if observation.stored else admitted

    await make(unplanned, decide, store, crowded=busy).reconcile(KEY, retry_in=1)
    assert [call.partition(" ")[0] for call in store.calls].count("list") == lists


async def test_a_status_in_a_burst_says_what_is_in_the_run_folder(unplanned: FakeCluster) -> None:
    unplanned.of(JOBS)[0]["metadata"]["creationTimestamp"] = stamp(NOW)
    stored, store = plan(), FakeStore()
    stored["metadata"]["creationTimestamp"] = stamp(NOW + timedelta(seconds=5))
    store.answer_age = 3
    suspended = Decision(status=RUNNING, action=Wait())

    def decide(observation: Observation) -> Decision:
        return suspended if observation.stored else replace(ADMITTED, action=Admit(write=stored))

    await make(unplanned, decide, store, crowded=True).reconcile(KEY, retry_in=1)
    assert [call.partition(" ")[0] for call in store.calls].count("list") == 1


async def test_a_report_for_which_no_other_job_waits_any_more_follows_at_once(unplanned: FakeCluster) -> None:
    reconciler = make(unplanned, start, crowded=True, postpone=lambda _: False)
    assert await reconciler.reconcile(KEY, retry_in=1) == 0.0
    await reconciler.reconcile(KEY, retry_in=1)
    assert unplanned.of(JOBS)[0]["status"] == RUNNING.to_document()


async def test_a_job_deleted_before_its_postponed_status_leaves_no_plan(unplanned: FakeCluster) -> None:
    cluster = unplanned
    reconciler = make(cluster, start, crowded=True)
    await reconciler.reconcile(KEY, retry_in=1)
    assert cluster.of(CONFIG_MAPS)
    del cluster.objects[JOBS, KEY.namespace, KEY.name]
    assert await reconciler.reconcile(KEY, retry_in=1) is None
    assert cluster.of(CONFIG_MAPS) == []


async def test_the_first_status_is_written_at_once_if_no_other_job_waits(unplanned: FakeCluster) -> None:
    assert await make(unplanned, start).reconcile(KEY, retry_in=1) == 5
    assert unplanned.of(JOBS)[0]["status"] == RUNNING.to_document()
    assert len(unplanned.of(EVENTS)) == 1


async def test_a_first_jobset_that_is_refused_is_reported_at_once(unplanned: FakeCluster) -> None:
    unplanned.fault = lambda _, request: Rejected("no", status=403) if request == "create jobsets" else None
    with pytest.raises(ReconcileError):
        await make(unplanned, start, crowded=True).reconcile(KEY, retry_in=1)
    status = unplanned.of(JOBS)[0]["status"]
    assert status["summary"].startswith("no.")
    assert (status["phase"], status["observedGeneration"]) == ("Running", 1)


async def test_what_admission_remarks_is_an_event_although_the_first_jobset_follows_at_once(
    unplanned: FakeCluster,
) -> None:
    remark = JobEvent(
        type=EventType.WARNING, reason="QuotaTooSmall", message="The largest slice has no room."
    )
    admitted = replace(ADMITTED, events=(remark,))
    reconciler = make(
        unplanned,
        lambda observed: start(observed) if observed.stored else admitted,
        crowded=True,
    )
    await reconciler.reconcile(KEY, retry_in=1)
    assert unplanned.of(JOBSETS)
    assert [event["reason"] for event in unplanned.of(EVENTS)] == [remark.reason]


async def test_a_job_whose_plan_is_refused_is_valid_and_observed() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    decision = Decision(status=FineTuneJobStatus(observed_generation=-1), action=Admit(write=plan()))
    status = await refuse(cluster, decision, "create configmaps")
    assert (status["phase"], status["observedGeneration"]) == ("Validating", 1)
    assert condition_of(cluster, ConditionType.VALID) == ("True", "Accepted")


async def test_a_job_whose_end_could_not_be_written_has_not_ended(cluster: FakeCluster) -> None:
    """``finetune wait`` judges by phase and generation."""
    cluster.of(JOBS)[0]["status"] = {"observedGeneration": 1, "phase": "Running"}
    jobset = cluster.put(JOBSETS, child("JobSet", "demo-train-1"))
    obsolete = Deletion(name="demo-train-1", uid=jobset["metadata"]["uid"])
    decided = FineTuneJobStatus(observed_generation=1, phase=Phase.SUCCEEDED)
    decision = Decision(status=decided, action=Finish(ends_now=True), obsolete=(obsolete,))
    assert (await refuse(cluster, decision, "delete jobsets"))["phase"] == "Running"


async def test_usage_is_reported_although_the_run_folder_cannot_be_written(cluster: FakeCluster) -> None:
    store = FakeStore()
    store.fault = lambda moment, call: StorageDenied("gs://b/x", "held") if call.startswith("write") else None
    used = CostStatus(chip_hours="2.5")
    time = ActiveTime(seconds=60, as_of=NOW)
    record = (AttemptKey(Stage.TRAIN, 1), Failure(code=75, reason="Suspended", message="Stopped."))
    decision = Decision(
        status=RUNNING.model_copy(update={"cost": used, "active_time": time}), action=Wait(records=(record,))
    )
    cluster.put(CONFIG_MAPS, plan())
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: decision, store).reconcile(KEY, retry_in=30)
    status = cluster.of(JOBS)[0]["status"]
    assert (status["cost"]["chipHours"], status["activeTime"]["seconds"]) == ("2.5", 60)
    assert condition(cluster)["reason"] == "StoragePermissionDenied"


async def test_what_waits_to_be_written_stays_in_the_status_beside_the_error(cluster: FakeCluster) -> None:
    jobset, store = cluster.put(JOBSETS, child("JobSet", "demo-train-1")), FakeStore()
    record = (AttemptKey(Stage.TRAIN, 1), Failure(code=75, reason="Suspended", message="Stopped."))
    decision = Decision(
        status=RUNNING,
        action=Delete(
            jobsets=(Deletion(name="demo-train-1", uid=jobset["metadata"]["uid"]),), records=(record,)
        ),
    )
    cluster.put(CONFIG_MAPS, plan())
    store.fault = lambda moment, call: (
        StorageDenied(call, "403") if moment == "before" and call.startswith("write") else None
    )
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: decision, store).reconcile(KEY, retry_in=1)
    assert cluster.of(JOBSETS) == []
    assert pending_records(read_status(cluster.of(JOBS)[0]["status"])) == (record,)
    assert condition(cluster)["reason"] == "StoragePermissionDenied"


@pytest.mark.parametrize("strikes", ["get finetunejobs", "patch finetunejobs/status"])
async def test_a_fault_while_an_error_is_reported_stays_with_the_job(
    cluster: FakeCluster, strikes: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(_moment: str, call: str) -> BaseException | None:
        return RuntimeError("odd") if call in (strikes, "create jobsets") else None

    cluster.fault = fault
    decision = Decision(status=RUNNING, action=Create(jobset=child("JobSet", "demo-prep-1")))
    with pytest.raises(ReconcileError) as caught:
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    assert caught.value.reason == "InternalError"
    assert "odd" in caplog.text


async def test_a_job_that_no_status_fits_stays_with_itself(cluster: FakeCluster) -> None:
    del cluster.of(JOBS)[0]["metadata"]["generation"]
    cluster.fault = lambda _, call: Rejected("no", status=403) if call == "create jobsets" else None
    decision = Decision(status=RUNNING, action=Create(jobset=child("JobSet", "demo-prep-1")))
    with pytest.raises(ReconcileError) as caught:
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    assert caught.value.reason == "RefusedByAPIServer"


async def test_the_wait_that_the_server_asks_for_is_passed_on_and_shown(cluster: FakeCluster) -> None:
    error = Unavailable("429 slow down", status=429, retry_after=200)
    cluster.fault = lambda moment, call: error if (moment, call) == ("before", "create jobsets") else None
    decision = Decision(status=RUNNING, action=Create(jobset=child("JobSet", "demo-prep-1")))
    with pytest.raises(ReconcileError) as caught:
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    assert caught.value.retry_after == 200
    assert condition(cluster)["message"].endswith("Retried every 5 minutes.")


async def test_the_store_is_asked_on_behalf_of_the_jobs_namespace(cluster: FakeCluster) -> None:
    cluster.put(CONFIG_MAPS, plan())
    asked: list[str] = []

    class Store(FakeStore):
        async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
            asked.append(share_of(uri).tenant)
            return await super().list(uri, limit=limit)

    await make(cluster, lambda _: Decision(action=Wait(), status=RUNNING), Store()).reconcile(KEY, retry_in=1)
    assert asked == ["team"]
    assert share_of("gs://b/x/y").tenant == "x", "afterwards the tenant is derived from the URI again"


async def test_the_next_good_reconcile_takes_the_error_away(cluster: FakeCluster) -> None:
    cluster.fault = lambda _, call: Rejected("no", status=403) if call == "create jobsets" else None
    decision = Decision(status=RUNNING, action=Create(jobset=child("JobSet", "demo-prep-1")))
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    cluster.fault = lambda *_: None
    await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    assert cluster.of(JOBS)[0]["status"] == RUNNING.to_document()


async def test_a_decision_on_many_children_keeps_no_other_job_waiting(cluster: FakeCluster) -> None:
    for number in range(500):
        cluster.put(PODS, child("Pod", f"demo-prep-1-cpu-0-0-{number}"))
    others_work = threading.Event()

    def decide(observation: Observation) -> Decision:
        assert len(observation.pods) == 500
        assert others_work.wait(60)
        return Decision(action=Wait(), status=RUNNING)

    reconciling = asyncio.ensure_future(make(cluster, decide).reconcile(KEY, retry_in=1))
    await asyncio.sleep(0.01)
    others_work.set()
    await reconciling
    assert cluster.of(JOBS)[0]["status"] == RUNNING.to_document()


async def test_the_same_error_again_writes_nothing(cluster: FakeCluster) -> None:
    cluster.fault = lambda _, call: Rejected("no", status=403) if call == "create jobsets" else None
    decision = Decision(status=RUNNING, action=Create(jobset=child("JobSet", "demo-prep-1")))
    for _ in range(3):
        with pytest.raises(ReconcileError):
            await make(cluster, lambda _: decision).reconcile(KEY, retry_in=20)
    assert cluster.writes().count("patch finetunejobs/status") == 1


async def test_an_error_before_the_look_was_complete_is_shown_too(cluster: FakeCluster) -> None:
    cluster.fault = lambda _, call: Rejected("pods is forbidden", status=403) if call == "list pods" else None
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: pytest.fail("decided")).reconcile(KEY, retry_in=1)
    assert "pods is forbidden" in condition(cluster)["message"]


async def test_a_conflict_is_shown_only_when_it_stays(cluster: FakeCluster) -> None:
    cluster.fault = lambda _, call: AlreadyExists("taken", status=409) if call == "create jobsets" else None
    decision = Decision(status=RUNNING, action=Create(jobset=child("JobSet", "demo-prep-1")))
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=0.5)
    assert condition(cluster) == {}
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=8)
    assert "does not belong to this job" in condition(cluster)["message"]


@pytest.mark.parametrize(
    "errors",
    [[Conflict("changed", status=409)] * 2, [Unavailable("down", status=503)]],
    ids=["edits", "down"],
)
async def test_no_error_is_shown_between_an_event_and_its_status(
    cluster: FakeCluster, errors: Sequence[ClusterError]
) -> None:
    """The Event's name depends on the status before the transition: with another one it would be created again."""
    faults = [*errors]
    cluster.fault = lambda _, call: faults.pop() if faults and call == "patch finetunejobs/status" else None
    event = JobEvent(type=EventType.NORMAL, reason="Checked", message="The data were checked.")
    decision = Decision(status=RUNNING, action=Wait(), events=(event,))
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=60)
    assert faults == []
    assert len(cluster.of(EVENTS)) == 1
    assert condition(cluster) == {}


async def test_an_error_at_the_very_first_look_leaves_no_condition_out(cluster: FakeCluster) -> None:
    cluster.fault = lambda _, call: Unavailable("down", status=503) if call == "list pods" else None
    with pytest.raises(ReconcileError):
        await make(cluster, lambda _: pytest.fail("decided")).reconcile(KEY, retry_in=1)
    status = cluster.of(JOBS)[0]["status"]
    assert [each["type"] for each in status["conditions"]] == list(ConditionType)
    assert status["observedGeneration"] == -1


async def test_an_error_about_a_job_that_has_ended_does_not_change_how_it_ended(cluster: FakeCluster) -> None:
    ended = {"observedGeneration": 1, "conditions": [{"type": "Finished", "status": "True"}]}
    cluster.put(JOBS, {**job(), "status": ended})
    cluster.put(JOBSETS, left := child("JobSet", "demo-train-1"))
    cluster.fault = lambda _, call: Rejected("no", status=403) if call == "delete jobsets" else None
    leftover = Deletion(name="demo-train-1", uid=left["metadata"].get("uid", ""))
    with pytest.raises(ReconcileError):
        await make(
            cluster, lambda _: Decision(status=read_status(ended), action=Delete(jobsets=(leftover,)))
        ).reconcile(KEY, retry_in=30)
    assert cluster.of(JOBS)[0]["status"] == ended


async def test_a_transition_is_reported_once_though_the_operator_dies_before_the_status_says_it(
    cluster: FakeCluster,
) -> None:
    """The operator crashes once between the Event and the status, and once after both."""
    notice = JobEvent(type=EventType.NORMAL, reason="Checked", message="read", since="2026-11-21T12:00:00Z")
    decision = Decision(action=Wait(), status=RUNNING, events=(notice,))
    for moment in ("before", "after"):
        cluster.fault = lambda when, call, moment=moment: (  # type: ignore[misc]
            Crash() if (when, call) == (moment, "patch finetunejobs/status") else None
        )
        with pytest.raises(Crash):
            await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    assert len(cluster.of(EVENTS)) == 1


# --- crash anywhere -----------------------------------------------------------------------------------------

STAGES = ("prep", "conv", "train", "eval", "export")


def _status(phase: Phase, *, made: int) -> FineTuneJobStatus:
    return FineTuneJobStatus(observed_generation=1, phase=phase, attempts=AttemptsStatus(total=made))


def chain(observation: Observation) -> Decision:
    """A stub of ``decide`` that creates one JobSet after another and regards each as finished once it exists."""
    have = {jobset.name for jobset in observation.jobsets}
    wanted = next((f"demo-{stage}-1" for stage in STAGES if f"demo-{stage}-1" not in have), None)
    if observation.stored is None:
        return Decision(status=observation.status, action=Admit(write=plan()), requeue_after=0)
    return Decision(
        status=_status(Phase.RUNNING if wanted else Phase.SUCCEEDED, made=len(have)),
        action=Create(jobset=child("JobSet", wanted)) if wanted else Finish(),
        events=(JobEvent(type=EventType.NORMAL, reason="Moved", message=str(len(have))),),
        requeue_after=0 if wanted else None,
    )


async def test_a_job_whose_plan_is_damaged_is_still_stopped(cluster: FakeCluster) -> None:
    damaged = plan()
    damaged["data"]["spec.json"] = "{}"
    cluster.put(CONFIG_MAPS, damaged)
    cluster.put(JOBSETS, child("JobSet", "demo-prep-1"))
    stopped = job()
    stopped["spec"]["suspend"] = True
    cluster.put(JOBS, stopped)
    store = FakeStore()
    await make(cluster, decide, store).reconcile(KEY, retry_in=1)
    assert cluster.of(JOBSETS) == []
    assert store.calls == []
    status = cluster.objects[JOBS, "team", "demo"]["status"]
    (valid,) = (each for each in status["conditions"] if each["type"] == "Valid")
    assert "do not match its digest" in valid["message"]


async def test_a_job_is_admitted_and_its_first_jobset_created_in_one_pass(cluster: FakeCluster) -> None:
    not_admitted(cluster)
    calls = record_calls(cluster)
    await make(cluster, chain).reconcile(KEY, retry_in=1)
    assert sorted(calls[:6]) == [
        "get configmaps",
        "get finetunejobs",
        "list finetuneprofiles",
        "list jobsets",
        "list pods",
        "list resourcequotas",
    ]
    assert calls[6:] == [
        "create configmaps",
        "create jobsets",
        "create events",
        "patch finetunejobs/status",
    ]
    assert [each["metadata"]["name"] for each in cluster.of(JOBSETS)] == ["demo-prep-1"]


@pytest.mark.parametrize("kind", ["JobSet", "Pod"])
async def test_a_job_that_has_lost_its_plan_is_observed_again_before_anything_is_created(
    cluster: FakeCluster, kind: str
) -> None:
    not_admitted(cluster)
    name = {"JobSet": "demo-train-1", "Pod": "demo-train-1-cpu-0-0-abcde"}[kind]
    cluster.put({"JobSet": JOBSETS, "Pod": PODS}[kind], child(kind, name))
    calls = record_calls(cluster)
    assert await make(cluster, chain).reconcile(KEY, retry_in=1) == 0
    assert "create configmaps" in calls
    assert "create jobsets" not in calls


def not_admitted(cluster: FakeCluster) -> None:
    """Removes the job's plan."""
    for place in [place for place in cluster.objects if place[0] is CONFIG_MAPS]:
        del cluster.objects[place]


def record_calls(cluster: FakeCluster) -> list[str]:
    """Returns a list to which every call of the cluster is added."""
    calls: list[str] = []

    def fault(moment: str, call: str) -> None:
        if moment == "before":
            calls.append(call)

    cluster.fault = fault
    return calls


FAULTS: dict[str, Callable[[], BaseException | None]] = {
    "none": lambda: None,
    "crash": Crash,
    "unavailable": lambda: Unavailable("down", status=503),
    "conflict": lambda: Conflict("stale", status=409),
    "rejected": lambda: Rejected("no", status=422),
}


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    script=st.lists(
        st.tuples(st.sampled_from(["before", "after"]), st.sampled_from(sorted(FAULTS))), max_size=60
    )
)
async def test_whatever_fails_at_whatever_call_each_stage_is_made_once(script: list[tuple[str, str]]) -> None:
    cluster, store = FakeCluster(), FakeStore()
    cluster.put(JOBS, job())
    remaining = iter(script)

    def fault(moment: str, _call: str) -> BaseException | None:
        if moment == "before":
            fault.next = next(remaining, ("before", "none"))  # type: ignore[attr-defined]
        when, what = fault.next  # type: ignore[attr-defined]
        return FAULTS[what]() if when == moment else None

    cluster.fault = fault
    for _ in range(len(script) + 20):
        try:
            # Each reconcile has a new reconciler, because nothing may depend on memory.
            if await make(cluster, chain, store).reconcile(KEY, retry_in=1) is None:
                break
        except (Crash, ReconcileError):
            continue
    assert cluster.of(JOBS)[0]["status"] == _status(Phase.SUCCEEDED, made=len(STAGES)).to_document()
    assert [each["metadata"]["name"] for each in cluster.of(JOBSETS)] == [
        f"demo-{stage}-1" for stage in STAGES
    ]
    assert len(cluster.of(CONFIG_MAPS)) == 1


async def test_a_fault_that_the_decision_names_is_logged_and_counted_once_it_is_applied(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    suspended = FineTuneJobStatus(observed_generation=1, phase=Phase.SUSPENDED)
    decision = Decision(action=Wait(), status=suspended, fault=OverflowError("too large"))
    with pytest.raises(ReconcileError) as raised:
        await make(cluster, lambda _: decision).reconcile(KEY, retry_in=1)
    assert raised.value.reason == "InternalError"
    assert cluster.of(JOBS)[0]["status"]["phase"] == "Suspended"
    assert "OverflowError: too large" in caplog.text
