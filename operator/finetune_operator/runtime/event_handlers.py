"""Maps watch events to the jobs and profiles to queue. Handles objects as plain dicts, without kopf or I/O."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from time import monotonic

from pydantic_core import to_json

from finetune_operator.api import WaitingReason
from finetune_operator.api.conditions import is_true
from finetune_operator.api.profile import DEFAULT_PROFILE_ANNOTATION
from finetune_operator.lifecycle.children.ownership import job_named_by
from finetune_operator.objects import Object
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL
from finetune_operator.reconcile.budgets import Budgets
from finetune_operator.reconcile.keys import JobKey, Key, PlanKey, ProfileKey
from finetune_operator.reconcile.notifications import Notifications
from finetune_operator.rendering.labels import JOB_LABEL
from finetune_operator.runtime.job_metrics import JobFacts, Place
from finetune_operator.runtime.metrics import OperatorMetrics

#: Delay of finished jobs in a listing, of which few have anything left to do, so that live ones are reconciled first.
FINISHED_LATER_SECONDS = 5.0
#: Delay of a job after an event of a pod. The pods of a slice change in bursts, and JobSets report what they amount to.
POD_SECONDS = 0.1
#: Minimum interval between updates of a profile's number of jobs, since jobs are created and deleted in bursts.
USAGE_SECONDS = 2.0


@dataclass(slots=True)
class _CachedJob:
    """State of one job as of the last event."""

    uid: str
    created: str
    """The job's creationTimestamp: of two jobs with the same name, the later one exists now."""
    facts: JobFacts
    version: int = 0
    """Resource version of the last event, which decides between jobs that were created in the same second."""
    input: bytes = b""
    """Digest of the fields that users and tools may change and that the operator reads."""
    finished: bool = False
    admitted: bool = False
    cleans_up: bool = False
    """Whether its children are deleted some time after it has finished."""
    finished_jobsets: frozenset[str] = frozenset()
    """Of an unfinished job."""
    ended: float | None = None
    """Time of the event of the first JobSet that has finished since one was created, if the next one is due."""
    created_jobset: tuple[str, str] | None = None
    """UID and resource version of the last JobSet that this process has created for the job."""

    @property
    def profile(self) -> str:
        """Name of the profile that the job runs under. Empty before admission and after it has finished. It is the
        status's: the spec may omit it, or name one under which the job was not admitted."""
        return "" if self.finished else self.facts.profile


