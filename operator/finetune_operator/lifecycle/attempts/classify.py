"""Classifies how an attempt ended: by the trainer's record, then by the status of pods, then by missing objects.

The contract derives the charged class from the failure's exit code. If the trainer could not write a record, the result
contains one to write, so that later reconciles reach the same result after pods and nodes are deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from finetune_contract import CONTRACT_VERSION, ExitCode, Failure, FailureClass, Outcome, StageResult
from finetune_contract.failure import PEER_LOST
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.capacity import WITHOUT_PODS
from finetune_operator.lifecycle.attempts.deadlines import DEADLINE_EXCEEDED, DETERMINED
from finetune_operator.lifecycle.attempts.disruption import (
    DISRUPTIONS,
    PREEMPTED,
    Disruption,
    disruption,
    ended_at,
)
from finetune_operator.lifecycle.attempts.pod_failures import (
    KILLS,
    USE_MATCHING_IMAGE,
    WORKERS_FAILED,
    cause_of_stop,
    failure_of_pods,
    kills,
    process_failure,
)
from finetune_operator.lifecycle.attempts.stop_records import (
    EVICTED,
    MULTIKUEUE_UNSUPPORTED,
    ON_PURPOSE,
    earlier_run,
    eviction,
)
from finetune_operator.lifecycle.children.node import SliceNode

#: The result cannot be parsed and a later attempt has followed, see :mod:`.damaged_records`.
RECORD_IGNORED = "RecordIgnored"
#: The result cannot be parsed, and no later attempt has followed.
RESULT_MALFORMED = "ResultMalformed"
_ON_PURPOSE = (*ON_PURPOSE, *WITHOUT_PODS, DEADLINE_EXCEEDED, RECORD_IGNORED)
#: Reasons that the operator has determined; a later record of the trainer does not change them.
_FINAL = (*DETERMINED, *DISRUPTIONS, *KILLS, WORKERS_FAILED, MULTIKUEUE_UNSUPPORTED)


class AttemptOutcome(StrEnum):
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    """The operator stopped the attempt: no class is charged."""
    EVICTED = "Evicted"
    """Kueue withdrew the quota: no class is charged."""
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """How one attempt ended."""

    ending: AttemptOutcome
    failure: Failure | None = None
    """Set if the ending is FAILED."""
    finished: datetime | None = None
    """None if the time is unknown."""
    purpose: str | None = None
    """Reason in the operator's record if the ending is STOPPED."""
    waits: bool = False
    """Whether what was missing or refused may still come: no class is charged, and the stage is tried again."""
    record: Failure | None = None
    """Record to write to the run folder, because pods and nodes may be deleted; None if none is needed."""

    @property
    def reason(self) -> str:
        """Of the failure, else of the operator's record, else how the attempt ended."""
        return self.failure.reason if self.failure else self.purpose or str(self.ending)

    @property
    def failure_class(self) -> FailureClass | None:
        if self.ending is AttemptOutcome.EVICTED:
            return FailureClass.QUOTA
        return self.failure.failure_class if self.failure else None


def classify(  # noqa: PLR0911  one per case
    attempt: Attempt,
    *,
    stop: Failure | None,
    now: datetime,
    nodes: Mapping[str, SliceNode] | None = None,
) -> AttemptResult | None:
    """Returns the result; None while the attempt may still run.

    Until it is recorded, the result may change with new observations.

    ``stop``: the record of the stop that the job's user requests now, for which a missing JobSet was deleted; None: the
    job may run. ``nodes``: see :func:`disruption`.
    """
    if attempt.live:
        return None
    result, recorded = attempt.result, attempt.recorded
    finished = _finished(attempt, result)
    if result and result.outcome is Outcome.SUCCEEDED:
        wrong = _incomplete(attempt, result)
        if wrong is None:
            return AttemptResult(ending=AttemptOutcome.SUCCEEDED, finished=finished)
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=wrong, finished=finished)
    purpose = recorded.reason if recorded and recorded.reason in _ON_PURPOSE else None
    stopped = result is None or result.outcome is Outcome.STOPPED
    if purpose and stopped:
        return AttemptResult(ending=AttemptOutcome.STOPPED, purpose=purpose, finished=finished)
    if recorded and recorded.reason == EVICTED and stopped:
        return AttemptResult(ending=AttemptOutcome.EVICTED, finished=finished)
    if stopped and recorded is None and (record := _unrecorded_eviction(attempt)):
        return AttemptResult(ending=AttemptOutcome.EVICTED, finished=finished, record=record)
    taken = disruption(attempt, nodes, ended=finished, now=now)
    failure = cause_of_stop(attempt, taken, finished) if stopped and recorded is None else None
    if failure:
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=finished, record=failure)
    if result:
        failure, record = _from_result(attempt, result, recorded, taken)
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=finished, record=record)
    # A crash may be a consequence of a disruption.
    crashed = recorded is not None and recorded.failure_class is FailureClass.INFRASTRUCTURE
    if recorded and (settled(recorded) or not (taken and crashed)):
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=recorded, finished=finished)
    if attempt.jobset is None and stop:
        return AttemptResult(ending=AttemptOutcome.STOPPED, purpose=stop.reason, record=stop)
    if taken:
        failure = _taken(attempt, taken, evidence=recorded.message if recorded else "")
    else:
        failure = failure_of_pods(attempt)
    return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=finished, record=failure)


