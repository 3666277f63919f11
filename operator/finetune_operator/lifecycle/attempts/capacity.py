"""Kinds of capacity that had no nodes in time: On-Demand, Spot, a reservation, or nodes with CPU only."""

from collections.abc import Sequence

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import terms_of
from finetune_operator.lifecycle.children.pod_blocker import pod_blocker
from finetune_operator.planning import Plan

NO_CAPACITY = "NoCapacity"
#: Kind of the nodes of CPU stages.
_CPU = "CPU"


def exhausted_capacities(attempts: Sequence[Attempt]) -> frozenset[str]:
    """Returns the kinds of capacity that had no nodes since a stage last ran.

    ``attempts``: those since the last manual retry.
    """
    return frozenset().union(*(_exhausted(attempts, stage) for stage in Stage if stage.on_tpu))


def _exhausted(attempts: Sequence[Attempt], stage: Stage) -> frozenset[str]:
    """Returns the kinds for one stage: a later stage may have run before this one was needed again."""
    exhausted: set[str] = set()
    for attempt in reversed([each for each in attempts if each.key.stage is stage]):
        recorded = attempt.files.failure if attempt.files else None
        if recorded and recorded.reason == NO_CAPACITY:
            exhausted.add(recorded.actual)
        elif not attempt.live:
            break
    return frozenset(exhausted)


def no_capacity_left(plan: Plan, stage: Stage, attempts: Sequence[Attempt]) -> Failure | None:
    """Returns the failure of a job that has waited for every kind of node that the stage may use; else None.

    ``attempts``: those since the last manual retry.
    """
    kinds = {*plan.placement.capacities} if stage.on_tpu else {_CPU}
    exhausted = _exhausted(attempts, stage)
    if not exhausted or kinds - exhausted:
        return None
    own = [each.files.failure for each in attempts if each.key.stage is stage and each.files]
    last = next(record for record in reversed(own) if record and record.reason == NO_CAPACITY)
    more = " No other kind is left." if stage.on_tpu else ""
    return last.model_copy(update={"message": f"{last.message}{more}"[:1024]})


def no_capacity(attempt: Attempt, plan: Plan) -> Failure:
    """Returns the record of an attempt whose pods got no nodes in ``spec.preRunningDeadlineSeconds``."""
    stage, seconds = attempt.key.stage, plan.limits.pre_running
    found = pod_blocker(attempt.pods)
    last = f" Last: {found.message.rstrip('.')}." if found else ""
    if not stage.on_tpu:
        nodes = ", ".join(f"{key}={value}" for key, value in sorted(plan.cpu_pool.node_selector.items()))
        return Failure(
            code=ExitCode.UNAVAILABLE,
            reason=NO_CAPACITY,
            message=f"{stage} waited for a CPU node for the {seconds} s of spec.preRunningDeadlineSeconds.{last}"[
                :1024
            ],
            actual=_CPU,
            fix=f"Ask the platform team for CPU nodes with enough free resources{f' ({nodes})' if nodes else ''}, or "
            "raise spec.preRunningDeadlineSeconds; then raise spec.retry.generation."[:512],
        )
    capacity = terms_of(attempt.jobset, plan).capacity if attempt.jobset else plan.placement.capacity
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=NO_CAPACITY,
        message=f"{stage} waited for {capacity} capacity for the {seconds} s of spec.preRunningDeadlineSeconds.{last}"[
            :1024
        ],
        actual=capacity,
        fix="Allow other kinds of capacity or another slice in spec.resources.",
    )
