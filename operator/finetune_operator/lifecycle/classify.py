"""How an attempt ended: the trainer's record first, then pod status, then what is missing.

Who is charged follows from the failure's code (contract). Where the trainer could not write a record, the verdict
carries one to write, so that later looks judge the same when the evidence is gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from finetune_contract import (
    CONTRACT_VERSION,
    ExitCode,
    Failure,
    FailureClass,
    Outcome,
    Stage,
    StageResult,
)
from finetune_contract.failure import PEER_LOST
from finetune_operator.lifecycle import children, contract_mismatch
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.deadlines import (
    DEADLINE_EXCEEDED,
    HUNG,
    NO_CAPACITY,
    POD_NOT_STARTED,
    PODS_MISSING,
    STAGE_TIMEOUT,
    STARTUP_TIMEOUT,
)
from finetune_operator.lifecycle.disruption import PLACEMENT_RACE, PREEMPTED, Disruption, disruption
from finetune_operator.lifecycle.kueue import being_evicted
from finetune_operator.lifecycle.node_pressure import PRESSURES, pressure
from finetune_operator.lifecycle.times import parse
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering import jobset_name

_SIGNALLED = 128
_SIGTERM = _SIGNALLED + 15
_SIGKILL = _SIGNALLED + 9
_MEASURED = (
    "It requests what models of its size were measured to take, and no field of the job changes that: report the model "
    "to the platform team, and use a smaller one meanwhile."
)

#: Reasons of the records that the operator writes before it stops an attempt: nobody is charged.
SUSPENDED = "Suspended"
REPLACED = "Replaced"
EVICTED = "Evicted"
BUDGET_EXHAUSTED = "BudgetExhausted"
#: Pathways' workers kept ending, and with them the attempt; the head was only told to stop.
WORKERS_FAILED = "WorkersFailed"
#: Stopped because its progress could not be seen, see :mod:`.unreadable_folder`.
RUN_FOLDER_UNREADABLE = "RunFolderUnreadable"
#: Of an attempt that another has followed: its result cannot be understood, see :mod:`.damaged_records`.
RECORD_IGNORED = "RecordIgnored"
#: Of an attempt whose result cannot be understood.
RESULT_MALFORMED = "ResultMalformed"
_ON_PURPOSE = (
    SUSPENDED,
    REPLACED,
    NO_CAPACITY,
    DEADLINE_EXCEEDED,
    BUDGET_EXHAUSTED,
    RUN_FOLDER_UNREADABLE,
    RECORD_IGNORED,
)
#: Reasons of its own judgement, which the trainer's last words do not change.
_JUDGED = (
    PREEMPTED,
    PLACEMENT_RACE,
    HUNG,
    STARTUP_TIMEOUT,
    STAGE_TIMEOUT,
    PODS_MISSING,
    POD_NOT_STARTED,
    WORKERS_FAILED,
    *PRESSURES,
)


class AttemptOutcome(StrEnum):
    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    """By the operator, for the job's sake: charged to nothing."""
    EVICTED = "Evicted"
    """Kueue took its quota away: charged to nothing."""
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptResult:
    """How one attempt ended."""

    ending: AttemptOutcome
    failure: Failure | None = None
    """There when the ending is FAILED."""
    finished: datetime | None = None
    """None when nobody can tell any more."""
    purpose: str | None = None
    """Reason of the operator's record, when the ending is STOPPED."""
    record: Failure | None = None
    """To be written to the run folder, because the evidence will not last."""

    @property
    def failure_class(self) -> FailureClass | None:
        if self.ending is AttemptOutcome.EVICTED:
            return FailureClass.QUOTA
        return self.failure.failure_class if self.failure else None


