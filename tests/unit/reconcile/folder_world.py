"""The simulated world of the decision tests, with a run folder of files that the real reader reads from a fake store.

The base class keeps what the trainer and the operator write. :meth:`FolderWorld.tamper` replaces the content of files;
the new content stays until the trainer or the operator writes that file again.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from finetune_contract import HostProgress, Stage
from finetune_contract.base import Record
from finetune_operator.lifecycle.attempts.own_attempts import own_attempts
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.lifecycle.decision import Decision, DetailRequest
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import Observation, RunFolderView
from finetune_operator.planning.stored_plan import read_stored_plan
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.run_folder_observer import Folders
from tests.fuzz.folders import Change
from tests.unit.lifecycle.world import World, job, profile
from tests.unit.lifecycle.writes import writes
from tests.unit.reconcile.fakes import FakeStore

type Object = dict[str, Any]

_JOB = "the job"
_RUNNER = asyncio.Runner()
#: Run folders and caches by the plan digest.
_FOLDERS: dict[str, Folders] = {}
#: Price of one chip hour.
PRICE = 2.0


@dataclass
class FolderWorld(World):
    """A world in which the operator reads all storage through the real reader."""

    store: FakeStore = field(default_factory=FakeStore)
    reader: RunFolderReader = field(init=False)
    tampered: dict[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    """By URI: the original content and the new one; None: no file."""
    view: RunFolderView = field(default_factory=RunFolderView)
    """The view that was read last."""
    ran: set[str] = field(default_factory=set)
    """JobSets whose pods have run."""

    def __post_init__(self) -> None:
        self.restart_operator()

    def restart_operator(self) -> None:
        """Replaces the reader by one that remembers nothing."""
        self.reader = RunFolderReader(self.store)

    @property
    def folders(self) -> Folders:
        assert self.config_map is not None, "the job is not admitted"
        digest = self.config_map["data"]["digest"]
        if digest not in _FOLDERS:
            stored = read_stored_plan(self.config_map)
            _FOLDERS[digest] = Folders(run=stored.run_folder, cache=stored.cache)
        return _FOLDERS[digest]

    def honest(self) -> dict[str, bytes]:
        """Returns the files as the trainer and the operator have written them, by URI."""
        run, files = self.folders.run, {}
        for key, each in self.attempts.items():
            files[run.request(*key.place)] = b"{}"
            if each.result:
                files[run.result(*key.place)] = _bytes(each.result)
            if each.failure:
                files[run.failure(*key.place)] = _bytes(each.failure)
        if self.progress:
            files[run.progress] = _bytes(self.progress)
            for host in range(2):
                told = HostProgress(
                    attempt=self.progress.attempt, host=host, step=self.progress.step, updated=self.now
                )
                files[run.host(host)] = _bytes(told)
        if self.retry:
            files[run.retry(self.retry.generation)] = self.retry.model_dump_json().encode()
        for note in self.takeovers:
            files[run.taken_over(note.uid)] = note.model_dump_json().encode()
        for fingerprint, manifest in self.cache.items():
            files[self.folders.cache.convert_manifest(fingerprint)] = _bytes(manifest)
        return files

    def files(self) -> dict[str, bytes]:
        """Returns the contents of the store by URI, including the changes of other clients."""
        files = self.honest()
        for uri, (before, content) in self.tampered.items():
            if files.get(uri) != before:
                continue
            if content is None:
                files.pop(uri, None)
            else:
                files[uri] = content
        return files

    def tamper(self, changes: Iterable[Change]) -> None:
        """Another client writes to the folder and to the cache."""
        run, cached = self.folders.run, self.folders.cache
        for change in changes:
            honest, there = self.honest(), self.files()
            for uri, content in change.of(there, run, cached).items():
                self.tampered[uri] = honest.get(uri), content

    def heal(self) -> None:
        """Restores the original content of all files."""
        self.tampered.clear()

    def _view(self, job: Job, jobsets: Sequence[JobSet], pods: Sequence[Pod]) -> RunFolderView:
        if self.config_map is None:
            return RunFolderView()
        self.store.files = self.files()
        self.store.calls.clear()
        own = partial(own_attempts, job=job, jobsets=jobsets, pods=pods)
        retry = job.control.retry_generation
        self.view = _RUNNER.run(self.reader.view(self.folders, of=_JOB, own=own, retry=retry))
        if job.finished:
            self.reader.forget(_JOB)
        return self.view

    def with_details(self, observation: Observation, at: DetailRequest) -> Observation:
        hosts = _RUNNER.run(self.reader.hosts(self.folders.run, at.hosts)) if at.hosts else None
        return replace(super().with_details(observation, at), hosts=hosts)

    def apply(self, decision: Decision, *, crash_after: int | None = None) -> None:
        super().apply(decision, crash_after=crash_after)
        if self.config_map is None:
            return
        # What the operator writes is stored, even if it equals the content before another client changed it.
        run = self.folders.run
        written = [run.failure(*key.place) for key, _ in writes(decision).records]
        written += [run.retry(writes(decision).retry.generation)] if writes(decision).retry else []
        written += [run.taken_over(writes(decision).takeover.uid)] if writes(decision).takeover else []
        for uri in written:
            self.tampered.pop(uri, None)

    def _create_jobset(self, jobset: Any) -> None:
        assert not self.live(), (
            f"{jobset['metadata']['name']} was created while {self.live()} could still run"
        )
        running = [
            name for name, pod in self.pods.items() if pod["status"]["phase"] in ("Pending", "Running")
        ]
        assert not running, f"{jobset['metadata']['name']} was created while {running} ran"
        super()._create_jobset(jobset)

    def run(self, name: str) -> None:
        super().run(name)
        self.ran.add(name)

    def waits(self, stage: Stage) -> str:
        """Lets all stages before ``stage`` succeed until its JobSet exists; returns the JobSet's name."""
        for _ in range(40):
            self.reconcile()
            for name in self.live():
                if self.key_of(name).stage is stage:
                    return name
                self.succeed(name)
            self.wait(self.requeue_after or 1)
        raise AssertionError(f"{stage} was not reached: {self.status.get('summary')}")

    def runs(self, stage: Stage, step: int = 30) -> str:
        """Does the same and runs the JobSet; a training then reaches ``step``. Returns the JobSet's name."""
        name = self.waits(stage)
        self.wait(60)
        self.run(name)
        self.reconcile()
        if stage is Stage.TRAIN:
            self.wait(60)
            self.train(name, step)
            self.reconcile()
        return name


