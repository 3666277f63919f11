"""The whole status, from the situation, the survey and the last status. Same look, same status."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from finetune_contract import CheckpointRecord, GateResult, Stage, TrainOutcome
from finetune_operator.api import Phase, Reason, StagePhase
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import Ending, Verdict
from finetune_operator.lifecycle.conditions import conditions
from finetune_operator.lifecycle.evictions import evicted_entries
from finetune_operator.lifecycle.fitting import fit
from finetune_operator.lifecycle.memory import estimate_status
from finetune_operator.lifecycle.observed import Observed
from finetune_operator.lifecycle.prepared import data_cache
from finetune_operator.lifecycle.progress import decimal, goodput_status, progress_status
from finetune_operator.lifecycle.resolved import resolved_status
from finetune_operator.lifecycle.retry import seen
from finetune_operator.lifecycle.situation import Course, Situation
from finetune_operator.lifecycle.stages import StageView, Survey
from finetune_operator.lifecycle.summary import summarize
from finetune_operator.lifecycle.times import stamp
from finetune_operator.rendering import jobset_name

type Object = Mapping[str, Any]

_HISTORY = 10
_CHECKPOINTS = 10


def pace(live_jobs: int) -> float:
    """Seconds between two reports of one job while only its steps move."""
    return max(10.0, live_jobs / 20)


def build_status(observed: Observed, situation: Situation, look: Survey | None) -> dict[str, Any]:
    """``status`` of the job."""
    job, previous = observed.job, observed.job.get("status") or {}
    generation = job["metadata"].get("generation", 1)
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "phase": str(_phase(situation, look)),
        "conditions": conditions(
            situation, look, previous.get("conditions", ()), generation=generation, now=observed.now
        ),
    }
    if generation := seen(observed):
        status["retryGeneration"] = generation
    if look is not None:
        status |= _of_survey(observed, situation, look, previous)
    progress = _progress(observed, status, look, previous)
    if progress is not None:
        status["progress"] = progress
        fresh = progress is not previous.get("progress")
        goodput = goodput_status(observed.folder.progress) if fresh else previous.get("goodput")
        if goodput:
            status["goodput"] = goodput
    if look is not None and (
        saved := _checkpoints(look, observed, kept=progress is previous.get("progress"))
    ):
        status["checkpoints"] = saved
    workers = sum(each.get("workerRestarts", 0) for each in status.get("stages", ()))
    status["summary"] = summarize(situation, look, progress, workers)
    if situation.wait:
        status["waiting"] = _waiting(situation, previous, observed.now)
    if situation.course.finished:
        status["completionTime"] = previous.get("completionTime") or stamp(observed.now)
    return fit(status)


def _phase(situation: Situation, look: Survey | None) -> Phase:
    fixed = {
        Course.INVALID: Phase.VALIDATING,
        Course.SUSPENDED: Phase.SUSPENDED,
        Course.PLANNED: Phase.PLANNED,
        Course.SUCCEEDED: Phase.SUCCEEDED,
        Course.FAILED: Phase.FAILED,
    }.get(situation.course)
    if fixed is not None:
        return fixed
    if situation.queue and situation.queue.without_quota:
        return Phase.QUEUED
    if look is None or look.current.stage is Stage.PREFLIGHT:
        return Phase.VALIDATING
    if situation.running:
        return Phase.RUNNING
    return Phase.RECOVERING if situation.recovering else Phase.PROVISIONING


def _of_survey(observed: Observed, situation: Situation, look: Survey, previous: Object) -> dict[str, Any]:
    status: dict[str, Any] = {
        "stage": str(look.live.key.stage if look.live else look.current.stage),
        "resolved": resolved_status(look.plan, look.findings),
        "stages": _stages(observed, situation, look, previous),
        "attempts": _attempts(look, previous),
        "startTime": previous.get("startTime") or stamp(observed.now),
    }
    if estimate := estimate_status(look.plan, look.findings):
        status["estimate"] = estimate
    if evaluation := _evaluation(look):
        status["evaluation"] = evaluation
    if artifacts := _artifacts(look):
        status["artifacts"] = artifacts
    if situation.course is Course.FAILED:
        status["failure"] = _failure(situation, look)
    return status


def _stages(observed: Observed, situation: Situation, look: Survey, previous: Object) -> list[Object]:
    before = {each["name"]: each for each in previous.get("stages", ())}
    return [_stage(observed, situation, look, stage, before.get(stage, {})) for stage in Stage]


def _stage(
    observed: Observed, situation: Situation, look: Survey, stage: Stage, before: Object
) -> dict[str, Any]:
    view = look[stage]
    if view.phase is StagePhase.SKIPPED:
        return {"name": str(stage), "phase": str(StagePhase.SKIPPED), "reason": Reason.NOT_REQUESTED.value}
    failed_now = situation.course is Course.FAILED and stage is look.current.stage
    if situation.course.finished and view.phase is StagePhase.PENDING and not failed_now:
        return {"name": str(stage), "phase": str(StagePhase.SKIPPED), "reason": "NotReached"}
    phase = StagePhase.FAILED if failed_now else view.phase
    told: dict[str, Any] = {"name": str(stage), "phase": str(phase)}
    if view.attempts:
        newest = view.attempts[-1]
        told |= _which(newest, look)
        # at least: the pods tell it, and go before the status does
        known = before.get("workerRestarts", 0) if before.get("attempt") == newest.ordinal else 0
        if restarts := max(known, children.worker_restarts(newest.pods)):
            told["workerRestarts"] = restarts
        told["startTime"] = before.get("startTime") or stamp(_started(view.attempts) or observed.now)
    if phase in (StagePhase.SUCCEEDED, StagePhase.FAILED):
        finished = view.result.finished if view.result else None
        if finished is None and view.last_verdict:
            finished = view.last_verdict.finished
        told["completionTime"] = before.get("completionTime") or stamp(finished or observed.now)
    failure = view.failure or (situation.failure if failed_now else None)
    if failure:
        told["reason"], told["message"] = failure.reason, failure.message
    elif stage is Stage.TRAIN and (discarded := _discarded(observed)):
        told["message"] = discarded
    if stage is Stage.CONVERT and (cache := _cache(view, look)):
        told["cache"] = cache
    if stage is Stage.PREFLIGHT and look.findings.preflight and (used := data_cache(look.findings.preflight)):
        told["cache"] = used
    if stage is Stage.TRAIN and (step := _resumed_from(view, observed)):
        told["resumedFromStep"] = step
    return told


def _started(attempts: Sequence[Attempt]) -> datetime | None:
    times = [each.files.result.started for each in attempts if each.files and each.files.result]
    created = [
        datetime.fromisoformat(each.jobset["metadata"]["creationTimestamp"])
        for each in attempts
        if each.jobset and "creationTimestamp" in each.jobset["metadata"]
    ]
    return min(created + times, default=None)


def _cache(view: StageView, look: Survey) -> Object | None:
    converted = look.findings.converted
    if converted is None:
        return None
    told: dict[str, Any] = {
        "result": "Miss" if view.attempts else "Hit",
        "fingerprint": converted.fingerprint,
        "sourceURI": converted.items,
        "sizeBytes": converted.size_bytes,
    }
    if not view.attempts:
        told["savedSeconds"] = decimal(round(converted.seconds, 1))
    elif look.plan.use_cache != "Use":
        told["missBecause"] = [f"spec.cache is {look.plan.use_cache}"]
    return told


def _discarded(observed: Observed) -> str | None:
    """What became of checkpoints that were damaged, for people."""
    found = observed.folder.progress.discarded if observed.folder.progress else ()
    return "; ".join(
        f"the checkpoint of step {each.step} was not what had been saved ({each.why}), "
        "and training went on from the one before"
        for each in found
    )


def _resumed_from(view: StageView, observed: Observed) -> int | None:
    details = view.result.details if view.result else None
    if isinstance(details, TrainOutcome):
        return details.start_step
    progress = observed.folder.progress
    newest = view.attempts[-1].key if view.attempts else None
    if progress and newest and (progress.attempt, progress.restart) == (newest.number, newest.restart):
        return progress.start_step
    return None


def _attempts(look: Survey, previous: Object) -> Object:
    told_before = previous.get("attempts", {}).get("history", ())
    nodes = {(each["stage"], each["attempt"]): each["node"] for each in told_before if "node" in each}
    verdicts = {attempt.key: verdict for attempt, verdict in look.judged}
    history: list[Object] = []
    for attempt in look.attempts:
        # Of a history that is cut, nobody can tell which entry was which.
        evicted = evicted_entries(attempt, told_before if len(told_before) < _HISTORY else ())
        history += evicted
        verdict = verdicts.get(attempt.key)
        if verdict and not (evicted and verdict.ending is Ending.EVICTED):
            history.append(_ended(attempt, verdict, look, nodes.get((attempt.key.stage, attempt.ordinal))))
    told: dict[str, Any] = {
        "total": len(look.attempts),
        "preemption": look.counters.preemption,
        "infrastructure": look.counters.infrastructure,
        "user": look.counters.user,
    }
    if history:
        told["history"] = history[-_HISTORY:]
    return told


def _which(attempt: Attempt, look: Survey) -> dict[str, Any]:
    name = jobset_name(look.plan.job.name, attempt.key.stage, attempt.key.number)
    told: dict[str, Any] = {"attempt": attempt.ordinal, "jobSet": name}
    if attempt.key.restart:
        told["restart"] = attempt.key.restart
    return told


def _ended(attempt: Attempt, verdict: Verdict, look: Survey, node: str | None) -> Object:
    """``node``: as it was told before; its pods may be gone since."""
    told: dict[str, Any] = {
        "stage": str(attempt.key.stage),
        **_which(attempt, look),
        "reason": verdict.failure.reason if verdict.failure else verdict.purpose or str(verdict.ending),
    }
    if verdict.failure_class is not None:
        told["class"] = str(verdict.failure_class)
    host = verdict.failure.host if verdict.failure else 0
    node = children.node_of(attempt.pods, host, look.plan.mesh.hosts) or node
    if node:
        told["node"] = node
    details = attempt.files.result.details if attempt.files and attempt.files.result else None
    if isinstance(details, TrainOutcome):
        told["startStep"], told["endStep"] = details.start_step, details.step
    return told


def _progress(observed: Observed, status: Object, look: Survey | None, previous: Object) -> Object | None:
    return progress_status(
        observed.folder.progress,
        look.findings.train if look else None,
        previous.get("progress"),
        pace=pace(observed.live_jobs),
        moved=_moving_parts(status) != _moving_parts(previous),
    )


def _moving_parts(status: Object) -> Any:
    """What makes a write due at once."""
    return (
        status.get("observedGeneration"),
        status.get("phase"),
        status.get("stage"),
        [(each["type"], each["status"], each["reason"]) for each in status.get("conditions", ())],
        [(each["name"], each["phase"], each.get("attempt")) for each in status.get("stages", ())],
    )


def _checkpoints(look: Survey, observed: Observed, *, kept: bool) -> list[Object]:
    if train := look.findings.train:
        best = [each for each in train.checkpoints if each.step == train.best_step]
        newest = [each for each in train.checkpoints if each not in best][len(best) - _CHECKPOINTS :]
        return [
            _checkpoint(record, last=record is train.checkpoints[-1], best=record in best)
            for record in train.checkpoints
            if record in best or record in newest
        ]
    if kept:
        return list((observed.job.get("status") or {}).get("checkpoints", ()))
    steps = observed.folder.progress.checkpoints if observed.folder.progress else []
    return [
        _checkpoint(
            CheckpointRecord(step=step, uri=look.plan.run_folder.checkpoint(step)), last=step == steps[-1]
        )
        for step in steps[-_CHECKPOINTS:]
    ]


def _checkpoint(record: CheckpointRecord, *, last: bool, best: bool = False) -> Object:
    told: dict[str, Any] = {"step": record.step, "uri": record.uri}
    if record.metrics:
        told["metrics"] = _metrics(record.metrics)
    if tags := [name for name, given in (("Best", best), ("Last", last)) if given]:
        told["tags"] = tags
    return told


def _evaluation(look: Survey) -> Object | None:
    measured = look.evaluation
    if measured is None:
        train = look.findings.train
        if train is None or train.evaluation_loss is None:
            return None
        return {"result": {"loss": decimal(train.evaluation_loss)}}
    told: dict[str, Any] = {}
    if measured.dataset_hash:
        told["datasetHash"] = measured.dataset_hash
    if baseline := measured.metrics("baseline"):
        told["baseline"] = _metrics(baseline)
    if tuned := measured.metrics("tuned"):
        told["result"] = _metrics(tuned)
    if measured.gates:
        told["gates"] = [_gate(gate) for gate in measured.gates]
    if measured.samples_uri:
        told["samplesURI"] = measured.samples_uri
    return told


def _metrics(values: Mapping[str, float]) -> Object:
    return {name: decimal(value) for name, value in values.items()}


def _gate(gate: GateResult) -> Object:
    told: dict[str, Any] = {"metric": gate.metric, "op": gate.op, "passed": gate.passed}
    if gate.value is not None:
        told["value"] = decimal(gate.value)
    if gate.threshold is not None:
        told["threshold"] = decimal(gate.threshold)
    return told


def _artifacts(look: Survey) -> list[Object]:
    told: list[Object] = [
        {
            "name": artifact.name,
            "type": artifact.type,
            "uri": artifact.uri,
            "digest": artifact.digest,
            "sizeBytes": artifact.size_bytes,
        }
        for artifact in (look.export.artifacts if look.export else ())
    ]
    if look.findings.preflight:
        told.append({"name": "data-report", "type": "Report", "uri": look.findings.preflight.report})
    return told


def _failure(situation: Situation, look: Survey) -> Object:
    failure, view = situation.failure, look.current
    assert failure is not None, "a job that failed has a failure"
    told: dict[str, Any] = {
        "class": str(failure.failure_class),
        "reason": failure.reason,
        "stage": str(view.stage),
        "message": failure.message,
    }
    if view.attempts:
        last = view.attempts[-1]
        told["attempt"] = last.ordinal
        told["host"] = str(failure.host)
        told["logsURI"] = look.plan.run_folder.log_tail(*last.key.place)
    if failure.fix:
        told["suggestion"] = failure.fix
    if failure.evidence:
        told["evidence"] = failure.evidence
    return told


def _waiting(situation: Situation, previous: Object, now: datetime) -> Object:
    wait = situation.wait
    assert wait is not None, "told only while something is waited for"
    before = previous.get("waiting") or {}
    since = before["since"] if before.get("reason") == wait.reason else stamp(wait.since or now)
    return {"reason": str(wait.reason), "since": since, "message": wait.message}
