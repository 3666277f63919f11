"""``status.attempts``: the number of attempts, and how the newest have ended."""

from collections.abc import Sequence

from finetune_contract import FailureClass, Outcome, Stage, TrainOutcome
from finetune_operator.api.status_stages import AttemptRecord, AttemptsStatus
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.classify import AttemptOutcome, AttemptResult
from finetune_operator.lifecycle.attempts.own_attempts import HISTORY
from finetune_operator.lifecycle.children.pods import node_of_host
from finetune_operator.lifecycle.stages.job_stages import JobStages

_PREFIX = "Kueue"


def attempts_status(stages: JobStages, previous: AttemptsStatus | None) -> AttemptsStatus:
    """Returns ``status.attempts``. Nodes that the history in ``previous`` names are kept: their pods may be gone."""
    reported = (previous.history if previous else None) or ()
    nodes = {(each.stage, each.attempt): each.node for each in reported if each.node}
    results = {attempt.key: result for attempt, result in stages.classified}
    history: list[AttemptRecord] = []
    # The entries of a history that is cut cannot be matched with evictions.
    known = list(reported) if len(reported) < HISTORY else []
    for attempt in stages.attempts:
        result = results.get(attempt.key)
        ended = result is not None and result.ending is AttemptOutcome.EVICTED
        evicted = evicted_entries(attempt, known, ended=ended)
        known += [each for each in evicted if attempt.restarted and each not in known]
        history += evicted
        if result and not (evicted and ended):
            history.append(_ended(attempt, result, stages, nodes.get((attempt.key.stage, attempt.ordinal))))
    return AttemptsStatus.model_construct(
        total=len(stages.attempts),
        preemption=stages.counters.preemption,
        infrastructure=stages.counters.infrastructure,
        user=stages.counters.user,
        history=tuple(_with_lost_steps(history, stages.live)[-HISTORY:]) or None,
    )


def _with_lost_steps(history: Sequence[AttemptRecord], live: Attempt | None) -> list[AttemptRecord]:
    """Adds the steps of each attempt of Train that the next one had to repeat.

    Runs of one attempt are not compared: what is known of one that Kueue has ended is what it had saved.
    """
    own = live.progress if live else None
    # Number and first step of the attempt after the current one.
    following = (live.ordinal, own.start_step) if live and own else None
    found: list[AttemptRecord] = []
    for each in reversed(history):
        lost = 0
        if each.stage is Stage.TRAIN:
            if following and each.end_step is not None and each.attempt < following[0]:
                lost = each.end_step - following[1]
            if each.start_step is not None:
                following = each.attempt, each.start_step
        found.append(each.model_copy(update={"lost_steps": lost}) if lost > 0 else each)
    return found[::-1]


def attempt_steps(attempt: Attempt, result: AttemptResult) -> tuple[int | None, int | None]:
    """Returns the first and the last step of the attempt: those that the trainer recorded, or else the operator."""
    written = attempt.result
    if written and isinstance(written.details, TrainOutcome):
        return written.details.start_step, written.details.step
    recorded = result.record or attempt.recorded
    return (recorded.start_step, recorded.step) if recorded else (None, None)


def evicted_entries(
    attempt: Attempt, reported: Sequence[AttemptRecord], *, ended: bool
) -> list[AttemptRecord]:
    """Returns one entry for each eviction of the attempt by Kueue.

    ``reported``: the entries that are known already. ``ended``: whether an eviction has ended the attempt.

    Node and steps are observed while the JobSet is stopped and then kept from ``reported``, the history as it is: the
    run that follows has a node and a record of its own.
    """
    number = attempt.ordinal
    of_jobset = [
        each
        for each in reported
        if each.stage is attempt.key.stage
        and number - attempt.key.restart <= each.attempt <= number
        and each.reason.startswith(_PREFIX)
    ]
    before = [each for each in of_jobset if each.attempt == number]
    reasons = (attempt.workload.evictions if attempt.workload else [])[len(of_jobset) - len(before) :]
    if attempt.restarted:
        # The Workload is about the JobSet as a whole: evictions that are not reported yet are the newest run's, except
        # the one that ended this attempt.
        if before or not ended:
            return before
        reasons = reasons[:1]
    fresh = [
        AttemptRecord.model_construct(
            stage=attempt.key.stage,
            attempt=number,
            failure_class=FailureClass.QUOTA,
            reason=f"{_PREFIX}{reason}",
        )
        for reason in reasons[len(before) :]
    ]
    entries = [*before[: len(reasons)], *fresh]
    return [*entries[:-1], _with_end(entries[-1], attempt)] if entries else []


def _with_end(entry: AttemptRecord, attempt: Attempt) -> AttemptRecord:
    """Adds node and steps to the entry of the newest eviction, as far as they can be observed and it lacks them."""
    if attempt.jobset is None or not attempt.jobset.suspended:
        return entry
    result = attempt.result
    details = result.details if result and result.outcome is Outcome.STOPPED else None
    saved = details if isinstance(details, TrainOutcome) else None
    found = {
        "node": node_of_host(attempt.pods, 0, 1),
        "start_step": saved.start_step if saved else None,
        "end_step": saved.step if saved else None,
    }
    return entry.model_copy(
        update={name: each for name, each in found.items() if getattr(entry, name) is None}
    )


def _ended(attempt: Attempt, result: AttemptResult, stages: JobStages, node: str | None) -> AttemptRecord:
    """``node``: the node that the history names already, which is used if the pods are gone."""
    host = result.failure.host if result.failure else 0
    start_step, end_step = attempt_steps(attempt, result)
    return AttemptRecord.model_construct(
        stage=attempt.key.stage,
        attempt=attempt.ordinal,
        job_set=attempt.jobset_name,
        restart=attempt.key.restart or None,
        failure_class=result.failure_class,
        reason=result.reason,
        node=node_of_host(attempt.pods, host, stages.plan.mesh.hosts) or node,
        start_step=start_step,
        end_step=end_step,
    )
