"""Complete jobs while faults are injected into the requests between operator and API server, one after the other.

A proxy (tests.doubles.faultproxy) connects the two. Each new write for a job gets a fault once, and its retry passes,
so that the job progresses and a fault is injected into every write.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from finetune_contract import RunFolder, Stage
from tests.doubles.faultproxy import FaultProxy, InjectedFault, ProxiedRequest
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer, warm_operator
from tests.integration.invariants import assert_events_once, nothing_doubled
from tests.integration.jobs import PROFILE, Object, await_file, charged, job_path, jobset_path, jobsets, phase
from tests.integration.warm_operator import WarmOperator

#: The writes that a job needs: method and resource.
EVERY_WRITE = {
    ("POST", "configmaps"),
    ("POST", "jobsets"),
    ("POST", "events"),
    ("PATCH", "finetunejobs/status"),
}
JOBS = "/apis/tpu-finetune.dev/v1alpha1/finetunejobs"
PROFILES = "/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles"
JOBSETS, PODS = "/apis/jobset.x-k8s.io/v1alpha2/jobsets", "/api/v1/pods"
#: Seconds by which a late watch is behind, longer than most stages of a test.
LATE = 2.0
#: One in this many reads of a job gets a fault: each read is tried three times.
READS = 3


type Struck = Counter[tuple[str, str]]


class Strikes:
    """Chooses the requests that get a fault."""

    def __init__(self) -> None:
        self._writes: Mapping[str, InjectedFault] = {}
        self._reads: Mapping[str, InjectedFault] = {}
        self._struck = Counter()
        self._known: set[tuple[str, str, bytes]] = set()
        self._read: Counter[str] = Counter()

    @contextmanager
    def on(
        self, *, writes: Mapping[str, InjectedFault], reads: Mapping[str, InjectedFault] = {}
    ) -> Iterator[Struck]:
        """Injects faults during the block. Yields the number of injected faults by method and resource.

        ``writes``: part of a path or body -> fault for each new write that contains it. ``reads``: part of a path ->
        fault for every third read that contains it.
        """
        self._struck, self._known, self._read = Counter(), set(), Counter()
        self._writes, self._reads = writes, reads
        yield self._struck
        self._writes, self._reads = {}, {}

    def __call__(self, call: ProxiedRequest) -> InjectedFault | None:
        faults = self._writes if call.writes else self._reads
        # A job's plan is written to the operator's namespace, and its body names the job's namespace.
        body = call.body if call.writes else b""
        where = next((each for each in faults if each in call.path or each.encode() in body), None)
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
        self._struck[call.method, _resource(call.path)] += 1
        return faults[where]


def _resource(path: str) -> str:
    """The resource that a path names, for example `jobsets` or `finetunejobs/status`."""
    parts = path.split("/")
    parts = parts[parts.index("namespaces") + 2 :] if "namespaces" in parts else parts[-1:]
    return "/".join(parts[::2])


@dataclass(frozen=True, slots=True)
class Bench:
    """The cluster, the proxy, and the operator that is connected through it."""

    cluster: LocalCluster
    proxy: FaultProxy
    operator: WarmOperator
    strikes: Strikes


@pytest.fixture(scope="module")
def bench(cluster: LocalCluster, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "bin"))
    cluster.start("operator")
    cluster.apply(fake_trainer.profile(PROFILE, runs))
    strikes = Strikes()
    folder = tmp_path_factory.mktemp("warm") / "operator"
    with (
        FaultProxy(cluster.state, cluster.ports["kube-apiserver"], strikes) as proxy,
        warm_operator.running(cluster, folder, proxy.port) as operator,
    ):
        yield Bench(cluster, proxy, operator, strikes)


def ended_well(cluster: LocalCluster, namespace: str) -> None:
    """Waits for the end of the job and asserts that it is the same as without any fault."""
    done = cluster.wait(job_path(namespace, "job"), phase("Succeeded", "Failed"), seconds=180)
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert jobsets(cluster, namespace) == sorted(f"job-{stage.short}-1" for stage in Stage)
    assert charged(done) == {"preemption": 0, "infrastructure": 0, "user": 0}
    assert done["status"]["attempts"]["total"] == len(Stage)
    assert_events_once(cluster, namespace, "Checked", "Proven", "Succeeded")


@pytest.mark.parametrize("done", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_an_operator_that_is_killed_at_every_write_makes_nothing_twice(
    bench: Bench, namespace: str, done: bool
) -> None:
    """The operator is killed before the API server receives a write, or before the operator receives the answer."""
    death = InjectedFault(done=done, act=bench.operator.kill)
    before = bench.operator.starts
    with (
        nothing_doubled(bench.cluster),
        bench.strikes.on(writes={namespace: death, "/leases/": death}) as struck,
    ):
        bench.cluster.apply(fake_trainer.job(namespace, "job", PROFILE))
        ended_well(bench.cluster, namespace)
    assert struck.keys() >= EVERY_WRITE | {("PATCH", "leases")}
    assert struck["POST", "jobsets"] == len(Stage)
    # A renewal of the Lease can coincide with another write: one kill may interrupt both.
    assert bench.operator.starts - before >= struck.total() - struck["PATCH", "leases"]


#: Name -> fault for each write, and for every third read. An API server never answers a read with 409.
ANSWERS: dict[str, tuple[InjectedFault, InjectedFault | None]] = {
    "too-many": (InjectedFault(done=False, status=429, retry_after=1), InjectedFault(done=False, status=429)),
    "conflict": (InjectedFault(done=False, status=409), None),
    "broken": (InjectedFault(done=False, status=500), InjectedFault(done=False, status=500)),
    "broken-late": (InjectedFault(done=True, status=500), None),
    "reset": (InjectedFault(done=False), InjectedFault(done=False)),
    "reset-late": (InjectedFault(done=True), InjectedFault(done=True)),
}


def test_whatever_is_answered_to_a_request_jobs_come_to_their_end(bench: Bench) -> None:
    """One job for each kind of answer, all at the same time."""
    cluster = bench.cluster
    spaces = {name: cluster.namespace(name) for name in ANSWERS}
    before = bench.operator.starts
    with (
        nothing_doubled(cluster),
        bench.strikes.on(
            writes={space: ANSWERS[name][0] for name, space in spaces.items()},
            reads={space: fault for name, space in spaces.items() if (fault := ANSWERS[name][1])},
        ) as struck,
    ):
        for space in spaces.values():
            cluster.apply(fake_trainer.job(space, "job", PROFILE))
        for space in spaces.values():
            ended_well(cluster, space)
    assert struck.keys() >= EVERY_WRITE | {("GET", "finetunejobs"), ("GET", "pods"), ("GET", "jobsets")}
    assert struck["POST", "jobsets"] == len(Stage) * len(spaces)
    assert bench.operator.starts == before


@pytest.mark.parametrize(
    "late",
    [
        *(pytest.param(each, marks=pytest.mark.thorough) for each in [(JOBS,), (JOBSETS,), (PODS,)]),
        (JOBS, JOBSETS, PODS),
    ],
)
def test_whichever_watch_is_late_jobs_come_to_their_end(bench: Bench, late: tuple[str, ...]) -> None:
    """While requests fail as well, and the late watches are reset between."""
    cluster, proxy = bench.cluster, bench.proxy
    spaces = {name: cluster.namespace(name) for name in ("conflict", "broken-late", "reset-late")}
    # The delay holds for what a watch delivers from now on, and for all of a new one.
    proxy.delay(dict.fromkeys(late, LATE))
    try:
        with (
            nothing_doubled(cluster),
            bench.strikes.on(writes={space: ANSWERS[name][0] for name, space in spaces.items()}),
        ):
            for space in spaces.values():
                cluster.apply(fake_trainer.job(space, "job", PROFILE))
            for space, watched in zip(spaces.values(), (*late, *late, *late), strict=False):
                ended_well(cluster, space)
                proxy.cut(watched)
    finally:
        proxy.delay({})


def test_a_job_is_admitted_under_the_profile_as_it_was_when_the_job_was_created(
    bench: Bench, namespace: str, runs: Path
) -> None:
    """Its plan is immutable: no later event of the profile corrects it."""
    cluster = bench.cluster
    later = fake_trainer.IMAGE.replace("test", "later")
    cluster.add_image(later, fake_trainer.install(runs / "bin"))
    # The operator watches once it has admitted a job.
    cluster.apply(fake_trainer.job(namespace, "first", PROFILE, planOnly=True))
    cluster.wait(job_path(namespace, "first"), phase("Planned", "Succeeded"))
    bench.proxy.delay({PROFILES: 10 * LATE})
    try:
        cluster.patch(f"{PROFILES}/{PROFILE}", {"spec": {"images": {"trainer": later}}})
        cluster.apply(fake_trainer.job(namespace, "job", PROFILE, planOnly=True))
        jobset = cluster.wait(jobset_path(namespace, "job-prep-1"), lambda _: True)
    finally:
        bench.proxy.delay({})
        bench.proxy.cut(PROFILES)
        cluster.apply(fake_trainer.profile(PROFILE, runs))
    assert later in json.dumps(jobset["spec"])


def test_jobs_that_are_deleted_at_once_leave_nothing(bench: Bench, namespace: str) -> None:
    """The watch of jobs is late, so the operator starts jobs that no longer exist."""
    cluster, names = bench.cluster, [f"brief-{number}" for number in range(8)]
    bench.proxy.delay({JOBS: LATE})
    uids = []
    try:
        for name in names:
            made = cluster.apply(fake_trainer.job(namespace, name, PROFILE))
            uids.append(made["metadata"]["uid"])
            cluster.delete(job_path(namespace, name))
        # Its event follows theirs.
        cluster.apply(fake_trainer.job(namespace, "last", PROFILE, planOnly=True))
        cluster.wait(job_path(namespace, "last"), phase("Planned", "Succeeded"))
    finally:
        bench.proxy.delay({})
    for name, uid in zip(names, uids, strict=True):
        cluster.wait_gone(jobset_path(namespace, f"{name}-prep-1"))
        cluster.wait_gone(f"/api/v1/namespaces/finetune-system/configmaps/finetune-plan-{uid}")


def test_a_child_that_vanished_in_a_gap_of_the_watches_is_missed(
    bench: Bench, namespace: str, runs: Path
) -> None:
    """The server no longer has the watches' resource version (410), and their next list does not contain the child."""
    cluster, proxy = bench.cluster, bench.proxy
    slow = fake_trainer.install(runs / "gap", seconds=3600, stages=[Stage.CONVERT])
    cluster.add_image(fake_trainer.IMAGE, slow)
    cluster.apply(fake_trainer.job(namespace, "job", PROFILE))
    found = cluster.wait(
        job_path(namespace, "job"),
        lambda job: job.get("status", {}).get("stage") == "Convert",
    )
    await_file(RunFolder(found["status"]["resolved"]["runFolder"]).request("conv", 1))
    for watched in (JOBSETS, PODS):
        proxy.forget(watched)
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "bin"))
    cluster.delete(jobset_path(namespace, "job-conv-1"))
    cluster.wait_gone(jobset_path(namespace, "job-conv-1"))
    for watched in (JOBSETS, PODS):
        proxy.remember(watched)
    done = cluster.wait(job_path(namespace, "job"), phase("Succeeded", "Failed"))
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert charged(done) == {"preemption": 0, "infrastructure": 1, "user": 0}
    assert "job-conv-2" in jobsets(cluster, namespace)


