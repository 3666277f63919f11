"""A burst beside jobs that are invalid and jobs whose run folders hold garbage: what they cost the other jobs.

An invalid job is created for each ten valid jobs, and for each hundred a job whose first stage leaves garbage: this
program writes it into the run folder as soon as the first JobSet exists, and then completes that JobSet.
"""

import asyncio
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.measure import stage_request
from tests.bench.scale.comparison import fresh_namespace, names, phase_table, report
from tests.bench.scale.load import Run, completed, jobset_path, median_of
from tests.bench.scale.measure import Phase, settled
from tests.bench.scale.systems import JOB_LABEL, FineTuneOperator
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import condition_of

#: Of so many valid jobs, one is preceded by an invalid job, and one by a job whose run folder holds garbage.
_INVALID_EVERY, _GARBAGE_EVERY = 10, 100
#: What makes a job invalid although the API server accepts it -> the reason that its condition Valid has.
INVALID: Sequence[tuple[Object, str]] = (
    ({"profileRef": {"name": "nowhere"}}, "ProfileNotFound"),
    ({"datasets": {"train": [{"uri": "file:///data/pairs.jsonl", "format": "Preference"}]}}, "InvalidSpec"),
    ({"resources": {"tpu": "v6e-3"}}, "UnknownTPU"),
    ({"model": {"fromJob": {"name": "nowhere"}}}, "SourceJobNotFound"),
    ({"resources": {"tpu": "v6e-4", "parallelism": {"fsdp": 3}}}, "ParallelismMismatch"),
)
#: Contents of a record: no JSON, more than the operator reads, too deep for the parser, and values of wrong types.
_CONTENTS = (
    "Traceback (most recent call last):\n",
    json.dumps({"evidence": "x" * 10_000_000}),
    "[" * 100_000 + "]" * 100_000,
    json.dumps({"stage": 1, "attempt": "first", "outcome": {}, "started": [], "details": "none"}),
)
_RESULT, _TAKEOVER = "attempts/prep-1/result.json", "attempts/taken-over-00000000.json"
_FILES = (_RESULT, _TAKEOVER)
#: What the status shows: a result that cannot be parsed fails its attempt; because of a record of a takeover, which is
#: named, the whole folder is unreadable.
_SHOWN = {_RESULT: "ResultMalformed", _TAKEOVER: _TAKEOVER}
#: Each content, alternately in both files, then the other way round.
GARBAGE = tuple(
    (_FILES[(number + other) % 2], content)
    for other in range(len(_FILES))
    for number, content in enumerate(_CONTENTS)
)
_WARM_UP = 20
_SETTLE_SECONDS = 600
_SHOWN_SECONDS = 120


async def measure(
    cluster: LocalCluster, system: FineTuneOperator, *, jobs: int, runs: int
) -> Mapping[str, float]:
    """Measures a burst alone and beside faulty jobs, by turns; the medians of several runs."""
    alone: list[Phase] = []
    beside: list[Phase] = []
    hidden = 0
    async with Kube.of(cluster.kubeconfig) as kube:
        await asyncio.to_thread(system.start)
        # The first burst after a start is slower.
        await _alone(cluster, system, kube, _WARM_UP)
        for number in range(runs):
            for faulty in (False, True) if number % 2 == 0 else (True, False):
                await settled(cluster, seconds=_SETTLE_SECONDS)
                if faulty:
                    phase, wrong = await _beside(cluster, system, kube, jobs)
                    beside.append(phase)
                    hidden += wrong
                else:
                    alone.append(await _alone(cluster, system, kube, jobs))
        await asyncio.to_thread(system.stop)
    print(f"\nburst of {jobs:,} jobs, create → first JobSet, with faulty jobs among them\n")
    phase_table({"alone": median_of(alone), "beside faulty jobs": median_of(beside)})
    pairs = list(zip(alone, beside, strict=True))
    return {
        "faulty: rate of the others against none": statistics.median(
            after.rate / before.rate for before, after in pairs
        ),
        "faulty: p99 of the others against none": statistics.median(
            after.percentile(0.99) / before.percentile(0.99) for before, after in pairs
        ),
        "faulty: faults that the status does not show": hidden,
    }