def classify(  # noqa: PLR0911  one per case
    attempt: Attempt,
    job: str,
    *,
    suspend: bool,
    now: datetime,
    nodes: Mapping[str, children.Object] | None = None,
) -> AttemptResult | None:
    """The verdict, or None while the attempt may still run. It may change as evidence comes in, until it is recorded.

    Args:
        attempt: what is seen of it.
        job: the job's name, for messages.
        suspend: whether the job is suspended now: an attempt that vanished then was taken away on purpose.
        now: the time of this look.
        nodes: see :func:`disruption`.
    """
    if attempt.live:
        return None
    files = attempt.files
    result = files.result if files else None
    noted = files.failure if files else None
    end_of_jobset = (
        children.jobset_end_time(attempt.jobset) if attempt.jobset and not attempt.restarted else None
    )
    # A node's clock may be ahead; the JobSet's end is told by the control plane.
    finished = min((time for time in (result and result.finished, end_of_jobset) if time), default=None)
    if result and result.outcome is Outcome.SUCCEEDED:
        wrong = _incomplete(attempt, result)
        if wrong is None:
            return AttemptResult(ending=AttemptOutcome.SUCCEEDED, finished=finished)
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=wrong, finished=finished)
    purpose = noted.reason if noted and noted.reason in _ON_PURPOSE else None
    stopped = result is None or result.outcome is Outcome.STOPPED
    if purpose and stopped:
        return AttemptResult(ending=AttemptOutcome.STOPPED, purpose=purpose, finished=finished)
    if noted and noted.reason == EVICTED and stopped:
        return AttemptResult(ending=AttemptOutcome.EVICTED, finished=finished)
    evicted = being_evicted(attempt.workload)
    if evicted and stopped and noted is None:
        return AttemptResult(
            ending=AttemptOutcome.EVICTED, finished=finished, record=eviction(attempt, evicted)
        )
    taken = disruption(attempt, nodes, ended=finished, now=now)
    failure = _told_by_pods(attempt, job, taken, finished) if stopped and noted is None else None
    if failure:
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=finished, record=failure)
    if result:
        failure, record = _from_result(attempt, result, noted, taken)
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=finished, record=record)
    if noted and (settled(noted) or not (taken and _crash(noted))):
        return AttemptResult(ending=AttemptOutcome.FAILED, failure=noted, finished=finished)
    if attempt.jobset is None and suspend:
        return AttemptResult(ending=AttemptOutcome.STOPPED, purpose=SUSPENDED, record=suspension())
    if taken:
        failure = _taken(attempt, taken, evidence=noted.message if noted else "")
    else:
        failure = _from_pods(attempt, job) if attempt.jobset else _vanished(attempt, job)
    return AttemptResult(ending=AttemptOutcome.FAILED, failure=failure, finished=finished, record=failure)


def settled(noted: Failure | None) -> bool:
    """Whether the operator has judged, for good: neither the trainer's last words nor the nodes change it."""
    return noted is not None and noted.reason in _JUDGED


def _crash(noted: Failure) -> bool:
    """Whether it may be the consequence of something else."""
    return noted.failure_class is FailureClass.INFRASTRUCTURE


def eviction(attempt: Attempt, evicted: children.Object) -> Failure:
    """The record that Kueue has ended a run of the attempt, which another may follow. ``evicted``: the condition of its
    Workload that says so."""
    since = evicted.get("lastTransitionTime")
    return Failure(
        code=ExitCode.STOPPED,
        reason=EVICTED,
        message=f"{attempt.key.stage}: Kueue took its quota away: {evicted.get('message', '')}"[:1024],
        at=parse(since) if since else None,
    )


def earlier_run(attempt: Attempt) -> Failure:
    """The record that a run of the attempt has ended, which the present one follows."""
    return Failure(
        code=ExitCode.STOPPED,
        reason=EVICTED,
        message=f"{attempt.key.stage}: an earlier run was stopped, and its JobSet was let go again.",
    )


def suspension() -> Failure:
    """The record that an attempt is stopped because its job is suspended; written before it is stopped."""
    return Failure(code=ExitCode.STOPPED, reason=SUSPENDED, message="Stopped because the job was suspended.")


def budget_stop(why: str) -> Failure:
    """The record that an attempt is stopped because the budget is used up; written before it is stopped."""
    return Failure(code=ExitCode.STOPPED, reason=BUDGET_EXHAUSTED, message=why)


def replacement(why: str) -> Failure:
    """The record that an attempt is stopped because another one is wanted; written before it is stopped."""
    return Failure(
        code=ExitCode.STOPPED,
        reason=REPLACED,
        message=f"Stopped to make room for another attempt: {why}.",
    )


def _incomplete(attempt: Attempt, result: StageResult) -> Failure | None:
    if result.details is not None and result.details.kind == attempt.key.stage:
        return None
    return Failure(
        code=ExitCode.CONTRACT_UNSUPPORTED,
        reason="ResultIncomplete",
        message=f"{attempt.key.stage} reports success without findings that this operator understands: the trainer "
        f"image speaks version {result.speaks} of the contract, the operator {CONTRACT_VERSION}.",
        fix=contract_mismatch.FIX,
    )


def _from_result(
    attempt: Attempt, result: StageResult, noted: Failure | None, taken: Disruption | None
) -> tuple[Failure, Failure | None]:
    """The failure that counts, and a record where it is the operator's own judgement."""
    if noted and settled(noted):
        return noted, None
    elsewhere = _elsewhere(attempt, result, noted, taken)
    if elsewhere is not None:
        return elsewhere, None if elsewhere == noted else elsewhere
    if result.outcome is Outcome.STOPPED:
        return (
            Failure(
                code=ExitCode.STOPPED,
                reason=PREEMPTED,
                message=f"{attempt.key.stage} was asked to stop (SIGTERM) and saved what it had.",
            ),
            None,
        )
    failure = result.failure or Failure(
        code=result.exit_code,
        reason="Unexplained",
        message=f"{attempt.key.stage} ended with code {result.exit_code} and gave no reason.",
    )
    if failure.failure_class is FailureClass.INFRASTRUCTURE and taken:
        # When one host is taken, the others crash of it, often first.
        preempted = _taken(attempt, taken, evidence=failure.message)
        return preempted, preempted
    return failure, None


