"""All conditions of a job, from the first look on."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from finetune_contract import ExitCode, PreflightOutcome, Stage
from finetune_operator.api import ConditionStatus, ConditionType, Reason, StagePhase
from finetune_operator.lifecycle import gates
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.kueue import QuotaState
from finetune_operator.lifecycle.observation import AttemptKey, RunFolderView
from finetune_operator.lifecycle.preflight_memory import found
from finetune_operator.lifecycle.progress import decimal, mebibytes
from finetune_operator.lifecycle.spending import budget_exceeded, used_up
from finetune_operator.lifecycle.stages import JobStages, waiting_input
from finetune_operator.lifecycle.times import stamp

type Object = Mapping[str, Any]
#: Files that a condition names.
_WARNINGS = 3
type Told = tuple[ConditionStatus, str, str]
"""Status, reason, message."""

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN

#: What tools judge by: kstatus, Argo CD, kubectl wait.
OUTCOME = (ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.SUCCEEDED, ConditionType.FINISHED)
#: Their statuses, in that order.
_OUTCOMES: Mapping[JobPhase, tuple[ConditionStatus, ...]] = {
    JobPhase.ACTIVE: (TRUE, FALSE, UNKNOWN, FALSE),
    JobPhase.SUSPENDING: (TRUE, FALSE, UNKNOWN, FALSE),
    JobPhase.SUSPENDED: (TRUE, FALSE, UNKNOWN, FALSE),
    JobPhase.INVALID: (FALSE, TRUE, UNKNOWN, FALSE),
    JobPhase.STALLED: (FALSE, TRUE, UNKNOWN, FALSE),
    JobPhase.PLANNED: (FALSE, FALSE, UNKNOWN, TRUE),
    JobPhase.SUCCEEDED: (FALSE, FALSE, TRUE, TRUE),
    JobPhase.FAILED: (FALSE, TRUE, FALSE, TRUE),
}


def conditions(
    situation: JobState,
    stages: JobStages | None,
    folder: RunFolderView | None,
    previous: Sequence[Object],
    *,
    generation: int,
    now: datetime,
) -> list[Object]:
    """``status.conditions``, in the order of their enumeration. ``folder``: None before admission."""
    told: dict[ConditionType, Told] = {
        ConditionType.VALID: _valid(situation),
        ConditionType.DATA_READY: _data_ready(stages),
        ConditionType.MEMORY_FITS: _memory_fits(situation, stages),
        ConditionType.EXPORT_PROVEN: _export_proven(stages),
        ConditionType.QUOTA_RESERVED: _quota_reserved(situation, stages),
        ConditionType.RUNNING: _running(situation, stages),
        ConditionType.WITHIN_BUDGET: _within_budget(stages),
        ConditionType.GATE_PASSED: _gate_passed(stages),
        ConditionType.RUN_FOLDER_READABLE: _run_folder_readable(situation, stages, folder),
        ConditionType.SUSPENDED: _suspended(situation),
        **_outcome(situation.course, *_because(situation, stages)),
    }
    written = write(told, previous, generation=generation, now=now)
    return [written[kind] for kind in ConditionType]


def with_error(
    previous: Sequence[Object], reason: str, message: str, *, generation: int, now: datetime
) -> list[Object]:
    """The conditions of a job that could not be looked at to the end and is tried again.

    What was known stays, at the generation that it was known of; what was never known is Unknown.
    """
    known = {each["type"]: each for each in previous}
    unknown = (UNKNOWN, Reason.NOT_STARTED, "The job has not been looked at yet.")
    told: dict[ConditionType, Told] = {kind: unknown for kind in ConditionType if kind not in known}
    told |= _outcome(JobPhase.ACTIVE, reason, message)
    known |= write(told, previous, generation=generation, now=now)
    return [known[kind] for kind in ConditionType]


def write(
    told: Mapping[ConditionType, Told], previous: Sequence[Object], *, generation: int, now: datetime
) -> dict[str, Object]:
    """Conditions as metav1.Condition has them, by type; a transition time moves only when the status does."""
    since = {(each["type"], each["status"]): each["lastTransitionTime"] for each in previous}
    return {
        str(kind): {
            "type": str(kind),
            "status": str(status),
            "reason": str(reason),
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since.get((kind, status), stamp(now)),
        }
        for kind, (status, reason, message) in told.items()
    }


def _valid(situation: JobState) -> Told:
    if situation.refused:
        return FALSE, situation.refused.reason, situation.refused.message
    return TRUE, Reason.ACCEPTED, "The job follows the schema and the profile's rules."


def _data_ready(stages: JobStages | None) -> Told:
    if stages is None:
        return UNKNOWN, Reason.NOT_STARTED, "Preflight has not looked yet."
    view = stages[Stage.PREFLIGHT]
    missing = waiting_input(view)
    if missing:
        return FALSE, missing.reason, missing.message
    if view.done:
        found = stages.findings.preflight
        assert found is not None, "a preflight that succeeded has findings"
        return TRUE, Reason.CHECKED, data_found(found)
    if view.phase is StagePhase.FAILED and view.failure:
        return FALSE, view.failure.reason, view.failure.message
    if view.attempts:
        return UNKNOWN, Reason.IN_PROGRESS, "Preflight reads the model and the data."
    return UNKNOWN, Reason.NOT_STARTED, "Preflight has not looked yet."


def data_found(found: PreflightOutcome) -> str:
    """What preflight has read, as a sentence."""
    checked = {report.checked for report in found.train}
    if checked == {"Off"}:
        return "The data are there; spec.preflight.dataset is Off, so no row was read."
    rows, tokens = (sum(getattr(report, name) for report in found.train) for name in ("rows", "tokens"))
    sources = f" of {len(found.train)} sources" if len(found.train) > 1 else ""
    read = "the first " if "Sample" in checked else ""
    told = f"{read}{rows} training rows{sources} with {tokens} tokens were read and checked."
    # The first one has a place here; the report has all.
    worst = f" {found.warnings[0]}" if found.warnings else ""
    return f"{told[0].upper()}{told[1:]}{worst}"


def _memory_fits(situation: JobState, stages: JobStages | None) -> Told:
    if situation.failure and situation.failure.reason == "CpuPoolTooSmall":
        return FALSE, situation.failure.reason, situation.failure.message
    if stages is None:
        return UNKNOWN, Reason.NOT_STARTED, "Preflight has not looked yet."
    if stages.plan.memory is None:
        return (
            UNKNOWN,
            Reason.NOT_CHECKED,
            "spec.preflight.memory is Off: device memory is not checked beforehand.",
        )
    view = stages[Stage.PREFLIGHT]
    if view.failure and view.failure.code == ExitCode.OUT_OF_MEMORY:
        return FALSE, view.failure.reason, view.failure.message
    if not view.done:
        reason = Reason.IN_PROGRESS if view.live else Reason.NOT_STARTED
        return UNKNOWN, reason, "Preflight has not come to the memory of the train step yet."
    return _memory_found(stages)


def _memory_found(stages: JobStages) -> Told:
    outcome = found(stages.plan, stages.findings)
    if outcome is None:
        return (
            UNKNOWN,
            Reason.NOT_CHECKED,
            "Preflight has not checked the memory of the slice that is used now.",
        )
    if outcome.unknown or outcome.peak_bytes is None or outcome.limit_bytes is None:
        return UNKNOWN, Reason.NOT_CHECKED, outcome.unknown or "Preflight has left no numbers."
    peak, limit = mebibytes(outcome.peak_bytes), mebibytes(outcome.limit_bytes)
    if outcome.source == "Analytic":
        text = f"Parameters and optimizer take {peak} of {limit} per chip; only compiling tells what the step adds."
        return UNKNOWN, Reason.NOT_CHECKED, text
    return (
        TRUE,
        Reason.CHECKED,
        f"Compiled for {outcome.slice}: the train step needs {peak} of {limit} per chip.",
    )


def _export_proven(stages: JobStages | None) -> Told:  # noqa: PLR0911  one per case
    if stages is None:
        return UNKNOWN, Reason.NOT_STARTED, "Nothing was converted yet."
    if not stages.plan.export_proof:
        return UNKNOWN, Reason.NOT_REQUESTED, "spec.preflight.exportProof is false."
    if stages.plan.model.orbax is not None:
        text = "The model is given as a MaxText checkpoint: there is no original to compare its export with."
        return UNKNOWN, Reason.NOT_CHECKED, text
    view, converted = stages[Stage.CONVERT], stages.findings.converted
    if converted:
        return TRUE, Reason.PROVEN, converted.proof or "The converted model exports to the original."
    if view.phase is StagePhase.FAILED and view.failure:
        return FALSE, view.failure.reason, view.failure.message
    if view.live:
        return UNKNOWN, Reason.IN_PROGRESS, "The model is converted and exported again."
    return UNKNOWN, Reason.NOT_STARTED, "Nothing was converted yet."


def _gate_passed(stages: JobStages | None) -> Told:
    measured = stages.evaluation if stages else None
    if stages is None or not (stages.plan.evaluation.gates or (measured and measured.gates)):
        return UNKNOWN, Reason.NOT_REQUESTED, "The job has no gates."
    if measured is None:
        return UNKNOWN, Reason.NOT_STARTED, "The tuned model has not been measured yet."
    missed = gates.not_met(measured)
    if missed:
        return FALSE, Reason.GATE_NOT_MET, f"{'; '.join(map(gates.gate_text, missed))}."
    return TRUE, Reason.GATE_PASSED, f"The tuned model meets all {len(measured.gates)} gates."


def _within_budget(stages: JobStages | None) -> Told:
    ceilings = stages.plan.budget.ceilings if stages else ()
    if stages is None or not ceilings:
        return TRUE, Reason.NOT_REQUESTED, "The job has no budget."
    if over := budget_exceeded(stages) or used_up(stages):
        return FALSE, over.reason, over.text
    limits = " and ".join(f"{decimal(each.most)} ({each.path})" for each in ceilings)
    return TRUE, Reason.WITHIN_BUDGET, f"The job may use up to {limits}."


def _quota_reserved(situation: JobState, stages: JobStages | None) -> Told:
    queue = situation.queue
    if queue is None:
        queued = stages is not None and (stages.plan.queues.tpu or stages.plan.queues.cpu)
        text = "No stage is in a queue now." if queued else "The profile names no queue."
        return TRUE, Reason.NOT_QUEUED, text
    if queue.standing is QuotaState.UNSEEN:
        return UNKNOWN, queue.reason, queue.message
    return FALSE if queue.without_quota else TRUE, queue.reason, queue.message


def _running(situation: JobState, stages: JobStages | None) -> Told:  # noqa: PLR0911  one per case
    if stages is not None and situation.running and stages.live:
        stage = stages.live.key.stage
        return TRUE, Reason.STAGE_RUNNING, f"All pods of {stage}, attempt {stages.live.ordinal}, run."
    if situation.wait:
        return FALSE, situation.wait.reason, situation.wait.message
    match situation.course:
        case JobPhase.SUCCEEDED:
            return FALSE, Reason.SUCCEEDED, "The job has ended."
        case JobPhase.FAILED:
            return FALSE, Reason.FAILED, "The job has ended."
        case JobPhase.PLANNED:
            return FALSE, Reason.PLANNED, "The job has ended."
        case JobPhase.SUSPENDED | JobPhase.SUSPENDING:
            reason = situation.over.reason if situation.over else Reason.SUSPENDED_BY_USER
            return FALSE, reason, "The job is suspended."
        case JobPhase.INVALID:
            return FALSE, Reason.NOT_STARTED, "The job is not valid."
        case JobPhase.STALLED:
            return FALSE, Reason.NOT_STARTED, "The stage comes no further."
        case JobPhase.ACTIVE:
            if situation.recovering:
                return FALSE, Reason.RECOVERING, "The next attempt is being started."
            return FALSE, Reason.NOT_STARTED, "Pods are being started."


def _run_folder_readable(situation: JobState, stages: JobStages | None, folder: RunFolderView | None) -> Told:
    if folder is None:
        return UNKNOWN, Reason.NOT_STARTED, "The job has no run folder yet."
    unknown = situation.unreadable or folder.unreadable
    if unknown is None and stages is not None and not stages[Stage.TRAIN].done:
        unknown = folder.progress_unknown
    if unknown is not None:
        return FALSE if unknown.alone else UNKNOWN, unknown.reason, unknown.message
    ignored = [*folder.warnings, *(_stranger(key) for key in sorted(folder.strangers))]
    if folder.progress_unknown is not None:
        ignored.append(folder.progress_unknown.message.rstrip("."))
    if not ignored:
        return TRUE, Reason.READABLE, "The run folder can be read."
    more = f"; and {len(ignored) - _WARNINGS} more" if len(ignored) > _WARNINGS else ""
    return TRUE, Reason.RECORDS_IGNORED, f"Ignored: {'; '.join(ignored[:_WARNINGS])}{more}."


def _stranger(key: AttemptKey) -> str:
    folder = f"{key.stage.short}-{key.number}{f'.{key.restart}' if key.restart else ''}"
    return f"attempts/{folder} is of no attempt that this job has made"


def _suspended(situation: JobState) -> Told:
    if situation.course is JobPhase.SUSPENDED and situation.over:
        return TRUE, situation.over.reason, situation.over.text
    if situation.course is JobPhase.SUSPENDED:
        return TRUE, Reason.SUSPENDED_BY_USER, "No pod runs. Set spec.suspend to false to go on."
    if situation.course is JobPhase.SUSPENDING:
        return FALSE, Reason.SUSPENDING, "The stage saves and stops."
    if situation.course.finished:
        return FALSE, Reason.NOT_SUSPENDED, "The job has ended."
    if situation.course is JobPhase.INVALID:
        return FALSE, Reason.NOT_SUSPENDED, "The job is not valid, so there is nothing to suspend."
    return FALSE, Reason.NOT_SUSPENDED, "spec.suspend is false."


def _outcome(course: JobPhase, reason: str, message: str) -> dict[ConditionType, Told]:
    return {kind: (status, reason, message) for kind, status in zip(OUTCOME, _OUTCOMES[course], strict=True)}


def _because(situation: JobState, stages: JobStages | None) -> tuple[str, str]:  # noqa: PLR0911  one per case
    match situation.course:
        case JobPhase.SUCCEEDED:
            return Reason.SUCCEEDED, "Every stage succeeded and its results are in the run folder."
        case JobPhase.PLANNED:
            return Reason.PLANNED, "Preflight passed, and spec.planOnly asks for no more."
        case JobPhase.SUSPENDING:
            return Reason.SUSPENDING, "The stage saves and stops."
        case JobPhase.SUSPENDED:
            if situation.over:
                return situation.over.reason, situation.over.text
            return Reason.SUSPENDED_BY_USER, "Waiting for spec.suspend to be false."
    if situation.failure and situation.course is JobPhase.FAILED:
        return situation.failure.reason, situation.failure.message
    if (
        situation.queue
        and situation.queue.without_quota
        and situation.wait
        and situation.course is JobPhase.STALLED
    ):
        return situation.queue.reason, situation.wait.message
    if situation.refused and situation.course in (JobPhase.INVALID, JobPhase.STALLED):
        return situation.refused.reason, situation.refused.message
    if situation.unreadable:
        return situation.unreadable.reason, situation.unreadable.message
    if situation.wait:
        return situation.wait.reason, situation.wait.message
    if situation.recovering:
        return Reason.RECOVERING, "The next attempt is being started."
    stage = stages.current.stage if stages else Stage.PREFLIGHT
    return Reason.IN_PROGRESS, f"Stage {stage}."