async def _alone(cluster: LocalCluster, system: FineTuneOperator, kube: Kube, jobs: int) -> Phase:
    async with (
        fresh_namespace(cluster, kube) as namespace,
        Run(cluster, system, kube, namespace, names(jobs)) as run,
    ):
        _, phase = await run.burst()
    report(f"alone: {phase.row()}")
    return phase


async def _beside(
    cluster: LocalCluster, system: FineTuneOperator, kube: Kube, jobs: int
) -> tuple[Phase, int]:
    """Returns the phase of the valid jobs, and how many of the others do not show their fault."""
    async with (
        fresh_namespace(cluster, kube) as namespace,
        Run(cluster, system, kube, namespace, names(jobs)) as run,
        asyncio.TaskGroup() as group,
    ):
        faults = _Faults(system, kube, namespace, jobs)
        spoiling = group.create_task(faults.spoil())
        _, phase = await run.burst(before=faults.create_due)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_SECONDS):
                await run.until(faults.shown, faults.names)
        spoiling.cancel()
        hidden = [name for name in faults.names if not faults.shown(run.jobs[name])]
        for name in hidden:
            summary = run.jobs[name].get("status", {}).get("summary", "")
            report(f"faulty: {name}: {faults.expected(name)!r} is not in its status: {summary[:200]}")
    report(f"beside {len(faults.names)} faulty jobs: {phase.row()}")
    return phase, len(hidden)


class _Faults:
    """The faulty jobs of one run.

    Args:
        system: the operator.
        kube: an administrator's client.
        namespace: of the jobs.
        jobs: number of valid jobs.
    """

    def __init__(self, system: FineTuneOperator, kube: Kube, namespace: str, jobs: int) -> None:
        self._system = system
        self._kube = kube
        self._namespace = namespace
        self._created = 0
        self._invalid = {
            f"invalid-{number}": each
            for number, each in zip(range(0, jobs, _INVALID_EVERY), cycle(INVALID), strict=False)
        }
        self._garbage = {
            f"garbage-{number}": each
            for number, each in zip(range(0, jobs, _GARBAGE_EVERY), cycle(GARBAGE), strict=False)
        }
        self.names = (*self._invalid, *self._garbage)

    async def create_due(self) -> None:
        """Creates the faulty jobs that precede the next valid one."""
        number, self._created = self._created, self._created + 1
        for name in (f"invalid-{number}", f"garbage-{number}"):
            if name in self.names:
                manifest = self._system.manifest(self._namespace, name)
                manifest["spec"] |= self._invalid[name][0] if name in self._invalid else {}
                await self._kube.create(self._system.jobs.format(self._namespace), manifest)

    async def spoil(self) -> None:
        """Puts the garbage into the run folders and completes the first JobSets of these jobs, until canceled."""
        left = set(self._garbage)
        path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{self._namespace}/jobsets"
        # Without JobSets of the valid jobs, which this process already watches.
        selector = f"{JOB_LABEL} in ({','.join(left)})"
        async for event in self._kube.watch(path, labelSelector=selector):
            for jobset in event.objects:
                name = self._system.job_of(jobset)
                if name in left:
                    left.remove(name)
                    file, content = self._garbage[name]
                    await asyncio.to_thread(fake_trainer.write, {f"{_run_folder(jobset)}/{file}": content})
                    await self._kube.patch(f"{jobset_path(jobset)}/status", {"status": completed()})

    def expected(self, name: str) -> str:
        """Returns what the status of a faulty job has to contain: the reason, or the name of the file."""
        return self._invalid[name][1] if name in self._invalid else _SHOWN[self._garbage[name][0]]

    def shown(self, job: Object) -> bool:
        """Whether the status of a faulty job shows its fault."""
        name = job["metadata"]["name"]
        if name in self._garbage:
            return self.expected(name) in json.dumps(job.get("status"))
        valid = condition_of(job, "Valid")
        return (valid.get("status"), valid.get("reason")) == ("False", self.expected(name))


def _run_folder(jobset: Object) -> str:
    template = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return stage_request(template["spec"]).run_folder
