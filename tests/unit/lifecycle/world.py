"""A small world for decisions: a cluster, an object store and a trainer, all in memory and controlled by the test.

It implements only the contracts that the operator relies on: names are unique, foreground deletion leaves a
JobSet in place until its pods are gone, a JobSet restarts all pods after a disruption and fails after any other error,
a trainer writes its request first and its result before it exits.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from finetune_contract import (
    CheckpointRecord,
    ConversionCacheUse,
    ConvertManifest,
    ConvertOutcome,
    ExitCode,
    Failure,
    HostProgress,
    Outcome,
    PreflightOutcome,
    Progress,
    RunFolder,
    Stage,
    StageProgress,
    StageRequest,
    StageResult,
    StepMetrics,
    TrainOutcome,
)
from finetune_operator.api import FineTuneJobStatus, Reason
from finetune_operator.api.timestamps import stamp
from finetune_operator.ledger.layout import record_uri
from finetune_operator.ledger.month import MonthlyBudget
from finetune_operator.ledger.record import LedgerRecord
from finetune_operator.lifecycle.accounting.recorded import with_records
from finetune_operator.lifecycle.accounting.records import closing_records, remainder
from finetune_operator.lifecycle.attempts.own_attempts import own_attempts
from finetune_operator.lifecycle.changes import changes
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.node import SliceNode
from finetune_operator.lifecycle.children.object_events import read_event
from finetune_operator.lifecycle.children.ownership import may_be_jobset_of, may_be_pod_of, own_pods
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.children.pods import running_span
from finetune_operator.lifecycle.children.quotas import Quota
from finetune_operator.lifecycle.children.workload import Workload
from finetune_operator.lifecycle.decide import decide
from finetune_operator.lifecycle.decision import Decision, DetailRequest, JobEvent
from finetune_operator.lifecycle.fitting import read_status
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import (
    AttemptFiles,
    Observation,
    ReadFailure,
    RetryRecord,
    RunFolderView,
    TakeoverRecord,
    in_order,
    since,
)
from finetune_operator.lifecycle.status.events import job_events
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.estimate.past_runs import PastTrainings
from finetune_operator.planning.stored_plan import stored_plan_in
from finetune_operator.rendering import attempt_of
from finetune_operator.rendering.labels import RESTART_LABEL
from tests import stage_outcomes
from tests.unit.lifecycle.writes import writes

type Object = dict[str, Any]

UID = "0b5e3a52-8d0e-4c39-a7d6-1f1f0c1d2e3f"
LEDGER = "gs://ledger"
TOTAL_STEPS = 100
STEP_BETWEEN_CHECKPOINTS = 10


class ConflictError(Exception):
    """The name already exists."""


class Crash(Exception):
    """The operator has crashed."""


def job(**spec: Any) -> Object:
    """Returns the quickstart's job."""
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {
            "name": "support-bot",
            "namespace": "team-a",
            "uid": UID,
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {
            "model": {"uri": "gs://models/tiny"},
            "datasets": {
                "train": [{"uri": "gs://data/chat.jsonl"}],
                "validation": [{"uri": "gs://data/held-back.jsonl"}],
            },
            "method": {"type": "SFT"},
            "hyperparameters": {"steps": TOTAL_STEPS},
            "resources": {"tpu": "v6e-4"},
            "evaluation": {"prompts": ["Reset my password"]},
            **spec,
        },
        "status": {"observedGeneration": -1},
    }


def profile(name: str = "local", *, default: bool = True, **spec: Any) -> Object:
    """A profile with one-host and two-host slices. Unless ``spec`` says otherwise, it allows what it does not list."""
    spec = {**spec, "constraints": {"mode": "Open", **spec.get("constraints", {})}}
    annotations = {"tpu-finetune.dev/is-default-profile": "true"} if default else {}
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneProfile",
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "resourceVersion": "1",
            "annotations": annotations,
        },
        "spec": {
            "owner": {"team": "ml-platform", "contact": "#ml-help"},
            "images": {"trainer": "registry.example/finetune-trainer@sha256:" + "0" * 64},
            "storage": {"artifacts": "gs://artifacts", "cache": "gs://cache"},
            "serviceAccounts": {"tpu": "ft-train", "cpu": "ft-cpu"},
            "flavors": [
                {
                    "name": "on-demand",
                    "capacity": "OnDemand",
                    "accelerator": "tpu-v6e-slice",
                    "topologies": ["2x2", "2x4"],
                    "chipsPerHost": 4,
                }
            ],
            **spec,
        },
    }