def _elsewhere(
    attempt: Attempt, result: StageResult, noted: Failure | None, taken: Disruption | None
) -> Failure | None:
    """What another process than the first failed of, where the first was stopped or failed because of it: Kubernetes
    ends a Job's other pods when one has failed."""
    stopped = result.outcome is Outcome.STOPPED
    if not stopped and not (result.failure and result.failure.reason == PEER_LOST):
        return None
    if noted and noted.host != 0 and not (taken and _of_another_host(noted)):
        return noted
    killed = [pair for pair in children.terminated(attempt.pods) if pair[1].get("reason") == "OOMKilled"]
    return _died(attempt.key.stage, *killed[0]) if killed else None


def _of_another_host(noted: Failure) -> bool:
    """Whether a host other than the first may have failed only because another was gone."""
    return noted.host != 0 and noted.failure_class is FailureClass.INFRASTRUCTURE


def _from_pods(attempt: Attempt, job: str) -> Failure:
    """The JobSet has ended and the trainer left no record."""
    stage = attempt.key.stage
    ended = [(pod, state) for pod, state in children.terminated(attempt.pods) if state.get("exitCode") != 0]
    if not ended:
        failed = children.condition(attempt.jobset, "Failed") if attempt.jobset else None
        told = f" JobSet says: {failed['message']}." if failed and failed.get("message") else ""
        return Failure(
            code=_SIGKILL,
            reason="PodLost",
            message=f"{stage}: JobSet {jobset_name(job, stage, attempt.key.number)} ended without a record of the "
            f"trainer, and its pods are gone or ended well.{told}"[:1024],
        )
    return _died(stage, *min(ended, key=lambda pair: (_silence(pair[1]), pair[0]["metadata"]["name"])))


def _died(stage: Stage, pod: children.Object, state: children.Object) -> Failure:
    """What the end of a pod's process tells."""
    code, name = int(state["exitCode"]), pod["metadata"]["name"]
    evidence = str(state.get("message", ""))[-4096:]
    if state.get("reason") == "OOMKilled":
        return Failure(
            code=ExitCode.OUT_OF_MEMORY,
            reason="HostOutOfMemory",
            message=f"{stage}: pod {name} was killed because it used more memory than its limit.",
            fix=_MEASURED
            if STAGES[stage].sized_by_model
            else "Use a smaller batch or sequence length, or larger nodes.",
            evidence=evidence,
        )
    if contract_mismatch.request_refused(code, evidence):
        return contract_mismatch.refused_by_trainer(stage, pod["metadata"]["name"], evidence)
    if code in (ExitCode.STOPPED, _SIGTERM):
        return Failure(
            code=ExitCode.STOPPED,
            reason=PREEMPTED,
            message=f"{stage}: pod {name} was asked to stop before it had anything to save.",
            evidence=evidence,
        )
    known = code in ExitCode._value2member_map_
    return Failure(
        code=code,
        reason=ExitCode(code).name.title().replace("_", "") if known else "ProcessDied",
        message=f"{stage}: the process of pod {name} ended with code {code}{_signal(code)} and left no record.",
        evidence=evidence,
    )


def _silence(state: children.Object) -> int:
    """How little an end tells of its cause. A host that was stopped or killed because another failed says nothing of
    its own, and one that missed another only says so."""
    if state.get("reason") == "OOMKilled":
        return 0
    code = int(state["exitCode"])
    if code in ExitCode._value2member_map_:
        return {ExitCode.UNAVAILABLE: 1, ExitCode.STOPPED: 3}.get(ExitCode(code), 0)
    return 2 if code < _SIGNALLED else 4


def _signal(code: int) -> str:
    return f" (killed by signal {code - _SIGNALLED})" if _SIGNALLED < code < 160 else ""


def _taken(attempt: Attempt, taken: Disruption, evidence: str) -> Failure:
    return Failure(
        code=ExitCode.STOPPED,
        reason=taken.reason,
        message=f"{attempt.key.stage}: {taken.message}"[:1024],
        evidence=evidence,
    )


def _told_by_pods(
    attempt: Attempt, job: str, taken: Disruption | None, ended: datetime | None
) -> Failure | None:
    """What pods tell of an attempt that was only stopped, and that is no preemption."""
    short = pressure(attempt, ended)
    if short is None and taken is None and attempt.jobset and children.workers_given_up(attempt.jobset):
        return _workers_failed(attempt, job)
    return short


def _workers_failed(attempt: Attempt, job: str) -> Failure:
    stage = attempt.key.stage
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=WORKERS_FAILED,
        message=f"{stage}: the workers of JobSet {jobset_name(job, stage, attempt.key.number)} had to be started again "
        "more often than their Job allows, and the JobSet ended.",
        evidence=children.workers_last_words(attempt.pods)[-4096:],
    )


def _vanished(attempt: Attempt, job: str) -> Failure:
    name = jobset_name(job, attempt.key.stage, attempt.key.number)
    return Failure(
        code=_SIGKILL,
        reason="JobSetDeleted",
        message=f"{attempt.key.stage}: JobSet {name} was deleted before its trainer had left a record.",
    )