def _bytes(record: Record) -> bytes:
    return record.to_json().encode()


# --- moments of a job's life


def _world(tpu: str = "v6e-4", *, queued: bool = False, **spec: Any) -> FolderWorld:
    flavors = profile()["spec"]["flavors"]
    queue = {"queue": {"localQueue": "team-tpu", "cpuLocalQueue": "team-cpu"}} if queued else {}
    priced = profile(flavors=[{**each, "chipHourPrice": PRICE} for each in flavors], currency="USD", **queue)
    return FolderWorld(job=job(resources={"tpu": tpu}, **spec), profiles=[priced])


def _admitted() -> FolderWorld:
    world = _world()
    world.reconcile()
    return world


def _waiting(stage: Stage) -> FolderWorld:
    world = _world()
    world.waits(stage)
    return world


def _running(stage: Stage, **spec: Any) -> FolderWorld:
    world = _world(**spec)
    world.runs(stage)
    return world


def _ended(stage: Stage) -> FolderWorld:
    """The stage has succeeded, and the operator has not observed it yet."""
    world = _world()
    world.succeed(world.runs(stage))
    return world


def _failed(stage: Stage, code: int = 69) -> FolderWorld:
    world = _world()
    world.fail(world.runs(stage), code)
    return world


def _lingering(stage: Stage) -> FolderWorld:
    """The stage's result is written, and its processes have not ended."""
    world = _world()
    world.write_success(world.runs(stage))
    return world


def _killed() -> FolderWorld:
    world = _world()
    world.kill(world.runs(Stage.TRAIN))
    return world


