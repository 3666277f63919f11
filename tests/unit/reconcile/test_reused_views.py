"""How many requests to the store a job costs, and that no reused view hides what a decision needs."""

from collections.abc import Callable
from typing import Any

import pytest

from finetune_contract import Failure, Stage
from finetune_contract.progress import DiscardedCheckpoint
from finetune_operator.api import FineTuneJobStatus, Phase
from finetune_operator.artifacts.port import StorageDenied, StorageUnavailable
from finetune_operator.cluster.port import JOBS, JOBSETS, PODS, PROFILES
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decision import Action, Create, Decision, Finish, Wait
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.reconcile.apply import Applier
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.reconciler import Reconciler
from finetune_operator.reconcile.run_folder import RunFolderReader
from tests.unit.reconcile.fakes import FOLDERS, NOW, OWN, FakeCluster, FakeStore, child, job, plan
from tests.unit.reconcile.records import FINGERPRINT, progress, result, stage_progress
from tests.unit.reconcile.watched import Watched

KEY = JobKey("team", "demo")
RUN = FOLDERS.run
TRAIN, CONVERT = AttemptKey(Stage.TRAIN, 1), AttemptKey(Stage.CONVERT, 1)
POD = "demo-train-1-slice-0-0-abcde"
CONVERTING = RUN.stage_progress("conv", 1)
READ, MANIFEST = f"read {CONVERTING}", f"read {FOLDERS.cache.convert_manifest(FINGERPRINT)}"
LIST, PROGRESS = f"list {RUN.attempts}", f"read {RUN.progress}"


class Training:
    """A job whose only JobSet trains, as the watches deliver it. One reader sees it throughout."""

    jobset = "demo-train-1"

    def __init__(self, live_jobs: int = 1) -> None:
        self.cluster, self.watched, self.store, self.now = FakeCluster(), Watched(), FakeStore(), 0.0
        self.versions = 100
        self.cluster.put(JOBS, job(observedGeneration=1, phase="Running"))
        self.cluster.put(JOBSETS, child("JobSet", self.jobset))
        self.started()
        self.action: Callable[[], Action] = Wait
        self.observed: list[Observation] = []
        plans = Plans(self.cluster, OWN)
        self.reader = RunFolderReader(self.store, clock=lambda: self.now)
        observer = Observer(
            self.cluster,
            plans,
            self.reader,
            self.watched.cache,
            utc_now=lambda: NOW,
            live_jobs=lambda: live_jobs,
        )
        applier = Applier(self.cluster, plans, self.store, self.watched.cache)
        self.reconciler = Reconciler(observer, self._decide, applier, utc_now=lambda: NOW)
        self.plans = plans

    def started(self) -> None:
        self.pod("Running")
        self.put(RUN.request("train", 1))
        self.put(RUN.progress, progress(1))

    async def begin(self) -> None:
        await self.plans.create(plan())
        assert await self.reconcile() == [LIST, PROGRESS]

    def _decide(self, observation: Observation) -> Decision:
        self.observed.append(observation)
        action = self.action()
        phase = Phase.SUCCEEDED if isinstance(action, Finish) else Phase.RUNNING
        status = FineTuneJobStatus(observed_generation=1, phase=phase)
        return Decision(action=action, status=status, requeue_after=10)

    @property
    def folder(self) -> Any:
        """The view on which the last decision was taken."""
        return self.observed[-1].folder

    def put(self, uri: str, record: Any = None) -> None:
        self.store.files[uri] = b"{}" if record is None else record.to_json().encode()

    def pod(self, phase: str, name: str = POD) -> None:
        self.cluster.put(PODS, {**child("Pod", name), "status": {"phase": phase}})

    def end(self) -> None:
        """Completes the training's JobSet."""
        self.put(RUN.result("train", 1), result(Stage.TRAIN))
        self.pod("Succeeded")
        completed = {"conditions": [{"type": "Completed", "status": "True"}]}
        self.cluster.put(JOBSETS, {**self.cluster.of(JOBSETS)[0], "status": completed})

    async def reconcile(self, after: float = 0.0) -> list[str]:
        """Delivers all objects, reconciles ``after`` seconds later, and returns the calls to the store."""
        self.versions += 1
        for kind in (JOBS, JOBSETS, PODS, PROFILES):
            self.watched.listed(kind, *self.cluster.of(kind), version=self.versions)
        self.now += after
        self.store.calls.clear()
        await self.reconciler.reconcile(KEY, retry_in=1)
        return list(self.store.calls)


