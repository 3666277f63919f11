"""Derives the state of every stage from its attempts and from the cache of converted models."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from finetune_contract import (
    ContractVersion,
    ConvertOutcome,
    EvaluateOutcome,
    ExitCode,
    Failure,
    PreflightOutcome,
    Stage,
    StageResult,
    TrainOutcome,
)
from finetune_operator.api import Reason, StagePhase
from finetune_operator.lifecycle.attempts.attempt import Attempt, since_retry
from finetune_operator.lifecycle.attempts.classify import AttemptOutcome, AttemptResult, classify, settled
from finetune_operator.lifecycle.attempts.pod_failures import HOST_OUT_OF_MEMORY
from finetune_operator.lifecycle.attempts.stop_records import CANCELLED
from finetune_operator.lifecycle.attempts.usage import counted, rate_of, usage
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.lifecycle.stages import retry_budget
from finetune_operator.lifecycle.stages.conversion import Damages, damages_of, in_cache, placed, succeeded
from finetune_operator.lifecycle.stages.findings import missed_gates, not_held, too_small
from finetune_operator.lifecycle.stages.job_stages import JobStages, StageState, details_of
from finetune_operator.lifecycle.stages.spending import monthly_limit
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.rendering import MAX_RESTART


def derive_stages(
    observation: Observation, plan: Plan, attempts: Sequence[Attempt], *, stop: Failure | None
) -> JobStages:
    """Returns the state of all stages, with the result of every attempt. ``stop``: as in :func:`classify`."""
    results = (
        classify(attempt, stop=stop, now=observation.now, nodes=observation.nodes) for attempt in attempts
    )
    classified = [
        (
            attempt,
            _completed(_believed(placed(attempt, result, plan), observation.now), attempt, plan, observation),
        )
        for attempt, result in zip(attempts, results, strict=True)
        if result
    ]
    retry = observation.folder.retry
    # Attempts before a manual retry are reported, but not charged.
    since = retry_budget.with_waits(pair for pair in classified if since_retry(retry, pair[0]))
    counters = retry_budget.count(since)
    damages = damages_of(classified)
    stage_states: list[StageState] = []
    findings = Findings(reconvert=bool(damages))
    # A stage that runs or has run stays in the status, even if an edit has removed it from the plan.
    present = {attempt.key.stage for attempt in attempts}
    for stage in Stage:
        if stage not in plan.stages and stage not in present:
            continue
        base = StageState(
            stage=stage,
            phase=StagePhase.PENDING,
            attempts=tuple(attempt for attempt in attempts if attempt.key.stage is stage),
            classified=tuple(pair for pair in since if pair[0].key.stage is stage),
        )
        # The success of a stage before the one from which a retry starts remains.
        kept = retry is not None and stage.order < retry.from_stage.order
        done = _success(classified if kept else since, stage, damages)
        stage_state = _stage_state(base, plan, observation.folder, counters, done)
        if stage is Stage.CONVERT:
            stage_state = _with_cache(stage_state, observation.folder, plan, findings.preflight, damages)
        if stage is Stage.EVALUATE:
            stage_state = _gated(stage_state, plan)
        if stage not in plan.stages and not stage_state.done and stage_state.live is None:
            continue
        stage_states.append(stage_state)
        findings = _found(findings, stage_state)
    if findings.preflight and not any(attempt.live for attempt in attempts):
        stage_states = _with_memory(stage_states, plan, findings.preflight)
    used = usage(plan, attempts, observation)
    return JobStages(
        plan=plan,
        stages=tuple(stage_states),
        attempts=tuple(attempts),
        fresh=tuple(attempt for attempt in attempts if since_retry(retry, attempt)),
        classified=tuple(classified),
        used=used,
        counters=counters,
        findings=findings,
        month=monthly_limit(observation, used, plan.owner_of_profile),
    )


def preflight_found(
    observation: Observation, plan: Plan, attempts: Sequence[Attempt]
) -> PreflightOutcome | None:
    """Returns the findings of preflight; None if it has not passed. ``plan``: a plan of the job for any slice."""
    own = [attempt for attempt in attempts if attempt.key.stage is Stage.PREFLIGHT]
    return derive_stages(observation, plan, own, stop=None).findings.preflight


def _with_memory(stage_states: list[StageState], plan: Plan, found: PreflightOutcome) -> list[StageState]:
    """Fails a stage on CPU that fits no node of the pool, before anything else starts."""
    waiting = [each.stage for each in stage_states if not each.done and each.failure is None]
    error = not_held(plan, waiting, found)
    if error is None:
        return stage_states
    failure = too_small(error)
    return [
        replace(each, phase=StagePhase.FAILED, failure=failure) if each.stage is error.stage else each
        for each in stage_states
    ]


def _believed(result: AttemptResult, now: datetime) -> AttemptResult:
    """Removes an end time in the future: the clock that recorded it was fast, and no retry waits for it."""
    return result if result.finished is None or result.finished <= now else replace(result, finished=None)


def _success(
    classified: Sequence[retry_budget.ClassifiedAttempt], stage: Stage, damages: Damages
) -> StageResult | None:
    """Returns the record of the last attempt at the stage that succeeded; None if none has."""
    return next(
        (
            attempt.result
            for attempt, result in reversed(classified)
            if attempt.key.stage is stage and succeeded(attempt, result, damages)
        ),
        None,
    )


def _completed(
    result: AttemptResult, attempt: Attempt, plan: Plan, observation: Observation
) -> AttemptResult:
    """Completes a record that is to be written by what only this observation knows: the time, usage, waiting times and
    the newest checkpoint. A result without such a record is unchanged."""
    record = result.record or _uncounted(result, attempt)
    if record is None:
        return result
    fields = {"written": observation.now, **counted(attempt, rate_of(attempt, plan), observation.now)}
    if progress := attempt.progress:
        fields |= {
            "checkpoint": max(progress.checkpoints, default=None),
            "start_step": progress.start_step,
            "step": progress.step,
        }
    own = result.failure == result.record
    record = record.model_copy(update=fields)
    return replace(result, record=record, failure=record if own else result.failure)


def _uncounted(result: AttemptResult, attempt: Attempt) -> Failure | None:
    """Returns the existing record of the attempt's end if it lacks the operator's time and usage; else None.

    Such a record is the trainer's, or that of an eviction after which the attempt continued.
    """
    recorded = attempt.recorded
    # The record of a kill may be from before the JobSet ended.
    final = settled(recorded) and recorded is not None and recorded.reason != HOST_OUT_OF_MEMORY
    if recorded is None or recorded.written or final or attempt.jobset is None:
        return None
    ended = recorded == result.failure or (attempt.restarted and result.ending is AttemptOutcome.EVICTED)
    return recorded if ended and attempt.key.stage.on_tpu else None


def _stage_state(
    base: StageState,
    plan: Plan,
    folder: RunFolderView,
    counters: retry_budget.AttemptCounts,
    done: StageResult | None,
) -> StageState:
    """Returns the state of a stage. ``base``: its attempts. ``done``: the record of the one that succeeded."""
    if done is not None:
        return replace(base, phase=StagePhase.SUCCEEDED, result=done)
    live = next((attempt for attempt in base.attempts if attempt.live), None)
    restarted_out = _restarted_too_often(base.attempts, base.classified)
    if live is None or live.key.restart > 0 or restarted_out:
        # JobSet restarts after a disruption whether or not the retry budget allows it.
        failure, used_up = restarted_out or _final(base.stage, plan, base.classified, counters, folder)
        if failure is not None:
            return replace(base, phase=StagePhase.FAILED, failure=failure, exhausted=used_up)
    return replace(base, phase=StagePhase.RUNNING) if live else base


def _restarted_too_often(
    attempts: tuple[Attempt, ...], classified: tuple[retry_budget.ClassifiedAttempt, ...]
) -> tuple[Failure, retry_budget.ExhaustedBudget] | None:
    counted = (
        *(attempt for attempt in attempts if attempt.live),
        *(attempt for attempt, _ in classified[-1:]),
    )
    if all(attempt.key.restart < MAX_RESTART for attempt in counted):
        return None
    return (
        Failure(
            code=ExitCode.BAD_REQUEST,
            reason="TooManyAttempts",
            message=f"JobSet has restarted the stage {MAX_RESTART} times or more.",
        ),
        retry_budget.ExhaustedBudget(
            field="the limit for restarts of a JobSet", used=MAX_RESTART, allowed=MAX_RESTART
        ),
    )


def _final(
    stage: Stage,
    plan: Plan,
    classified: tuple[retry_budget.ClassifiedAttempt, ...],
    counters: retry_budget.AttemptCounts,
    folder: RunFolderView,
) -> tuple[Failure | None, retry_budget.ExhaustedBudget | None]:
    if not classified:
        return None, None
    attempt, result = classified[-1]
    if attempt.key.number >= MAX_ATTEMPT and result.purpose != CANCELLED:
        ended = retry_budget.too_many_attempts(stage)
        last = result.failure or Failure(code=ended.code, reason=ended.reason, message="Suspended too often.")
        return (
            last.model_copy(update={"fix": ended.fix}),
            retry_budget.ExhaustedBudget(
                reason=Reason.TOO_MANY_ATTEMPTS,
                field="the limit for attempts of a stage",
                used=MAX_ATTEMPT,
                allowed=MAX_ATTEMPT,
            ),
        )
    if result.failure is None or result.waits:
        return None, None
    used_up = retry_budget.exhausted(result, counters, plan.recovery)
    # Without the progress record it is unknown what the attempts have saved.
    counts = used_up is None and stage is Stage.TRAIN and folder.progress_unknown is None
    stuck = retry_budget.stuck(classified, folder.progress) if counts else 0
    if stuck >= retry_budget.MOST_STUCK:
        used_up = retry_budget.ExhaustedBudget(
            reason=Reason.NO_PROGRESS,
            field="the limit for consecutive attempts without a new checkpoint",
            used=stuck,
            allowed=retry_budget.MOST_STUCK - 1,
        )
    return (result.failure, used_up) if used_up else (None, None)


def _with_cache(
    stage_state: StageState,
    folder: RunFolderView,
    plan: Plan,
    preflight: PreflightOutcome | None,
    damages: Damages,
) -> StageState:
    """Convert also succeeds if the cache contains its result, and fails if the required export proof is missing."""
    usable, missed = in_cache(
        folder.convert_manifest, folder.convert_manifest_fault, plan, preflight, damages
    )
    stage_state = replace(stage_state, missed=missed)
    own = details_of(stage_state, ConvertOutcome)
    if own is not None:
        if own.manifest.export_proven or not plan.export_proof:
            return stage_state
        failure = Failure(
            code=ExitCode.BAD_REQUEST,
            reason="ExportNotProven",
            message="The model was converted without proving that it can be exported, and "
            "spec.preflight.exportProof requires the proof.",
            fix="Leave spec.preflight.exportProof as it was when the model was converted, or create a new job.",
        )
        return replace(stage_state, phase=StagePhase.FAILED, result=None, failure=failure)
    if usable is None or stage_state.live is not None:
        return stage_state
    return replace(stage_state, phase=StagePhase.SUCCEEDED, hit=usable, failure=None, exhausted=None)


def _gated(stage_state: StageState, plan: Plan) -> StageState:
    outcome = details_of(stage_state, EvaluateOutcome)
    failure = missed_gates(outcome, plan) if outcome and stage_state.done else None
    return replace(stage_state, phase=StagePhase.FAILED, failure=failure) if failure else stage_state


def _found(findings: Findings, stage_state: StageState) -> Findings:
    if not stage_state.done:
        return findings
    match stage_state.stage:
        case Stage.PREFLIGHT:
            supports = ContractVersion.parse(stage_state.result.supports) if stage_state.result else None
            return replace(findings, preflight=details_of(stage_state, PreflightOutcome), supports=supports)
        case Stage.CONVERT:
            own = details_of(stage_state, ConvertOutcome)
            return replace(findings, converted=own.manifest if own else stage_state.hit)
        case Stage.TRAIN:
            return replace(findings, train=details_of(stage_state, TrainOutcome))
        case Stage.EVALUATE:
            return replace(findings, evaluated=details_of(stage_state, EvaluateOutcome))
    return findings
