"""Alerts, dashboards and the series of single jobs on a real Prometheus and a real kube-state-metrics.

Each fault is a real one. Its alert is silent before, fires while the fault lasts, and resolves afterwards unless that
takes a window of minutes. Prometheus runs the shipped rules with shorter times (monitoring.shortened); thresholds are
the shipped ones. The operator finds the API server through a proxy that injects faults.

Not produced by a real fault: a month that the ledger does not know (finetune_ledger_unread, half of
FinetuneLedgerErrors), and the hang of a real training: the fake trainer stands still instead.

The tests of the dashboards come last: some panels have series only after the faults.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import ExitCode, RunFolder, Stage
from finetune_operator.api.timestamps import stamp
from finetune_operator.runtime.change_metrics import HELD_SECONDS
from tests.dashboards import documented_queries, panel_queries
from tests.doubles.faultproxy import FaultProxy, InjectedFault, ProxiedRequest
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer, monitoring
from tests.integration.jobs import Object, await_file, condition, job_path, phase
from tests.integration.monitoring import KubeStateMetrics, Prometheus
from tests.integration.training import processes

pytestmark = [
    pytest.mark.thorough,
    # kube-state-metrics is built on first use.
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        monitoring.PROGRAM is None, reason="prometheus is missing (apt-get install prometheus)"
    ),
]

PODS = "/api/v1/pods"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/finetune-system/leases/finetune-operator"
PROFILES = "/apis/tpu-finetune.dev/v1alpha1/finetuneprofiles"
PROFILE = "monitored"
#: More jobs of one namespace than are reconciled before the first ones fail twice: 8 at a time, 30 s each.
MANY = 80


class Refusals:
    """Refuses writes that contain a text, while there is one."""

    text = ""

    def __call__(self, call: ProxiedRequest) -> InjectedFault | None:
        if self.text and call.writes and (self.text in call.path or self.text.encode() in call.body):
            return InjectedFault(done=False, status=500)
        return None

    @contextmanager
    def of(self, text: str) -> Iterator[None]:
        self.text = text
        try:
            yield
        finally:
            self.text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A cluster that is monitored."""

    cluster: LocalCluster
    proxy: FaultProxy
    refusals: Refusals
    prometheus: Prometheus
    series: KubeStateMetrics
    runs: Path

    def profile(self, name: str, **spec: object) -> str:
        """A profile with prices; ``spec`` replaces fields of its spec."""
        made: Object = fake_trainer.profile(name, self.runs)
        made["spec"]["flavors"][0]["chipHourPrice"] = 2
        made["spec"] |= spec
        self.cluster.apply(made)
        return name

    def trainer(self, name: str, **options: Any) -> None:
        """Attempts that start from now on run this fake trainer."""
        self.cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(self.runs / name, **options))

    def apply(self, name: str, namespace: str | None = None, profile: str = PROFILE, **spec: object) -> str:
        """Applies a job, on four chips, in a namespace of its own if none is given. Returns its path."""
        place = namespace or self.cluster.namespace(name)
        spec.setdefault("resources", {"tpu": "v6e-4"})
        self.cluster.apply(fake_trainer.job(place, name, profile, **spec))
        return job_path(place, name)

    def trains(self, path: str) -> Object:
        """Returns the job once its training runs."""
        return self.cluster.wait(
            path, lambda job: phase("Running")(job) and job["status"]["stage"] == "Train", seconds=90
        )

    def ends(self, path: str, *phases: str) -> Object:
        done = self.cluster.wait(path, phase("Succeeded", "Failed"), seconds=180)
        assert done["status"]["phase"] in phases, done["status"]["summary"]
        return done


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster of its own: jobs that other tests leave behind would fire alerts, too."""
    folder, refusals = tmp_path_factory.mktemp("monitoring"), Refusals()
    metrics, telemetry, web = free_ports(3)
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster.started(folder / "cluster", operator=True, warm=False))
        proxy = stack.enter_context(FaultProxy(cluster.state, cluster.ports["kube-apiserver"], refusals))
        stack.enter_context(cluster.operator_connected(proxy.port))
        series = stack.enter_context(
            monitoring.kube_state_metrics(cluster, folder / "series", (metrics, telemetry))
        )
        running = stack.enter_context(
            monitoring.prometheus(
                folder / "prometheus",
                web,
                operator=cluster.ports["operator-metrics"],
                kube_state_metrics=metrics,
            )
        )
        made = Site(
            cluster=cluster,
            proxy=proxy,
            refusals=refusals,
            prometheus=running,
            series=series,
            runs=folder / "runs",
        )
        made.profile(PROFILE)
        yield made


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in opened:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in opened]


def release(job: Object) -> None:
    """Lets the job's waiting stage continue."""
    for pid in processes(job["metadata"]["uid"]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, fake_trainer.RELEASE)


