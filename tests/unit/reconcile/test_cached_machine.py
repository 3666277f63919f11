"""The lifecycle's state machine with decisions on cached objects: each watch lags on its own, and skips states. The run
folder is read again only when the real rule says so."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from finetune_contract import Stage
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.decision import Create, Decision, Delete
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.planning import Plan, Refused
from finetune_operator.planning.admission import Planner
from finetune_operator.reconcile.confirmation import Confirmation, confirmation
from finetune_operator.reconcile.made_plans import MadePlans
from finetune_operator.reconcile.view_cache import ClusterState, Due, Reading, ViewCache, due
from tests.unit.lifecycle.test_machine import TPU, Machine, WatchedWorld
from tests.unit.lifecycle.world import ConflictError, Crash

# 500 schedules, a minute on an idle machine
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = ("job", "jobsets", "pods", "workloads")


class CheckedPlans(MadePlans):
    """Each remembered plan is the one that would be made now."""

    def plan(self, *asked: Any) -> tuple[Plan, Refused | None]:
        (plan, refused), (now, refused_now) = super().plan(*asked), Planner().plan(*asked)
        assert (plan, str(refused)) == (now, str(refused_now))
        return plan, refused


class LaggingWorld(WatchedWorld):
    """Has a cache beside the true state. The operator's own writes are in both at once."""

    def __init__(self) -> None:
        super().__init__()
        self.cache_of: dict[str, Any] = {}
        self.cached_plan: Any = None
        self.trusted = False
        self.views = ViewCache()
        self.made = CheckedPlans()

    def deliver(self, *kinds: str) -> None:
        for kind in kinds:
            self.cache_of[kind] = copy.deepcopy(getattr(self, kind))

    def observe(self) -> Observation:
        """A live observation, which completes the cache."""
        if not self.trusted:
            self.deliver(*KINDS)
            self.trusted = True
        self.cached_plan = self.config_map
        self.views.forget("job")
        return replace(super().observe(), planner=self.made)

    def observe_cached(self) -> Observation:
        if not self.trusted:
            return self.observe()
        true = {kind: getattr(self, kind) for kind in (*KINDS, "config_map")}
        cached = {**self.cache_of, "config_map": self.cached_plan or self.config_map}
        for kind, value in cached.items():
            setattr(self, kind, value)
        try:
            seen = WatchedWorld.observe(self)
            return replace(seen, cached=True, folder=self.folder_of(seen), planner=self.made)
        finally:
            for kind, value in true.items():
                setattr(self, kind, value)

    def folder_of(self, seen: Observation) -> RunFolderView:
        """Returns what the reader of run folders does: the last view, as far as the rule allows."""
        if seen.stored is None:
            return seen.folder
        state, now = ClusterState.of(seen.job, seen.jobsets, seen.pods), self.now.timestamp()
        kept, what = self.views.get("job"), Due.EVERYTHING
        if kept is not None:
            what = due(kept, state, now=now, pace=seen.pace())
        if kept is None or what is Due.EVERYTHING or (what is Due.PROGRESS and seen.folder.unreadable):
            kept = Reading(view=seen.folder, state=state, listed=now, progress_read=now, json_bytes=0)
        elif what is Due.PROGRESS:
            moved = replace(kept.view, progress=seen.folder.progress)
            kept = replace(kept, view=moved, progress_read=now)
        self.views.keep("team", "job", replace(kept, state=state))
        for key in {each.key for each in seen.jobsets if each.ended and each.key}:
            known = kept.view.unreadable or kept.view.attempts.get(key) == self.attempts.get(key)
            assert known, f"the record of {key} is not seen with its end"
        return kept.view

    @property
    def job_is_current(self) -> bool:
        return bool(self.cache_of["job"] == self.job)

    def reconcile_cached(self, crash_after: int | None) -> None:
        """What the reconciler does. Raises Crash and ConflictError."""
        seen = self.observe_cached()
        decision = decide(seen)
        if decision.details is not None:
            decision = decide(self.with_details(seen, decision.details))
        needs = confirmation(seen, decision) if seen.cached else Confirmation.NOTHING
        if needs is Confirmation.EVERYTHING or (needs is Confirmation.JOB and not self.job_is_current):
            self.reconcile(crash_after=crash_after)
            return
        try:
            self.checked = seen.cached
            self.apply(decision, crash_after=crash_after)
        except ConflictError:
            self.trusted = False
            raise
        finally:
            self.checked = False

    checked = False
    """Whether the status is written under the resource version of the cached job."""

    def _write_status(self, status: Any) -> None:
        if self.checked and not self.job_is_current:
            self.untold.clear()
            raise ConflictError
        super()._write_status(status)
        self.deliver("job")

    def apply(self, decision: Decision, *, crash_after: int | None = None) -> None:
        """What cannot be undone rests on the job as it is now."""
        conditions = {
            each["type"]: each["status"] for each in decision.status.to_document().get("conditions", ())
        }
        stopped = isinstance(decision.action, Delete) and conditions.get("Suspended") == "True"
        created = AttemptKey.of(decision.action.jobset) if isinstance(decision.action, Create) else None
        suspended = bool(self.job["spec"].get("suspend"))
        if self.checked:
            assert not (stopped and not suspended), "a resumed job is stopped"
            assert not (created and created.stage in TPU and suspended), "a suspended job gets a slice"
            cancelled = bool(self.job["spec"].get("cancel"))
            assert not (created and created.stage in TPU and cancelled), "a cancelled job gets a slice"
            over = conditions.get("Finished") == "True" and conditions.get("Succeeded") == "False"
            assert not over, "a job fails only by a live observation"
        super().apply(decision, crash_after=crash_after)

    def _create_jobset(self, jobset: Any) -> None:
        self.views.forget("job")
        super()._create_jobset(jobset)
        self._put(jobset["metadata"]["name"])

    def _delete(self, name: str, uid: str) -> None:
        super()._delete(name, uid)
        self._put(name)

    def _put(self, name: str) -> None:
        if name in self.jobsets and "jobsets" in self.cache_of:
            self.cache_of["jobsets"][name] = copy.deepcopy(self.jobsets[name])


