"""What must hold at every moment, judged by everything that a watch has told."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from devcluster.kube import WatchEvent
from devcluster.testing import LocalCluster
from finetune_operator.lifecycle import children
from finetune_operator.rendering.labels import STAGE_LABEL, UID_LABEL

type Object = dict[str, Any]


@contextmanager
def nothing_doubled(cluster: LocalCluster) -> Iterator[None]:
    """During the block no job has two live JobSets, and no worker of a slice two live pods."""
    with (
        cluster.recorded("/apis/jobset.x-k8s.io/v1alpha2/jobsets", labelSelector=UID_LABEL) as jobsets,
        cluster.recorded("/api/v1/pods", labelSelector=UID_LABEL) as pods,
    ):
        yield
    assert_one_live(jobsets, which=_job, live=lambda jobset: not children.jobset_ended(jobset))
    assert_one_live(pods, which=_worker, live=children.pod_live)


def assert_one_live(
    told: Iterable[WatchEvent], *, which: Callable[[Object], Hashable], live: Callable[[Object], bool]
) -> None:
    """Raises AssertionError where two live objects were ever the same ``which`` at once. One that is being deleted is
    still there."""
    there: dict[str, Object] = {}
    for event in told:
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
    """Its place: the attempt and the restart do not count."""
    labels = pod["metadata"]["labels"]
    return (
        labels[UID_LABEL],
        labels[STAGE_LABEL],
        labels["jobset.sigs.k8s.io/replicatedjob-name"],
        labels["jobset.sigs.k8s.io/job-index"],
        labels["batch.kubernetes.io/job-completion-index"],
    )


def assert_events_once(cluster: LocalCluster, namespace: str, *reasons: str) -> None:
    """Of the jobs of that namespace exactly these Events tell, each of them once."""
    events = cluster.list(
        f"/api/v1/namespaces/{namespace}/events", fieldSelector="involvedObject.kind=FineTuneJob"
    )
    assert sorted(each["reason"] for each in events) == sorted(reasons)
    assert all(each["count"] == 1 for each in events)
