"""Helpers for tests of complete jobs: API paths, parts of the status, and predicates to wait for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.doubles.local_cluster import LocalCluster

type Object = dict[str, Any]
PROFILE = "double"


def job_path(namespace: str, name: str) -> str:
    return f"/apis/tpu-finetune.dev/v1alpha1/namespaces/{namespace}/finetunejobs/{name}"


def jobset_path(namespace: str, name: str) -> str:
    return f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/{name}"


def condition_of(found: Object, kind: str) -> Object:
    """The complete condition; empty if it is not set yet."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == kind), {})


def condition(found: Object, kind: str) -> str:
    return str(condition_of(found, kind).get("status", ""))


def phase(*wanted: str) -> Callable[[Object], bool]:
    return lambda found: found.get("status", {}).get("phase") in wanted


def says(*parts: str) -> Callable[[Object], bool]:
    """Returns a predicate: the job's summary contains all parts."""
    return lambda found: all(part in found.get("status", {}).get("summary", "") for part in parts)


def charged(job: Object) -> Object:
    """The numbers of unsuccessful attempts, by the class that is charged."""
    return {name: job["status"]["attempts"][name] for name in ("preemption", "infrastructure", "user")}


def jobsets(cluster: LocalCluster, namespace: str) -> list[str]:
    found = cluster.list(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets")
    return sorted(each["metadata"]["name"] for each in found)


def uid_of(cluster: LocalCluster, namespace: str, jobset: str) -> str:
    return str(cluster.get(jobset_path(namespace, jobset))["metadata"]["uid"])


def await_file(uri: str, seconds: float = 60) -> None:
    """Returns when the fake trainer has written the file. It polls, because no event reports this."""
    path = Path(uri.removeprefix("file://"))
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not exist after {seconds:.0f} s"
        time.sleep(0.1)
