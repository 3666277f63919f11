"""Whole jobs while everything between operator and API server goes wrong, one request after the other.

A proxy (devcluster.faultproxy) stands between the two. Each new write of a job is struck once, and its repetition let
through, so that the job gets on and every write has its turn.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.faultproxy import Call, Fault, FaultProxy
from devcluster.testing import Cluster
from finetune_contract import RunFolder, Stage
from tests.integration import trainer_double, warm_operator
from tests.integration.invariants import nothing_doubled, told_once
from tests.integration.jobs import PROFILE, Object, await_file, job_path, jobset_path, jobsets, phase
from tests.integration.warm_operator import WarmOperator

#: Every how many reads of a job one is struck: reads are tried three times.
READS = 3


class Strikes:
    """Chooses which requests are struck, by the namespace of the job that they are about."""

    def __init__(self) -> None:
        self.writes: dict[str, Fault] = {}
        """Namespace (or the Lease's path) -> what happens to each new write there."""
        self.reads: dict[str, Fault] = {}
        self.struck: Counter[tuple[str, str, str]] = Counter()
        """Of each namespace: method and resource."""
        self._known: set[tuple[str, str, bytes]] = set()
        self._read: Counter[str] = Counter()

    def __call__(self, call: Call) -> Fault | None:
        faults = self.writes if call.writes else self.reads
        where = next((where for where in faults if where in call.path), None)
        if where is None:
            return None
        if call.writes:
            if call.what in self._known:
                return None
            self._known.add(call.what)
        else:
            self._read[where] += 1
            if self._read[where] % READS:
                return None
        self.struck[where, call.method, _resource(call.path)] += 1
        return faults[where]


def _resource(path: str) -> str:
    """`jobsets`, or `finetunejobs/status`."""
    parts = path.split("/")
    parts = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
    return "/".join(parts[::2])


class Bench:
    """The cluster, the proxy and the operator behind it."""

    def __init__(self, cluster: Cluster, proxy: FaultProxy, operator: WarmOperator, strikes: Strikes) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.operator = operator
        self.strikes = strikes


@pytest.fixture(scope="module")
def bench(cluster: Cluster, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    cluster.add_image(trainer_double.IMAGE, trainer_double.install(runs / "bin"))
    cluster.start("operator")
    cluster.apply(trainer_double.profile(PROFILE, runs))
    strikes = Strikes()
    folder = tmp_path_factory.mktemp("warm") / "operator"
    with (
        FaultProxy(cluster.state, cluster.ports["kube-apiserver"], strikes) as proxy,
        warm_operator.running(cluster, folder, proxy.port) as operator,
    ):
        yield Bench(cluster, proxy, operator, strikes)


def ended_well(cluster: Cluster, namespace: str) -> None:
    """As without any fault."""
    done = cluster.wait(job_path(namespace, "job"), phase("Succeeded", "Failed"), seconds=180)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert jobsets(cluster, namespace) == sorted(f"job-{stage.short}-1" for stage in Stage)
    attempts = done["status"]["attempts"]
    assert (attempts["total"], attempts["preemption"], attempts["infrastructure"], attempts["user"]) == (5, 0, 0, 0)
    told_once(cluster, namespace)


@pytest.mark.parametrize("done", [False, True])
def test_an_operator_that_is_killed_at_every_write(bench: Bench, namespace: str, done: bool) -> None:
    """Before the API server has seen it, or before its answer is there."""
    death = Fault(done=done, act=bench.operator.kill)
    before = bench.operator.starts
    with nothing_doubled(bench.cluster):
        bench.strikes.writes |= {namespace: death, "/leases/": death}
        bench.cluster.apply(trainer_double.job(namespace, "job", PROFILE))
        ended_well(bench.cluster, namespace)
        bench.strikes.writes.clear()
    struck = {(method, resource) for where, method, resource in bench.strikes.struck if where == namespace}
    assert struck == {("POST", "configmaps"), ("POST", "jobsets"), ("POST", "events"), ("PATCH", "finetunejobs/status")}
    print(bench.strikes.struck, bench.operator.starts - before)
    assert bench.strikes.struck[namespace, "POST", "jobsets"] == len(Stage)
    assert bench.operator.starts - before >= sum(
        number for (where, _, _), number in bench.strikes.struck.items() if where == namespace
    )