# --- the series of single jobs


def value(site: Site, path: str, name: str, **labels: str) -> float | None:
    """The value of a job's series with such labels, as kube-state-metrics serves it; None if there is none."""
    namespace, job = path.split("/")[5], path.split("/")[7]
    found = [
        sample.value
        for sample in site.series.samples(job, namespace)
        if sample.name == f"finetune_job_{name}" and labels.items() <= sample.labels.items()
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def shows(site: Site, path: str, name: str, expected: float, **labels: str) -> None:
    """Returns once the series has the value. Prometheus is asked, since it looks each second."""
    namespace, job = path.split("/")[5], path.split("/")[7]
    selected = ", ".join(
        f'{label}="{each}"' for label, each in {"namespace": namespace, "name": job, **labels}.items()
    )
    expr = f"finetune_job_{name}{{{selected}}}"
    deadline = datetime.now(UTC).timestamp() + 60
    while [found for _, found in site.prometheus.query(expr)] != [expected]:
        assert datetime.now(UTC).timestamp() < deadline, (expr, expected, site.prometheus.query(expr))


def test_the_series_of_a_job_follow_its_status_and_no_alert_fires_while_all_is_well(site: Site) -> None:
    site.trainer("measured", seconds=3600, stages=[Stage.TRAIN], measured=True)
    path = site.apply("watched", budget={"maxCost": 100})
    running = site.trains(path)
    shows(site, path, "phase", 1, phase="Running")
    shows(site, path, "phase", 0, phase="Succeeded")
    shows(site, path, "stage", 1, stage="Train")
    shows(site, path, "condition", 1, condition="Valid")
    run = RunFolder(running["status"]["resolved"]["runFolder"])
    await_file(run.request("train", 1))
    report = fake_trainer.progress(1, 7, datetime.now(UTC), measured=True)
    fake_trainer.write({run.progress: report.to_json()})
    shows(site, path, "steps", 7)
    for name, expected in {
        "steps_planned": fake_trainer.STEPS, "loss": 1.25, "tokens_per_second": 4000, "mfu_percent": 40,
        "step_time_p50_milliseconds": 500, "step_time_p95_milliseconds": 750, "chips": 4, "compilations": 3,
        "compilation_seconds": 2, "goodput_productive_seconds": 3,
    }.items():  # fmt: skip
        assert value(site, path, name) == expected, name
    assert value(site, path, "info", profile=PROFILE, tpu="v6e-4", capacity="OnDemand") == 1
    seen = running["status"]["startTime"]
    assert value(site, path, "start_time_seconds") == datetime.fromisoformat(seen).timestamp()
    release(running)
    done = site.ends(path, "Succeeded")
    shows(site, path, "phase", 1, phase="Succeeded")
    shows(site, path, "phase", 0, phase="Running")
    end = datetime.fromisoformat(done["status"]["completionTime"]).timestamp()
    assert value(site, path, "completion_time_seconds") == end
    assert value(site, path, "attempts") == len(Stage)
    cost = site.cluster.get(path)["status"]["cost"]
    amount = value(site, path, "cost", currency="USD")
    hours, remaining = (value(site, path, name) for name in ("chip_hours", "budget_remaining"))
    # kube-state-metrics reads decimals as quantities: an integer times a power of ten, which may round.
    assert [amount, hours, remaining] == pytest.approx(
        [float(cost[name]) for name in ("amount", "chipHours", "budgetRemaining")], rel=1e-12
    )
    for stage in Stage:
        assert value(site, path, "stage_completion_time_seconds", stage=stage) is not None, stage
    assert site.prometheus.firing() == []


def test_the_series_of_a_deleted_job_end(site: Site) -> None:
    site.trainer("bin")
    path = site.apply("brief", planOnly=True)
    site.cluster.wait(path, phase("Planned"), seconds=60)
    shows(site, path, "phase", 1, phase="Planned")
    site.cluster.delete(path)
    site.cluster.wait_gone(path)
    deadline = datetime.now(UTC).timestamp() + 30
    while value(site, path, "phase", phase="Planned") is not None:
        assert datetime.now(UTC).timestamp() < deadline


# --- faults


def test_an_operator_that_is_gone(site: Site) -> None:
    site.prometheus.resolves("FinetuneOperatorNotLeading", seconds=0)
    site.cluster.stop("operator")
    site.prometheus.fires("FinetuneOperatorNotLeading")
    site.cluster.start("operator")
    site.prometheus.resolves("FinetuneOperatorNotLeading")


def test_a_lease_that_another_holds(site: Site) -> None:
    """A holder that renews nothing: the operator takes the Lease back 15 s later."""
    site.prometheus.resolves("FinetuneOperatorNotLeading", seconds=0)
    lease = site.cluster.get(LEASE)["spec"]
    stolen = lease | {"holderIdentity": "another", "renewTime": f"{stamp(datetime.now(UTC))[:-1]}.000000Z"}
    site.cluster.patch(LEASE, {"spec": stolen})
    site.prometheus.fires("FinetuneOperatorNotLeading", seconds=30)
    # The alert has other labels while no process runs, and is pending anew when one does.
    site.cluster.await_ready("operator")
    site.prometheus.resolves("FinetuneOperatorNotLeading")


def test_a_watch_that_delivers_nothing(site: Site) -> None:
    site.prometheus.resolves("FinetuneWatchOld", seconds=0)
    site.proxy.forget(PODS)
    try:
        site.prometheus.fires("FinetuneWatchOld", seconds=150, watch="pods")
    finally:
        site.proxy.remember(PODS)
    site.prometheus.resolves("FinetuneWatchOld")


def test_more_jobs_than_an_api_server_that_does_not_respond_lets_the_operator_reconcile(site: Site) -> None:
    site.prometheus.resolves("FinetuneQueueOld", seconds=0)
    namespace = site.cluster.namespace("queue")
    with site.proxy.held(namespace):
        for number in range(MANY):
            site.apply(f"job-{number}", namespace, planOnly=True)
        site.prometheus.fires("FinetuneQueueOld", seconds=150)
        site.cluster.kubectl("delete", "finetunejobs", "--all", "-n", namespace)
    site.prometheus.resolves("FinetuneQueueOld", seconds=120)


def test_reconciles_that_fail(site: Site) -> None:
    # The faults of earlier tests have fired it, too.
    site.prometheus.resolves("FinetuneReconcileErrors", seconds=120)
    namespace = site.cluster.namespace("errors")
    with site.refusals.of(namespace):
        for number in range(4):
            site.apply(f"job-{number}", namespace, planOnly=True)
        site.prometheus.fires("FinetuneReconcileErrors", seconds=90)
        site.cluster.kubectl("delete", "finetunejobs", "--all", "-n", namespace)
    site.prometheus.resolves("FinetuneReconcileErrors", seconds=120)


def test_a_store_that_is_down(site: Site) -> None:
    """The operator refuses calls to it, and its jobs are blind."""
    for alert in ("FinetuneStoreErrors", "FinetuneJobsBlind"):
        site.prometheus.resolves(alert, seconds=0)
    site.trainer("stored", seconds=3600, stages=[Stage.TRAIN])
    storage = {"artifacts": "gs://ft-artifacts/monitored", "cache": "gs://ft-cache/monitored"}
    inputs = {
        "model": {"uri": "gs://ft-models/tiny"},
        "datasets": {"train": [{"uri": "gs://ft-data/train.jsonl"}], "maxSeqLength": 64},
    }
    path = site.apply("stored", profile=site.profile("stored", storage=storage), **inputs)
    site.trains(path)
    namespace = path.split("/")[5]
    site.cluster.stop("gcs")
    try:
        site.prometheus.fires("FinetuneStoreErrors", seconds=240)
        fired = site.prometheus.fires("FinetuneJobsBlind", seconds=120, exported_namespace=namespace)
        assert (fired["namespace"], fired["profile"]) == ("finetune-system", "stored")
    finally:
        site.cluster.start("gcs")
    site.prometheus.resolves("FinetuneJobsBlind", seconds=120)
    site.prometheus.resolves("FinetuneStoreErrors", seconds=120)
    site.cluster.delete(path)


def test_a_job_that_cannot_proceed_and_one_that_only_its_author_can_mend(site: Site) -> None:
    """A queue where Kueue is not installed; and a job that is invalid, for which no alert fires."""
    site.trainer("bin")
    invalid = site.apply("invalid", resources={"tpu": "v6e-256"})
    site.cluster.wait(invalid, lambda job: condition(job, "Stalled") == "True", seconds=60)
    path = site.apply("stalled", profile=site.profile("queued", queue={"localQueue": "team-tpu"}))
    fired = site.prometheus.fires("FinetuneJobsStalled", seconds=180)
    assert fired["exported_namespace"] == path.split("/")[5]
    shows(site, path, "phase", 1, phase="Queued")
    alerting = {each["exported_namespace"] for each in site.prometheus.firing("FinetuneJobsStalled")}
    assert alerting == {path.split("/")[5]}
    for each, expected in ((invalid, 1), (path, 0)):
        found = site.prometheus.query(f'finetune_jobs_invalid{{exported_namespace="{each.split("/")[5]}"}}')
        assert [number for _, number in found] == [expected], each
    for each in (path, invalid):
        site.cluster.delete(each)
    site.prometheus.resolves("FinetuneJobsStalled")


def test_a_training_that_stands_still(site: Site) -> None:
    site.prometheus.resolves("FinetuneAttemptsHung", seconds=0)
    site.trainer("hung", seconds=3600, stages=[Stage.TRAIN])
    limits = {"startupSeconds": 5, "noStepSeconds": 5}
    own = site.apply("impatient", hangPolicy=limits)
    path = site.apply("hung", profile=site.profile("hanging", defaults={"hangPolicy": limits}))
    for each in (own, path):
        site.trains(each)
    site.trainer("quick", measured=True)
    site.prometheus.fires(
        "FinetuneAttemptsHung", seconds=HELD_SECONDS + 120, exported_namespace=path.split("/")[5]
    )
    for each in (own, path):
        site.ends(each, "Succeeded")
    found = {each["exported_namespace"] for each in site.prometheus.firing("FinetuneAttemptsHung")}
    assert found == {path.split("/")[5]}


def test_jobs_that_fail_alert_unless_the_fault_or_the_limit_is_their_own(site: Site) -> None:
    site.prometheus.resolves("FinetuneJobsFailing", seconds=0)
    ended = {}
    impatient = {"recovery": {"maxInfrastructureRetries": 0}, "hangPolicy": {"stageSeconds": 3}}
    for name, script, spec in (
        ("user", f"exit {ExitCode.BAD_DATA}", {}),
        ("impatient", "exec sleep 3600", impatient),
        # Counted last.
        ("platform", f"exit {ExitCode.CONTRACT_UNSUPPORTED}", {}),
    ):
        image = f"localhost/trainer-{name}:test"
        program = site.runs / name / "finetune-stage"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        site.cluster.add_image(image, program.parent)
        path = site.apply(name, profile=site.profile(f"failing-{name}", images={"trainer": image}), **spec)
        ended[name] = site.ends(path, "Failed")["status"]["failure"]["class"]
    assert ended == {"user": "User", "platform": "Platform", "impatient": "Infrastructure"}
    labels = {"class": "Platform", "profile": "failing-platform"}
    site.prometheus.fires("FinetuneJobsFailing", seconds=HELD_SECONDS + 60, **labels)
    assert {each["class"] for each in site.prometheus.firing("FinetuneJobsFailing")} == {"Platform"}
    counted = site.prometheus.query('finetune_jobs_ended_total{result="Failed", class="User"} > 0')
    assert counted


def test_a_namespace_that_has_nearly_used_its_month(site: Site) -> None:
    """Four chips for nine seconds."""
    site.prometheus.resolves("FinetuneBudgetNearlyUsed", seconds=0)
    site.trainer("metered", seconds=3600, stages=[Stage.TRAIN], saves=True)
    constraints = {"mode": "Open", "chipHoursPerMonth": 0.01}
    owner = {"team": "ml-platform", "contact": "#ml-help"}
    path = site.apply("metered", profile=site.profile("metered", constraints=constraints, owner=owner))
    site.prometheus.fires("FinetuneBudgetNearlyUsed", seconds=180, profile="metered")
    site.cluster.patch(f"{PROFILES}/metered", {"spec": {"constraints": {"chipHoursPerMonth": 10}}})
    site.prometheus.resolves("FinetuneBudgetNearlyUsed")
    site.cluster.delete(path)


def test_a_ledger_that_cannot_be_written(site: Site) -> None:
    site.prometheus.resolves("FinetuneLedgerErrors", seconds=0)
    site.trainer("bin")
    ledger, kept = site.cluster.state.ledger, site.cluster.state.ledger.with_name("ledger.kept")
    ledger.rename(kept)
    ledger.touch()
    try:
        path = site.apply("unrecorded")
        site.ends(path, "Succeeded")
        site.prometheus.fires("FinetuneLedgerErrors", seconds=120)
    finally:
        ledger.unlink()
        kept.rename(ledger)
    site.prometheus.resolves("FinetuneLedgerErrors", seconds=150)


def test_no_fault_was_an_internal_error_of_the_operator(site: Site) -> None:
    assert not site.prometheus.has_had('finetune_reconcile_errors_total{reason="InternalError"} > 0')


# --- dashboards


@pytest.fixture(scope="module")
def lived(site: Site) -> Site:
    """A site in which a job waits, one trains, and two have ended."""
    site.trainer("quick", measured=True)
    for name in ("first", "second"):
        site.ends(site.apply(name), "Succeeded")
    site.trainer("training", seconds=3600, stages=[Stage.TRAIN], measured=True)
    site.trains(site.apply("third"))
    waiting = site.apply("fourth", profile=site.profile("queued", queue={"localQueue": "team-tpu"}))
    site.cluster.wait(waiting, lambda job: "waiting" in job.get("status", {}), seconds=120)
    shows(site, waiting, "phase", 1, phase="Queued")
    return site


def test_every_panel_of_the_fleet_and_every_documented_query_has_series(lived: Site) -> None:
    variables = {
        "team_label": "exported_namespace", "team": ".*", "profile": ".*", "release": ".*",
        "__rate_interval": "15s", "__range": "1h",
    }  # fmt: skip
    queries = [*panel_queries("fleet", variables), *documented_queries()]
    assert [each for each in queries if not lived.prometheus.has_had(each.expr)] == []


def test_every_panel_of_a_job_has_series(lived: Site) -> None:
    ((labels, _),) = lived.prometheus.query('finetune_job_info{name="watched"}')
    queries = panel_queries("job", {"namespace": labels["namespace"], "job": "watched"})
    assert [each for each in queries if not lived.prometheus.has_had(each.expr)] == []
