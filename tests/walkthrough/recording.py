"""A recording of the quickstart job: every state of its objects, and the records of its run folder at the end."""

import dataclasses
import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from devcluster import samples
from devcluster.layout import ROOT
from devcluster.operator_process import NAMESPACE as OPERATOR_NAMESPACE
from finetune_contract import RunFolder
from tests.doubles.local_cluster import LocalCluster

type Object = dict[str, Any]

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
NAMESPACE = "default"
#: The job is applied at this time in the recording, so that two recordings differ in durations alone.
_APPLIED = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
_TIME = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(?:Z|\+00:00)")
_COLLECTIONS = {
    "jobs": f"/apis/tpu-finetune.dev/v1alpha1/namespaces/{NAMESPACE}/finetunejobs",
    "jobsets": f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets",
    "pods": f"/api/v1/namespaces/{NAMESPACE}/pods",
    "events": f"/api/v1/namespaces/{NAMESPACE}/events",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """States of the job and its children in the order of their observation, and what remains at the end."""

    jobs: Sequence[Object]
    jobsets: Sequence[Object]
    pods: Sequence[Object]
    events: Sequence[Object]
    """Events about the job."""
    plan: Object
    """The ConfigMap with the stored plan."""
    progress: Sequence[Object]
    """States of ``train/progress.json``."""
    records: Mapping[str, Object]
    """Contents of the JSON files in the run folder at the end, by path."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def job(self, until: Callable[[Object], bool]) -> Object:
        """The first state of the job whose status satisfies ``until``."""
        return next(job for job in self.jobs if until(job.get("status", {})))

    def jobset(self, stage: str) -> Object:
        return next(each for each in self.jobsets if _stage(each) == stage)

    def pod(self, stage: str) -> Object:
        """The first running state of the stage's pod."""
        running = (each for each in self.pods if each["status"]["phase"] == "Running")
        return next(each for each in running if _stage(each) == stage)


def record() -> Recording:
    """Runs the quickstart on a fresh local cluster with an empty cache."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster.started(Path(folder) / "cluster", operator=True) as cluster,
    ):
        for sample in (samples.TINY_MODEL, samples.CAPITALS):
            samples.put(sample, cluster.gcs)
        return _record(cluster)


def _record(cluster: LocalCluster) -> Recording:
    with (
        cluster.recorded(_COLLECTIONS["jobs"]) as jobs,
        cluster.recorded(_COLLECTIONS["jobsets"]) as jobsets,
        cluster.recorded(_COLLECTIONS["pods"]) as pods,
    ):
        cluster.kubectl("apply", "-f", str(QUICKSTART))
        progress: list[Object] = []
        while not _finished(job := cluster.get(f"{_COLLECTIONS['jobs']}/quickstart")):
            _add_progress(progress, job, cluster)
            time.sleep(0.5)
        seen = {
            "jobs": [each for event in jobs for each in event.objects],
            "jobsets": [each for event in jobsets for each in event.objects],
            "pods": [each for event in pods for each in event.objects],
        }
    events = cluster.list(_COLLECTIONS["events"], fieldSelector="involvedObject.kind=FineTuneJob")
    uid = job["metadata"]["uid"]
    plan = cluster.get(f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/configmaps/finetune-plan-{uid}")
    folder = job["status"]["resolved"]["runFolder"]
    recording = Recording(
        **seen,
        events=sorted(events, key=lambda event: event["lastTimestamp"]),
        plan=plan,
        progress=progress,
        records={
            path: json.loads(samples.read(f"{folder}/{path}", cluster.environment))
            for path in _files(folder, cluster)
            if path.endswith(".json") and "/checkpoints/" not in path
        },
    )
    return Recording.from_json(_shifted(recording.to_json(), job["metadata"]["creationTimestamp"]))


def _add_progress(progress: list[Object], job: Object, cluster: LocalCluster) -> None:
    folder = job.get("status", {}).get("resolved", {}).get("runFolder")
    if folder is None:
        return
    bucket, _, name = RunFolder(folder).progress.removeprefix("gs://").partition("/")
    blob = samples.client(cluster.gcs).bucket(bucket).get_blob(name)
    state = json.loads(blob.download_as_bytes()) if blob else None
    if state and state not in progress:
        progress.append(state)


def _files(uri: str, cluster: LocalCluster) -> list[str]:
    bucket, _, prefix = uri.removeprefix("gs://").partition("/")
    blobs = samples.client(cluster.gcs).list_blobs(bucket, prefix=f"{prefix}/")
    return [blob.name.removeprefix(f"{prefix}/") for blob in blobs]


def _finished(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", ())
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)


def _stage(child: Object) -> str | None:
    stage: str | None = child["metadata"]["labels"].get("tpu-finetune.dev/stage")
    return stage


def _shifted(text: str, applied: str) -> str:
    """The text with all times moved, so that the time ``applied`` becomes noon."""
    by = _APPLIED - datetime.fromisoformat(applied)

    def shift(match: re.Match[str]) -> str:
        moved = datetime.fromisoformat(match.group()) + by
        return f"{moved:%Y-%m-%dT%H:%M:%S}{match.group(1) or ''}Z"

    return _TIME.sub(shift, text)
