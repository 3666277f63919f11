"""Invariants that hold at every moment, checked against all events that a watch has reported."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from devcluster.kube import WatchEvent
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.rendering.labels import STAGE_LABEL, UID_LABEL
from tests.doubles.local_cluster import LocalCluster

type Object = dict[str, Any]


@contextmanager
def nothing_doubled(cluster: LocalCluster) -> Iterator[None]:
    """Asserts that during the block no job has two live JobSets, and no worker of a slice two live pods."""
    with (
        cluster.recorded("/apis/jobset.x-k8s.io/v1alpha2/jobsets", labelSelector=UID_LABEL) as jobsets,
        cluster.recorded("/api/v1/pods", labelSelector=UID_LABEL) as pods,
    ):
        yield
    assert_one_live(jobsets, which=_job, live=lambda jobset: not JobSet.parse(jobset).ended)
    assert_one_live(pods, which=_worker, live=lambda pod: Pod.parse(pod).live)


def assert_one_live(
    found: Iterable[WatchEvent], *, which: Callable[[Object], Hashable], live: Callable[[Object], bool]
) -> None:
    """Raises AssertionError if two live objects ever had the same ``which`` at the same time.

    An object that is being deleted still exists.
    """
    there: dict[str, Object] = {}
    for event in found:
        if event.type == "SYNCED":
            there.clear()
        for found in event.objects:
            there[found["metadata"]["uid"]] = found
            if event.type == "DELETED":
                del there[found["metadata"]["uid"]]
        standing = defaultdict(list)
        for found in there.values():
            if live(found):
                standing[which(found)].append(found["metadata"]["name"])
        doubled = {key: names for key, names in standing.items() if len(names) > 1}
        assert not doubled, f"live at once: {doubled}"


def _job(child: Object) -> Hashable:
    return child["metadata"]["labels"][UID_LABEL]


def _worker(pod: Object) -> Hashable:
    """The worker's place in the job, regardless of attempt and restart."""
    labels = pod["metadata"]["labels"]
    return (
        labels[UID_LABEL],
        labels[STAGE_LABEL],
        labels["jobset.sigs.k8s.io/replicatedjob-name"],
        labels["jobset.sigs.k8s.io/job-index"],
        labels["batch.kubernetes.io/job-completion-index"],
    )


def assert_events_once(cluster: LocalCluster, namespace: str, *reasons: str) -> None:
    """Asserts that the namespace's jobs have exactly one Event for each of these reasons, with a count of 1."""
    events = cluster.list(
        f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.kind=FineTuneJob"
    )
    found = [(each["reason"], each["count"], each["message"]) for each in events]
    assert sorted(reason for reason, _, _ in found) == sorted(reasons), found
    assert all(count == 1 for _, count, _ in found), found
