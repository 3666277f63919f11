"""Where every stage stands, derived from its attempts and from the cache of converted models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from finetune_contract import (
    ContractVersion,
    ConvertManifest,
    ConvertOutcome,
    EvaluateOutcome,
    ExitCode,
    ExportOutcome,
    Failure,
    PreflightOutcome,
    Stage,
    StageResult,
    TrainOutcome,
)
from finetune_operator.api import Reason, StagePhase
from finetune_operator.lifecycle import gates, retry_budget
from finetune_operator.lifecycle.attempts import Attempt, since_retry
from finetune_operator.lifecycle.classify import AttemptOutcome, AttemptResult, classify, settled
from finetune_operator.lifecycle.conversion import DamagedConversions, in_cache, placed, succeeded
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.lifecycle.preflight_memory import not_held, too_small
from finetune_operator.lifecycle.usage import Usage, counted, usage
from finetune_operator.lifecycle.wait_times import to_note
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.rendering import MAX_RESTART


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """One stage."""

    stage: Stage
    phase: StagePhase
    attempts: tuple[Attempt, ...] = ()
    judged: tuple[retry_budget.Judged, ...] = ()
    """Those that have ended since the last retry by hand, with their verdicts."""
    result: StageResult | None = None
    """Of the attempt that succeeded."""
    hit: ConvertManifest | None = None
    """Convert: another job has done this conversion."""
    missed: tuple[str, ...] = ()
    """Convert: why no other job's conversion was used, where that is known."""
    failure: Failure | None = None
    """There when the stage has failed for good."""
    exhausted: retry_budget.ExhaustedBudget | None = None

    @property
    def live(self) -> Attempt | None:
        """The attempt that may still run."""
        return next((each for each in reversed(self.attempts) if each.live), None)

    @property
    def last_verdict(self) -> AttemptResult | None:
        return self.judged[-1][1] if self.judged else None

    @property
    def done(self) -> bool:
        return self.phase is StagePhase.SUCCEEDED

    @property
    def retry_at(self) -> datetime | None:
        return retry_budget.retry_at(self.judged) if self.judged else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStages:
    """All stages of a job."""

    plan: Plan
    stages: tuple[StageState, ...]
    attempts: tuple[Attempt, ...]
    fresh: tuple[Attempt, ...]
    """Those since the last retry by hand."""
    judged: tuple[retry_budget.Judged, ...]
    """Every attempt that has ended."""
    used: Usage
    counters: retry_budget.AttemptCounts
    findings: Findings

    def __getitem__(self, stage: Stage) -> StageState:
        return next(
            (view for view in self.stages if view.stage is stage),
            StageState(stage=stage, phase=StagePhase.SKIPPED),
        )

    @property
    def live(self) -> Attempt | None:
        """The attempt that blocks every new one."""
        return next((view.live for view in reversed(self.stages) if view.live), None)

    @property
    def failed(self) -> StageState | None:
        return next((view for view in self.stages if view.phase is StagePhase.FAILED), None)

    @property
    def current(self) -> StageState:
        """The one that has failed, else the first that has not succeeded; the last one when all have."""
        return self.failed or next((view for view in self.stages if not view.done), self.stages[-1])

    @property
    def succeeded(self) -> bool:
        return all(view.done for view in self.stages)

    @property
    def evaluation(self) -> EvaluateOutcome | None:
        return _details(self[Stage.EVALUATE], EvaluateOutcome)

    @property
    def export(self) -> ExportOutcome | None:
        return _details(self[Stage.EXPORT], ExportOutcome)


def derive_stages(
    observation: Observation, plan: Plan, attempts: Sequence[Attempt], *, suspend: bool
) -> JobStages:
    """Judge every attempt and every stage."""
    verdicts = (
        classify(attempt, plan.job.name, suspend=suspend, now=observation.now, nodes=observation.nodes)
        for attempt in attempts
    )
    judged = [
        (
            attempt,
            _completed(
                _believed(placed(attempt, verdict, plan), observation.now), attempt, plan, observation
            ),
        )
        for attempt, verdict in zip(attempts, verdicts, strict=True)
        if verdict
    ]
    retry = observation.folder.retry
    # What was before a retry by hand is told, and charged to nothing.
    since = [pair for pair in judged if since_retry(retry, pair[0])]
    counters = retry_budget.count(since)
    damages = DamagedConversions.of(judged)
    views: list[StageState] = []
    findings = Findings(reconvert=bool(damages.found))
    # A stage that runs or has run belongs to the story even where an edit has made it needless since.
    present = {attempt.key.stage for attempt in attempts}
    for stage in Stage:
        if stage not in plan.stages and stage not in present:
            continue
        own = tuple(attempt for attempt in attempts if attempt.key.stage is stage)
        ended = tuple(pair for pair in since if pair[0].key.stage is stage)
        view = _view(stage, plan, own, ended, observation.folder, counters=counters, damages=damages)
        if retry is not None and stage.order < retry.from_stage.order:
            view = _done_before(view, judged, damages)
        if stage is Stage.CONVERT:
            view = _with_cache(view, observation.folder, plan, findings.preflight, damages)
        if stage is Stage.EVALUATE:
            view = _gated(view, plan)
        if stage not in plan.stages and not view.done and view.live is None:
            continue
        views.append(view)
        findings = _found(findings, view)
    if findings.preflight and not any(attempt.live for attempt in attempts):
        views = _with_memory(views, plan, findings.preflight)
    return JobStages(
        plan=plan,
        stages=tuple(views),
        attempts=tuple(attempts),
        fresh=tuple(attempt for attempt in attempts if since_retry(retry, attempt)),
        judged=tuple(judged),
        used=usage(plan, attempts, observation.now, observation.job),
        counters=counters,
        findings=findings,
    )


