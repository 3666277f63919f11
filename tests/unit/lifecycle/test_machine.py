"""Anything may crash, vanish, be repeated or come late. Whatever happens, the promises hold, and when the faults
stop the job comes to its end."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from finetune_contract import ExitCode, Outcome, Stage
from finetune_operator.api import ConditionType, FineTuneJobStatus
from finetune_operator.lifecycle import Decision, decide
from finetune_operator.lifecycle.budgets import MOST_STUCK
from finetune_operator.lifecycle.queueing import evictions
from tests.unit.lifecycle.world import TOTAL_STEPS, ConflictError, Crash, World, job, profile

RESERVED = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue tpu")
ADMITTED = ("Admitted", "True", "Admitted", "The workload is admitted")
TPU = {Stage.TRAIN, Stage.EVALUATE}
MAX_INFRASTRUCTURE = 5


class WatchedWorld(World):
    """Checks each creation of a JobSet against what is true at that moment."""

    def _create_jobset(self, jobset: Any) -> None:
        revived = self.retry and self.retry.generation > self.status.get("retryGeneration", 0)
        assert revived or not self.finished, "a finished job starts nothing"
        super()._create_jobset(jobset)
        name = jobset["metadata"]["name"]
        key = self.key_of(name)
        others = [other for other in self.live() if other != name]
        assert not others, f"{name} was created while {others} could still run"
        running = [pod for pod in self.pods.values() if pod["status"]["phase"] not in ("Succeeded", "Failed")]
        assert not running, f"{name} was created while {[pod['metadata']['name'] for pod in running]} ran"
        assert key not in self.attempts, f"{name} was created twice"
        if key.stage in TPU:
            assert self.green(Stage.PREFLIGHT), "no TPU before preflight is green"
            assert self.cache, "no TPU before a conversion"
            assert all(manifest.export_proven for manifest in self.cache.values()), "no TPU before the proof"
        for stage in Stage:
            if stage is key.stage:
                break
            optional = stage is Stage.CONVERT or (stage is Stage.EVALUATE and not self.prompts)
            assert optional or self.green(stage), f"{name} was created before {stage} was done"

    def run(self, name: str) -> None:
        """No pod of a JobSet runs before its queue lets it go."""
        if self.jobsets[name]["spec"]["suspend"]:
            self.admit(name)
        super().run(name)

    def admit(self, name: str) -> None:
        stats = (self.workloads or {}).get(name, {}).get("status", {}).get("schedulingStats", {})
        self.workload(name, RESERVED, ADMITTED, schedulingStats=stats)
        self.hold(name, held=False)

    def evict(self, name: str) -> None:
        """Kueue takes the quota back; the trainer saves and says so."""
        times = len(evictions((self.workloads or {}).get(name))) + 1
        stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": times}]}
        waits = ("QuotaReserved", "False", "Pending", "insufficient unused quota, 4 more needed")
        self.workload(name, waits, ("Evicted", "True", "Preempted", "it gave way"), schedulingStats=stats)
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
    """The world moves by rules; the operator looks, and acts later, and may die between any two writes."""

    def __init__(self) -> None:
        super().__init__()
        self.world = WatchedWorld()
        self.taken: tuple[object, Decision] | None = None
        """A decision that is not carried out yet, and the version of the job that it was taken from."""
        self.wiped = 0
        self.infrastructure = 0
        self.user = 0
        self.preemptions = 0
        self.profile = profile()

    @initialize(
        hosts=st.sampled_from(["v6e-4", "v6e-8"]),
        hit=st.booleans(),
        prompts=st.booleans(),
        reached=st.sampled_from([None, Stage.CONVERT, Stage.TRAIN, Stage.EXPORT]),
        queued=st.booleans(),
    )
    def start(self, hosts: str, hit: bool, prompts: bool, reached: Stage | None, queued: bool) -> None:
        if queued:
            self.profile = profile(queue={"localQueue": "team-tpu", "cpuLocalQueue": "team-cpu"})
        self.world.profiles = [self.profile]
        evaluation = {"prompts": ["hello"]} if prompts else {}
        self.world.job = job(resources={"tpu": hosts}, evaluation=evaluation)
        if hit:
            self.world.cache["f1"] = self.world.manifest(uid="another-job")
        if reached and not (hit and reached is Stage.CONVERT):
            self.world.until(reached)

    # --- the operator

    @precondition(lambda self: self.taken is None)
    @rule()
    def look(self) -> None:
        self.taken = (self.version, decide(self.world.observe()))

    @property
    def version(self) -> object:
        """Of the job, as others than the operator change it."""
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
                # The API server refuses a status for an object that has moved on.
                self.world.job["status"] = kept
                self.world.untold.clear()

    @precondition(lambda self: self.taken is None)
    @rule()
    def reconcile(self) -> None:
        try:
            decision = self.world.reconcile()
        except ConflictError:
            return
        wrote = (decision.jobset, decision.records, decision.deletions, decision.snapshot, decision.retry)
        if not any(wrote):
            assert decide(self.world.observe()).status == self.world.status, "a second look changes nothing"

    # --- Kubernetes and the trainer

    def any_live(self) -> bool:
        return bool(self.world.live())

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.world.live())))

    @precondition(any_live)
    @rule(data=st.data())
    def no_node_is_free(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if "deletionTimestamp" not in self.world.jobsets[name]["metadata"]:
            self.world.schedule(name)

    @precondition(any_live)
    @rule(data=st.data())
    def pods_run(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if not self.world.pods_of(name) or all(
            p["status"]["phase"] == "Pending" for p in self.world.pods_of(name)
        ):
            self.world.run(name)

    @precondition(any_live)
    @rule(data=st.data())
    def the_stage_succeeds(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if not self.recorded(name):
            self.world.succeed(name)

    @precondition(any_live)
    @rule(data=st.data())
    def the_record_is_written_and_the_process_lingers(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.world.write_success(name)

    @precondition(any_live)
    @rule(data=st.data(), step=st.integers(1, TOTAL_STEPS - 1))
    def training_moves(self, data: st.DataObject, step: int) -> None:
        name = self.pick(data)
        if self.running(name) and self.world.key_of(name).stage is Stage.TRAIN and not self.recorded(name):
            self.world.train(name, step)

    @precondition(any_live)
    @rule(data=st.data())
    def the_stage_is_asked_to_stop(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.preemptions += 1
            self.world.stop(name)

    @precondition(any_live)
    @rule(data=st.data())
    def kueue_takes_the_quota_back(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name) and "queue" in self.profile["spec"]:
            self.world.evict(name)

    @precondition(any_live)
    @rule(data=st.data())
    def kueue_gives_quota(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.world.jobsets[name]["spec"]["suspend"]:
            self.world.admit(name)

    @precondition(any_live)
    @rule(data=st.data(), code=st.sampled_from([69, 1, 134]))
    def the_stage_fails_of_its_surroundings(self, data: st.DataObject, code: int) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.infrastructure += 1
            self.world.fail(name, code)

    @precondition(any_live)
    @rule(data=st.data())
    def the_stage_fails_of_its_input(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if self.running(name) and not self.recorded(name):
            self.user += 1
            self.world.fail(name, ExitCode.BAD_DATA)

    @precondition(any_live)
    @rule(data=st.data())
    def preflight_misses_its_input(self, data: st.DataObject) -> None:
        name = self.pick(data)
        if (
            self.running(name)
            and not self.recorded(name)
            and self.world.key_of(name).stage is Stage.PREFLIGHT
        ):
            self.world.fail(name, ExitCode.INPUT_MISSING, "InputMissing", "gs://data/chat.jsonl is not there")

    @precondition(any_live)
    @rule(data=st.data(), disrupted=st.booleans())
    def the_process_dies_without_a_word(self, data: st.DataObject, disrupted: bool) -> None:
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
    def everything_of_it_is_deleted_by_force(self, data: st.DataObject) -> None:
        name = self.pick(data)
        self.infrastructure += 1
        self.world.lose(name)

    @precondition(any_live)
    @rule(data=st.data())
    def the_jobset_is_gone_and_its_pods_linger(self, data: st.DataObject) -> None:
        self.infrastructure += 1
        del self.world.jobsets[self.pick(data)]

    @precondition(any_live)
    @rule(data=st.data())
    def someone_deletes_it_politely(self, data: st.DataObject) -> None:
        name = self.pick(data)
        self.infrastructure += 1
        self.world._delete(name, self.world.jobsets[name]["metadata"]["uid"])

    # --- users and the rest of the world

    @rule(value=st.booleans())
    def suspend(self, value: bool) -> None:
        if self.world.job["spec"].get("suspend", False) is not value:
            self.world.edit(suspend=value)

    @rule(stage=st.sampled_from([None, *Stage]))
    def retry_by_hand(self, stage: Stage | None) -> None:
        generation = self.world.job["spec"].get("retry", {}).get("generation", 0) + 1
        self.world.edit(retry={"generation": generation, **({"fromStage": str(stage)} if stage else {})})

    @rule(seconds=st.sampled_from([1, 7, 60, 600]))
    def time_passes(self, seconds: int) -> None:
        self.world.wait(seconds)

    @rule(what=st.sampled_from(["store", "profile", "status", "plan", "past", "lingering pods"]))
    def something_else_happens(self, what: str) -> None:
        world = self.world
        match what:
            case "store":
                world.unreadable = None if world.unreadable else "gs://artifacts: timed out"
            case "profile":
                world.profiles = [] if world.profiles else [self.profile]
            case "status" if not world.finished:
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
                self.end_lingering_pods()

    def end_lingering_pods(self) -> None:
        for pod in list(self.world.pods):
            if pod.rpartition("-")[0] not in self.world.jobsets:
                del self.world.pods[pod]

    # --- what holds at every moment

    @invariant()
    def who_is_charged(self) -> None:
        attempts = self.world.status.get("attempts", {})
        assert attempts.get("user", 0) <= self.user
        assert attempts.get("infrastructure", 0) <= self.infrastructure
        if self.world.status.get("phase") == "Failed":
            assert self.user or self.infrastructure > MAX_INFRASTRUCTURE or self.preemptions >= MOST_STUCK

    @invariant()
    def what_a_person_is_to_be_told(self) -> None:
        assert self.world.untold == []
        if "conditions" in self.world.status:
            assert [each["type"] for each in self.world.status["conditions"]] == list(ConditionType)

    def recorded(self, name: str) -> bool:
        """Its end; that it was stopped is none where it waits for quota, and may run again."""
        files = self.world.attempts.get(self.world.key_of(name))
        return files is not None and files.result is not None and files.result.outcome is not Outcome.STOPPED

    def running(self, name: str) -> bool:
        return any(pod["status"]["phase"] == "Running" for pod in self.world.pods_of(name))

    def teardown(self) -> None:
        """Faults stop: the job comes to an end, and to the right one."""
        self.taken = None
        self.world.unreadable = None
        self.world.profiles = [self.profile]
        self.end_lingering_pods()
        for name in self.world.live():
            if self.recorded(name):
                self.world.end_pods(name, 0)
                self.world.end_jobset(name, "Completed")
        if self.world.job["spec"].get("suspend"):
            self.world.edit(suspend=False)
        self.world.to_the_end()
        FineTuneJobStatus.model_validate(self.world.status, by_alias=True, by_name=False)
        if not self.user and self.infrastructure <= MAX_INFRASTRUCTURE and self.preemptions < MOST_STUCK:
            assert self.world.status["phase"] == "Succeeded", self.world.status["summary"]
        before = list(self.world.created)
        self.world.jobsets.clear()
        self.world.pods.clear()
        self.world.reconcile()
        assert self.world.created == before, "deleting children of a finished job changes nothing"


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # Shrinking takes minutes here, and a failure of thirty steps reads well enough.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