def test_a_clock_that_is_set_on_the_operators_machine_costs_nothing(
    bench: Bench, namespace: str, runs: Path
) -> None:
    """The operator's clock is an hour ahead, then an hour behind: no deadline expires early, no budget is charged."""
    cluster, path = bench.cluster, job_path(namespace, "job")
    slow = fake_trainer.install(runs / "clock", seconds=3600, stages=[Stage.TRAIN])
    cluster.add_image(fake_trainer.IMAGE, slow)
    limits: Object = {"activeDeadlineSeconds": 600, "preRunningDeadlineSeconds": 600}
    limits["hangPolicy"] = {"startupSeconds": 600, "noStepSeconds": 600}
    cluster.apply(fake_trainer.job(namespace, "job", PROFILE, **limits))
    cluster.wait(path, lambda job: phase("Running")(job) and job["status"]["stage"] == "Train")
    began = datetime.now(UTC) - timedelta(minutes=10)
    try:
        for number, hours in enumerate((1, -1), start=1):
            bench.operator.set_clock(timedelta(hours=hours))
            # An edit causes a reconcile, with the new clock.
            cluster.patch(path, {"spec": {"childTTLSecondsAfterFinished": 100_000 + number}})
            cluster.wait(
                path, lambda job: job["status"]["observedGeneration"] == job["metadata"]["generation"]
            )
            assert cluster.get(path)["status"]["phase"] == "Running"
            # A new operator process also reconciles, with the new clock from the start.
            bench.operator.kill()
        cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "bin"))
        cluster.delete(jobset_path(namespace, "job-train-1"))
        done = cluster.wait(path, phase("Succeeded", "Failed"))
    finally:
        bench.operator.set_clock(timedelta())
    assert done["status"]["phase"] == "Succeeded", done["status"]["summary"]
    assert charged(done) == {"preemption": 0, "infrastructure": 1, "user": 0}
    stamps = [each["lastTransitionTime"] for each in done["status"]["conditions"]]
    stamps += [done["status"][name] for name in ("startTime", "completionTime")]
    assert all(began < datetime.fromisoformat(each) < began + timedelta(minutes=20) for each in stamps)
