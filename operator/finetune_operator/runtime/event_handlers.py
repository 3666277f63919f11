"""Which events put which job or profile on the queue. Knows objects as plain dicts; no kopf, no I/O."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from finetune_operator.api.profile import DEFAULT_PROFILE_ANNOTATION
from finetune_operator.cluster.port import Object
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL
from finetune_operator.reconcile.observe import JobKey
from finetune_operator.reconcile.plans import PlanKey
from finetune_operator.reconcile.profiles import Key, ProfileKey
from finetune_operator.rendering.labels import JOB_LABEL

#: Finished jobs that turn up at a start wait this long, so that live ones go first.
FINISHED_LATER_SECONDS = 5.0
#: Jobs come and go in bursts; the number of them that a profile shows is written at most once in this time.
USAGE_SECONDS = 2.0


class LatencyObserver(Protocol):
    """Hears what latencies are measured from."""

    def jobset_finished(self, key: JobKey) -> None:
        """The watch has told that a JobSet of a live job is finished."""

    def forget(self, key: JobKey) -> None:
        """The job is finished or gone."""


@dataclass(slots=True)
class _CachedJob:
    """What the last event said of one job."""

    uid: str
    created: str
    """Its creationTimestamp: of two jobs of one name the later one is there now."""
    input: bytes | None
    """A digest of what a person or a tool may have changed of what is read."""
    finished: bool
    admitted: bool
    profile: str | None = None
    """Name of the profile that it runs under, until it finishes."""
    finished_jobsets: set[str] = field(default_factory=set)


class EventHandlers:
    """Turns watch events into keys. Event types are those of a watch; None: from a listing. Of an object it reads what
    :mod:`finetune_operator.runtime.projection` keeps.

    Args:
        add: puts a key on the queue, due after so many seconds.
        listener: hears of finished JobSets and jobs.
    """

    def __init__(self, add: Callable[[Key, float], None], listener: LatencyObserver) -> None:
        self._add = add
        self._listener = listener
        self._seen: dict[JobKey, _CachedJob] = {}
        self._profiles: dict[str, bytes] = {}
        """What the last event said of each, its status left out."""
        self._jobsets: dict[str, JobKey] = {}
        """By uid: a Workload names its JobSet, and not the job."""

    @property
    def live(self) -> int:
        """Jobs that are not finished."""
        return sum(not seen.finished for seen in self._seen.values())

    @property
    def known(self) -> int:
        return len(self._seen)

    def used_by(self, profile: str) -> int:
        """Jobs that run under that profile and have not finished."""
        return sum(seen.profile == profile for seen in self._seen.values())

    def job(self, event_type: str | None, job: Object) -> None:
        """A FineTuneJob. A change of its status alone is our own writing and queues nothing."""
        key = _key(job)
        uid = job["metadata"]["uid"]
        if event_type == "DELETED":
            # Events are in order for each uid only: by now there may be another job of that name.
            if key in self._seen and self._seen[key].uid == uid:
                self._forget(key)
            self._add(PlanKey(key.namespace, key.name, uid), 0.0)
            return
        seen = self._remember(key, job)
        if seen.uid != uid:
            return
        before = seen.input
        seen.input = _input(job)
        if event_type is None:
            # After a gap in the watch anything may have been missed; finished jobs can miss little.
            self._add(key, FINISHED_LATER_SECONDS if seen.finished else 0.0)
        elif before != seen.input:
            self._add(key, 0.0)

    def jobset(self, event_type: str | None, jobset: Object) -> None:
        key = _owner(jobset)
        if key is None:
            return
        uid = jobset["metadata"]["uid"]
        if event_type == "DELETED":
            self._jobsets.pop(uid, None)
        else:
            self._jobsets[uid] = key
        seen = self._seen.get(key)
        if seen and uid not in seen.finished_jobsets and _has_ended(jobset):
            seen.finished_jobsets.add(uid)
            # Those of a listing ended at a time that we do not know.
            if event_type is not None and not seen.finished:
                self._listener.jobset_finished(key)
        self._add_child(key, event_type)

    def pod(self, event_type: str | None, pod: Object) -> None:
        key = _owner(pod)
        if key is not None:
            self._add_child(key, event_type)

    def workload(self, event_type: str | None, workload: Object) -> None:
        """Kueue's, of whatever kind of work; most are not ours."""
        for owner in workload["metadata"].get("ownerReferences", ()):
            if key := self._jobsets.get(owner["uid"]):
                self._add_child(key, event_type)

    def profile(self, event_type: str | None, profile: Object) -> None:
        """Jobs that were admitted have their copy of it; the others may become valid now."""
        name = profile["metadata"]["name"]
        before = self._profiles.pop(name, None)
        if event_type != "DELETED":
            self._profiles[name] = _input(profile)
        if event_type is None:
            # The jobs that use it come with their own listing.
            self._add(ProfileKey(name), USAGE_SECONDS)
            return
        if before is not None and before == self._profiles.get(name):
            return
        self._add(ProfileKey(name), 0.0)
        for key, seen in self._seen.items():
            if not seen.finished and not seen.admitted:
                self._add(key, 0.0)

    def missed(self) -> None:
        """Some watch has lost events. What was deleted meanwhile no listing shows, so every live job is looked at."""
        for key, seen in self._seen.items():
            if not seen.finished:
                self._add(key, 0.0)

    def keys(self) -> frozenset[JobKey]:
        """All jobs that are known."""
        return frozenset(self._seen)

    def listed(self, jobs: Iterable[Object]) -> None:
        """A page of a live listing: queues the unfinished jobs."""
        for job in jobs:
            seen = self._remember(_key(job), job)
            if seen.uid == job["metadata"]["uid"]:
                seen.input = _input(job)
            if not seen.finished:
                self._add(_key(job), 0.0)

    def gone(self, keys: Iterable[JobKey]) -> None:
        """Jobs that a whole live listing no longer had: their deletion was missed."""
        for key in keys:
            self._forget(key)
            # This reconcile finds no job; it is there for one that was created again in the meantime.
            self._add(key, 0.0)

    def _add_child(self, key: JobKey, event_type: str | None) -> None:
        # A listing of children comes with a listing of jobs, which queues them.
        if event_type is not None:
            self._add(key, 0.0)

    def _remember(self, key: JobKey, job: Object) -> _CachedJob:
        """What is known of the job of that name now: the given one, unless that is an earlier one."""
        uid, created = job["metadata"]["uid"], job["metadata"].get("creationTimestamp", "")
        finished, admitted = _condition(job, "Finished"), _condition(job, "Valid")
        seen = self._seen.get(key)
        if seen is not None and seen.uid != uid:
            if created < seen.created:
                return seen
            self._forget(key)
            seen = None
        if seen is None:
            seen = _CachedJob(uid=uid, created=created, input=None, finished=finished, admitted=admitted)
            self._seen[key] = seen
        seen.finished, seen.admitted = finished, admitted
        self._use(seen, None if finished else _profile_of(job))
        if finished:
            self._listener.forget(key)
        return seen

    def _use(self, seen: _CachedJob, profile: str | None) -> None:
        """The job runs under that profile from now on, or under none."""
        if profile == seen.profile:
            return
        for changed in (seen.profile, profile):
            if changed is not None:
                self._add(ProfileKey(changed), USAGE_SECONDS)
        seen.profile = profile

    def _forget(self, key: JobKey) -> None:
        if seen := self._seen.pop(key, None):
            self._use(seen, None)
        self._listener.forget(key)


