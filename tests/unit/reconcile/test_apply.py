import asyncio
import json
from dataclasses import replace
from importlib.metadata import version

import pytest

from finetune_contract import CONTRACT_VERSION, Failure, Stage
from finetune_operator.api import FineTuneJobStatus, Phase, WaitingReason
from finetune_operator.api.status import WaitingStatus
from finetune_operator.artifacts.port import (
    StorageDenied,
    StorageError,
    StorageUnavailable,
)
from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    JOBSETS,
    ClusterError,
    Conflict,
    Rejected,
    Unavailable,
)
from finetune_operator.lifecycle.attempts.pending_records import Record, pending_records, with_pending
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
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
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation, RunFolderView, TakeoverRecord
from finetune_operator.lifecycle.run_record import RunRecord
from finetune_operator.objects import Object
from finetune_operator.planning import read_stored_plan
from finetune_operator.reconcile.apply import Applier, event_of
from finetune_operator.reconcile.errors import NameTaken
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.watch_cache import WatchCache
from tests.unit.reconcile.fakes import FOLDERS, NOW, OWN, FakeCluster, FakeStore, child, job, plan

NOTICE = JobEvent(type=EventType.NORMAL, reason="StageStarted", message="Train has started")
STATUS = FineTuneJobStatus(observed_generation=1, phase=Phase.RUNNING)