class CachedMachine(Machine):
    """Decides on a cache of which each kind lags for any time. The real one is at most 90 s old."""

    def __init__(self) -> None:
        super().__init__()
        self.world: LaggingWorld = LaggingWorld()

    @rule(
        delivered=st.frozensets(st.sampled_from(KINDS)),
        crash_after=st.one_of(st.none(), st.none(), st.integers(0, 5)),
    )
    def reconcile(self, delivered: frozenset[str] = frozenset(), crash_after: int | None = None) -> None:
        """Some watches deliver events, which lead to a reconcile."""
        self.world.deliver(*delivered)
        try:
            self.world.reconcile_cached(crash_after)
        except ConflictError:
            return
        except Crash:
            # The next process starts with listings.
            self.world.trusted = False
            self.world.cached_plan = None

    @precondition(lambda self: False)
    @rule()
    def observe_and_decide(self) -> None:
        """Every decision is one on the cache."""

    @invariant()
    def usage_never_decreases_and_never_exceeds_the_real_usage(self) -> None:
        """Cached pods may have ended, so the usage may be too high; here, lags are unlimited. It never decreases."""
        self.wiped += 1
        try:
            super().usage_never_decreases_and_never_exceeds_the_real_usage()
        finally:
            self.wiped -= 1


def begun(*, prompts: bool, queued: bool = False, reached: Stage = Stage.TRAIN) -> CachedMachine:
    """Returns a machine whose job trains, or has reached another stage."""
    machine = CachedMachine()
    machine.start(
        hosts="v6e-4",
        hit=False,
        prompts=prompts,
        reached=reached,
        queued=queued,
        kinds=["OnDemand"],
        stalled=None,
        gives_up=False,
        may_cancel=False,
    )
    return machine


@pytest.mark.parametrize("prompts", [False, True])
def test_no_stage_begins_while_pods_may_run_whose_jobset_has_vanished(prompts: bool) -> None:
    """The watch of pods is behind, and has delivered none of them. With prompts, the next stage takes a slice."""
    machine = begun(prompts=prompts)
    world, name = machine.world, "support-bot-train-1"
    world.write_success(name)
    del world.jobsets[name]
    machine.reconcile(delivered=frozenset({"jobsets"}))
    assert world.pods_of(name)
    assert not world.live()


def test_no_slice_is_created_again_while_pods_exist_whose_jobset_has_vanished() -> None:
    """The trainer has written nothing, and the watch of pods has delivered none of them."""
    machine = begun(prompts=True)
    world, name = machine.world, "support-bot-eval-1"
    world.succeed("support-bot-train-1")
    machine.reconcile(delivered=frozenset(KINDS))
    world.schedule(name)
    del world.jobsets[name]
    machine.reconcile(delivered=frozenset({"jobsets"}))
    assert world.pods_of(name)
    assert not world.live()


def test_a_resumed_run_does_not_hang_by_the_last_step_of_the_run_before() -> None:
    """Kueue withdraws the quota and assigns it again in the second of the step; no pod of the new run exists yet."""
    machine = begun(prompts=False, queued=True)
    world, name = machine.world, "support-bot-train-1"
    world.wait(60)
    world.train(name, 5)
    world.evict(name)
    world.admit(name)
    machine.reconcile(delivered=frozenset(KINDS))
    world.wait(3600)
    machine.reconcile(delivered=frozenset(KINDS))
    assert "deletionTimestamp" not in world.jobsets[name]["metadata"]


def test_a_timeout_without_the_store_stands_though_kueue_then_ends_the_run() -> None:
    machine = begun(prompts=True, queued=True, reached=Stage.EVALUATE)
    world, name = machine.world, "support-bot-eval-1"
    key = world.key_of(name)
    world.unreadable = "gs://artifacts: timed out"
    world.wait(24 * 3600)
    machine.reconcile(delivered=frozenset(KINDS))
    assert world.status["pending"][0]["reason"] == "StageTimeout"
    world.evict(name)
    world.unreadable = None
    machine.reconcile(delivered=frozenset(KINDS))
    failure = world.attempts[key].failure
    assert failure is not None
    assert failure.reason == "StageTimeout"


TestCachedMachine = CachedMachine.TestCase
TestCachedMachine.settings = settings(
    max_examples=500,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # No shrinking, which takes minutes here: a failure of thirty steps is readable.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
