"""``status.conditions``: all conditions of a job, from its first status on."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from finetune_contract import ExitCode, PreflightOutcome, Stage
from finetune_operator.api import Condition, ConditionStatus, ConditionType, Reason, StagePhase
from finetune_operator.api.conditions import ProfileConditionType
from finetune_operator.api.numbers import decimal, mebibytes
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.kueue import QuotaState
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.lifecycle.stages.findings import found, gate_text, not_met
from finetune_operator.lifecycle.stages.job_stages import JobStages, waiting_input
from finetune_operator.lifecycle.stages.spending import (
    budget_exceeded,
    hours_text,
    monthly_shortage,
    used_up,
)

#: Maximum number of files that a condition names.
_WARNINGS = 3
type ConditionState = tuple[ConditionStatus, str, str]
"""Status, reason and message of a condition."""

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
_ACCEPTED: ConditionState = (TRUE, Reason.ACCEPTED, "The job follows the schema and the profile's rules.")
_NOTHING_RUN: ConditionState = (UNKNOWN, Reason.NOT_STARTED, "Preflight has not run yet.")
_NOTHING_CONVERTED: ConditionState = (UNKNOWN, Reason.NOT_STARTED, "No model has been converted yet.")
_NO_BUDGET: ConditionState = (TRUE, Reason.NOT_REQUESTED, "The job has no budget.")
_NO_GATES: ConditionState = (UNKNOWN, Reason.NOT_REQUESTED, "The job has no gates.")
#: Of a job without a plan.
_UNPLANNED: Mapping[ConditionType, ConditionState] = {
    ConditionType.DATA_READY: _NOTHING_RUN,
    ConditionType.MEMORY_FITS: _NOTHING_RUN,
    ConditionType.EXPORT_PROVEN: _NOTHING_CONVERTED,
    ConditionType.WITHIN_BUDGET: _NO_BUDGET,
    ConditionType.GATE_PASSED: _NO_GATES,
}

#: The conditions from which tools (kstatus, Argo CD, kubectl wait) derive a job's outcome.
OUTCOME = (ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.SUCCEEDED, ConditionType.FINISHED)
type _Statuses = tuple[ConditionStatus, ...]
type _Because = tuple[Reason, str]
_PROCEEDS, _BLOCKED = (TRUE, FALSE, UNKNOWN, FALSE), (FALSE, TRUE, UNKNOWN, FALSE)
_ENDED = "The job has ended."
_PLANNED = (Reason.PLANNED, "Preflight passed, and spec.planOnly requests no more.")
_SUCCEEDED = (Reason.SUCCEEDED, "Every stage succeeded and its results are in the run folder.")
_SUSPENDED = (Reason.SUSPENDED_BY_USER, "The job is suspended.")
_SUSPENDING = (Reason.SUSPENDING, "The stage is saving and stopping.")
_CANCELLING = (Reason.CANCELLING, "The stage is saving and stopping, and then the job ends.")
_RECOVERING = (Reason.RECOVERING, "The next attempt is starting.")
#: By phase: the statuses of ``OUTCOME``; reason and message of ``Running`` if nothing waits; and those of ``OUTCOME``,
#: None if the phase alone does not decide them.
_PHASES: Mapping[JobPhase, tuple[_Statuses, _Because, _Because | None]] = {
    JobPhase.ACTIVE: (_PROCEEDS, (Reason.NOT_STARTED, "Pods are starting."), None),
    JobPhase.INVALID: (_BLOCKED, (Reason.NOT_STARTED, "The job is not valid."), None),
    JobPhase.STALLED: (_BLOCKED, (Reason.NOT_STARTED, "The stage cannot continue."), None),
    JobPhase.SUSPENDING: (_PROCEEDS, _SUSPENDED, _SUSPENDING),
    JobPhase.SUSPENDED: (_PROCEEDS, _SUSPENDED, (_SUSPENDED[0], "Waiting for spec.suspend to be false.")),
    JobPhase.CANCELLING: (_PROCEEDS, _CANCELLING, _CANCELLING),
    JobPhase.PLANNED: ((FALSE, FALSE, UNKNOWN, TRUE), (Reason.PLANNED, _ENDED), _PLANNED),
    JobPhase.SUCCEEDED: ((FALSE, FALSE, TRUE, TRUE), (Reason.SUCCEEDED, _ENDED), _SUCCEEDED),
    JobPhase.FAILED: ((FALSE, TRUE, FALSE, TRUE), (Reason.FAILED, _ENDED), None),
}


def conditions(observation: Observation, state: JobState, stages: JobStages | None) -> tuple[Condition, ...]:
    """Returns ``status.conditions``, in the order of :class:`ConditionType`."""
    folder = None if observation.stored is None else observation.folder
    states: dict[ConditionType, ConditionState] = {
        ConditionType.VALID: _valid(state, stages),
        ConditionType.QUOTA_RESERVED: _quota_reserved(state, stages),
        ConditionType.RUNNING: _running(state, stages),
        ConditionType.RUN_FOLDER_READABLE: _run_folder_readable(state, stages, folder),
        ConditionType.SUSPENDED: _suspended(state),
        **_judged(state, stages),
    }
    states |= (
        _UNPLANNED
        if stages is None
        else {
            ConditionType.DATA_READY: _data_ready(stages),
            ConditionType.MEMORY_FITS: _memory_fits(state, stages),
            ConditionType.EXPORT_PROVEN: _export_proven(stages),
            ConditionType.WITHIN_BUDGET: _within_budget(stages),
            ConditionType.GATE_PASSED: _gate_passed(stages),
        }
    )
    made = as_conditions(
        states,
        observation.status.conditions or (),
        generation=observation.job.generation,
        now=observation.now,
    )
    return tuple(made[kind] for kind in ConditionType)


def with_error(
    previous: Sequence[Condition], reason: str, message: str, *, valid: bool, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Returns the conditions of a job whose reconcile has failed and is retried.

    ``valid``: the reconcile has found the job valid. Other known conditions are kept with the generation for which they
    were set; all others are Unknown.
    """
    known = {each.type: each for each in previous}
    unknown = (UNKNOWN, Reason.NOT_STARTED, "Nothing of the job has started yet.")
    states: dict[ConditionType, ConditionState] = {
        kind: unknown for kind in ConditionType if kind not in known
    }
    if valid:
        states[ConditionType.VALID] = _ACCEPTED
    states |= _outcome(JobPhase.ACTIVE, reason, message)
    known |= as_conditions(states, previous, generation=generation, now=now)
    return tuple(known[kind] for kind in ConditionType)