def preflight_found(
    observation: Observation, plan: Plan, attempts: Sequence[Attempt]
) -> PreflightOutcome | None:
    """What preflight has found out; None where it has not passed. ``plan``: of the job on any slice."""
    own = [attempt for attempt in attempts if attempt.key.stage is Stage.PREFLIGHT]
    return derive_stages(observation, plan, own, suspend=False).findings.preflight


def _with_memory(views: list[StageState], plan: Plan, found: PreflightOutcome) -> list[StageState]:
    """A stage on CPU that no node could hold has failed before anything else starts. What runs is left alone."""
    waiting = [view.stage for view in views if not view.done and view.failure is None]
    error = not_held(plan, waiting, found)
    return [
        replace(view, phase=StagePhase.FAILED, failure=too_small(error))
        if error is not None and view.stage is error.stage
        else view
        for view in views
    ]


def _believed(verdict: AttemptResult, now: datetime) -> AttemptResult:
    """An end that is still to come was told by a clock that is wrong: nothing waits for it."""
    return verdict if verdict.finished is None or verdict.finished <= now else replace(verdict, finished=None)


def _done_before(
    view: StageState, judged: Sequence[retry_budget.Judged], damages: DamagedConversions
) -> StageState:
    """A retry of a later stage leaves what this one has done."""
    done = next(
        (
            attempt
            for attempt, verdict in reversed(judged)
            if attempt.key.stage is view.stage and succeeded(attempt, verdict, damages)
        ),
        None,
    )
    if view.done or done is None:
        return view
    assert done.files is not None, "a success is read from the trainer's record"
    return replace(view, phase=StagePhase.SUCCEEDED, result=done.files.result)


def _completed(
    verdict: AttemptResult, attempt: Attempt, plan: Plan, observation: Observation
) -> AttemptResult:
    """A record that is still to be written also tells what nothing tells later."""
    record = verdict.record or _uncounted(verdict, attempt)
    if record is None:
        return verdict
    told: dict[str, object] = {
        "written": observation.now,
        **counted(attempt, plan, observation.now),
        **to_note(attempt, observation.now),
    }
    progress, key = observation.folder.progress, attempt.key
    if (
        key.stage is Stage.TRAIN
        and progress
        and (progress.attempt, progress.restart) == (key.number, key.restart)
    ):
        told["checkpoint"] = max(progress.checkpoints, default=None)
    judged = verdict.failure == verdict.record
    record = record.model_copy(update=told)
    return replace(verdict, record=record, failure=record if judged else verdict.failure)


def _uncounted(verdict: AttemptResult, attempt: Attempt) -> Failure | None:
    """A record of the attempt's end that stands, and does not say when it was judged and what it used: a trainer's, or
    of an eviction that it had gone on after."""
    noted = attempt.files.failure if attempt.files else None
    if noted is None or noted.written or settled(noted) or attempt.jobset is None:
        return None
    ended = noted == verdict.failure or (attempt.restarted and verdict.ending is AttemptOutcome.EVICTED)
    return noted if ended and attempt.key.stage.on_tpu else None


def _view(
    stage: Stage,
    plan: Plan,
    attempts: tuple[Attempt, ...],
    judged: tuple[retry_budget.Judged, ...],
    folder: RunFolderView,
    *,
    counters: retry_budget.AttemptCounts,
    damages: DamagedConversions,
) -> StageState:
    done = next((a for a, verdict in reversed(judged) if succeeded(a, verdict, damages)), None)
    if done is not None:
        assert done.files is not None, "a success is read from the trainer's record"
        return StageState(
            stage=stage,
            phase=StagePhase.SUCCEEDED,
            attempts=attempts,
            judged=judged,
            result=done.files.result,
        )
    live = next((attempt for attempt in attempts if attempt.live), None)
    restarted_out = _restarted_too_often(attempts, judged)
    if live is not None and live.key.restart == 0 and restarted_out is None:
        return StageState(stage=stage, phase=StagePhase.RUNNING, attempts=attempts, judged=judged)
    # JobSet restarts after a disruption without asking whether there is anything left to spend on it.
    failure, used_up = restarted_out or _final(stage, plan, judged, counters, folder)
    if failure is not None:
        return StageState(
            stage=stage,
            phase=StagePhase.FAILED,
            attempts=attempts,
            judged=judged,
            failure=failure,
            exhausted=used_up,
        )
    phase = StagePhase.RUNNING if live else StagePhase.PENDING
    return StageState(stage=stage, phase=phase, attempts=attempts, judged=judged)


