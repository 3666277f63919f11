"""In-memory fakes of the API server and the object store; a test can make any call fail or crash the process."""

import functools
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from finetune_contract import CacheLayout, RunFolder, Stage
from finetune_operator.artifacts.port import (
    NAME_LENGTH,
    NAMES_LIMIT,
    RECORD_LIMIT,
    ListingTooLarge,
    ObjectTooLarge,
)
from finetune_operator.cluster.port import (
    AlreadyExists,
    Conflict,
    Keep,
    Labels,
    NotFound,
    Rejected,
    ResourceKind,
)
from finetune_operator.objects import Object
from finetune_operator.planning import StoredPlan, render_stored_plan
from finetune_operator.planning.stored_plan import owner_reference
from finetune_operator.reconcile.run_folder_observer import Folders
from finetune_operator.rendering.labels import PLAN_ANNOTATION

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
#: The operator's own namespace.
OWN = "finetune-system"
FOLDERS = Folders(run=RunFolder("file:///runs/team/demo-uid-of-d"), cache=CacheLayout("file:///cache/team"))


class Crash(BaseException):
    """The operator's process dies. No code under test may catch this."""


type Fault = Callable[[str, str], BaseException | None]
"""Called around each call with ``before`` or ``after`` and ``verb resource``; returns an exception to raise or None."""


def no_fault(_moment: str, _call: str) -> BaseException | None:
    return None