def _key(job: Object) -> JobKey:
    return JobKey(job["metadata"]["namespace"], job["metadata"]["name"])


def _owner(child: Object) -> JobKey | None:
    metadata = child["metadata"]
    job = metadata.get("labels", {}).get(JOB_LABEL)
    return JobKey(metadata["namespace"], job) if job else None


def _profile_of(job: Object) -> str | None:
    """The one that the status resolved: what the spec names may not have been admitted, or be left out."""
    name: str | None = (job.get("status") or {}).get("resolved", {}).get("profile", {}).get("name")
    return name


def _input(found: Object) -> bytes:
    """A digest of what is read of it, but for its status: other labels and annotations may change as often as they
    like. The same for a whole object and for what :mod:`finetune_operator.runtime.projection` keeps."""
    metadata = found["metadata"]
    values = [metadata.get(name) for name in ("uid", "generation", "deletionTimestamp")]
    values += [metadata.get("labels", {}).get(label) for label in (QUEUE_LABEL, PRIORITY_LABEL)]
    values.append(metadata.get("annotations", {}).get(DEFAULT_PROFILE_ANNOTATION))
    return sha256(json.dumps(values).encode()).digest()


def _condition(job: Object, kind: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions", ())
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _has_ended(jobset: Object) -> bool:
    conditions = (jobset.get("status") or {}).get("conditions", ())
    return any(each["type"] in ("Completed", "Failed") and each["status"] == "True" for each in conditions)
