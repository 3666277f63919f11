"""What the pods of an attempt show together."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from finetune_operator.lifecycle.children.container import (
    ContainerState,
    ContainerStatus,
    ContainerTermination,
)
from finetune_operator.lifecycle.children.pod import Pod, PodIndex


def oldest_wait(pods: Iterable[Pod]) -> datetime | None:
    """Returns since when the oldest of waiting pods exists; None if unknown for all of them."""
    known = (
        pod.creation_timestamp or (pod.unscheduled.last_transition_time if pod.unscheduled else None)
        for pod in pods
    )
    return min((since for since in known if since), default=None)


def running_span(pods: Iterable[Pod]) -> tuple[datetime, datetime | None] | None:
    """Returns when all indices of the slice had a process, and when the last process ended, None while one runs.

    None if no process has started. A pod or container that replaces another does not start a new span. The process of a
    deleted pod ends with its grace period: a node that has died reports no end, and keeps the pod for any time.
    """
    every = list(pods)
    first: dict[PodIndex, datetime] = {}
    for pod in every:
        if started := pod.containers_started_at:
            first[pod.index] = min(started, first.get(pod.index, started))
    if not first:
        return None
    begin = max(first.values())
    running = [pod.deletion_timestamp for pod in every if any(state.running for state in _states([pod]))]
    if None in running:
        return begin, None
    ends = (*running, *(pod.finished_at for pod in every))
    return begin, max([begin, *(end for end in ends if end)])


def all_scheduled_at(pods: Iterable[Pod]) -> datetime | None:
    """Returns when the last kubelet accepted its pod, whose image it then pulls; None if one has not."""
    accepted = [pod.start_time for pod in pods]
    return max(filter(None, accepted), default=None) if None not in accepted else None


def first_start(pods: Iterable[Pod]) -> datetime | None:
    """Returns when the first of the present containers started; None if none has started."""
    return min((state.started_at for state in _states(pods) if state.started_at), default=None)


def last_start(pods: Iterable[Pod]) -> datetime | None:
    """Returns when the last of these pods started to run; None if none has.

    A container that the kubelet restarts counts from its first start, a pod that replaces another from its own.
    """
    return max((started for pod in pods if (started := pod.containers_started_at)), default=None)


def pod_of_host(pods: Iterable[Pod], host: int, per_slice: int) -> Pod | None:
    """Returns the pod of the process with that number; processes are counted slice by slice."""
    slice_index, completion_index = map(str, divmod(host, per_slice))
    for pod in pods:
        found = "0" if pod.slice_index is None else pod.slice_index
        if (found, pod.completion_index) == (slice_index, completion_index) and pod.runs_trainer:
            return pod
    return None


def node_of_host(pods: Iterable[Pod], host: int, per_slice: int) -> str | None:
    """Returns the node of the process with that number; of any pod if none has the number."""
    scheduled = [pod for pod in pods if pod.node_name and pod.runs_trainer]
    pod = pod_of_host(scheduled, host, per_slice) or next(iter(scheduled), None)
    return pod.node_name if pod else None


def trainer_terminations(pods: Iterable[Pod]) -> list[tuple[Pod, ContainerTermination]]:
    """Returns the trainer's pods whose process has ended, and how."""
    return [(pod, each) for pod in pods if pod.runs_trainer for each in pod.terminations]


def worker_restarts(pods: Iterable[Pod]) -> int:
    """Returns how often the kubelet has restarted Pathways' workers, by the pods that still exist."""
    return sum(each.restart_count for each in _worker_containers(pods))


def last_worker_message(pods: Iterable[Pod]) -> str:
    """Returns how one of Pathways' workers ended; empty if no pod shows it."""
    ends = (each.state.terminated or each.last_state.terminated for each in _worker_containers(pods))
    return next((f"exit code {end.exit_code}: {end.message}" for end in ends if end), "")


def _states(pods: Iterable[Pod]) -> Iterator[ContainerState]:
    return (container.state for pod in pods for container in pod.own_containers)


def _worker_containers(pods: Iterable[Pod]) -> Iterator[ContainerStatus]:
    return (container for pod in pods if not pod.runs_trainer for container in pod.own_containers)