def _finished(attempt: Attempt, result: StageResult | None) -> datetime | None:
    """The trainer's time is by its node's clock. The JobSet's is the control plane's, the pods' times are corrected."""
    reported = result.finished if result else None
    if reported and any(pod.clock_ahead for pod in attempt.pods):
        reported = ended_at(attempt, None) or reported
    end_of_jobset = attempt.jobset.end_time if attempt.jobset and not attempt.restarted else None
    return min((time for time in (reported, end_of_jobset) if time), default=None)


def _unrecorded_eviction(attempt: Attempt) -> Failure | None:
    """Returns the record of the eviction that the Workload shows for an attempt without a record; else None."""
    workload = attempt.workload
    if workload is None:
        return None
    if workload.evicted:
        return eviction(attempt, workload.evicted)
    # Kueue resets the condition when it admits the Workload again, and keeps the count.
    return earlier_run(attempt) if attempt.ended_by_suspension and workload.evictions else None


def settled(recorded: Failure | None) -> bool:
    """Whether the operator's record is final: neither a later record of the trainer nor the nodes change it."""
    return recorded is not None and recorded.reason in _FINAL


def _incomplete(attempt: Attempt, result: StageResult) -> Failure | None:
    if result.details is not None and result.details.kind == attempt.key.stage:
        return None
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason="ResultIncomplete",
        message=f"{attempt.key.stage} reports success without findings that this operator understands: the trainer "
        f"image supports version {result.supports} of the contract, the operator {CONTRACT_VERSION}.",
        fix=USE_MATCHING_IMAGE,
    )


def _from_result(
    attempt: Attempt, result: StageResult, recorded: Failure | None, taken: Disruption | None
) -> tuple[Failure, Failure | None]:
    """Returns the failure that counts, and the record to write if it is not the trainer's."""
    if recorded and settled(recorded):
        return recorded, None
    elsewhere = _elsewhere(attempt, result, recorded, taken)
    if elsewhere is not None:
        return elsewhere, None if elsewhere == recorded else elsewhere
    if result.outcome is Outcome.STOPPED:
        return (
            Failure(
                code=ExitCode.STOPPED,
                reason=PREEMPTED,
                message=f"{attempt.key.stage} received SIGTERM and saved its state.",
            ),
            None,
        )
    failure = result.failure or Failure(
        code=result.exit_code,
        reason="Unexplained",
        message=f"{attempt.key.stage} ended with code {result.exit_code} and reported no reason.",
    )
    if failure.failure_class is FailureClass.INFRASTRUCTURE and taken:
        # If one host is disrupted, the others crash because of it, often earlier.
        preempted = _taken(attempt, taken, evidence=failure.message)
        return preempted, preempted
    return failure, None


def _elsewhere(
    attempt: Attempt, result: StageResult, recorded: Failure | None, taken: Disruption | None
) -> Failure | None:
    """Returns the failure of another host's process if the first host was stopped or failed because of it; else None.

    Kubernetes terminates a Job's other pods when one has failed.
    """
    stopped = result.outcome is Outcome.STOPPED
    if not stopped and not (result.failure and result.failure.reason == PEER_LOST):
        return None
    # Another host may have failed only because a third one was missing.
    crashed = recorded is not None and recorded.failure_class is FailureClass.INFRASTRUCTURE
    if recorded and recorded.host != 0 and not (taken and crashed):
        return recorded
    killed = kills(attempt)
    return process_failure(attempt.key.stage, *killed[0]) if killed else None


def _taken(attempt: Attempt, taken: Disruption, evidence: str) -> Failure:
    return Failure(
        code=ExitCode.STOPPED,
        reason=taken.reason,
        message=f"{attempt.key.stage}: {taken.message}"[:1024],
        evidence=evidence,
    )