class FakeCluster:
    """Implements the cluster port on dicts, with the optimistic locking, unique names and uids of an API server."""

    def __init__(self) -> None:
        self.objects: dict[tuple[ResourceKind, str | None, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.fault: Fault = no_fault
        self._versions = itertools.count(1)

    def put(self, kind: ResourceKind, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Stores an object as if another client had written it."""
        stored = {**manifest, "metadata": dict(manifest["metadata"])}
        metadata = stored["metadata"]
        number = next(self._versions)
        metadata.setdefault("uid", f"uid-{number}")
        metadata.setdefault("generation", 1)
        metadata["resourceVersion"] = str(number)
        self.objects[kind, metadata.get("namespace"), metadata["name"]] = stored
        return stored

    def of(self, kind: ResourceKind) -> list[dict[str, Any]]:
        return [each for (stored, _, _), each in self.objects.items() if stored == kind]

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object:
        with self._call(f"get {kind.plural}"):
            return self._find(kind, namespace, name)

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Sequence[Object]:
        with self._call(f"list {kind.plural}"):
            return [
                each
                for each in self.of(kind)
                if namespace in (None, each["metadata"].get("namespace"))
                and all(
                    (found := each["metadata"].get("labels", {}).get(key)) is not None
                    and (value is None or found in ({value} if isinstance(value, str) else value))
                    for key, value in (labels or {}).items()
                )
                and all(
                    functools.reduce(lambda at, part: at.get(part, {}), key.split("."), each) == value
                    for key, value in (fields or {}).items()
                )
            ]

    async def pages(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[Object]]:
        """Yields one object per page."""
        for each in await self.list(kind, namespace, labels=labels):
            with self._call(f"page {kind.plural}"):
                yield [{"metadata": each["metadata"]} if metadata_only else each]

    async def kept[T](
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        fields: Mapping[str, str] | None = None,
        keep: Keep[T],
    ) -> AsyncIterator[Sequence[T]]:
        """Yields all objects on one page."""
        listed = await self.list(kind, namespace, labels=labels, fields=fields)
        yield [kept for each in listed if (kept := keep(each)) is not None]

    async def apply(self, kind: ResourceKind, manifest: Object) -> Object:
        with self._call(f"apply {kind.plural}"):
            metadata = manifest["metadata"]
            try:
                found = self._find(kind, metadata.get("namespace"), metadata["name"])
            except NotFound:
                return self.put(kind, manifest)
            wanted = metadata.get("resourceVersion")
            if wanted not in (None, found["metadata"]["resourceVersion"]):
                raise Conflict("the object has been modified", status=409)
            return self.put(kind, {**manifest, "metadata": {**found["metadata"], **metadata}})

    async def create(self, kind: ResourceKind, manifest: Object) -> Object:
        with self._call(f"create {kind.plural}"):
            metadata = manifest["metadata"]
            if (kind, metadata.get("namespace"), metadata["name"]) in self.objects:
                raise AlreadyExists(f"{kind.plural} {metadata['name']} already exists", status=409)
            return self.put(kind, manifest)

    async def patch_status(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        status: Object,
        *,
        resource_version: str | None,
        uid: str | None = None,
    ) -> Object:
        with self._call(f"patch {kind.plural}/status"):
            found = self._find(kind, namespace, name)
            if uid not in (None, found["metadata"]["uid"]):
                raise Rejected("the server rejected our request due to an error in our request", status=422)
            if resource_version not in (None, found["metadata"]["resourceVersion"]):
                raise Conflict("the object has been modified", status=409)
            return self.put(kind, {**found, "status": status})

    async def delete(
        self, kind: ResourceKind, namespace: str | None, name: str, *, uid: str, foreground: bool
    ) -> None:
        with self._call(f"delete {kind.plural}"):
            found = self.objects.get((kind, namespace, name))
            if found and found["metadata"]["uid"] == uid:
                del self.objects[kind, namespace, name]

    def writes(self) -> Sequence[str]:
        return [call for call in self.calls if not call.startswith(("get ", "list ", "page "))]

    def _find(self, kind: ResourceKind, namespace: str | None, name: str) -> dict[str, Any]:
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise NotFound(f"{kind.plural} {name} not found", status=404) from None

    def _call(self, what: str) -> "_Call":
        return _Call(self, what)


class _Call:
    """Records a call and raises its fault, either before the call has any effect or after its effect is complete."""

    def __init__(self, owner: "FakeCluster | FakeStore", what: str) -> None:
        self._owner = owner
        self._what = what

    def __enter__(self) -> None:
        self._owner.calls.append(self._what)
        self._strike("before")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._strike("after")

    def _strike(self, moment: str) -> None:
        fault = self._owner.fault(moment, self._what)
        if fault is not None:
            raise fault


class FakeStore:
    """Implements the store port on a dict of URIs."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.fault: Fault = no_fault
        self.answer_age: float | None = None

    def answered(self, uri: str) -> float | None:
        return self.answer_age

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        with _Call(self, f"read {uri}"):
            content = self.files.get(uri)
            if content is not None and len(content) > limit:
                raise ObjectTooLarge(uri, limit)
            return content

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        with _Call(self, f"list {uri}"):
            prefix = f"{uri}/"
            names = sorted(name.removeprefix(prefix) for name in self.files if name.startswith(prefix))
            if len(names) > limit:
                raise ListingTooLarge(uri, limit)
            return [name for name in names if len(name) <= NAME_LENGTH]

    async def write(self, uri: str, content: bytes) -> None:
        with _Call(self, f"write {uri}"):
            self.files[uri] = content

    async def create(self, uri: str, content: bytes) -> bool:
        with _Call(self, f"create {uri}"):
            return self.files.setdefault(uri, content) is content


def job(name: str = "demo", **status: Any) -> dict[str, Any]:
    """A FineTuneJob as a user applied it."""
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-of-{name}"},
        "spec": {},
        "status": status or {"observedGeneration": -1},
    }


def child(kind: str, name: str, owner: str = "demo") -> dict[str, Any]:
    """Returns an object with the job's labels.

    JobSets (``demo-prep-1``) and pods (``demo-prep-1-cpu-0-0-abcde``) are children of the job.
    """
    metadata: dict[str, Any] = {
        "namespace": "team",
        "name": name,
        "labels": {"tpu-finetune.dev/job": owner, "tpu-finetune.dev/job-uid": f"uid-of-{owner}"},
    }
    parts = name.removeprefix(f"{owner}-").split("-")
    if kind in ("JobSet", "Pod"):
        stage = Stage.from_short(parts[0])
        metadata["labels"] |= {"tpu-finetune.dev/stage": stage.value, "tpu-finetune.dev/attempt": parts[1]}
    if kind == "JobSet":
        metadata["annotations"] = {PLAN_ANNOTATION: plan(owner)["data"]["digest"]}
        metadata["ownerReferences"] = [owner_reference(job(owner))]
    if kind == "Pod":
        jobset = f"{owner}-{parts[0]}-{parts[1]}"
        metadata["labels"]["jobset.sigs.k8s.io/jobset-name"] = jobset
        made_by = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": f"{jobset}-{parts[2]}-0",
            "uid": "uid-of-job",
        }
        metadata["ownerReferences"] = [{**made_by, "controller": True}]
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def workload(jobset: str, uid: str) -> dict[str, Any]:
    """Returns Kueue's Workload of the JobSet with that name and uid."""
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": jobset, "uid": uid}
    return {
        "metadata": {
            "namespace": "team",
            "name": f"jobset-{jobset}-{uid}",
            "labels": {"kueue.x-k8s.io/job-uid": uid},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"queueName": "team-tpu"},
    }


def plan(owner: str = "demo") -> dict[str, Any]:
    """Returns the stored plan of the job ``owner``."""
    profile = {"storage": {"artifacts": "file:///runs", "cache": "file:///cache"}}
    spec = {"resources": {"controller": "McJAX"}}
    made = render_stored_plan(StoredPlan.make(job(owner), "local", "0", profile, spec))
    made["metadata"]["namespace"] = OWN
    return made