def as_conditions[K: (ConditionType, ProfileConditionType)](
    states: Mapping[K, ConditionState],
    previous: Sequence[Condition],
    *,
    generation: int,
    now: datetime,
) -> dict[str, Condition]:
    """Returns conditions by type. The transition time of a condition changes only with its status."""
    since = {(each.type, each.status): each.last_transition_time for each in previous}
    now = whole_second(now)
    return {
        str(kind): Condition.model_construct(
            type=str(kind),
            status=status,
            observed_generation=generation,
            last_transition_time=since.get((kind, status), now),
            reason=str(reason),
            message=message,
        )
        for kind, (status, reason, message) in states.items()
    }


def _valid(state: JobState, stages: JobStages | None) -> ConditionState:
    if state.refused:
        return FALSE, state.refused.reason, state.refused.message
    if stages is None and state.phase is JobPhase.FAILED:
        return UNKNOWN, Reason.NOT_CHECKED, "The job was cancelled before it started."
    return _ACCEPTED


def _data_ready(stages: JobStages) -> ConditionState:
    stage_state, outcome = stages[Stage.PREFLIGHT], stages.findings.preflight
    missing = waiting_input(stage_state)
    if missing:
        return FALSE, missing.reason, missing.message
    if stage_state.done:
        assert outcome is not None, "a preflight that succeeded has findings"
        return TRUE, Reason.CHECKED, data_found(outcome)
    if stage_state.phase is StagePhase.FAILED and stage_state.failure:
        return FALSE, stage_state.failure.reason, stage_state.failure.message
    if stage_state.attempts:
        return UNKNOWN, Reason.IN_PROGRESS, "Preflight reads the model and the data."
    return _NOTHING_RUN


def data_found(found: PreflightOutcome) -> str:
    """Returns a sentence about the data that preflight has read."""
    checked = {report.checked for report in found.train}
    if checked == {"Off"}:
        return "The data exist; spec.preflight.dataset is Off, so no row was read."
    rows, tokens = (sum(getattr(report, name) for report in found.train) for name in ("rows", "tokens"))
    sources = f" of {len(found.train)} sources" if len(found.train) > 1 else ""
    read = "the first " if "Sample" in checked else ""
    text = f"{read}{rows} training rows{sources} with {tokens} tokens were read and checked."
    # The report lists all warnings.
    worst = f" {found.warnings[0]}" if found.warnings else ""
    return f"{text[0].upper()}{text[1:]}{worst}"


