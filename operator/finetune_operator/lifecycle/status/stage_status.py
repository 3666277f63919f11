"""``status.stages``: the state of each stage."""

from collections.abc import Sequence
from datetime import datetime

from finetune_contract import ConvertOutcome, PreflightOutcome, Stage, TrainOutcome
from finetune_operator.api import Reason, StagePhase
from finetune_operator.api.numbers import decimal
from finetune_operator.api.status_stages import CacheOutcome, StageCache, StageStatus
from finetune_operator.api.timestamps import whole_second
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.children.pods import worker_restarts
from finetune_operator.lifecycle.job_state import JobPhase, JobState
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages, StageState, details_of

_SHOWN_TENSORS = 4
#: Maximum number of reasons for a cache miss.
_MOST_REASONS = 8


def stages_status(observation: Observation, state: JobState, stages: JobStages) -> tuple[StageStatus, ...]:
    """Returns ``status.stages``, one entry for each stage in order."""
    before = {each.name: each for each in observation.status.stages or ()}
    return tuple(_stage(observation, state, stages, stage, before.get(stage)) for stage in Stage)


def _stage(
    observation: Observation,
    state: JobState,
    stages: JobStages,
    stage: Stage,
    before: StageStatus | None,
) -> StageStatus:
    stage_state = stages[stage]
    failed_now = state.phase is JobPhase.FAILED and stage is stages.current.stage
    if stage_state.phase is StagePhase.SKIPPED:
        given = stage is Stage.CONVERT and stages.plan.model.orbax is not None
        return _skipped(stage, Reason.PROVIDED_CHECKPOINT if given else Reason.NOT_REQUESTED)
    if state.phase.finished and stage_state.phase is StagePhase.PENDING and not failed_now:
        return _skipped(stage, "NotReached")
    phase = StagePhase.FAILED if failed_now else stage_state.phase
    newest = stage_state.attempts[-1] if stage_state.attempts else None
    failure = stage_state.failure or (state.failure if failed_now else None)
    return StageStatus.model_construct(
        name=stage,
        phase=phase,
        reason=failure.reason if failure else None,
        attempt=newest.ordinal if newest else None,
        job_set=newest.jobset_name if newest else None,
        restart=newest.key.restart or None if newest else None,
        worker_restarts=_worker_restarts(newest, before) if newest else None,
        start_time=_start_time(stage_state.attempts, before, observation.now) if newest else None,
        completion_time=_completion_time(stage_state, before, observation.now)
        if phase in (StagePhase.SUCCEEDED, StagePhase.FAILED)
        else None,
        cache=_cache(stage_state, stages),
        resumed_from_step=(_resumed_from(stage_state) or None) if stage is Stage.TRAIN else None,
        message=failure.message if failure else _remark(stage_state, observation, stages),
    )


def _skipped(stage: Stage, reason: str) -> StageStatus:
    return StageStatus.model_construct(name=stage, phase=StagePhase.SKIPPED, reason=str(reason))


def _worker_restarts(newest: Attempt, before: StageStatus | None) -> int | None:
    # A lower bound: pods count them and are deleted before the job is.
    known = before.worker_restarts if before and before.attempt == newest.ordinal else None
    return max(known or 0, worker_restarts(newest.pods)) or None


def _completion_time(stage_state: StageState, before: StageStatus | None, now: datetime) -> datetime:
    results = (stage_state.result, stage_state.last_result)
    finished = next((result.finished for result in results if result and result.finished), now)
    return (before.completion_time if before else None) or whole_second(finished)


def _start_time(attempts: Sequence[Attempt], before: StageStatus | None, now: datetime) -> datetime:
    times = [each.files.result.started for each in attempts if each.files and each.files.result]
    created = [each.jobset.creation_timestamp for each in attempts if each.jobset]
    started = min((time for time in (*created, *times) if time), default=now)
    return (before.start_time if before else None) or whole_second(started)


