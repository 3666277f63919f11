"""Flavors of the profile, or nodes with CPU only, that provided no nodes in time, or whose pods were refused.

The API server refuses pods by a ResourceQuota, a LimitRange, a policy or a webhook. The pods that exist meanwhile hold
nodes and quota. Two jobs that each got a part of a quota would wait for each other: so each lets its part go after a
time, and tries again after a pause that differs from job to job.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from zlib import crc32

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api.timestamps import after, stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.usage import terms_of
from finetune_operator.lifecycle.children.object_events import creation_failure
from finetune_operator.lifecycle.children.pod_blocker import pod_blocker
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.planning import Plan

NO_CAPACITY = "NoCapacity"
#: The API server has refused pods of the attempt for too long.
PODS_REFUSED = "PodsRefused"
#: Reasons for which another flavor is tried.
WITHOUT_PODS = (NO_CAPACITY, PODS_REFUSED)
#: Stands for the flavor of CPU stages.
_CPU = "CPU"
#: Seconds that the Job controller may take to create all pods; usually it takes one.
_CREATING_SECONDS = 20.0
#: Seconds after which a refusal is out of date. The Job controller tries again every minute; after 25 Events about a
#: Job, its client lets one through every five minutes.
_RECENT_SECONDS = 400.0
#: Longest pause before the next attempt, not counting its random part. A job that pauses for so long is stalled.
LONGEST_PAUSE = 1800.0


def flavors_tried(attempts: Sequence[Attempt]) -> Mapping[str, int]:
    """Returns how often each flavor was tried without success since a stage last ran, by its name.

    ``attempts``: those since the last manual retry.
    """
    stages = [stage for stage in Stage if stage.on_tpu]
    return Counter(record.actual for stage in stages for record in _without_result(attempts, stage))


def _without_result(attempts: Sequence[Attempt], stage: Stage) -> Iterator[Failure]:
    """Yields the records, newest first, for one stage: a later stage may have run before this one was needed again."""
    for attempt in reversed([each for each in attempts if each.key.stage is stage]):
        recorded = attempt.recorded
        if recorded and recorded.reason in WITHOUT_PODS:
            yield recorded
        elif not attempt.live:
            break


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPods:
    """Pods of a live attempt are refused."""

    message: str
    since: datetime
    until: datetime
    """When the attempt is ended."""
    record: Failure
    """Of that end."""


def short_job(attempt: Attempt, plan: Plan, now: datetime) -> str | None:
    """Returns the name of the first of the attempt's Jobs that lacks pods; None if all exist or are being created.

    Pods that wait for a node explain what is missing: JobSet creates the others of a slice once the first has one. So
    does a pod that has failed, which decides how the attempt ends.
    """
    since, jobset = _since(attempt), attempt.jobset
    if jobset is None or since is None or attempt.stepped:
        return None
    patience = min(_CREATING_SECONDS, plan.limits.refused_pods)
    pods = attempt.pods
    if (now - since).total_seconds() < patience or not all(pod.placed for pod in pods):
        return None
    if any(pod.phase == "Failed" for pod in pods):
        return None
    if len({pod.index for pod in pods}) >= jobset.pods_expected:
        return None
    made = Counter((pod.replicated_job, pod.slice_index or "0") for pod in pods)
    groups = ((group, range(jobs), pods) for group, jobs, pods in jobset.groups if pods)
    short = ((group, job) for group, jobs, pods in groups for job in jobs if made[group, str(job)] < pods)
    return next((f"{jobset.name}-{group}-{job}" for group, job in short), None)


def refused_pods(attempt: Attempt, plan: Plan, observation: Observation) -> RefusedPods | None:
    """Returns what is refused of the attempt; None if nothing is known to be.

    ``observation.events``: those about its :func:`short_job`, if it has one.
    """
    since, begun, jobset = _since(attempt), attempt.unsuspended_at, attempt.jobset
    if not observation.events or jobset is None or since is None or begun is None:
        return None
    earliest = stamp(max(begun, after(observation.now, -_RECENT_SECONDS)))
    refusals = [event for event in observation.events if event.last_time >= earliest]
    said = creation_failure(refusals).rstrip(".")
    # A pod that was lost while others ran for hours is missing since it could not be replaced.
    begins = [
        event.first_time for event in refusals if event.first_time and event.first_time <= observation.now
    ]
    since = max([since, *([min(begins)] if begins else [])])
    if not said or short_job(attempt, plan, observation.now) is None:
        return None
    # A queue's quota is held without pods, too.
    if attempt.pods or jobset.queue:
        seconds, field = plan.limits.refused_pods, "hangPolicy.refusedPodsSeconds"
    else:
        seconds, field = plan.limits.pre_running, "preRunningDeadlineSeconds"
    until, made = after(since, seconds), f"{len(attempt.pods)} of {jobset.pods_expected} pods"
    return RefusedPods(
        message=f"JobSet {jobset.name} has {made}, and the others are refused: {said}. It is ended at {stamp(until)}, "
        f"after the {seconds} s of spec.{field}, and lets go of what it holds; then another attempt follows.",
        since=since,
        until=until,
        record=Failure(
            code=ExitCode.UNAVAILABLE,
            reason=PODS_REFUSED,
            message=f"{attempt.key.stage} had {made} for the {seconds} s of spec.{field}, and the others were refused: "
            f"{said}."[:1024],
            actual=flavor_of(attempt, plan),
            fix="Ask the platform team for what the message names, such as a larger ResourceQuota, or use a smaller "
            "slice. The job tries again by itself.",
            written=observation.now,
        ),
    )


def pause_after_refusal(
    plan: Plan, stage: Stage, attempts: Sequence[Attempt]
) -> tuple[Failure, datetime] | None:
    """Returns the record of the stage's last attempt and when the next one may start, if its pods were refused and
    every flavor was tried; else None. ``attempts``: those since the last manual retry.

    The pause doubles from round to round. A random part, by job and attempt, makes it up to twice as long.
    """
    records = list(_without_result(attempts, stage))
    times = Counter(record.actual for record in records)
    rounds = times[plan.placement.flavor if stage.on_tpu else _CPU]
    record = records[0] if records else None
    if record is None or record.reason != PODS_REFUSED or record.written is None:
        return None
    if rounds < times[record.actual]:
        # The next flavor was not tried as often.
        return None
    pause = min(LONGEST_PAUSE, plan.limits.refused_pods * 2.0 ** min(rounds - 1, 16))
    share = crc32(f"{plan.job.uid}/{stage}/{record.written}".encode()) / 2**32
    return record, after(record.written, pause * (1.0 + share))


def _since(attempt: Attempt) -> datetime | None:
    """Returns since when the attempt has got no more pods; None if it may have none, or the time is unknown."""
    begun = attempt.unsuspended_at if attempt.may_run else None
    known = (time for pod in attempt.pods for time in (pod.creation_timestamp, pod.start_time) if time)
    return max([begun, *known]) if begun else None
