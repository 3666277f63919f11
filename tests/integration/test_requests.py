"""How many requests a job costs on the real API server, with many jobs at once; their time is not considered.

The control plane is one of this module's own, without scheduler, node agent and JobSet's controller: this program
completes JobSets in their place, as the benchmark of scale does.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from devcluster.kube import Kube
from finetune_contract import Stage
from tests.bench.measure import operator_requests
from tests.bench.scale.load import Run, without_controllers
from tests.bench.scale.systems import FineTuneOperator
from tests.doubles.local_cluster import LocalCluster
from tests.integration.jobs import Object

BURST = 200
#: Jobs that go through all stages.
THROUGH = 20
#: What is requested whatever the number of jobs is, and the store.
SHARED = ("leases", "finetuneprofiles", "finetuneprofiles/status", "in the run folder")
READS = ("get", "list")

type Counts = tuple[Counter[str], Counter[str]]
"""Reads and writes of one job."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, FineTuneOperator]]:
    """A cluster of API server and controller manager, with the operator."""
    folder = tmp_path_factory.mktemp("requests")
    with LocalCluster.started(folder / "cluster", warm=False) as cluster:
        without_controllers(cluster)
        system = FineTuneOperator(cluster, folder)
        system.start()
        yield cluster, system


class Requests:
    """The operator's requests since the last reading."""

    def __init__(self, cluster: LocalCluster, jobs: int) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._before = operator_requests(cluster)

    async def per_job(self) -> Counts:
        """Returns reads and writes of the API server for each job, by ``verb resource``.

        They are rounded, because a conflict may repeat the requests of single jobs.
        """
        after = await asyncio.to_thread(operator_requests, self._cluster)
        spent, self._before = after - self._before, after
        reads, writes = Counter[str](), Counter[str]()
        for name, number in spent.items():
            verb, _, resource = name.partition(" ")
            if resource not in SHARED:
                (reads if verb in READS else writes)[name] += round(number / self._jobs)
        return +reads, +writes


def succeeded(number: int) -> Callable[[Object], bool]:
    """Returns a predicate: the job's status shows that so many of its stages have succeeded."""

    def holds(job: Object) -> bool:
        stages = job["status"].get("stages", [])
        return bool(stages) and sum(each["phase"] == "Succeeded" for each in stages) == number

    return holds


async def counts(cluster: LocalCluster, system: FineTuneOperator, jobs: int, stages: int) -> list[Counts]:
    """Creates jobs at once. Returns the requests until their first JobSets, and until each of ``stages`` has succeeded
    and the next one has its JobSet."""
    namespace = await asyncio.to_thread(cluster.namespace)
    names = [f"j{number}" for number in range(jobs)]
    found = []
    async with (
        Kube.of(cluster.kubeconfig) as kube,
        Run(cluster, system, kube, namespace, names) as run,
    ):
        requests = await asyncio.to_thread(Requests, cluster, jobs)
        await run.burst()
        for number in range(stages + 1):
            if number > 0:
                await run.complete()
            await run.until(succeeded(number))
            found.append(await requests.per_job())
    return found


def test_each_stage_costs_at_most_one_read_and_three_writes(
    ours: tuple[LocalCluster, FineTuneOperator],
) -> None:
    # Before the burst, whose jobs stay unfinished: those without pods are observed again from time to time.
    _, *by_stage = asyncio.run(counts(*ours, THROUGH, stages=len(Stage)))
    assert [writes["create jobsets"] for _, writes in by_stage] == [1, 1, 1, 1, 0]
    assert [(reads, writes) for reads, writes in by_stage if reads.total() > 1 or writes.total() > 3] == []


def test_a_job_of_a_burst_costs_at_most_one_read_and_four_writes_until_its_first_jobset(
    ours: tuple[LocalCluster, FineTuneOperator],
) -> None:
    before = operator_requests(ours[0])
    ((reads, writes),) = asyncio.run(counts(*ours, BURST, stages=0))
    spent = operator_requests(ours[0]) - before
    assert spent["list finetuneprofiles"] + spent["list resourcequotas"] <= BURST / 4
    assert reads.total() <= 1, reads
    assert writes["create jobsets"] == 1
    assert writes.total() <= 4, writes