class Conversion(Training):
    """The same while the model is converted: preflight has found its fingerprint, and the cache has no model."""

    jobset = "demo-conv-1"

    def started(self) -> None:
        self.pod("Running", "demo-conv-1-cpu-0-0-abcde")
        self.put(RUN.result("prep", 1), result(Stage.PREFLIGHT))
        self.put(RUN.request("conv", 1))
        self.put(CONVERTING, stage_progress(1))

    async def begin(self) -> None:
        await self.plans.create(plan())
        assert await self.reconcile() == [LIST, f"read {RUN.result('prep', 1)}", READ, MANIFEST]


@pytest.fixture
async def training() -> Training:
    made = Training()
    await made.begin()
    return made


async def test_an_hour_of_training_costs_one_progress_record_each_time_and_a_listing_each_minute(
    training: Training,
) -> None:
    calls = [call for _ in range(360) for call in await training.reconcile(after=10)]
    assert (calls.count(LIST), calls.count(PROGRESS)) == (60, 360)
    assert len(calls) == 420


async def test_an_hour_of_conversion_costs_a_progress_record_each_time_and_a_listing_each_minute() -> None:
    conversion = Conversion()
    await conversion.begin()
    calls = [call for _ in range(360) for call in await conversion.reconcile(after=10)]
    assert (calls.count(LIST), calls.count(MANIFEST), calls.count(READ)) == (60, 60, 360)
    assert len(calls) == 480


async def test_with_thousands_of_jobs_an_hour_of_conversion_costs_what_its_share_is() -> None:
    conversion = Conversion(live_jobs=2000)
    await conversion.begin()
    calls = [call for _ in range(36) for call in await conversion.reconcile(after=100)]
    assert (calls.count(LIST), calls.count(READ)) == (18, 36)
    assert 2000 * len(calls) / 3600 <= 50


async def test_the_newest_progress_of_a_conversion_is_seen() -> None:
    conversion = Conversion()
    await conversion.begin()
    conversion.put(CONVERTING, stage_progress(12))
    assert await conversion.reconcile(after=9) == []
    assert conversion.folder.stage_progress[CONVERT] == stage_progress(1)
    assert await conversion.reconcile(after=1) == [READ]
    assert conversion.folder.stage_progress[CONVERT] == stage_progress(12)


async def test_a_training_reports_what_it_does_until_its_first_step(training: Training) -> None:
    told = RUN.stage_progress("train", 1)
    training.put(RUN.progress, progress(1).model_copy(update={"attempt": 9}))
    training.put(told, stage_progress(3))
    assert await training.reconcile(after=10) == [PROGRESS, f"read {told}"]
    assert training.folder.stage_progress == {TRAIN: stage_progress(3)}
    training.put(RUN.progress, progress(1))
    assert await training.reconcile(after=10) == [PROGRESS]
    assert training.folder.stage_progress == {}


async def test_a_store_that_refuses_the_progress_of_a_stage_hides_nothing_else() -> None:
    conversion = Conversion()
    await conversion.begin()
    conversion.store.fault = lambda _moment, call: StorageDenied(call, "403") if call == READ else None
    await conversion.reconcile(after=10)
    assert (conversion.folder.unreadable, conversion.folder.stage_progress) == (None, {})
    assert CONVERT in conversion.folder.attempts


async def test_the_newest_progress_is_seen(training: Training) -> None:
    training.put(RUN.progress, progress(2))
    assert await training.reconcile(after=9) == []
    assert (training.folder.progress, training.folder.progress_age) == (progress(1), 9)
    assert await training.reconcile(after=1) == [PROGRESS]
    assert (training.folder.progress, training.folder.progress_age) == (progress(2), 0)


async def test_events_that_end_nothing_cost_no_request(training: Training) -> None:
    for number in range(64):
        training.pod("Pending", f"demo-train-1-slice-0-{number}-fghij")
        assert await training.reconcile(after=0.1) == []


async def test_the_record_of_a_stage_is_seen_with_its_end(training: Training) -> None:
    training.end()
    assert await training.reconcile() == [LIST, f"read {RUN.result('train', 1)}", PROGRESS]
    assert training.folder.attempts[TRAIN].result == result(Stage.TRAIN)
    # All of it is final now.
    assert await training.reconcile(after=59) == []
    assert await training.reconcile(after=1) == [LIST]


async def test_what_has_appeared_since_the_reading_and_vanishes_may_have_written(training: Training) -> None:
    training.pod("Running", "demo-train-1-slice-0-1-fghij")
    assert await training.reconcile() == []
    training.put(RUN.failure("train", 1), Failure(code=1, reason="ProcessDied", message="a peer was gone"))
    del training.cluster.objects[PODS, "team", "demo-train-1-slice-0-1-fghij"]
    assert LIST in await training.reconcile()
    assert training.folder.attempts[TRAIN].failure is not None


