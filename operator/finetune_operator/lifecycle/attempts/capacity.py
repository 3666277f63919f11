"""Flavors of the profile, or nodes with CPU only, that provided no nodes in time, or whose pods were refused."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import terms_of
from finetune_operator.lifecycle.children.pod_blocker import pod_blocker
from finetune_operator.planning import Plan

NO_CAPACITY = "NoCapacity"
#: The API server has refused pods of the attempt for too long.
PODS_REFUSED = "PodsRefused"
#: Reasons for which another flavor is tried.
WITHOUT_PODS = (NO_CAPACITY, PODS_REFUSED)
#: Stands for the flavor of CPU stages.
_CPU = "CPU"


def flavors_tried(attempts: Sequence[Attempt]) -> Mapping[str, int]:
    """Returns how often each flavor was tried without success since a stage last ran, by its name.

    ``attempts``: those since the last manual retry.
    """
    stages = [stage for stage in Stage if stage.on_tpu]
    return Counter(record.actual for stage in stages for record in _without_result(attempts, stage))


def _without_result(attempts: Sequence[Attempt], stage: Stage) -> Iterator[Failure]:
    """Yields the records, newest first, for one stage: a later stage may have run before this one was needed again."""
    for attempt in reversed([each for each in attempts if each.key.stage is stage]):
        recorded = attempt.files.failure if attempt.files else None
        if recorded and recorded.reason in WITHOUT_PODS:
            yield recorded
        elif not attempt.live:
            break


def refused_rounds(plan: Plan, stage: Stage, attempts: Sequence[Attempt]) -> tuple[Failure | None, int]:
    """Returns the record of the last attempt, if its pods were refused and the next flavor was tried as often; and how
    often that was. None: the next attempt need not wait."""
    records = list(_without_result(attempts, stage))
    times = Counter(record.actual for record in records)
    rounds = times[plan.placement.flavor if stage.on_tpu else _CPU]
    waits = bool(records) and records[0].reason == PODS_REFUSED and rounds >= times[records[0].actual]
    return (records[0] if waits else None), rounds


def no_capacity_left(plan: Plan, stage: Stage, attempts: Sequence[Attempt]) -> Failure | None:
    """Returns the failure of a job that has waited for the nodes of every flavor that the stage may use; else None.

    Refused pods begin this anew. ``attempts``: those since the last manual retry.
    """
    records = list(takewhile(lambda record: record.reason == NO_CAPACITY, _without_result(attempts, stage)))
    tried = {record.actual for record in records}
    left = [name for name in plan.placement.flavors if name not in tried]
    if not records or (left and stage.on_tpu):
        return None
    more = " No other flavor is left." if stage.on_tpu else ""
    return records[0].model_copy(update={"message": f"{records[0].message}{more}"[:1024]})


def flavor_of(attempt: Attempt, plan: Plan) -> str:
    """Returns the flavor that the attempt uses."""
    named = attempt.jobset.flavor if attempt.jobset else None
    if not attempt.key.stage.on_tpu:
        return _CPU
    return named if named is not None and named in plan.flavors else plan.placement.flavor


def no_capacity(attempt: Attempt, plan: Plan) -> Failure:
    """Returns the record of an attempt whose pods got no nodes in ``spec.preRunningDeadlineSeconds``."""
    stage, seconds = attempt.key.stage, plan.limits.pre_running
    found = pod_blocker(attempt.pods)
    last = f" Last: {found.message.rstrip('.')}." if found else ""
    if stage.on_tpu:
        capacity = terms_of(attempt.jobset.flavor if attempt.jobset else None, plan).capacity
        what = f"{capacity} capacity (flavor {flavor_of(attempt, plan)})"
        fix = "Allow other kinds of capacity or another slice in spec.resources."
    else:
        nodes = ", ".join(f"{key}={value}" for key, value in sorted(plan.cpu_pool.node_selector.items()))
        what = "a CPU node"
        fix = (
            f"Ask the platform team for CPU nodes with enough free resources{f' ({nodes})' if nodes else ''}, or "
            "raise spec.preRunningDeadlineSeconds; then raise spec.retry.generation."
        )
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=NO_CAPACITY,
        message=f"{stage} waited for {what} for the {seconds} s of spec.preRunningDeadlineSeconds.{last}"[
            :1024
        ],
        actual=flavor_of(attempt, plan),
        fix=fix[:512],
    )
