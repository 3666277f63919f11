"""The state of each stage, and of all stages of a job."""

from dataclasses import dataclass
from datetime import datetime

from finetune_contract import (
    ConvertManifest,
    EvaluateOutcome,
    ExportOutcome,
    Failure,
    Stage,
    StageResult,
)
from finetune_operator.api import StagePhase
from finetune_operator.ledger.month import MonthlyBudget
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.classify import AttemptResult
from finetune_operator.lifecycle.attempts.usage import Usage
from finetune_operator.lifecycle.stages import retry_budget
from finetune_operator.planning import Findings, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """The state of one stage."""

    stage: Stage
    phase: StagePhase
    attempts: tuple[Attempt, ...] = ()
    classified: tuple[retry_budget.ClassifiedAttempt, ...] = ()
    """The attempts that have ended since the last manual retry, with their results."""
    result: StageResult | None = None
    """The record of the attempt that succeeded; None if none has."""
    hit: ConvertManifest | None = None
    """For Convert: the entry in the cache that is used; None if there is none."""
    missed: tuple[str, ...] = ()
    """For Convert: why no other job's conversion was used, if known."""
    failure: Failure | None = None
    """Set if the stage has failed and is not retried."""
    exhausted: retry_budget.ExhaustedBudget | None = None

    @property
    def live(self) -> Attempt | None:
        """The attempt that may still run; None if there is none."""
        return next((each for each in reversed(self.attempts) if each.live), None)

    @property
    def last_result(self) -> AttemptResult | None:
        return self.classified[-1][1] if self.classified else None

    @property
    def done(self) -> bool:
        return self.phase is StagePhase.SUCCEEDED

    @property
    def retry_at(self) -> datetime | None:
        """When the stage may be tried again; None: at once."""
        return retry_budget.retry_at(self.classified) if self.classified else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyLimit:
    """The budget of the job's namespace for the calendar month, and what has been used of it."""

    budget: MonthlyBudget
    used: float | None
    """Chip hours in the month until now. None: unknown."""
    namespace: str
    contact: str
    """Whom to ask to raise the limit."""

    @property
    def exhausted(self) -> bool:
        return self.used is not None and self.used >= self.budget.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStages:
    """The state of all stages of a job."""

    plan: Plan
    stages: tuple[StageState, ...]
    attempts: tuple[Attempt, ...]
    fresh: tuple[Attempt, ...]
    """The attempts since the last manual retry."""
    classified: tuple[retry_budget.ClassifiedAttempt, ...]
    """Every attempt that has ended, with its result."""
    used: Usage
    counters: retry_budget.AttemptCounts
    findings: Findings
    month: MonthlyLimit | None = None
    """The namespace's budget for the month; None if the profile sets none."""

    def __getitem__(self, stage: Stage) -> StageState:
        return next(
            (stage_state for stage_state in self.stages if stage_state.stage is stage),
            StageState(stage=stage, phase=StagePhase.SKIPPED),
        )

    @property
    def live(self) -> Attempt | None:
        """The attempt that may still run, so that no other may start; None if there is none."""
        return next((stage_state.live for stage_state in reversed(self.stages) if stage_state.live), None)

    @property
    def leftover(self) -> Attempt | None:
        """The attempt that is over and whose JobSet is still to be deleted; None if there is none."""
        return next((attempt for attempt in reversed(self.attempts) if attempt.over), None)

    @property
    def failed(self) -> StageState | None:
        return next(
            (stage_state for stage_state in self.stages if stage_state.phase is StagePhase.FAILED), None
        )

    @property
    def current(self) -> StageState:
        """The stage that has failed, else the first that has not succeeded; the last stage if all have succeeded."""
        return self.failed or next(
            (stage_state for stage_state in self.stages if not stage_state.done), self.stages[-1]
        )

    @property
    def succeeded(self) -> bool:
        return all(stage_state.done for stage_state in self.stages)

    @property
    def evaluation(self) -> EvaluateOutcome | None:
        return details_of(self[Stage.EVALUATE], EvaluateOutcome)

    @property
    def export(self) -> ExportOutcome | None:
        return details_of(self[Stage.EXPORT], ExportOutcome)


def details_of[T](stage_state: StageState, kind: type[T]) -> T | None:
    """Returns the outcome of a successful stage; None if it has none of that type."""
    details = stage_state.result.details if stage_state.result else None
    return details if isinstance(details, kind) else None


def waiting_input(stage_state: StageState) -> Failure | None:
    """Returns the failure that an input is missing or access refused; None if the stage does not wait for that."""
    result = stage_state.last_result
    return result.failure if result is not None and result.waits and not stage_state.done else None