class Bench:
    """One job on a fake cluster, to which decisions are applied."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.store = FakeStore()
        self.created: list[Object] = []
        self.unwritten: list[Object] = []
        self.cluster.put(JOBS, job())
        self.applier = Applier(
            self.cluster,
            Plans(self.cluster, OWN),
            self.store,
            WatchCache(),
            created=self.created.append,
            unwritten=self.unwritten.append,
        )

    def observation(self) -> Observation:
        return Observation(
            now=NOW,
            job=Job.parse(self.cluster.objects[JOBS, "team", "demo"]),
            profiles=(),
            stored=read_stored_plan(plan()),
            jobsets=tuple(map(JobSet.parse, self.cluster.of(JOBSETS))),
            pods=(),
            folder=RunFolderView(),
        )

    async def apply(self, decision: Decision) -> None:
        await self.carry_out(self.observation(), decision)

    async def carry_out(self, observation: Observation, decision: Decision) -> None:
        decision = await self.applier.apply(observation, decision)
        await self.applier.announce(observation, decision)
        await self.applier.report(observation, decision)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_writes_go_out_in_the_stated_order(bench: Bench) -> None:
    old = bench.cluster.put(JOBSETS, child("JobSet", "demo-prep-1"))
    bench.store.calls = bench.cluster.calls
    lost = (AttemptKey(Stage.PREFLIGHT, 1), Failure(code=1, reason="PodLost", message="gone"))
    await bench.apply(
        Decision(
            status=STATUS,
            action=Create(jobset=child("JobSet", "demo-prep-2"), records=(lost,)),
            obsolete=(Deletion(name="demo-prep-1", uid=old["metadata"]["uid"]),),
            events=(NOTICE,),
        )
    )
    assert bench.cluster.calls == [
        f"write {FOLDERS.run.failure('prep', 1)}",
        "delete jobsets",
        "create jobsets",
        f"write {FOLDERS.run.jobset('prep', 2)}",
        "create events",
        "patch finetunejobs/status",
    ]
    assert json.loads(bench.store.files[FOLDERS.run.jobset("prep", 2)]) == child("JobSet", "demo-prep-2")
    assert bench.created == [bench.cluster.objects[JOBSETS, "team", "demo-prep-2"]]


async def test_a_status_that_does_not_differ_is_not_written(bench: Bench) -> None:
    await bench.apply(Decision(action=Wait(), status=STATUS))
    bench.cluster.calls.clear()
    await bench.apply(Decision(action=Wait(), status=STATUS))
    assert bench.cluster.calls == []


async def test_keys_that_the_new_status_lacks_are_gone(bench: Bench) -> None:
    waiting = WaitingStatus(reason=WaitingReason.RETRY, since=NOW, message="again")
    await bench.apply(Decision(action=Wait(), status=STATUS.model_copy(update={"waiting": waiting})))
    await bench.apply(Decision(action=Wait(), status=STATUS))
    assert bench.cluster.of(JOBS)[0]["status"] == STATUS.to_document()


async def test_a_status_is_written_beside_an_edit_of_the_job_and_not_over_another_status(
    bench: Bench,
) -> None:
    observation = bench.observation()
    bench.cluster.put(JOBS, {**job(), "spec": {"suspend": True}})
    await bench.carry_out(observation, Decision(action=Wait(), status=STATUS))
    (written,) = bench.cluster.of(JOBS)
    assert (written["spec"], written["status"]) == ({"suspend": True}, STATUS.to_document())
    bench.cluster.put(JOBS, job(phase="Failed"))
    with pytest.raises(Conflict):
        await bench.carry_out(observation, Decision(action=Wait(), status=STATUS))


async def test_a_jobset_whose_name_is_taken_is_a_stale_look(bench: Bench) -> None:
    decision = Decision(status=STATUS, action=Create(jobset=child("JobSet", "demo-prep-1")))
    await bench.apply(decision)
    with pytest.raises(Conflict):
        await bench.apply(decision)
    assert len(bench.created) == 1


async def test_a_jobset_name_that_a_foreign_object_holds_is_said_and_the_object_left_alone(
    bench: Bench,
) -> None:
    strange = {"apiVersion": "v1", "kind": "JobSet", "metadata": {"name": "demo-prep-1", "namespace": "team"}}
    bench.cluster.put(JOBSETS, strange)
    with pytest.raises(NameTaken, match=r'JobSet "demo-prep-1" in namespace "team" .* Delete or rename it'):
        await bench.apply(Decision(status=STATUS, action=Create(jobset=child("JobSet", "demo-prep-1"))))
    (found,) = bench.cluster.of(JOBSETS)
    assert "ownerReferences" not in found["metadata"]


async def test_a_snapshot_of_ours_that_appeared_meanwhile_wins(bench: Bench) -> None:
    bench.cluster.put(CONFIG_MAPS, plan())
    with pytest.raises(Conflict, match="admitted in the meantime"):
        await bench.apply(Decision(status=STATUS, action=Admit(write=plan())))


async def test_nothing_is_tried_after_a_write_that_failed(bench: Bench) -> None:
    bench.cluster.fault = lambda _moment, call: (
        Rejected("denied", status=422) if call == "create jobsets" else None
    )
    with pytest.raises(Rejected):
        await bench.apply(
            Decision(status=STATUS, action=Create(jobset=child("JobSet", "demo-prep-1")), events=(NOTICE,))
        )
    assert bench.cluster.calls == ["create jobsets"]


async def test_an_event_is_reported_once_however_often_it_is_decided(bench: Bench) -> None:
    for _ in range(3):
        await bench.apply(Decision(action=Wait(), status=STATUS, events=(NOTICE,)))
    assert len(bench.cluster.of(EVENTS)) == 1


@pytest.mark.parametrize(
    "fault", [Unavailable("away", status=500), Conflict("the quota was changed meanwhile", status=409)]
)
async def test_an_event_outlives_a_fault_that_passes(bench: Bench, fault: ClusterError) -> None:
    faults = [fault]
    bench.cluster.fault = lambda moment, call: (
        faults.pop() if faults and call == "create events" and moment == "before" else None
    )
    await bench.apply(Decision(action=Wait(), status=STATUS, events=(NOTICE,)))
    assert len(bench.cluster.of(EVENTS)) == 1


async def test_a_creation_that_met_a_conflict_is_not_taken_for_a_foreign_object(bench: Bench) -> None:
    bench.cluster.fault = lambda _moment, call: (
        Conflict("the quota was changed meanwhile", status=409) if call.startswith("create") else None
    )
    for decision in (
        Decision(status=STATUS, action=Create(jobset=child("JobSet", "demo-prep-1"))),
        Decision(status=STATUS, action=Admit(write=plan())),
    ):
        with pytest.raises(Conflict, match="quota"):
            await bench.apply(decision)


async def test_an_event_that_cannot_be_written_stops_nothing(bench: Bench) -> None:
    bench.cluster.fault = lambda _moment, call: (
        Unavailable("down", status=503) if call == "create events" else None
    )
    await bench.apply(Decision(action=Wait(), status=STATUS, events=(NOTICE, NOTICE)))
    assert bench.cluster.of(JOBS)[0]["status"] == STATUS.to_document()


def test_events_differ_in_name_where_they_differ_in_what_they_say_or_in_the_transition() -> None:
    bench = Bench()
    subject = Job.parse(bench.cluster.of(JOBS)[0])
    other = replace(NOTICE, message="Export has started")
    again = replace(NOTICE, since="2026-11-21T12:00:00Z")
    names = {event_of(subject, notice, NOW)["metadata"]["name"] for notice in (NOTICE, other, again, NOTICE)}
    assert len(names) == 3
    assert all(len(name) < 64 for name in names)


STOPPED = (
    AttemptKey(Stage.TRAIN, 1, 2),
    Failure(code=75, reason="Suspended", message="The job was suspended."),
)


def stopping(
    bench: Bench, status: Object = STATUS, *, records: tuple[Record, ...] = (), status_first: bool = False
) -> Decision:
    old = bench.cluster.put(JOBSETS, child("JobSet", "demo-train-1"))
    deletion = Deletion(name="demo-train-1", uid=old["metadata"]["uid"])
    return Decision(
        status=status, action=Delete(jobsets=(deletion,), records=records, status_first=status_first)
    )


async def test_a_status_that_holds_records_is_written_before_the_deletions(bench: Bench) -> None:
    held = with_pending(STATUS, [STOPPED])
    await bench.apply(stopping(bench, status=held, status_first=True))
    assert bench.cluster.calls == ["patch finetunejobs/status", "delete jobsets"]
    assert pending_records(bench.observation().status) == (STOPPED,)


async def test_an_edit_of_the_job_meanwhile_does_not_keep_a_slice(bench: Bench) -> None:
    decision = stopping(bench, status=with_pending(STATUS, [STOPPED]), status_first=True)
    observation = bench.observation()
    bench.cluster.put(JOBS, {**job(), "metadata": {**job()["metadata"], "generation": 2}})
    await bench.carry_out(observation, decision)
    assert bench.cluster.of(JOBSETS) == []
    assert pending_records(bench.observation().status) == (STOPPED,)


async def test_a_user_who_edits_the_job_all_the_time_keeps_neither_slice_nor_status(bench: Bench) -> None:
    decision = stopping(bench, status=with_pending(STATUS, [STOPPED]), status_first=True)
    observation = bench.observation()

    def edit(moment: str, call: str) -> None:
        if (moment, call) == ("before", "patch finetunejobs/status"):
            bench.cluster.put(JOBS, job())

    bench.cluster.fault = edit
    await bench.carry_out(observation, decision)
    assert bench.cluster.of(JOBSETS) == []
    assert pending_records(bench.observation().status) == (STOPPED,)


RECREATED = {**job(), "metadata": {**job()["metadata"], "uid": "other"}}


@pytest.mark.parametrize("meanwhile", [job(phase="Failed"), RECREATED], ids=["a status", "another job"])
async def test_where_another_operator_has_judged_meanwhile_nothing_is_deleted(
    bench: Bench, meanwhile: Object
) -> None:
    decision = stopping(bench, status=with_pending(STATUS, [STOPPED]), status_first=True)
    observation = bench.observation()
    bench.cluster.put(JOBS, meanwhile)
    with pytest.raises(Conflict):
        await bench.carry_out(observation, decision)
    assert bench.cluster.of(JOBSETS)
    assert bench.cluster.of(JOBS)[0].get("status") == meanwhile.get("status")


@pytest.mark.parametrize(
    "error",
    [Rejected("status.pending: unknown", status=422), Unavailable("etcd: request is too large", status=500)],
)
async def test_a_status_that_the_api_server_does_not_take_does_not_keep_a_slice(
    bench: Bench, error: Rejected | Unavailable
) -> None:
    decision = stopping(bench, status=with_pending(STATUS, [STOPPED]), status_first=True)
    bench.cluster.fault = lambda moment, call: error if moment == "before" and "status" in call else None
    with pytest.raises(type(error)):
        await bench.apply(decision)
    assert bench.cluster.of(JOBSETS) == []


@pytest.mark.parametrize(
    "error", [Rejected("invalid", status=422), Unavailable("etcdserver: request is too large", status=500)]
)
async def test_the_usage_in_a_status_that_the_api_server_does_not_take_is_kept(
    bench: Bench, error: Rejected | Unavailable
) -> None:
    bench.cluster.fault = lambda moment, call: error if moment == "before" and "status" in call else None
    with pytest.raises(type(error)):
        await bench.apply(Decision(action=Wait(), status=STATUS))
    (stored,) = bench.cluster.of(JOBS)
    assert bench.unwritten == [{**stored, "status": STATUS.to_document()}]


async def test_a_store_that_takes_no_record_does_not_keep_a_slice(bench: Bench) -> None:
    """The record becomes a pending record beside the earlier one; the rest of the decision is not applied."""
    earlier = (AttemptKey(Stage.PREFLIGHT, 1), Failure(code=75, reason="Suspended", message="Once before."))
    bench.cluster.put(JOBS, job(**with_pending(STATUS, [earlier]).to_document()))
    bench.store.fault = lambda moment, call: StorageDenied(call, "403") if moment == "before" else None
    with pytest.raises(StorageError):
        await bench.apply(replace(stopping(bench, records=(STOPPED,)), events=(NOTICE,)))
    assert bench.cluster.of(JOBSETS) == []
    assert bench.cluster.of(EVENTS) == []
    assert pending_records(bench.observation().status) == (earlier, STOPPED)


async def test_where_nothing_is_stopped_a_store_that_takes_no_record_stops_the_decision(bench: Bench) -> None:
    bench.store.fault = lambda moment, call: StorageDenied(call, "403") if moment == "before" else None
    decision = Decision(status=STATUS, action=Wait(records=(STOPPED,)))
    with pytest.raises(StorageError):
        await bench.apply(decision)
    assert bench.cluster.writes() == []


def taken(uid: str) -> TakeoverRecord:
    return TakeoverRecord(uid=uid, job=uid[:8], namespace="team", first=dict.fromkeys(Stage, 2))


async def test_of_two_jobs_that_take_one_folder_over_at_once_the_second_looks_again(bench: Bench) -> None:
    """Both jobs have observed the run folder without any takeover record."""
    decisions = [
        Decision(status=STATUS, action=Admit(write=taken(uid))) for uid in ("aaaaaaaa-1", "bbbbbbbb-1")
    ]
    outcomes = await asyncio.gather(*map(bench.apply, decisions), return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None), Conflict]
    assert [name for name in bench.store.files if "taken-over" in name] == [
        FOLDERS.run.taken_over("aaaaaaaa-1")
    ]


async def test_a_jobset_is_created_although_it_cannot_be_recorded(bench: Bench) -> None:
    bench.store.fault = lambda moment, call: StorageUnavailable("gs://b", "away")
    await bench.apply(Decision(status=STATUS, action=Create(jobset=child("JobSet", "demo-prep-1"))))
    assert [each["metadata"]["name"] for each in bench.cluster.of(JOBSETS)] == ["demo-prep-1"]
    assert bench.cluster.of(JOBS)[0]["status"] == STATUS.to_document()


ENDED = STATUS.model_copy(update={"phase": Phase.SUCCEEDED, "summary": "Succeeded."})
RECORD = FOLDERS.run.status


async def test_the_end_of_a_job_is_recorded_before_its_status(bench: Bench) -> None:
    bench.store.calls = bench.cluster.calls
    lost = (AttemptKey(Stage.EXPORT, 1), Failure(code=1, reason="PodLost", message="gone"))
    texts = {"labels": {"team": "a"}, "annotations": {"note": "x\ud800"}}
    bench.cluster.put(JOBS, {**job(), "metadata": {**job()["metadata"], **texts}})
    observation = bench.observation()
    action = Finish(records=(lost,), ends_now=True)
    await bench.carry_out(observation, Decision(action=action, status=ENDED, events=(NOTICE,)))
    assert bench.cluster.calls == [
        f"write {FOLDERS.run.failure('export', 1)}",
        f"write {RECORD}",
        "create events",
        "patch finetunejobs/status",
    ]
    record = RunRecord.model_validate_json(bench.store.files[RECORD])
    assert record.job.status == bench.cluster.of(JOBS)[0]["status"] == ENDED.to_document()
    assert read_status(record.job.status) == ENDED
    assert (record.job.metadata.name, record.job.metadata.uid) == ("demo", "uid-of-demo")
    assert record.job.metadata.labels == {"team": "a"}
    assert record.job.metadata.annotations == {"note": "x?"}
    assert record.job.spec == job()["spec"]
    assert (record.operator, record.contract) == (version("finetune-operator"), str(CONTRACT_VERSION))
    assert record.written == NOW


async def test_the_end_is_recorded_once_and_again_after_a_retry(bench: Bench) -> None:
    await bench.apply(Decision(action=Finish(ends_now=True), status=ENDED))
    first = bench.store.files.pop(RECORD)
    await bench.apply(Decision(action=Finish(), status=ENDED))
    assert RECORD not in bench.store.files
    again = ENDED.model_copy(update={"phase": Phase.FAILED})
    await bench.apply(Decision(action=Finish(ends_now=True), status=again))
    assert bench.store.files[RECORD] != first
    record = RunRecord.model_validate_json(bench.store.files[RECORD])
    assert record.job.status["phase"] == "Failed"


@pytest.mark.parametrize("error", [StorageDenied, StorageUnavailable])
async def test_a_job_ends_although_its_end_cannot_be_recorded(
    bench: Bench, error: type[StorageError]
) -> None:
    bench.store.fault = lambda moment, call: error(RECORD, "no" * 1000) if moment == "before" else None
    await bench.apply(Decision(action=Finish(ends_now=True), status=ENDED))
    status = bench.cluster.of(JOBS)[0]["status"]
    assert status["phase"] == "Succeeded"
    assert status["summary"].startswith(f"Succeeded. This status could not be recorded: {RECORD}: nono")
    assert len(status["summary"]) == 1024