def stamped(world: "World", ago: float = 0) -> str:
    """Returns the world's time, or that many seconds before, in the format of Kubernetes."""
    return stamp(world.now - timedelta(seconds=ago))


def hit(manifest: ConvertManifest) -> ConversionCacheUse:
    """What preflight reports of an entry that it has compared."""
    return ConversionCacheUse(
        result="Hit", uri=manifest.items, files_digest=manifest.files_digest, size_bytes=manifest.size_bytes
    )


def own_children(
    job: Object, jobsets: Iterable[Object], pods: Iterable[Object], now: datetime
) -> tuple[tuple[JobSet, ...], tuple[Pod, ...]]:
    """Returns the job's JobSets and pods as an observation has them."""
    own = tuple(JobSet.parse(each) for each in jobsets if may_be_jobset_of(job, each))
    return own, own_pods((Pod.parse(each) for each in pods if may_be_pod_of(job, each)), own, now)


def answered[T](document: T) -> T:
    """Returns a copy as from the API server, by way of JSON, which is five times as fast as ``deepcopy``."""
    copied: T = json.loads(json.dumps(document))
    return copied


@dataclass
class World:
    """Everything outside the operator. Tests change it; ``reconcile`` lets the operator observe and act once."""

    job: Object = field(default_factory=job)
    profiles: list[Object] = field(default_factory=lambda: [profile()])
    now: datetime = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
    config_map: Object | None = None
    """The stored plan."""
    takeovers: list[TakeoverRecord] = field(default_factory=list)
    neighbours: list[Object] = field(default_factory=list)
    unserved: str | None = None
    source: Object | None = None
    """The job whose model the job starts from."""
    jobsets: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    attempts: dict[AttemptKey, AttemptFiles] = field(default_factory=dict)
    progress: Progress | None = None
    stage_progress: dict[AttemptKey, StageProgress] = field(default_factory=dict)
    cache: dict[str, ConvertManifest] = field(default_factory=dict)
    nodes: dict[str, Object] | None = None
    unreadable: str | ReadFailure | None = None
    """Why the run folder cannot be read; a text means that the store is unavailable."""
    progress_unknown: ReadFailure | None = None
    retry: RetryRecord | None = None
    checkpoint: int = 0
    """The step of the last checkpoint."""
    best: int | None = None
    """The step of the best checkpoint, if training keeps it."""
    events: list[JobEvent] = field(default_factory=list)
    untold: list[JobEvent] = field(default_factory=list)
    """Transitions that the status has shown without an Event; always empty."""
    created: list[str] = field(default_factory=list)
    """Names of JobSets in the order of their creation."""
    requeue_after: float | None = None
    fingerprint: str = "f1"
    conversion: ConversionCacheUse | None = None
    """Preflight's result about the conversion cache; None: what the cache holds then."""
    manifest_fault: str = ""
    """Why the manifest in the cache cannot be read."""
    live_jobs: int = 1
    workloads: dict[str, Object] | None = field(default_factory=dict)
    """Kueue's Workloads by the name of their JobSet; None: Kueue is not installed."""
    hosts: dict[int, HostProgress] = field(default_factory=dict)
    object_events: list[Object] = field(default_factory=list)
    """Events about pods and Jobs, from any client."""
    ledger: dict[str, LedgerRecord] | None = None
    """The operator's ledger, by URI; None: it keeps none."""
    ledger_away: bool = False
    budget: Callable[[Job, datetime], MonthlyBudget | None] = lambda _job, _now: None
    """The budget of the job's namespace for the month."""
    past_trainings: PastTrainings | None = None
    """Past trainings of the namespace."""
    quotas: list[Object] = field(default_factory=list)
    """ResourceQuotas of the job's namespace."""
    paused: bool = False
    """Whether the operator is paused."""
    unobserved_until: datetime | None = None
    """End of the time in which the operator could not observe the namespace."""
    _uids: int = 0

    # --- the operator ---------------------------------------------------------------------------------------

    def observe(self) -> Observation:
        # As the observer reads them: decisions must not need more than it provides.
        job = Job.parse(answered(self.job))
        jobsets, pods = own_children(
            self.job, answered(list(self.jobsets.values())), answered(list(self.pods.values())), self.now
        )
        return Observation(
            now=self.now,
            job=job,
            profiles=tuple(answered(self.profiles)),
            stored=stored_plan_in(answered(self.config_map)),
            jobsets=jobsets,
            pods=pods,
            folder=self._view(job, jobsets, pods),
            source=answered(self.source),
            quotas=()
            if self.config_map
            else tuple(quota for each in self.quotas if (quota := Quota.parse(each))),
            neighbours=tuple(answered(self.neighbours)),
            unserved_namespace=self.unserved,
            unobserved_until=self.unobserved_until,
            nodes=None
            if self.nodes is None
            else {name: SliceNode.parse(answered(each)) for name, each in self.nodes.items()},
            workloads=None
            if self.workloads is None
            else tuple(Workload.parse(each) for each in self.workloads.values()),
            live_jobs=self.live_jobs,
            ledger=None if self.ledger is None else LEDGER,
            month=self.budget(job, self.now) if self.config_map or job.status.resolved else None,
            past_trainings=self.past_trainings,
            paused=self.paused,
        )

    def _view(self, job: Job, jobsets: Sequence[JobSet], pods: Sequence[Pod]) -> RunFolderView:
        stored = stored_plan_in(self.config_map)
        if stored is None:
            return RunFolderView()
        if isinstance(stored, Refused):
            return RunFolderView(unreadable=ReadFailure(reason=stored.reason, message=stored.message))
        if isinstance(self.unreadable, str):
            away = ReadFailure(reason=Reason.STORE_UNAVAILABLE, message=self.unreadable)
            return RunFolderView(unreadable=away)
        if self.unreadable:
            return RunFolderView(unreadable=self.unreadable)
        found = any(
            files.result and isinstance(files.result.details, PreflightOutcome)
            for files in self.attempts.values()
        )
        takeovers = in_order(self.takeovers)
        listed = [key for key in self.attempts if since(takeovers, key)]
        own = own_attempts(listed, takeovers, job=job, jobsets=jobsets, pods=pods)
        requested = job.control.retry_generation
        return RunFolderView(
            attempts={key: files for key, files in self.attempts.items() if key in own},
            foreign_attempts=frozenset(listed) - own,
            takeovers=takeovers,
            retry=self.retry if self.retry and self.retry.generation <= requested else None,
            progress=None if self.progress_unknown else self.progress,
            progress_unknown=self.progress_unknown,
            stage_progress=self.stage_progress,
            convert_manifest=self.cache.get(self.fingerprint) if found else None,
            convert_manifest_fault=self.manifest_fault if found else "",
        )

    def reconcile(
        self, *, crash_after: int | None = None, observation: Observation | None = None
    ) -> Decision:
        """Observes, decides and applies. ``crash_after`` is the number of writes before the operator crashes."""
        seen = observation or self.observe()
        decision = self._decide(seen)
        if decision.details is not None:
            decision = self._decide(self.with_details(seen, decision.details))
        self.apply(decision, crash_after=crash_after)
        self.requeue_after = decision.requeue_after
        return decision

    def admit(self) -> None:
        """The first pass of a job: stores the plan, then creates the first JobSet and writes the first status."""
        self.reconcile()
        self.reconcile()

    def _decide(self, observation: Observation) -> Decision:
        decision = decide(observation)
        if decision.fault is not None:
            raise decision.fault
        return decision

    def with_details(self, observation: Observation, at: DetailRequest) -> Observation:
        events = [
            event
            for each in self.object_events
            if at.events
            and (each["involvedObject"]["kind"], each["involvedObject"]["name"])
            == (at.events.kind, at.events.name)
            and (event := read_event(answered(each)))
        ]
        return replace(
            observation,
            hosts=dict(self.hosts) if at.hosts else None,
            events=tuple(events) if at.events else None,
        )

    def apply(self, decision: Decision, *, crash_after: int | None = None) -> None:
        made, steps = writes(decision), list[Callable[[], None]]()
        if made.retry is not None:
            steps.append(lambda: setattr(self, "retry", made.retry))
        if made.takeover is not None:
            steps.append(lambda: self.takeovers.append(made.takeover))
        steps += [lambda k=key, f=failure: self._record(k, f) for key, failure in made.records]  # type: ignore[misc]
        if made.plan is not None:
            steps.append(lambda: self._store_plan(made.plan))
        deletions = [lambda d=each: self._delete(d.name, d.uid) for each in made.deletions]  # type: ignore[misc]
        if not made.status_first:
            steps += deletions
        if made.jobset is not None:
            steps.append(lambda: self._create_jobset(made.jobset))
        steps += [lambda e=event: self._record_event(e) for event in decision.events]  # type: ignore[misc]
        written: list[LedgerRecord] = []
        steps += [lambda r=record: self._account(r, decision.ledger, written) for record in decision.ledger]  # type: ignore[misc]
        steps.append(lambda: self._write_status(self._accounted(decision, written)))
        if made.status_first:
            steps += deletions
        for number, step in enumerate(steps):
            if crash_after is not None and number >= crash_after:
                raise Crash
            step()

    def _account(
        self, record: LedgerRecord, due: Sequence[LedgerRecord], written: list[LedgerRecord]
    ) -> None:
        """Writes a record of the ledger, unless the name is taken, or was for an earlier one that is due."""
        assert self.ledger is not None
        read = LedgerRecord.parse(record.to_json())
        assert read == record, "a record is read as it was written"
        if not self.ledger_away and [*written, record] == list(due[: len(written) + 1]):
            written.append(self.ledger.setdefault(record_uri(LEDGER, record), record))

    @staticmethod
    def _accounted(decision: Decision, written: Sequence[LedgerRecord]) -> FineTuneJobStatus:
        if not decision.ledger:
            return decision.status
        return with_records(decision.status, decision.ledger, written)

    def delete(self) -> None:
        """The job is deleted, and the operator observes it."""
        assert self.ledger is not None
        for record in closing_records(Job.parse(answered(self.job)), self.now):
            found = self.ledger.setdefault(record_uri(LEDGER, record), record)
            if rest := remainder(record, found):
                self.ledger.setdefault(record_uri(LEDGER, rest), rest)

    def _record(self, key: AttemptKey, failure: Failure) -> None:
        files = self.attempts.get(key, AttemptFiles())
        self.attempts[key] = replace(files, failure=failure)

    def _store_plan(self, config_map: Any) -> None:
        if self.config_map is not None:
            raise ConflictError
        self.config_map = answered(dict(config_map))
        self.config_map["metadata"]["creationTimestamp"] = stamp(self.now)

    def _create_jobset(self, jobset: Any) -> None:
        name = jobset["metadata"]["name"]
        if name in self.jobsets:
            raise ConflictError
        self._uids += 1
        stored = answered(dict(jobset))
        stored["metadata"] |= {"uid": f"js-{self._uids}", "creationTimestamp": stamp(self.now)}
        self.jobsets[name] = stored
        self.created.append(name)

    def _delete(self, name: str, uid: str) -> None:
        jobset = self.jobsets.get(name)
        if jobset is None or jobset["metadata"]["uid"] != uid:
            return
        jobset["metadata"]["deletionTimestamp"] = stamp(self.now)
        self._collect(name)

    def _record_event(self, notice: JobEvent) -> None:
        """An Event's name is derived from its content, so that no Event is created twice."""
        if notice not in self.events:
            self.events.append(notice)

    def _write_status(self, status: FineTuneJobStatus) -> None:
        moved = job_events(changes(read_status(self.job.get("status")), status))
        self.untold += [notice for notice in moved if notice not in self.events]
        self.job["status"] = status.to_document()

    # --- the user -------------------------------------------------------------------------------------------

    def edit(self, **spec: Any) -> None:
        self.job["spec"] |= spec
        self.job["metadata"]["generation"] += 1

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # --- Kubernetes -----------------------------------------------------------------------------------------

    def key_of(self, name: str) -> AttemptKey:
        found = attempt_of(self.jobsets[name])
        assert found is not None
        return AttemptKey(*found)

    def live(self) -> list[str]:
        """JobSets that have not ended."""
        return [name for name, jobset in self.jobsets.items() if not self._ended(jobset)]

    def schedule(self, name: str) -> None:
        """Creates the pods of a JobSet, which find no node yet."""
        jobset = self.jobsets[name]
        template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        for index in range(template["completions"]):
            self.pods.setdefault(
                f"{name}-{index}",
                {
                    "metadata": {
                        "name": f"{name}-{index}",
                        "creationTimestamp": stamp(self.now),
                        "labels": template["template"]["metadata"]["labels"]
                        | {RESTART_LABEL: str(self.restarts(name)), "jobset.sigs.k8s.io/jobset-name": name},
                        "ownerReferences": [{"kind": "Job", "name": f"{name}-x-0", "controller": True}],
                    },
                    "spec": template["template"]["spec"],
                    "status": {"phase": "Pending"},
                },
            )

    def run(self, name: str) -> None:
        """All pods run and the trainer has written its request."""
        self.schedule(name)
        for pod in self.pods_of(name):
            running = {"name": "trainer", "state": {"running": {"startedAt": stamp(self.now)}}}
            pod["status"] |= {"phase": "Running", "containerStatuses": [running]}
        key = self.key_of(name)
        self.attempts.setdefault(key, AttemptFiles())

    def pods_of(self, name: str) -> list[Object]:
        return [pod for pod_name, pod in self.pods.items() if pod_name.rpartition("-")[0] == name]

    def end_pods(self, name: str, code: int, **status: Any) -> None:
        for pod in self.pods_of(name):
            (container,) = pod["status"].get("containerStatuses", [{"state": {}}])
            begun = container["state"].get("running", {}).get("startedAt", stamp(self.now))
            ended = {"exitCode": code, "startedAt": begun, "finishedAt": stamp(self.now)}
            pod["status"] = {
                "phase": "Succeeded" if code == 0 else "Failed",
                "containerStatuses": [{"name": "trainer", "state": {"terminated": ended}}],
                **status,
            }

    def restarts(self, name: str) -> int:
        """Returns the number of restarts of the JobSet."""
        found: int = self.jobsets[name].get("status", {}).get("restarts", 0)
        return found

    def settle(self, name: str) -> None:
        """Acts like the Job and JobSet controllers after pods have failed, in the order of the list."""
        first = self.pods_of(name)[0]["status"]
        (container,) = first["containerStatuses"]
        taken = any(each["type"] == "DisruptionTarget" for each in first.get("conditions", ()))
        stopped = container["state"]["terminated"]["exitCode"] in (75, 143)
        if (taken or stopped) and "deletionTimestamp" not in self.jobsets[name]["metadata"]:
            self.restart(name)
        else:
            self.end_jobset(name, "Failed")

    def restart(self, name: str) -> None:
        """Deletes all pods for a restart of the JobSet."""
        restarts = self.restarts(name) + 1
        for pod in self.pods_of(name):
            del self.pods[pod["metadata"]["name"]]
        status = self.jobsets[name].get("status", {})
        self.jobsets[name]["status"] = {**status, "restarts": restarts, "restartsCountTowardsMax": 0}

    def end_jobset(self, name: str, kind: str) -> None:
        """The JobSet ends."""
        jobset = self.jobsets[name]
        status = jobset.get("status", {})
        ended = {"type": kind, "status": "True", "lastTransitionTime": stamp(self.now), "message": ""}
        jobset["status"] = {**status, "conditions": [*status.get("conditions", ()), ended]}
        self._collect(name)

    def lose(self, name: str) -> None:
        """JobSet and pods vanish at once, as after a manual forced deletion."""
        for pod in [pod for pod in self.pods if pod.rpartition("-")[0] == name]:
            del self.pods[pod]
        self.jobsets.pop(name, None)

    def _collect(self, name: str) -> None:
        """Garbage collection: a JobSet that is being deleted vanishes when none of its pods runs."""
        jobset = self.jobsets[name]
        running = [pod for pod in self.pods_of(name) if pod["status"]["phase"] in ("Running", "Unknown")]
        if "deletionTimestamp" in jobset["metadata"] and not running:
            self.lose(name)

    @staticmethod
    def _ended(jobset: Object) -> bool:
        return any(
            each["status"] == "True" and each["type"] in ("Completed", "Failed")
            for each in jobset.get("status", {}).get("conditions", ())
        )

    # --- Kueue ----------------------------------------------------------------------------------------------

    def workload(self, name: str, *conditions: tuple[str, str, str, str], **status: Any) -> Object:
        """Sets a JobSet's Workload: conditions as type, status, reason, message."""
        metadata = self.jobsets[name]["metadata"]
        made = {
            "metadata": {
                "name": f"jobset-{name}",
                "creationTimestamp": metadata["creationTimestamp"],
                "ownerReferences": [
                    {"kind": "JobSet", "name": name, "uid": metadata["uid"], "controller": True}
                ],
            },
            "spec": {"queueName": metadata["labels"].get("kueue.x-k8s.io/queue-name")},
            "status": {
                "conditions": [
                    {
                        "type": kind,
                        "status": value,
                        "reason": reason,
                        "message": message,
                        "lastTransitionTime": stamp(self.now),
                    }
                    for kind, value, reason, message in conditions
                ],
                **status,
            },
        }
        assert self.workloads is not None, "Kueue is installed"
        self.workloads[name] = made
        return made

    def hold(self, name: str, *, held: bool) -> None:
        """Kueue suspends a JobSet, which deletes its pods, or resumes it."""
        jobset = self.jobsets[name]
        jobset["spec"]["suspend"] = held
        jobset["status"] = {
            **jobset.get("status", {}),
            "conditions": [{"type": "Suspended", "status": str(held), "lastTransitionTime": stamp(self.now)}],
        }
        if held:
            for pod in [pod for pod in self.pods if pod.rpartition("-")[0] == name]:
                del self.pods[pod]

    # --- the trainer ----------------------------------------------------------------------------------------

    def request(self, name: str) -> StageRequest:
        template = self.jobsets[name]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        env = {each["name"]: each.get("value") for each in template["spec"]["containers"][0]["env"]}
        return StageRequest.model_validate_json(env["FINETUNE_REQUEST"].replace("$$", "$"))

    def succeed(self, name: str) -> None:
        """The stage does its work, writes its record and exits; Kubernetes notices."""
        self.run(name)
        self.write_success(name)
        self.end_pods(name, 0)
        self.end_jobset(name, "Completed")

    def write_success(self, name: str) -> None:
        request = self.request(name)
        if request.stage is Stage.TRAIN:
            self.train(name, TOTAL_STEPS)
        details = self.details(request)
        if isinstance(details, ConvertOutcome):
            self._keep(request, details.manifest)
        self._write_result(name, Outcome.SUCCEEDED, 0, details=details)

    def _keep(self, request: StageRequest, manifest: ConvertManifest) -> None:
        if request.use_cache == "Refresh":
            self.cache[self.fingerprint] = manifest
        else:
            self.cache.setdefault(self.fingerprint, manifest)

    def train(self, name: str, step: int) -> None:
        """Training reaches a step and has saved the checkpoints that are due."""
        key = self.key_of(name)
        start = (
            self.progress.start_step
            if self.progress and (self.progress.attempt, self.progress.restart) == (key.number, key.restart)
            else self.checkpoint
        )
        self.checkpoint = max(self.checkpoint, step // STEP_BETWEEN_CHECKPOINTS * STEP_BETWEEN_CHECKPOINTS)
        self.progress = Progress(
            attempt=key.number,
            restart=key.restart,
            step=step,
            total_steps=TOTAL_STEPS,
            start_step=start,
            metrics=StepMetrics(loss=2.0 - step / TOTAL_STEPS),
            step_time_p50=0.1,
            step_time_p95=0.2,
            compilations=3,
            curve=[(step, 2.0 - step / TOTAL_STEPS)],
            checkpoints=[self.checkpoint] if self.checkpoint else [],
            updated=self.now,
        )

    def report(self, name: str, doing: str, done: int = 0, **counts: Any) -> None:
        """The trainer reports what the stage is doing; an activity begins with its first report."""
        key = self.key_of(name)
        before = self.stage_progress.get(key)
        since = before.since if before and before.doing == doing else self.now
        made = StageProgress(doing=doing, done=done, since=since, updated=self.now, **counts)
        self.stage_progress = {key: made}

    def save(self, name: str) -> None:
        """The trainer writes its record on SIGTERM."""
        details = None
        if self.key_of(name).stage is Stage.TRAIN and self.progress:
            self.checkpoint = self.progress.step
            details = self.train_outcome()
        self._write_result(name, Outcome.STOPPED, ExitCode.STOPPED, details=details)

    def stop(self, name: str, *, of_another: bool = False) -> None:
        """Training receives SIGTERM, saves its current step and exits with 75. ``of_another``: the cause is a pod that
        the world does not contain and that failed before for a reason other than a disruption."""
        self.save(name)
        self.end_pods(name, ExitCode.STOPPED)
        if of_another:
            self.end_jobset(name, "Failed")
        else:
            self.settle(name)

    def fail(self, name: str, code: int, reason: str = "Broken", message: str = "it broke") -> None:
        """The trainer records the failure and exits."""
        failure = Failure(code=code, reason=reason, message=message, fix="Mend it.")
        self._write_result(name, Outcome.FAILED, code, failure=failure)
        self.end_pods(name, code)
        self.settle(name)

    def note(self, name: str, failure: Failure | None) -> None:
        """A process other than the first records its failure."""
        key = self.key_of(name)
        self.attempts[key] = replace(self.attempts.get(key, AttemptFiles()), failure=failure)

    def kill(self, name: str, code: int = 137, *, of_another: bool = False, **status: Any) -> None:
        """The processes die without a record; ``of_another``: as in :meth:`stop`."""
        self.end_pods(name, code, **status)
        if of_another:
            self.end_jobset(name, "Failed")
        else:
            self.settle(name)

    def _write_result(self, name: str, outcome: Outcome, code: int, **more: Any) -> None:
        key = self.key_of(name)
        files = self.attempts.get(key, AttemptFiles())
        result = StageResult(
            stage=key.stage,
            attempt=key.number,
            restart=key.restart,
            outcome=outcome,
            exit_code=code,
            started=span[0] if (span := running_span(map(Pod.parse, self.pods_of(name)))) else self.now,
            finished=self.now,
            **more,
        )
        self.attempts[key] = replace(files, result=result, failure=more.get("failure") or files.failure)

    @property
    def folder(self) -> RunFolder:
        return RunFolder.of("gs://artifacts", "team-a", "support-bot", UID)

    def train_outcome(self) -> TrainOutcome:
        step = self.progress.step if self.progress else 0
        saved = (self.best, self.checkpoint) if self.best is not None else (self.checkpoint,)
        return TrainOutcome(
            step=step,
            total_steps=TOTAL_STEPS,
            start_step=self.progress.start_step if self.progress else 0,
            evaluation_loss=1.0,
            best_step=self.best,
            checkpoints=[CheckpointRecord(step=step, uri=self.folder.checkpoint(step)) for step in saved],
            end_ids=[],
        )

    def details(self, request: StageRequest) -> Any:
        if request.stage is Stage.TRAIN:
            return self.train_outcome()
        details = stage_outcomes.details(
            request, fingerprint=self.fingerprint, steps=TOTAL_STEPS, now=self.now
        )
        if isinstance(details, PreflightOutcome):
            return details.model_copy(update={"conversion": self.conversion or self._lookup()})
        return details

    def _lookup(self) -> ConversionCacheUse:
        found = self.cache.get(self.fingerprint)
        return hit(found) if found else ConversionCacheUse(result="Miss")

    def manifest(self, *, proven: bool = True, uid: str = UID) -> ConvertManifest:
        return stage_outcomes.manifest(
            "gs://cache/team-a", self.fingerprint, uid, now=self.now, proven=proven
        )

    # --- shortcuts ------------------------------------------------------------------------------------------

    @property
    def status(self) -> Object:
        found: Object = self.job["status"]
        return found

    def condition(self, kind: str) -> Object:
        return next(each for each in self.status["conditions"] if each["type"] == kind)

    @property
    def finished(self) -> bool:
        return any(
            each["type"] == "Finished" and each["status"] == "True"
            for each in self.status.get("conditions", ())
        )

    def until(self, stage: Stage) -> str:
        """Runs the job up to the stage; returns the name of its JobSet, whose pods run."""
        for _ in range(20):
            self.reconcile()
            if not self.live():
                self.wait(self.requeue_after or 0)
                continue
            (name,) = self.live()
            if self.key_of(name).stage is stage:
                self.run(name)
                self.reconcile()
                return name
            self.succeed(name)
        raise AssertionError(f"{stage} was not reached: {self.status.get('summary')}")

    def to_the_end(self, patience: int = 60) -> None:
        """Runs the job to its end without faults."""
        for _ in range(patience):
            self.reconcile()
            # A manual retry is recorded first; it takes effect in the next reconcile, which is due at once.
            if self.finished and self.requeue_after != 0:
                return
            live = self.live()
            for name in live:
                self.succeed(name)
            if not live:
                self.wait(self.requeue_after or 1)
        raise AssertionError(f"not finished: {self.status.get('summary')}")