def _remark(stage_state: StageState, observation: Observation, stages: JobStages) -> str | None:
    """Returns the message of a stage that has not failed."""
    if stage_state.stage is Stage.TRAIN:
        return "; ".join([*_discarded(observation), *_unchanged(stage_state)]) or None
    found = stages.findings.preflight
    if stage_state.stage is Stage.PREFLIGHT and found and (smoke := found.smoke):
        return (
            f"The smoke test ran all stages: {smoke.steps} steps on {smoke.examples} examples of at most "
            f"{smoke.max_seq_length} tokens, in {smoke.seconds:.0f} s."
        )
    return None


def _cache(stage_state: StageState, stages: JobStages) -> StageCache | None:
    """Returns ``status.stages[].cache``."""
    if stage_state.stage is Stage.CONVERT:
        return _conversion_cache(stage_state, stages)
    if stage_state.stage is Stage.PREFLIGHT and stages.findings.preflight:
        return data_cache(stages.findings.preflight)
    return None


def _conversion_cache(stage_state: StageState, stages: JobStages) -> StageCache | None:
    """Returns the cache of Convert; None until it is known whether Convert has to run."""
    converted, preflight = stages.findings.converted, stages.findings.preflight
    if preflight is None or not (converted or stage_state.attempts):
        return None
    outcome = details_of(stage_state, ConvertOutcome)
    hit = not stage_state.attempts or (outcome is not None and outcome.reused)
    return StageCache.model_construct(
        result=CacheOutcome.HIT if hit else CacheOutcome.MISS,
        fingerprint=preflight.fingerprint,
        source_uri=converted.items if converted else None,
        size_bytes=converted.size_bytes if converted else None,
        saved_seconds=decimal(round(converted.seconds, 1)) if converted and hit else None,
        miss_because=None if hit else stage_state.missed[:_MOST_REASONS] or None,
    )


def data_cache(found: PreflightOutcome) -> StageCache | None:
    """Returns the cache of prepared data: a hit only if every source was in it. None: no cache was used."""
    uses = found.prepared
    if not uses:
        return None
    missed = [use for use in uses if use.result == "Miss"]
    shown = (missed or uses)[0]
    saved = sum(use.saved_seconds for use in uses)
    reasons = [f"{use.path}: {why}" for use in missed for why in use.miss_because]
    return StageCache.model_construct(
        result=CacheOutcome.MISS if missed else CacheOutcome.HIT,
        fingerprint=shown.fingerprint,
        source_uri=shown.uri or None,
        size_bytes=sum(use.size_bytes for use in uses),
        saved_seconds=decimal(round(saved, 1)) if saved else None,
        miss_because=tuple(reasons[:_MOST_REASONS]) or None,
    )


def _discarded(observation: Observation) -> list[str]:
    """Returns one remark for each damaged checkpoint that the training has discarded."""
    found = observation.folder.progress.discarded if observation.folder.progress else ()
    return [
        f"the checkpoint of step {each.step} was damaged ({each.why}), "
        "and training continued from the one before"
        for each in found
    ]


def _unchanged(stage_state: StageState) -> list[str]:
    """Returns a remark about the tensors that the training has not changed, if there are any."""
    outcome = details_of(stage_state, TrainOutcome)
    if outcome is None or not outcome.unchanged_tensors:
        return []
    shown = ", ".join(outcome.unchanged[:_SHOWN_TENSORS])
    more = ", …" if outcome.unchanged_tensors > _SHOWN_TENSORS else ""
    return [f"training left {outcome.unchanged_tensors} of its tensors unchanged, bit for bit: {shown}{more}"]


def _resumed_from(stage_state: StageState) -> int | None:
    if outcome := details_of(stage_state, TrainOutcome):
        return outcome.start_step
    newest = stage_state.attempts[-1] if stage_state.attempts else None
    return newest.progress.start_step if newest and newest.progress else None
