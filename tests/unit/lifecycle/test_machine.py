"""A state machine in which anything may crash, vanish, be repeated or be late. The invariants always hold, and once the
faults stop, the job ends."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from finetune_contract import ExitCode, Failure, Outcome, Stage
from finetune_operator.api import ConditionType, FineTuneJobStatus
from finetune_operator.lifecycle.attempts.capacity import NO_CAPACITY
from finetune_operator.lifecycle.attempts.deadlines import (
    HUNG,
    POD_NOT_STARTED,
    PODS_MISSING,
    STAGE_TIMEOUT,
    STARTUP_TIMEOUT,
)
from finetune_operator.lifecycle.attempts.pending_records import pending_records
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.object_condition import find_condition
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pod_blocker import lacks_input
from finetune_operator.lifecycle.children.workload import Workload
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.decision import Decision
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.retry_budget import MOST_STUCK
from finetune_operator.planning.defaults import CPU_STAGE_SECONDS, EVALUATE_SECONDS
from finetune_operator.rendering.labels import ATTEMPT_LABEL, STAGE_LABEL
from tests.unit.lifecycle.test_limits import flavors
from tests.unit.lifecycle.world import TOTAL_STEPS, ConflictError, Crash, World, job, profile
from tests.unit.lifecycle.writes import writes

pytestmark = pytest.mark.slow

RESERVED = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue tpu")
ADMITTED = ("Admitted", "True", "Admitted", "The workload is admitted")
PAST = "accumulatedPastExecutionTimeSeconds"
TPU = {Stage.TRAIN, Stage.EVALUATE}
MAX_INFRASTRUCTURE = 5
PRICES = {"Spot": 0.8, "OnDemand": 2.7}
DAY = 86400
#: The flaw of a forged child; otherwise it equals a real one.
FLAWS = {
    "jobset": ["no owner", "no controller", "another job's", "of another kind", "of another name"],
    "pod": ["no owner", "of no Job", "of another Job", "of another JobSet", "of no stage"],
}
#: Why a pod that has a node does not start.
HELD = ["ContainerCreating", "ImagePullBackOff", "CreateContainerConfigError"]
#: Default seconds without progress before a timeout, by its reason.
SILENCE = {HUNG: 900, STARTUP_TIMEOUT: 1800}


class WatchedWorld(World):
    """Checks each creation of a JobSet, and each recorded result, against the true state at that moment, and
    counts the real usage."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: dict[tuple[str, int], Any] = {}
        """When the current run of an attempt last progressed, by JobSet and restart; only attempts that have run."""
        self.chips: dict[str, tuple[int, float]] = {}
        """Chips and price of an hour, by JobSet on TPU."""
        self.chip_hours = 0.0
        self.cost = 0.0
        self.silent: set[AttemptKey] = set()
        """Attempts that the operator has ended because they made no progress."""
        self.unplaced: set[AttemptKey] = set()
        """Attempts that the operator has ended because there were no nodes."""
        self.judged: set[tuple[AttemptKey, str]] = set()
        """Reasons of the records that :meth:`judge` has checked."""
        self.purposes: dict[str, str] = {}
        """Why the operator has deleted a JobSet, by name."""
        self.foreign_jobsets: list[Any] = []
        self.foreign_pods: list[Any] = []

    def observe(self) -> Observation:
        """Includes foreign objects with the job's labels."""
        own = self.jobsets, self.pods
        self.jobsets = {**own[0], **{f"foreign-{n}": each for n, each in enumerate(self.foreign_jobsets)}}
        self.pods = {**own[1], **{f"foreign-{n}": each for n, each in enumerate(self.foreign_pods)}}
        try:
            return super().observe()
        finally:
            self.jobsets, self.pods = own

    def forge_jobset(self, name: str, flaw: str) -> None:
        made = copy.deepcopy(self.jobsets[name])
        made["metadata"] |= {"name": f"{name[:-1]}999", "uid": f"foreign-{len(self.foreign_jobsets)}"}
        made["metadata"]["labels"][ATTEMPT_LABEL] = f"{name.rpartition('-')[2][:-1]}999"
        (owner,) = made["metadata"]["ownerReferences"]
        match flaw:
            case "no owner":
                made["metadata"]["ownerReferences"] = []
            case "no controller":
                owner["controller"] = False
            case "another job's":
                owner["uid"] = "of-another-job"
            case "of another kind":
                owner["kind"] = "FineTuneProfile"
            case "of another name":
                made["metadata"]["name"] = "another-owners"
        self.foreign_jobsets.append(made)

    def forge_pod(self, name: str, flaw: str) -> None:
        pod = copy.deepcopy(self.pods_of(name)[0])
        pod["metadata"]["name"] = f"foreign-{len(self.foreign_pods)}"
        labels, (owner,) = pod["metadata"]["labels"], pod["metadata"]["ownerReferences"]
        match flaw:
            case "no owner":
                pod["metadata"]["ownerReferences"] = []
            case "of no Job":
                owner["kind"] = "ReplicaSet"
            case "of another Job":
                owner["name"] = "another-owners-0"
            case "of another JobSet":
                labels["jobset.sigs.k8s.io/jobset-name"] = "another-owners"
            case "of no stage":
                labels[STAGE_LABEL] = "Destroy"
        pod["status"] = {"phase": "Running"}
        self.foreign_pods.append(pod)

    def wait(self, seconds: float) -> None:
        for name in {pod.rpartition("-")[0] for pod, each in self.pods.items() if self._runs(each)}:
            chips, price = self.chips.get(name, (0, 0.0))
            if name not in self.jobsets:
                # Its price is no longer known.
                price = max(PRICES.values())
            self.chip_hours += chips * seconds / 3600
            self.cost += chips * price * seconds / 3600
        super().wait(seconds)

    @staticmethod
    def _runs(pod: Any) -> bool:
        return bool(pod["status"]["phase"] == "Running")

    def train(self, name: str, step: int) -> None:
        super().train(name, step)
        self.ran[name, self.restarts(name)] = self.now

    def hold(self, name: str, *, held: bool) -> None:
        super().hold(name, held=held)
        self.ran.pop((name, self.restarts(name)), None)

    def interrupted(self, name: str) -> bool:
        """Whether a pod has vanished and JobSet has not restarted all pods."""
        expected = JobSet.parse(self.jobsets[name]).pods_expected
        return (name, self.restarts(name)) in self.ran and len(self.pods_of(name)) < expected

    def _record(self, key: AttemptKey, failure: Failure) -> None:
        super()._record(key, failure)
        if failure.reason == NO_CAPACITY:
            self.unplaced.add(key)
        if failure.reason in (*SILENCE, STAGE_TIMEOUT, POD_NOT_STARTED, PODS_MISSING):
            self.silent.add(key)

    def judge(self, decision: Decision) -> None:
        """Checks the records of a decision when it is made: much may happen until they are written."""
        for key, failure in (*pending_records(decision.status), *writes(decision).records):
            files = self.attempts.get(key)
            if (key, failure.reason) in self.judged or (
                files and files.failure and files.failure.reason == failure.reason
            ):
                continue
            self.judged.add((key, failure.reason))
            name = f"support-bot-{key.stage.short}-{key.number}"
            moved = self.ran.get((name, key.restart))
            if failure.reason in (NO_CAPACITY, POD_NOT_STARTED):
                assert moved is None, f"{name} has run and does not wait: {failure.reason}"
            if failure.reason == PODS_MISSING:
                assert not self.pods_of(name)
            if failure.reason in (*SILENCE, STAGE_TIMEOUT):
                usual = EVALUATE_SECONDS if key.stage in TPU else CPU_STAGE_SECONDS
                assert moved is not None, f"{name} has never run and does not hang"
                passed = (self.now - moved).total_seconds()
                assert passed > SILENCE.get(failure.reason, usual), f"{name} made progress a moment ago"

    def apply(self, decision: Decision, *, crash_after: int | None = None) -> None:
        self.judge(decision)
        records = (*pending_records(decision.status), *writes(decision).records)
        recorded = {key: failure.reason for key, failure in records}
        status = decision.status.to_document()
        foreign = {each["metadata"]["uid"] for each in self.foreign_jobsets}
        assert foreign.isdisjoint(each.uid for each in writes(decision).deletions), (
            "foreign objects are left alone"
        )
        for deletion in writes(decision).deletions:
            jobset = self.jobsets.get(deletion.name)
            if jobset is None or self._ended(jobset):
                continue
            key = self.key_of(deletion.name)
            files = self.attempts.get(key)
            written = files.failure.reason if files and files.failure else None
            over = any(
                each["type"] in ("Finished", "Succeeded", "Suspended") and each["status"] == "True"
                for each in status.get("conditions", ())
            )
            why = recorded.get(key) or written
            decided = any(
                each["name"] == key.stage and each["phase"] in ("Succeeded", "Failed")
                for each in status.get("stages", ())
            )
            assert over or why or decided, f"{deletion.name} is deleted without a recorded reason"
            if why:
                self.purposes.setdefault(deletion.name, why)
        super().apply(decision, crash_after=crash_after)

    def _create_jobset(self, jobset: Any) -> None:
        revived = self.retry and self.retry.generation > self.status.get("retryGeneration", 0)
        assert revived or not self.finished, "a finished job starts nothing"
        super()._create_jobset(jobset)
        name = jobset["metadata"]["name"]
        key = self.key_of(name)
        if key.stage in TPU:
            capacity = (
                "Spot"
                if jobset["metadata"]["annotations"]["tpu-finetune.dev/flavor"] == "spot"
                else "OnDemand"
            )
            self.chips[name] = (JobSet.parse(jobset).chips, PRICES[capacity])
        others = [other for other in self.live() if other != name]
        assert not others, f"{name} was created while {others} could still run"
        running = [pod for pod in self.pods.values() if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        assert not running, f"{name} was created while {[pod['metadata']['name'] for pod in running]} ran"
        assert key not in self.attempts, f"{name} was created twice"
        if key.stage in TPU:
            assert self.green(Stage.PREFLIGHT), "no TPU before preflight has succeeded"
            assert self.cache, "no TPU before a conversion exists"
            assert all(manifest.export_proven for manifest in self.cache.values()), (
                "no TPU before the export proof"
            )
        for stage in Stage:
            if stage is key.stage:
                break
            optional = stage is Stage.CONVERT or (stage is Stage.EVALUATE and not self.prompts)
            assert optional or self.green(stage), f"{name} was created before {stage} was done"

    def run(self, name: str) -> None:
        """No pod of a JobSet runs before its queue admits it."""
        if self.jobsets[name]["spec"]["suspend"]:
            self.admit(name)
        super().run(name)
        self.ran.setdefault((name, self.restarts(name)), self.now)

    def admit(self, name: str) -> None:
        reported = (self.workloads or {}).get(name, {}).get("status", {})
        kept = {key: reported[key] for key in ("schedulingStats", PAST) if key in reported}
        self.workload(name, RESERVED, ADMITTED, **kept)
        self.hold(name, held=False)

    def evict(self, name: str, reason: str = "Preempted", *, saves: bool = True) -> None:
        """Kueue revokes the quota; a running trainer saves and writes its record, or is killed before."""
        before = Workload.parse((self.workloads or {}).get(name, {}))
        times = len(before.evictions) + 1
        stats = {"evictions": [{"reason": reason, "underlyingCause": "", "count": times}]}
        given = find_condition(before.conditions, "Admitted")
        past = before.past_execution
        if given and given.last_transition_time:
            past += self.now - given.last_transition_time
        waits = ("QuotaReserved", "False", "Pending", "insufficient unused quota, 4 more needed")
        evicted = ("Evicted", "True", reason, "it gave way")
        self.workload(name, waits, evicted, schedulingStats=stats, **{PAST: int(past.total_seconds())})
        if saves and any(self._runs(pod) for pod in self.pods_of(name)):
            self.save(name)
        self.hold(name, held=True)

    @property
    def prompts(self) -> bool:
        return bool(self.job["spec"]["evaluation"].get("prompts"))

    def green(self, stage: Stage) -> bool:
        return any(
            key.stage is stage and files.result is not None and files.result.outcome is Outcome.SUCCEEDED
            for key, files in self.attempts.items()
        )


class Machine(RuleBasedStateMachine):
    """Rules change the world; the operator observes, acts later, and may crash between any two writes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = WatchedWorld()
        self.taken: tuple[object, Decision] | None = None
        """A decision that is not applied yet, with the version of the observed job."""
        self.wiped = 0
        self.unexplained: set[AttemptKey] = set()
        """Stopped attempts whose reason was in the status alone when that was lost. They count as faults."""
        self.infrastructure = 0
        self.user = 0
        self.preemptions = 0
        self.profile = profile()
        self.stalled: str | None = None
        self.gives_up = False
        """Whether Kueue's waitForPodsReady is on."""
        self.may_cancel = False
        """Whether the user cancels the job at some time. Not in every run: nothing starts afterwards."""
        self.reported = (0.0, 0.0, 0.0, 0)
        """Hours, money and seconds of the last status, and how often a status had been lost before."""

    @initialize(
        hosts=st.sampled_from(["v6e-4", "v6e-8"]),
        hit=st.booleans(),
        prompts=st.booleans(),
        reached=st.sampled_from(
            [None, Stage.CONVERT, Stage.TRAIN, Stage.TRAIN, Stage.TRAIN, Stage.EVALUATE, Stage.EXPORT]
        ),
        queued=st.booleans(),
        kinds=st.sampled_from([["OnDemand"], ["Spot", "OnDemand"]]),
        stalled=st.sampled_from([None, None, "no nodes", "nodes that start nothing"]),
        gives_up=st.booleans(),
        may_cancel=st.sampled_from([False, False, True]),
    )
    def start(
        self,
        hosts: str,
        hit: bool,
        prompts: bool,
        reached: Stage | None,
        queued: bool,
        kinds: list[str],
        stalled: str | None,
        gives_up: bool,
        may_cancel: bool,
    ) -> None:
        offered = [
            {**each, "topologies": ["2x2", "2x4"], "chipHourPrice": PRICES[each["capacity"]]}
            for each in flavors("OnDemand", "Spot")
        ]
        queues = {"queue": {"localQueue": "team-tpu", "cpuLocalQueue": "team-cpu"}} if queued else {}
        self.profile = profile(flavors=offered, currency="USD", **queues)
        self.stalled, self.gives_up, self.may_cancel = stalled, gives_up and queued, may_cancel
        self.world.profiles = [self.profile]
        evaluation = {"prompts": ["hello"]} if prompts else {}
        self.world.job = job(resources={"tpu": hosts, "capacity": kinds}, evaluation=evaluation)
        if hit:
            self.world.cache["f1"] = self.world.manifest(uid="another-job")
        skipped = (hit and reached is Stage.CONVERT) or (not prompts and reached is Stage.EVALUATE)
        if reached and not skipped:
            self.world.until(reached)

    # --- the operator

    @precondition(lambda self: self.taken is None)
    @rule()
    def observe_and_decide(self) -> None:
        decision = decide(self.world.observe())
        self.world.judge(decision)
        self.taken = (self.version, decision)

    @property
    def version(self) -> object:
        """The version of the job, which clients other than the operator change."""
        return self.world.job["metadata"]["generation"], self.wiped

    @precondition(lambda self: self.taken is not None)
    @rule(crash_after=st.one_of(st.none(), st.integers(0, 5)))
    def act(self, crash_after: int | None) -> None:
        assert self.taken is not None
        version, decision = self.taken
        self.taken = None
        kept = self.world.status
        try:
            self.world.apply(decision, crash_after=crash_after)
        except (Crash, ConflictError):
            return
        finally:
            if version != self.version:
                # The API server refuses a status for an object that has changed.
                self.world.job["status"] = kept
                self.world.untold.clear()

    @precondition(lambda self: self.taken is None)
    @rule(later=st.booleans())
    def reconcile(self, later: bool = False) -> None:
        """``later``: other jobs wait for their JobSets."""
        before = list(self.world.created)
        try:
            decision = self.world.reconcile(observation=replace(self.world.observe(), report_later=later))
        except ConflictError:
            return
        self.a_wait_ends(decision)
        assert not self.cancelled or self.world.created == before, "a cancelled job starts nothing"
        assert not self.world.paused or self.world.created == before, "a paused operator starts nothing"
        made = writes(decision)
        if not any((made.jobset, made.records, made.deletions, made.plan, made.retry)):
            again = decide(self.world.observe()).status.to_document()
            assert again == self.world.status, "a second reconcile changes nothing"

    # --- Kubernetes and the trainer

    def any_live(self) -> bool:
        return bool(self.world.live())

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.live())))

    def a_wait_ends(self, decision: Decision) -> None:
        """Any waiting job is reconciled again, unless a user has to act first."""
        reported = {
            each["type"]: each["status"] for each in decision.status.to_document().get("conditions", ())
        }
        person = (
            reported.get("Finished") == "True"
            or reported.get("Suspended") == "True"
            or reported.get("Valid") == "False"
            or self.world.paused
        )
        assert person or decision.requeue_after is not None

    @precondition(lambda self: self.taken is None)
    @rule()
    def the_operator_is_paused_or_resumed(self) -> None:
        self.world.paused = not self.world.paused

    @precondition(any_live)
    @rule(data=st.data())
    def no_node_is_free(self, data: st.DataObject) -> None:
        name = self.pick(data)
        jobset = self.world.jobsets[name]
        if "deletionTimestamp" in jobset["metadata"] or jobset["spec"]["suspend"]:
            return
        if not self.world.interrupted(name):
            self.world.schedule(name)

    @precondition(any_live)
    @rule(data=st.data(), held=st.sampled_from(HELD))
    def nodes_are_found_and_no_pod_starts(self, data: st.DataObject, held: str) -> None:
        for pod in self.world.pods_of(self.pick(data)):
            if pod["status"]["phase"] == "Pending":
                self.hold_pod(pod, held)

    def place(self, name: str) -> None:
        if name not in self.world.live() or self.world.interrupted(name) or self.running(name):
            return
        if not self.world.jobsets[name]["spec"]["suspend"]:
            self.world.schedule(name)
            for pod in self.world.pods_of(name):
                if pod["status"]["phase"] == "Pending":
                    self.hold_pod(pod, "ContainerCreating")

    @staticmethod
    def hold_pod(pod: Any, held: str) -> None:
        waiting = {"name": "trainer", "image": "i", "state": {"waiting": {"reason": held, "message": "no"}}}
        pod["spec"] = {**pod["spec"], "nodeName": "node-1"}
        pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}

    @precondition(lambda self: self.any_live() and len(self.world.foreign_jobsets) < 3)
    @rule(data=st.data(), flaw=st.sampled_from(FLAWS["jobset"]))
    def forge_a_jobset(self, data: st.DataObject, flaw: str) -> None:
        self.world.forge_jobset(self.pick(data), flaw)

    @precondition(lambda self: self.any_live() and len(self.world.foreign_pods) < 3)
    @rule(data=st.data(), flaw=st.sampled_from(FLAWS["pod"]))
    def forge_a_pod(self, data: st.DataObject, flaw: str) -> None:
        name = self.pick(data)
        if self.world.pods_of(name):
            self.world.forge_pod(name, flaw)

    @precondition(lambda self: self.any_live() and self.gives_up)
    @rule(data=st.data())
    def kueue_times_out_waiting_for_pods(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if not self.world.jobsets[name]["spec"]["suspend"] and not self.running(name):
            self.give_up(name)

    def give_up(self, name: str) -> None:
        if name in (self.world.workloads or {}) and not self.recorded(name):
            self.world.evict(name, "PodsReadyTimeout")

    @precondition(any_live)
    @rule(data=st.data())
    def pods_run(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.world.interrupted(name):
            return
        if not self.world.pods_of(name) or all(
            p["status"]["phase"] == "Pending" for p in self.world.pods_of(name)
        ):
            self.world.run(name)

    @precondition(any_live)
    @rule(data=st.data())
    def a_pod_vanishes(self, data: st.DataObject) -> None:
        """A pod is evicted or deleted manually, and counted: its object vanishes before the others have ended."""
        name = self.pick(data)
        running = [pod for pod in self.world.pods_of(name) if pod["status"]["phase"] == "Running"]
        if running and not self.recorded(name):
            del self.world.pods[data.draw(st.sampled_from([pod["metadata"]["name"] for pod in running]))]

    @precondition(any_live)
    @rule(data=st.data())
    def jobset_starts_all_pods_again(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.world.interrupted(name):
            self.end_interrupted(name)

    def end_interrupted(self, name: str) -> None:
        if "deletionTimestamp" in self.world.jobsets[name]["metadata"]:
            self.world.lose(name)
        elif not self.world.jobsets[name]["spec"]["suspend"]:
            self.preemptions += 1
            self.world.restart(name)

    @precondition(any_live)
    @rule(data=st.data())
    def the_stage_succeeds(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if not self.recorded(name) and not self.world.interrupted(name):
            self.world.succeed(name)

    @precondition(any_live)
    @rule(data=st.data())
    def the_record_is_written_and_the_process_remains(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.world.write_success(name)

    @precondition(any_live)
    @rule(data=st.data(), step=st.integers(1, TOTAL_STEPS - 1))
    def training_progresses(self, data: st.DataObject, step: int) -> None:
        name = self.pick(data)
        if self.running(name) and self.world.key_of(name).stage is Stage.TRAIN and not self.recorded(name):
            self.world.train(name, step)

    @precondition(lambda self: self.any_live() and self.taken is None)
    @rule(data=st.data(), hours=st.integers(1, 60), step=st.integers(1, TOTAL_STEPS - 1))
    def a_stage_runs_for_hours(self, data: st.DataObject, hours: int, step: int) -> None:
        name = self.pick(data)
        if not self.running(name) or self.recorded(name):
            return
        training = self.world.key_of(name).stage is Stage.TRAIN
        for _ in range(3):
            self.world.wait(hours * 1200)
            if name not in self.world.live():
                return
            if training and self.running(name):
                self.world.train(name, step)
            self.reconcile()

    @precondition(lambda self: self.taken is None)
    @rule(seconds=st.sampled_from([60, 1800, 3600, 7300, DAY]))
    def time_passes_and_is_observed(self, seconds: int) -> None:
        for _ in range(2):
            self.world.wait(seconds)
            self.reconcile()

    @precondition(any_live)
    @rule(data=st.data())
    def kueue_revokes_and_reassigns_the_quota(self, data: st.DataObject) -> None:
        """Both happen between two reconciles."""
        name = self.pick(data)
        if self.running(name) and not self.recorded(name) and "queue" in self.profile["spec"]:
            self.world.evict(name)
            self.world.wait(30)
            self.world.admit(name)
            self.world.wait(5)
            self.world.run(name)

    @precondition(any_live)
    @rule(data=st.data())
    def the_stage_receives_sigterm(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.preemptions += 1
            self.world.stop(name)

    @precondition(any_live)
    @rule(data=st.data(), saves=st.booleans())
    def kueue_revokes_the_quota(self, data: st.DataObject, saves: bool) -> None:
        """Of a JobSet that runs, or waits for nodes."""
        name = self.pick(data)
        suspended = self.world.jobsets[name]["spec"]["suspend"]
        if not suspended and not self.recorded(name) and "queue" in self.profile["spec"]:
            self.world.evict(name, saves=saves)

    @precondition(any_live)
    @rule(data=st.data())
    def kueue_assigns_quota(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.world.jobsets[name]["spec"]["suspend"]:
            self.world.admit(name)

    @precondition(any_live)
    @rule(data=st.data(), code=st.sampled_from([69, 1, 134]))
    def the_stage_fails_because_of_its_environment(self, data: st.DataObject, code: int) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.infrastructure += 1
            self.world.fail(name, code)

    @precondition(any_live)
    @rule(data=st.data())
    def the_stage_fails_because_of_its_input(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.user += 1
            self.world.fail(name, ExitCode.BAD_DATA)

    @precondition(any_live)
    @rule(data=st.data())
    def preflight_finds_no_input(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if (
            self.running(name)
            and not self.recorded(name)
            and self.world.key_of(name).stage is Stage.PREFLIGHT
        ):
            self.world.fail(name, ExitCode.INPUT_MISSING, "InputMissing", "gs://data/chat.jsonl is not there")

    @precondition(any_live)
    @rule(data=st.data(), disrupted=st.booleans())
    def the_process_dies_without_a_record(self, data: st.DataObject, disrupted: bool) -> None:
        name = self.pick(data)
        if not self.running(name):
            return
        if not self.recorded(name):
            self.preemptions, self.infrastructure = (
                self.preemptions + disrupted,
                self.infrastructure + (not disrupted),
            )
        conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
        self.world.kill(name, **({"conditions": conditions} if disrupted else {}))

    @precondition(any_live)
    @rule(data=st.data())
    def jobset_and_pods_are_deleted_by_force(self, data: st.DataObject) -> None:
        name = self.pick(data)
        self.infrastructure += 1
        self.world.lose(name)

    @precondition(any_live)
    @rule(data=st.data())
    def the_jobset_is_deleted_and_its_pods_remain(self, data: st.DataObject) -> None:
        self.infrastructure += 1
        del self.world.jobsets[self.pick(data)]

    @precondition(any_live)
    @rule(data=st.data())
    def the_jobset_is_deleted_in_the_foreground(self, data: st.DataObject) -> None:
        name = self.pick(data)
        self.infrastructure += 1
        self.world._delete(name, self.world.jobsets[name]["metadata"]["uid"])

    # --- users and other clients

    @rule(value=st.booleans())
    def suspend(self, value: bool) -> None:
        if self.world.job["spec"].get("suspend", False) is not value:
            self.world.edit(suspend=value)

    @precondition(lambda self: self.may_cancel)
    @rule()
    def cancel(self) -> None:
        self.world.edit(cancel=True)

    @property
    def cancelled(self) -> bool:
        return bool(self.world.job["spec"].get("cancel"))

    @rule(stage=st.sampled_from([None, *Stage]))
    def retry_manually(self, stage: Stage | None) -> None:
        generation = self.world.job["spec"].get("retry", {}).get("generation", 0) + 1
        self.world.edit(retry={"generation": generation, **({"fromStage": str(stage)} if stage else {})})

    @rule(seconds=st.sampled_from([1, 7, 60, 600, 3600, 7300, DAY, 10 * DAY]))
    def time_passes(self, seconds: int) -> None:
        self.world.wait(seconds)

    @rule(what=st.sampled_from(["store", "profile", "status", "plan", "past", "lingering pods"]))
    def an_unrelated_change_happens(self, what: str) -> None:
        world = self.world
        match what:
            case "store":
                world.unreadable = None if world.unreadable else "gs://artifacts: timed out"
            case "profile":
                world.profiles = [] if world.profiles else [self.profile]
            case "status" if not world.finished:
                lost = {key for key, _ in pending_records(read_status(world.status))}
                self.unexplained |= lost
                for key in lost:
                    world.purposes.pop(f"support-bot-{key.stage.short}-{key.number}", None)
                world.job["status"] = {"observedGeneration": -1}
                self.wiped += 1
            case "plan" if not self.taken and world.profiles:
                world.config_map = None
            case "past":
                for name in [name for name in world.jobsets if name not in world.live()]:
                    files = world.attempts.get(world.key_of(name))
                    if (files and files.result) or world.finished:
                        world.lose(name)
            case "lingering pods":
                self.end_remaining_pods()

    def end_remaining_pods(self) -> None:
        for pod in list(self.world.pods):
            if pod.rpartition("-")[0] not in self.world.jobsets:
                del self.world.pods[pod]

    # --- invariants

    @invariant()
    def charged_attempts_match_the_faults(self) -> None:
        attempts = self.world.status.get("attempts", {})
        assert attempts.get("user", 0) <= self.user
        assert attempts.get("infrastructure", 0) <= self.faults
        if self.world.status.get("phase") == "Failed":
            assert self.may_have_failed

    @property
    def faults(self) -> int:
        return self.infrastructure + len(self.world.silent) + len(self.unexplained)

    @property
    def may_have_failed(self) -> bool:
        stuck = self.preemptions + self.faults >= MOST_STUCK
        exhausted = self.user or self.faults > MAX_INFRASTRUCTURE or stuck or self.world.unplaced
        return bool(exhausted or self.cancelled)

    @invariant()
    def usage_never_decreases_and_never_exceeds_the_real_usage(self) -> None:
        cost, active = self.world.status.get("cost", {}), self.world.status.get("activeTime", {})
        reported = (
            float(cost.get("chipHours", 0)),
            float(cost.get("amount", 0)),
            float(active.get("seconds", 0)),
            self.wiped,
        )
        if reported[3] == self.reported[3]:
            assert all(now >= before for now, before in zip(reported, self.reported, strict=True)), (
                self.reported,
                reported,
            )
        self.reported = reported
        if not self.wiped:
            assert reported[0] <= self.world.chip_hours + 1e-3
            assert reported[1] <= self.world.cost + 1e-3

    @invariant()
    def ended_attempts_have_a_specific_reason(self) -> None:
        for entry in self.world.status.get("attempts", {}).get("history", ()):
            if entry.get("jobSet") in self.world.purposes:
                assert entry["reason"] not in ("JobSetDeleted", "PodLost"), entry

    @invariant()
    def events_and_conditions_are_complete(self) -> None:
        assert self.world.untold == []
        if "conditions" in self.world.status:
            assert [each["type"] for each in self.world.status["conditions"]] == list(ConditionType)

    def recorded(self, name: str) -> bool:
        """Whether the result is recorded; a stop does not count, since the attempt may run again with new quota."""
        files = self.world.attempts.get(self.world.key_of(name))
        return files is not None and files.result is not None and files.result.outcome is not Outcome.STOPPED

    def running(self, name: str) -> bool:
        return any(pod["status"]["phase"] == "Running" for pod in self.world.pods_of(name))

    def teardown(self) -> None:
        """Faults stop, and the job ends with the correct result. If it is stalled, only time passes, and the job still
        ends."""
        self.taken = None
        self.world.unreadable = None
        self.world.profiles = [self.profile]
        self.end_remaining_pods()
        for name in self.world.live():
            if self.world.interrupted(name) and not self.stalled:
                self.end_interrupted(name)
            elif self.recorded(name):
                self.world.end_pods(name, 0)
                self.world.end_jobset(name, "Completed")
        self.world.paused = False
        if self.world.job["spec"].get("suspend"):
            self.world.edit(suspend=False)
        if self.stalled:
            self.time_passes_without_progress()
        else:
            self.world.to_the_end()
        FineTuneJobStatus.model_validate(self.world.status, by_alias=True, by_name=False)
        if not self.may_have_failed:
            assert self.world.status["phase"] == "Succeeded", self.world.status["summary"]
        if self.cancelled:
            assert self.world.live() == [], "a cancelled job holds nothing"
        before = list(self.world.created)
        self.world.jobsets.clear()
        self.world.pods.clear()
        self.world.reconcile()
        assert self.world.created == before, "deleting children of a finished job changes nothing"

    def time_passes_without_progress(self) -> None:
        """Quota is assigned, no node appears, deleted JobSets end, and no required object is missing."""
        for pod in self.world.pods.values():
            if pod["status"]["phase"] == "Pending" and lacks_input(Pod.parse(pod)):
                self.hold_pod(pod, "ContainerCreating")
        for name in self.world.live():
            if self.gives_up and self.running(name) and not self.recorded(name):
                self.world.evict(name)
        # Timestamps have whole seconds: a run that begins in the second of the last step would count as the same.
        self.world.wait(1)
        for _ in range(200):
            self.world.reconcile()
            if self.world.finished and self.world.requeue_after != 0:
                return
            for name in self.world.live():
                jobset = self.world.jobsets[name]
                if "deletionTimestamp" in jobset["metadata"]:
                    self.world.stop(name) if self.world.pods_of(name) else self.world.lose(name)
                elif jobset["spec"]["suspend"]:
                    self.world.admit(name)
                elif self.gives_up and not self.running(name):
                    self.give_up(name)
                if self.stalled == "nodes that start nothing":
                    self.place(name)
            self.world.wait(max(self.world.requeue_after or 0, 1800))
        raise AssertionError(f"the job waits forever: {self.world.status.get('summary')}")


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # No shrinking, which takes minutes here: a failure of thirty steps is readable.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