def _memory_fits(state: JobState, stages: JobStages) -> ConditionState:
    if state.failure and state.failure.reason == "CpuPoolTooSmall":
        return FALSE, state.failure.reason, state.failure.message
    if stages.plan.memory is None:
        text = "spec.preflight.memory is Off: device memory is not checked beforehand."
        return UNKNOWN, Reason.NOT_CHECKED, text
    stage_state = stages[Stage.PREFLIGHT]
    if stage_state.failure and stage_state.failure.code == ExitCode.OUT_OF_MEMORY:
        return FALSE, stage_state.failure.reason, stage_state.failure.message
    if not stage_state.done:
        reason = Reason.IN_PROGRESS if stage_state.live else Reason.NOT_STARTED
        return UNKNOWN, reason, "Preflight has not checked the memory of the train step yet."
    outcome = found(stages.plan, stages.findings)
    if outcome is None:
        text = "Preflight has not checked the memory of the slice that is used now."
    elif outcome.unknown or outcome.peak_bytes is None or outcome.limit_bytes is None:
        text = outcome.unknown or "Preflight has reported no memory figures."
    else:
        peak, limit = mebibytes(outcome.peak_bytes), mebibytes(outcome.limit_bytes)
        text = f"Compiled for {outcome.slice}: the train step needs {peak} of {limit} per chip."
        if outcome.source != "Analytic":
            return TRUE, Reason.CHECKED, text
        text = f"Parameters and optimizer take {peak} of {limit} per chip; only compiling shows what the step adds."
    return UNKNOWN, Reason.NOT_CHECKED, text


def _export_proven(stages: JobStages) -> ConditionState:
    if not stages.plan.export_proof:
        return UNKNOWN, Reason.NOT_REQUESTED, "spec.preflight.exportProof is false."
    if stages.plan.model.orbax is not None:
        text = "The model is given as a MaxText checkpoint: there is no original to compare its export with."
        return UNKNOWN, Reason.NOT_CHECKED, text
    stage_state, converted = stages[Stage.CONVERT], stages.findings.converted
    if converted:
        return TRUE, Reason.PROVEN, converted.proof or "The converted model exports to the original."
    if stage_state.phase is StagePhase.FAILED and stage_state.failure:
        return FALSE, stage_state.failure.reason, stage_state.failure.message
    if stage_state.live:
        return UNKNOWN, Reason.IN_PROGRESS, "The model is being converted and exported for the comparison."
    return _NOTHING_CONVERTED


def _gate_passed(stages: JobStages) -> ConditionState:
    measured = stages.evaluation
    if not (stages.plan.evaluation.gates or (measured and measured.gates)):
        return _NO_GATES
    if measured is None:
        return UNKNOWN, Reason.NOT_STARTED, "The tuned model has not been measured yet."
    missed = not_met(measured)
    if missed:
        return FALSE, Reason.GATE_NOT_MET, f"{'; '.join(map(gate_text, missed))}."
    return TRUE, Reason.GATE_PASSED, f"The tuned model meets all {len(measured.gates)} gates."


def _within_budget(stages: JobStages) -> ConditionState:
    if not (stages.plan.budget.ceilings or stages.month):
        return _NO_BUDGET
    if over := budget_exceeded(stages) or used_up(stages):
        return FALSE, over.reason, over.text
    if month := monthly_shortage(stages):
        return UNKNOWN if month.reason is Reason.MONTHLY_USAGE_UNKNOWN else FALSE, month.reason, month.text
    limits = [f"{decimal(each.most)} ({each.path})" for each in stages.plan.budget.ceilings]
    texts = [f"The job may use up to {' and '.join(limits)}."] if limits else []
    if stages.month:
        hours, profile = hours_text(stages.month.budget.limit), stages.month.budget.profile
        texts.append(f'Its namespace may use {hours} chip hours in each month under profile "{profile}".')
    return TRUE, Reason.WITHIN_BUDGET, " ".join(texts)


def _quota_reserved(state: JobState, stages: JobStages | None) -> ConditionState:
    queue = state.queue
    if queue is None:
        queued = stages is not None and (stages.plan.queues.tpu or stages.plan.queues.cpu)
        text = "No stage is in a queue now." if queued else "The profile names no queue."
        return TRUE, Reason.NOT_QUEUED, text
    if queue.quota_state is QuotaState.UNSEEN:
        return UNKNOWN, queue.reason, queue.message
    return FALSE if queue.without_quota else TRUE, queue.reason, queue.message