def _restarted_too_often(
    attempts: tuple[Attempt, ...], judged: tuple[retry_budget.Judged, ...]
) -> tuple[Failure, retry_budget.ExhaustedBudget] | None:
    counted = (*(attempt for attempt in attempts if attempt.live), *(attempt for attempt, _ in judged[-1:]))
    if all(attempt.key.restart < MAX_RESTART for attempt in counted):
        return None
    return (
        Failure(
            code=ExitCode.BAD_REQUEST,
            reason="TooManyAttempts",
            message=f"JobSet has restarted the stage {MAX_RESTART} times or more.",
        ),
        retry_budget.ExhaustedBudget(
            field="the number of restarts of a JobSet", used=MAX_RESTART, allowed=MAX_RESTART
        ),
    )


def _final(
    stage: Stage,
    plan: Plan,
    judged: tuple[retry_budget.Judged, ...],
    counters: retry_budget.AttemptCounts,
    folder: RunFolderView,
) -> tuple[Failure | None, retry_budget.ExhaustedBudget | None]:
    if not judged:
        return None, None
    attempt, verdict = judged[-1]
    if attempt.key.number >= MAX_ATTEMPT:
        ended = retry_budget.too_many_attempts(stage)
        last = verdict.failure or Failure(
            code=ended.code, reason=ended.reason, message="Suspended too often."
        )
        return (
            last.model_copy(update={"fix": ended.fix}),
            retry_budget.ExhaustedBudget(
                reason=Reason.TOO_MANY_ATTEMPTS,
                field="the most attempts of a stage",
                used=MAX_ATTEMPT,
                allowed=MAX_ATTEMPT,
            ),
        )
    if verdict.failure is None or retry_budget.waits_for_input(stage, verdict):
        return None, None
    used_up = retry_budget.exhausted(verdict, counters, plan.recovery)
    # Without the progress record it is unknown what the attempts have saved.
    judges = used_up is None and stage is Stage.TRAIN and folder.progress_unknown is None
    stuck = retry_budget.stuck(judged, folder.progress) if judges else 0
    if stuck >= retry_budget.MOST_STUCK:
        used_up = retry_budget.ExhaustedBudget(
            reason=Reason.NO_PROGRESS,
            field="the number of attempts in a row without a new checkpoint",
            used=stuck,
            allowed=retry_budget.MOST_STUCK - 1,
        )
    return (verdict.failure, used_up) if used_up else (None, None)


def _with_cache(
    view: StageState,
    folder: RunFolderView,
    plan: Plan,
    preflight: PreflightOutcome | None,
    damages: DamagedConversions,
) -> StageState:
    """Convert is also done when its result lies in the cache, and only when the export is proven."""
    cached = in_cache(folder.convert_manifest, folder.convert_manifest_fault, plan, preflight, damages)
    view = replace(view, missed=cached.missed)
    own = _details(view, ConvertOutcome)
    if own is not None:
        if own.manifest.export_proven or not plan.export_proof:
            return view
        return replace(
            view,
            phase=StagePhase.FAILED,
            result=None,
            failure=Failure(
                code=ExitCode.BAD_REQUEST,
                reason="ExportNotProven",
                message="The model was converted without proving that it can be exported, and "
                "spec.preflight.exportProof asks for the proof.",
                fix="Leave spec.preflight.exportProof as it was when the model was converted, "
                "or create a new job.",
            ),
        )
    if cached.usable is None or view.live is not None:
        return view
    return replace(view, phase=StagePhase.SUCCEEDED, hit=cached.usable, failure=None, exhausted=None)


def _gated(view: StageState, plan: Plan) -> StageState:
    outcome = _details(view, EvaluateOutcome)
    failure = gates.failure_of(outcome, plan) if outcome and view.done else None
    return replace(view, phase=StagePhase.FAILED, failure=failure) if failure else view


def _found(findings: Findings, view: StageState) -> Findings:
    if not view.done:
        return findings
    match view.stage:
        case Stage.PREFLIGHT:
            speaks = ContractVersion.parse(view.result.speaks) if view.result else None
            return replace(findings, preflight=_details(view, PreflightOutcome), speaks=speaks)
        case Stage.CONVERT:
            own = _details(view, ConvertOutcome)
            return replace(findings, converted=own.manifest if own else view.hit)
        case Stage.TRAIN:
            return replace(findings, train=_details(view, TrainOutcome))
        case Stage.EVALUATE:
            return replace(findings, evaluated=_details(view, EvaluateOutcome))
    return findings


def _details[T](view: StageState, kind: type[T]) -> T | None:
    details = view.result.details if view.result else None
    return details if isinstance(details, kind) else None


def not_proven(view: StageState) -> bool:
    """Convert failed because the model could not be exported again unchanged."""
    return view.failure is not None and view.failure.reason.startswith(("Export", "RoundTrip", "Proof"))


def waiting_input(view: StageState) -> Failure | None:
    """What preflight looked for in vain, as long as it has not found it."""
    verdict = view.last_verdict
    if view.done or verdict is None or not retry_budget.waits_for_input(view.stage, verdict):
        return None
    return verdict.failure