class EventHandlers:
    """Turns watch events into keys.

    An event type is that of a watch, or None for an object from a listing. FineTuneJobs are reduced
    (:mod:`finetune_operator.lifecycle.job`).

    Args:
        add: adds a key to the queue, due after the given number of seconds.
        metrics: reads what is known of jobs, and is notified of handovers from one JobSet to the next.
        deleted: called with each deleted job.
    """

    def __init__(
        self,
        add: Callable[[Key, float], None],
        metrics: OperatorMetrics,
        *,
        deleted: Callable[[Object], None] = lambda _: None,
        budgets: Budgets | None = None,
        notifications: Notifications | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self._notifications = notifications
        self._deleted = deleted
        self._budgets = budgets
        self._add = add
        self._metrics = metrics
        metrics.jobs = lambda: (seen.facts for seen in self._seen.values())
        self._seen: dict[JobKey, _CachedJob] = {}
        self._live: set[JobKey] = set()
        """The unfinished ones of them. Their number is read at each reconcile."""
        self._profiles: dict[str, bytes] = {}
        """Digest of each profile without its status, as of the last event."""

    @property
    def live(self) -> int:
        return len(self._live)

    def used_by(self, profile: str) -> int:
        """Returns the number of unfinished jobs that run under that profile."""
        return sum(seen.profile == profile for seen in self._seen.values())

    def job(self, event_type: str | None, job: Object) -> None:
        """Handles an event of a FineTuneJob. A change of status alone is the operator's own and queues nothing."""
        key = _key(job)
        uid = job["metadata"]["uid"]
        if event_type == "DELETED":
            self._deleted(job)
            # Events are ordered per uid only: another job may already have that name.
            seen = self._seen.get(key)
            if seen is not None and seen.uid == uid:
                self._forget(key)
                if not seen.finished:
                    # What is cached of the job's run folder is dropped when the job is observed to be gone.
                    self._add(key, 0.0)
            self._add(PlanKey(key.namespace, key.name, uid), 0.0)
            return
        before = self._seen.get(key)
        input_before = before.input if before else b""
        seen = self._remember(key, job)
        if seen.uid != uid:
            return
        if event_type is None:
            # After a gap in the watch, any event may have been missed.
            if not seen.finished:
                self._add(key, 0.0)
            elif not _up_to_date(job):
                self._add(key, FINISHED_LATER_SECONDS)
        elif input_before != seen.input:
            self._add(key, 0.0)

    def jobset(self, event_type: str | None, jobset: Object) -> None:
        """Handles an event of a JobSet. The one of its creation queues nothing if this process has created it."""
        key = _owner(jobset)
        if key is None:
            return
        uid = jobset["metadata"]["uid"]
        seen = self._seen.get(key)
        if seen and not seen.finished and uid not in seen.finished_jobsets and _has_ended(jobset):
            seen.finished_jobsets |= {uid}
            # The end time of JobSets in a listing is unknown.
            if event_type is not None and seen.ended is None:
                seen.ended = self._clock()
        if seen and event_type == "DELETED":
            seen.finished_jobsets -= {uid}
        version = jobset["metadata"].get("resourceVersion")
        if event_type == "ADDED" and seen and seen.created_jobset == (uid, version):
            # The reconcile that created it writes the status that describes it, or is repeated if it fails.
            return
        if event_type is None and _may_be_leftover(seen, jobset):
            # A listing of jobs does not show whether a finished one has children to be stopped or deleted.
            self._add(key, FINISHED_LATER_SECONDS)
        self._add_child(key, event_type)

    def jobset_created(self, jobset: Object) -> None:
        """Called after this process has created a JobSet, with its stored form."""
        key = _owner(jobset)
        if key and (seen := self._seen.get(key)):
            if seen.ended is not None:
                self._metrics.handed_over(self._clock() - seen.ended)
                seen.ended = None
            seen.created_jobset = jobset["metadata"]["uid"], jobset["metadata"]["resourceVersion"]

    def pod(self, event_type: str | None, pod: Object) -> None:
        key = _owner(pod)
        seen = self._seen.get(key) if key else None
        # Only its JobSets matter to a finished job.
        if key is not None and not (seen and seen.finished):
            self._add_child(key, event_type, POD_SECONDS)

    def workload(self, event_type: str | None, workload: Object) -> None:
        """Handles an event of a Kueue Workload. Most Workloads do not belong to the operator's JobSets."""
        name = job_named_by(workload)
        key = JobKey(workload["metadata"]["namespace"], name) if name else None
        seen = self._seen.get(key) if key else None
        if key and seen and not seen.finished:
            self._add_child(key, event_type)

    def profile(self, event_type: str | None, profile: Object) -> None:
        """Handles an event of a FineTuneProfile.

        Queues the jobs that are not admitted yet, as they may become valid; admitted jobs have their own copy of the
        profile.
        """
        name = profile["metadata"]["name"]
        newest = None if event_type == "DELETED" else profile
        if self._budgets is not None and self._budgets.profile(name, newest):
            # Its namespaces have another budget than before: jobs that wait may start, or those that run have to stop.
            self._add_live(lambda _, job: job.profile == name)
        before = self._profiles.pop(name, None)
        if newest is not None:
            self._profiles[name] = _input(newest, DEFAULT_PROFILE_ANNOTATION)
        if event_type is None:
            # The jobs that use it are queued by their own listing.
            self._add(ProfileKey(name), USAGE_SECONDS)
            return
        if before is not None and before == self._profiles.get(name):
            return
        self._add(ProfileKey(name), 0.0)
        self._add_live(lambda _, job: not job.admitted)

    def usage_known(self, namespace: str) -> None:
        """Queues the jobs of a namespace that wait until its usage in the present month is known."""
        self._add_live(
            lambda key, job: key.namespace == namespace and job.facts.reason == WaitingReason.BUDGET
        )

    def missed(self) -> None:
        """Queues every live job after a watch has lost events, since a listing does not show deleted objects."""
        self._add_live(lambda *_: True)

    def namespace_changed(self, namespace: str, jobs: Iterable[Object] = ()) -> None:
        """Called when a served namespace is lost or is back: profiles report it, and its jobs go on.

        ``jobs``: its jobs as this process has written them last. A watch that has ended does not show every write.
        """
        self.listed(jobs)
        for name in self._profiles:
            self._add(ProfileKey(name), 0.0)
        self._add_live(lambda key, _: key.namespace == namespace)

    def keys(self) -> frozenset[JobKey]:
        return frozenset(self._seen)

    def listing(self) -> None:
        """Called before all jobs are listed live."""
        if self._notifications is not None:
            self._notifications.listing()

    def listed(self, jobs: Iterable[Object]) -> None:
        """Handles one page of a live listing: queues the unfinished jobs."""
        for job in jobs:
            seen = self._seen.get(_key(job))
            if seen and seen.uid == job["metadata"]["uid"] and seen.version > _version(job):
                # The watch has delivered a newer version since the listing began; or a backup was restored.
                if not is_true(job, "Finished"):
                    self._add(_key(job), 0.0)
                continue
            if not self._remember(_key(job), job).finished:
                self._add(_key(job), 0.0)

    def gone(self, keys: Iterable[JobKey], *, left_out: Collection[str] = ()) -> None:
        """Forgets jobs that are missing from a live listing: their deletion was missed.

        ``left_out``: the served namespaces that could not be listed.
        """
        for key in keys:
            self._forget(key)
            # Queued in case a job of that name has been created again in the meantime.
            self._add(key, 0.0)
        if self._notifications is not None:
            self._notifications.listed(left_out)

    def _add_live(self, concerned: Callable[[JobKey, _CachedJob], bool]) -> None:
        for key, job in self._seen.items():
            if not job.finished and concerned(key, job):
                self._add(key, 0.0)

    def _add_child(self, key: JobKey, event_type: str | None, after: float = 0.0) -> None:
        # A listing of children accompanies a listing of jobs, which queues the jobs.
        if event_type is not None:
            self._add(key, after)

    def _remember(self, key: JobKey, job: Object) -> _CachedJob:
        """Updates and returns the state of the job with that name; ``job`` is ignored if a later one has the name."""
        uid, created = job["metadata"]["uid"], job["metadata"].get("creationTimestamp", "")
        version, facts = _version(job), JobFacts.of(job)
        seen = self._seen.get(key)
        if seen is not None and seen.uid != uid:
            if (created, version) < (seen.created, seen.version):
                return seen
            self._forget(key)
            seen = None
        before = seen.profile if seen else ""
        if seen is None:
            seen = self._seen[key] = _CachedJob(uid, created, facts)
        seen.version, seen.input, seen.facts = version, _input(job), facts
        seen.finished, seen.admitted = is_true(job, "Finished"), is_true(job, "Valid")
        seen.cleans_up = "childTTLSecondsAfterFinished" in job.get("spec", {})
        if not facts.expects_next:
            seen.ended = None
        if facts.profile:
            self._metrics.begin(Place(facts.namespace, facts.profile, facts.capacity))
        if self._budgets is not None:
            self._budgets.job(job)
        if self._notifications is not None:
            self._notifications.job(job)
        self._use(before, seen.profile)
        if seen.finished:
            self._live.discard(key)
            seen.finished_jobsets = frozenset()
        else:
            self._live.add(key)
        return seen

    def _use(self, before: str, now: str) -> None:
        """Has the profiles updated if a job runs under another one than before; empty: under none."""
        for changed in {before, now} - {""} if before != now else ():
            self._add(ProfileKey(changed), USAGE_SECONDS)

    def _forget(self, key: JobKey) -> None:
        if seen := self._seen.pop(key, None):
            self._live.discard(key)
            self._use(seen.profile, "")
            if self._budgets is not None:
                self._budgets.gone(key.namespace, seen.uid)


def _key(job: Object) -> JobKey:
    return JobKey(job["metadata"]["namespace"], job["metadata"]["name"])


def _version(job: Object) -> int:
    return int(job["metadata"].get("resourceVersion", 0))


def _owner(child: Object) -> JobKey | None:
    metadata = child["metadata"]
    job = metadata.get("labels", {}).get(JOB_LABEL)
    return JobKey(metadata["namespace"], job) if job else None


def _input(found: Object, *annotations: str) -> bytes:
    """Returns a digest of the fields that the operator reads, those annotations included, without the status.

    Changes of other labels and annotations do not affect it. It is the same for a whole job and for a reduced one.
    """
    metadata = found["metadata"]
    values = [metadata.get(name) for name in ("uid", "generation", "deletionTimestamp")]
    values += [metadata.get("labels", {}).get(label) for label in (QUEUE_LABEL, PRIORITY_LABEL)]
    values += [metadata.get("annotations", {}).get(annotation) for annotation in annotations]
    return sha256(to_json(values)).digest()


def _may_be_leftover(job: _CachedJob | None, jobset: Object) -> bool:
    """Whether a JobSet may have to be stopped or deleted after the end of its job. None: the job is not listed yet."""
    return job is None or (job.finished and (job.cleans_up or not _has_ended(jobset)))


def _up_to_date(job: Object) -> bool:
    """Whether the status is that of the newest spec, its usage is recorded, and the job is not being deleted."""
    metadata, status = job["metadata"], job.get("status") or {}
    if "deletionTimestamp" in metadata or (status.get("ledger") or {}).get("pending"):
        return False
    return bool(status.get("observedGeneration") == metadata.get("generation"))


def _has_ended(jobset: Object) -> bool:
    return is_true(jobset, "Completed") or is_true(jobset, "Failed")