async def test_a_file_that_another_client_has_written_is_seen_after_a_minute(training: Training) -> None:
    training.put(RUN.failure("train", 1), Failure(code=1, reason="ByHand", message="written by hand"))
    for _ in range(5):
        await training.reconcile(after=10)
        assert training.folder.attempts[TRAIN].failure is None
    await training.reconcile(after=10)
    assert training.folder.attempts[TRAIN].failure is not None


async def test_what_the_operator_writes_is_read_back(training: Training) -> None:
    record = Failure(code=75, reason="Suspended", message="Stopped.")
    training.action = lambda: Wait(records=((TRAIN, record),))
    calls = await training.reconcile()
    # Confirmed on a live observation, which reads everything.
    assert calls[:2] == [LIST, PROGRESS]
    training.action = Wait
    assert LIST in await training.reconcile()
    assert training.folder.attempts[TRAIN].failure == record


async def test_a_jobset_that_was_created_and_vanishes_unseen_may_have_written(training: Training) -> None:
    training.end()
    await training.reconcile()
    training.action = lambda: Create(jobset=child("JobSet", "demo-eval-1"))
    assert await training.reconcile() == [f"write {RUN.jobset('eval', 1)}"]
    training.action = Wait
    del training.cluster.objects[JOBSETS, "team", "demo-eval-1"]
    assert LIST in await training.reconcile()
    assert await training.reconcile() == []


async def test_a_confirmation_reads_everything(training: Training) -> None:
    training.put(RUN.result("train", 1), result(Stage.TRAIN))
    training.action = lambda: Wait(records=((TRAIN, Failure(code=1, reason="Lost", message="it was lost")),))
    await training.reconcile()
    first, second = training.observed[-2:]
    assert first.folder.attempts[TRAIN].result is None
    assert second.folder.attempts[TRAIN].result is not None


async def test_a_store_that_fails_is_read_again_at_the_next_reconcile(training: Training) -> None:
    training.store.fault = lambda moment, call: (
        StorageUnavailable(call, "503") if moment == "before" else None
    )
    assert await training.reconcile(after=10) == [PROGRESS, LIST]
    assert training.folder.unreadable is not None
    assert await training.reconcile() == [LIST]
    training.store.fault = lambda _moment, _call: None
    assert await training.reconcile() == [LIST, PROGRESS]
    assert training.folder.unreadable is None
    assert await training.reconcile() == []


async def test_damaged_progress_is_read_each_time_until_it_is_repaired(training: Training) -> None:
    training.store.files[RUN.progress] = b"garbage"
    assert await training.reconcile(after=10) == [PROGRESS, LIST, PROGRESS]
    assert training.folder.progress_unknown is not None
    training.put(RUN.progress, progress(3))
    assert await training.reconcile() == [LIST, PROGRESS]
    assert training.folder.progress == progress(3)


async def test_attempts_that_the_status_confirms_are_read(training: Training) -> None:
    training.put(RUN.result("train", 2), result(Stage.TRAIN, 2))
    await training.reconcile(after=60)
    assert training.folder.foreign_attempts == {AttemptKey(Stage.TRAIN, 2)}
    history = [{"stage": "Train", "attempt": 2, "jobSet": "demo-train-2", "reason": "Preempted"}]
    counts = {"total": 2, "preemption": 1, "infrastructure": 0, "user": 0, "history": history}
    stored = training.cluster.of(JOBS)[0]
    training.cluster.put(JOBS, {**stored, "status": {**stored["status"], "attempts": counts}})
    assert LIST in await training.reconcile()
    assert AttemptKey(Stage.TRAIN, 2) in training.folder.attempts


async def test_a_job_that_is_gone_leaves_nothing_behind(training: Training) -> None:
    training.reader.forget(KEY)
    assert LIST in await training.reconcile()


async def test_a_job_that_finishes_leaves_no_view_though_no_event_follows(training: Training) -> None:
    training.action = Finish
    await training.reconcile()
    assert training.observed[-1].cached
    training.action = Wait
    assert LIST in await training.reconcile()


async def test_progress_that_has_grown_counts(training: Training) -> None:
    discarded = [DiscardedCheckpoint(step=1, why="x" * 60_000)]
    training.put(RUN.progress, progress(2).model_copy(update={"discarded": discarded}))
    assert await training.reconcile(after=10) == [PROGRESS]
    # It was not kept, because it takes more than a view may.
    assert await training.reconcile() == [LIST, PROGRESS]


async def test_with_many_jobs_each_is_read_less_often() -> None:
    training = Training(live_jobs=1000)
    await training.begin()
    calls = [call for _ in range(360) for call in await training.reconcile(after=10)]
    assert len(calls) <= 50 * 3600 / 1000
    # 3,600 s at a pace of 50 s.
    assert calls.count(PROGRESS) == 72