def _running(state: JobState, stages: JobStages | None) -> ConditionState:
    live = stages.live if stages else None
    if state.running and (live or stages is None):
        which = f"{live.key.stage}, attempt {live.ordinal}," if live else "an attempt"
        return TRUE, Reason.STAGE_RUNNING, f"All pods of {which} run."
    if state.wait:
        return FALSE, state.wait.reason, state.wait.message
    if state.recovering and state.phase is JobPhase.ACTIVE:
        return FALSE, *_RECOVERING
    reason, message = _PHASES[state.phase][1]
    if state.over and state.phase in (JobPhase.SUSPENDED, JobPhase.SUSPENDING):
        return FALSE, state.over.reason, message
    return FALSE, reason, message


def _run_folder_readable(
    state: JobState, stages: JobStages | None, folder: RunFolderView | None
) -> ConditionState:
    if folder is None:
        return UNKNOWN, Reason.NOT_STARTED, "The job has no run folder yet."
    unknown = state.unreadable or folder.unreadable
    if unknown is None and stages is not None and not stages[Stage.TRAIN].done:
        unknown = folder.progress_unknown
    if unknown is not None:
        return FALSE if unknown.alone else UNKNOWN, unknown.reason, unknown.message
    ignored = [*folder.warnings, *(_foreign_attempt(key) for key in sorted(folder.foreign_attempts))]
    if folder.progress_unknown is not None:
        ignored.append(folder.progress_unknown.message.rstrip("."))
    if not ignored:
        return TRUE, Reason.READABLE, "The run folder can be read."
    more = f"; and {len(ignored) - _WARNINGS} more" if len(ignored) > _WARNINGS else ""
    return TRUE, Reason.RECORDS_IGNORED, f"Ignored: {'; '.join(ignored[:_WARNINGS])}{more}."


def _foreign_attempt(key: AttemptKey) -> str:
    folder = f"{key.stage.short}-{key.number}{f'.{key.restart}' if key.restart else ''}"
    return f"attempts/{folder} belongs to no attempt of this job"


def _suspended(state: JobState) -> ConditionState:
    if state.phase is JobPhase.SUSPENDED and state.over:
        return TRUE, state.over.reason, state.over.text
    if state.phase is JobPhase.SUSPENDED:
        return TRUE, Reason.SUSPENDED_BY_USER, "No pod runs. Set spec.suspend to false to resume."
    if state.phase in (JobPhase.SUSPENDING, JobPhase.CANCELLING):
        reason, message = _SUSPENDING if state.phase is JobPhase.SUSPENDING else _CANCELLING
        return FALSE, reason, state.wait.message if state.wait else message
    if state.phase.finished:
        return FALSE, Reason.NOT_SUSPENDED, "The job has ended."
    if state.phase is JobPhase.INVALID:
        return FALSE, Reason.NOT_SUSPENDED, "The job is not valid, so there is nothing to suspend."
    return FALSE, Reason.NOT_SUSPENDED, "spec.suspend is false."


def _outcome(phase: JobPhase, reason: str, message: str) -> dict[ConditionType, ConditionState]:
    statuses = zip(OUTCOME, _PHASES[phase][0], strict=True)
    return {kind: (status, reason, message) for kind, status in statuses}


def _judged(state: JobState, stages: JobStages | None) -> dict[ConditionType, ConditionState]:
    if state.stuck and state.wait:
        return _outcome(JobPhase.STALLED, state.wait.reason, state.wait.message)
    return _outcome(state.phase, *_because(state, stages))


def _because(state: JobState, stages: JobStages | None) -> tuple[str, str]:  # noqa: PLR0911  one per case
    if state.phase is JobPhase.SUSPENDED and state.over:
        return state.over.reason, state.over.text
    if because := _PHASES[state.phase][2]:
        return because
    if state.phase is JobPhase.FAILED and state.failure:
        return state.failure.reason, state.failure.message
    if state.queue and state.queue.without_quota and state.wait and state.phase is JobPhase.STALLED:
        return state.queue.reason, state.wait.message
    refused = state.refused if state.phase in (JobPhase.INVALID, JobPhase.STALLED) else None
    if why := refused or state.unreadable or state.wait:
        return why.reason, why.message
    if state.recovering:
        return _RECOVERING
    stage = stages.current.stage if stages else Stage.PREFLIGHT
    return Reason.IN_PROGRESS, f"Stage {stage}."
