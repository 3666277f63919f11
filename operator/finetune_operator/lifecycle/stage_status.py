"""``status.stages`` and ``status.attempts``: where each stage stands, and how its attempts have ended."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from finetune_contract import ConvertOutcome, PreflightOutcome, Stage, TrainOutcome
from finetune_operator.api import Reason, StagePhase
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.classify import AttemptOutcome, AttemptResult
from finetune_operator.lifecycle.data_cache import MOST_REASONS, data_cache
from finetune_operator.lifecycle.evictions import evicted_entries
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.progress import decimal
from finetune_operator.lifecycle.stages import JobStages, StageState
from finetune_operator.lifecycle.times import stamp
from finetune_operator.rendering import jobset_name

type Object = Mapping[str, Any]

_HISTORY = 10
_SHOWN_TENSORS = 4


def stages_status(
    observation: Observation, situation: JobState, stages: JobStages, previous: Object
) -> list[Object]:
    """One of each, in order. ``previous``: the status as it is."""
    before = {each["name"]: each for each in previous.get("stages", ())}
    return [_stage(observation, situation, stages, stage, before.get(stage, {})) for stage in Stage]


def attempts_status(stages: JobStages, previous: Object) -> Object:
    """``previous``: the status as it is. What its history tells of nodes is kept: their pods may be gone since."""
    told_before = previous.get("attempts", {}).get("history", ())
    nodes = {(each["stage"], each["attempt"]): each["node"] for each in told_before if "node" in each}
    verdicts = {attempt.key: verdict for attempt, verdict in stages.judged}
    history: list[Object] = []
    for attempt in stages.attempts:
        # Of a history that is cut, nobody can tell which entry was which.
        evicted = evicted_entries(attempt, told_before if len(told_before) < _HISTORY else ())
        history += evicted
        verdict = verdicts.get(attempt.key)
        if verdict and not (evicted and verdict.ending is AttemptOutcome.EVICTED):
            history.append(_ended(attempt, verdict, stages, nodes.get((attempt.key.stage, attempt.ordinal))))
    told: dict[str, Any] = {
        "total": len(stages.attempts),
        "preemption": stages.counters.preemption,
        "infrastructure": stages.counters.infrastructure,
        "user": stages.counters.user,
    }
    if history:
        told["history"] = history[-_HISTORY:]
    return told


def _stage(
    observation: Observation, situation: JobState, stages: JobStages, stage: Stage, before: Object
) -> dict[str, Any]:
    view = stages[stage]
    if view.phase is StagePhase.SKIPPED:
        given = stage is Stage.CONVERT and stages.plan.model.orbax is not None
        reason = Reason.PROVIDED_CHECKPOINT if given else Reason.NOT_REQUESTED
        return {"name": str(stage), "phase": str(StagePhase.SKIPPED), "reason": reason.value}
    failed_now = situation.course is JobPhase.FAILED and stage is stages.current.stage
    if situation.course.finished and view.phase is StagePhase.PENDING and not failed_now:
        return {"name": str(stage), "phase": str(StagePhase.SKIPPED), "reason": "NotReached"}
    phase = StagePhase.FAILED if failed_now else view.phase
    told: dict[str, Any] = {"name": str(stage), "phase": str(phase)}
    if view.attempts:
        newest = view.attempts[-1]
        told |= _which(newest, stages)
        # at least: the pods tell it, and go before the status does
        known = before.get("workerRestarts", 0) if before.get("attempt") == newest.ordinal else 0
        if restarts := max(known, children.worker_restarts(newest.pods)):
            told["workerRestarts"] = restarts
        told["startTime"] = before.get("startTime") or stamp(_started(view.attempts) or observation.now)
    if phase in (StagePhase.SUCCEEDED, StagePhase.FAILED):
        finished = view.result.finished if view.result else None
        if finished is None and view.last_verdict:
            finished = view.last_verdict.finished
        told["completionTime"] = before.get("completionTime") or stamp(finished or observation.now)
    failure = view.failure or (situation.failure if failed_now else None)
    if failure:
        told["reason"], told["message"] = failure.reason, failure.message
    elif stage is Stage.TRAIN and (remarks := [*_discarded(observation), *_unchanged(view)]):
        told["message"] = "; ".join(remarks)
    if stage is Stage.CONVERT and (cache := _cache(view, stages)):
        told["cache"] = cache
    if stage is Stage.PREFLIGHT and (found := stages.findings.preflight):
        told = _looked(found) | told
    if stage is Stage.TRAIN and (step := _resumed_from(view, observation)):
        told["resumedFromStep"] = step
    return told


def _looked(found: PreflightOutcome) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if used := data_cache(found):
        told["cache"] = used
    if smoke := found.smoke:
        told["message"] = (
            f"The smoke test went through to its export: {smoke.steps} steps on {smoke.examples} examples of at most "
            f"{smoke.max_seq_length} tokens, in {smoke.seconds:.0f} s."
        )
    return told


def _started(attempts: Sequence[Attempt]) -> datetime | None:
    times = [each.files.result.started for each in attempts if each.files and each.files.result]
    created = [
        datetime.fromisoformat(each.jobset["metadata"]["creationTimestamp"])
        for each in attempts
        if each.jobset and "creationTimestamp" in each.jobset["metadata"]
    ]
    return min(created + times, default=None)


def _cache(view: StageState, stages: JobStages) -> Object | None:
    """``status.stages[].cache`` of Convert, as soon as it is known whether it has to run."""
    converted, preflight = stages.findings.converted, stages.findings.preflight
    if preflight is None or not (converted or view.attempts):
        return None
    details = view.result.details if view.result else None
    reused = isinstance(details, ConvertOutcome) and details.reused
    hit = reused or not view.attempts
    told: dict[str, Any] = {"result": "Hit" if hit else "Miss", "fingerprint": preflight.fingerprint}
    if converted:
        told |= {"sourceURI": converted.items, "sizeBytes": converted.size_bytes}
        if hit:
            told["savedSeconds"] = decimal(round(converted.seconds, 1))
    if not hit and view.missed:
        told["missBecause"] = list(view.missed[:MOST_REASONS])
    return told


def _discarded(observation: Observation) -> list[str]:
    """What became of checkpoints that were damaged, for people."""
    found = observation.folder.progress.discarded if observation.folder.progress else ()
    return [
        f"the checkpoint of step {each.step} was not what had been saved ({each.why}), "
        "and training went on from the one before"
        for each in found
    ]


def _unchanged(view: StageState) -> list[str]:
    """Which tensors training left as they were, for people."""
    details = view.result.details if view.result else None
    if not isinstance(details, TrainOutcome) or not details.unchanged_tensors:
        return []
    shown = ", ".join(details.unchanged[:_SHOWN_TENSORS])
    more = ", …" if details.unchanged_tensors > _SHOWN_TENSORS else ""
    return [f"training left {details.unchanged_tensors} of its tensors unchanged, bit for bit: {shown}{more}"]


def _resumed_from(view: StageState, observation: Observation) -> int | None:
    details = view.result.details if view.result else None
    if isinstance(details, TrainOutcome):
        return details.start_step
    progress = observation.folder.progress
    newest = view.attempts[-1].key if view.attempts else None
    if progress and newest and (progress.attempt, progress.restart) == (newest.number, newest.restart):
        return progress.start_step
    return None


def _which(attempt: Attempt, stages: JobStages) -> dict[str, Any]:
    name = jobset_name(stages.plan.job.name, attempt.key.stage, attempt.key.number)
    told: dict[str, Any] = {"attempt": attempt.ordinal, "jobSet": name}
    if attempt.key.restart:
        told["restart"] = attempt.key.restart
    return told


def _ended(attempt: Attempt, verdict: AttemptResult, stages: JobStages, node: str | None) -> Object:
    """``node``: as it was told before; its pods may be gone since."""
    told: dict[str, Any] = {
        "stage": str(attempt.key.stage),
        **_which(attempt, stages),
        "reason": verdict.failure.reason if verdict.failure else verdict.purpose or str(verdict.ending),
    }
    if verdict.failure_class is not None:
        told["class"] = str(verdict.failure_class)
    host = verdict.failure.host if verdict.failure else 0
    node = children.node_of(attempt.pods, host, stages.plan.mesh.hosts) or node
    if node:
        told["node"] = node
    details = attempt.files.result.details if attempt.files and attempt.files.result else None
    if isinstance(details, TrainOutcome):
        told["startStep"], told["endStep"] = details.start_step, details.step
    return told