def _restarted() -> FolderWorld:
    """JobSet has started training again after a preemption."""
    world = _world()
    name = world.runs(Stage.TRAIN)
    world.stop(name)
    world.reconcile()
    world.wait(60)
    world.run(name)
    world.train(name, 40)
    world.reconcile()
    return world


def _second(code: int = 69) -> FolderWorld:
    world = _world()
    name = world.runs(Stage.TRAIN)
    world.fail(name, code)
    world.reconcile()
    world.wait(60)
    world.runs(Stage.TRAIN, 40)
    return world


def _evicted() -> FolderWorld:
    """Kueue has evicted the training and suspended its JobSet."""
    world = _world(queued=True)
    reserved = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue tpu")
    for _ in range(20):
        world.reconcile()
        for name in world.live():
            world.workload(name, reserved, ("Admitted", "True", "Admitted", "The workload is admitted"))
            world.hold(name, held=False)
            world.run(name)
            if world.key_of(name).stage is Stage.TRAIN:
                world.train(name, 30)
                world.reconcile()
                world.wait(60)
                world.save(name)
                waits = ("QuotaReserved", "False", "Pending", "insufficient unused quota, 4 more needed")
                world.workload(name, waits, ("Evicted", "True", "Preempted", "it gave way"))
                world.hold(name, held=True)
                world.reconcile()
                return world
            world.succeed(name)
        world.wait(world.requeue_after or 1)
    raise AssertionError("training was not reached")


def _suspended() -> FolderWorld:
    world = _world()
    name = world.runs(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    world.stop(name)
    world.reconcile()
    return world


def _finished(code: int | None = None) -> FolderWorld:
    world = _world()
    name = world.runs(Stage.EXPORT)
    if code is None:
        world.succeed(name)
    else:
        world.fail(name, code)
    world.reconcile()
    assert world.finished
    return world


def _taken_over() -> FolderWorld:
    """A job that has taken over the run folder of a deleted job."""
    before = _running(Stage.TRAIN)
    wanted = job(resumeFrom={"runFolder": before.folders.run.uri})
    wanted["metadata"] |= {
        "name": "second", "uid": "9d0c1111-0000-4000-8000-000000000000", "creationTimestamp": "2026-11-21T12:30:00Z"
    }  # fmt: skip
    world = FolderWorld(
        job=wanted,
        profiles=before.profiles,
        attempts=before.attempts,
        progress=before.progress,
        cache=before.cache,
        checkpoint=before.checkpoint,
        now=before.now,
    )
    world.runs(Stage.TRAIN, 40)
    return world


_MOMENTS: dict[str, Callable[[], FolderWorld]] = {
    "admitted": _admitted,
    **{f"{stage} waits": partial(_waiting, stage) for stage in Stage},
    **{f"{stage} runs": partial(_running, stage) for stage in Stage},
    **{f"{stage} has ended": partial(_ended, stage) for stage in Stage},
    **{f"{stage} has failed": partial(_failed, stage) for stage in Stage},
    "Train lingers": partial(_lingering, Stage.TRAIN),
    "Export lingers": partial(_lingering, Stage.EXPORT),
    "Train has failed with bad data": partial(_failed, Stage.TRAIN, 65),
    "Train was killed": _killed,
    "Train was restarted": _restarted,
    "Train runs again": _second,
    "Train was evicted": _evicted,
    "Train runs on two hosts": partial(_running, Stage.TRAIN, tpu="v6e-8"),
    "Train runs without retries": partial(
        _running, Stage.TRAIN, recovery={"maxInfrastructureRetries": 0, "maxPreemptions": 0}
    ),
    "Train continues after a takeover": _taken_over,
    "suspended": _suspended,
    "succeeded": _finished,
    "failed": partial(_finished, 65),
}
MOMENTS = tuple(_MOMENTS)


@cache
def _reached(name: str) -> FolderWorld:
    world = _MOMENTS[name]()
    del world.reader
    return world


def at(moment: str) -> FolderWorld:
    """Returns a new copy of the world at that moment; its reader has read the run folder once."""
    world = copy.deepcopy(_reached(moment))
    world.restart_operator()
    world.observe()
    return world
