"""The commands against a real API server: it accepts the output of plan unchanged, and watch survives its restart."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_operator.cli.manifests.validate import validate_text
from tests.doubles.local_cluster import LocalCluster
from tests.unit.cli.created import CREATED
from tests.unit.cli.reported import Page, write_records
from tests.unit.cli.scalars import KEYS, SCALARS

ROOT = Path(__file__).parents[2]
FINETUNE = Path(sys.executable).with_name("finetune")
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
LOCAL = ROOT / "devcluster" / "manifests" / "profile-local.yaml"
STATUSES = ROOT / "tests" / "unit" / "cli" / "jobs"
GROUP = "/apis/tpu-finetune.dev/v1alpha1"


def finetune(cluster: LocalCluster, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FINETUNE, *map(str, arguments)],
        env={"PATH": "/usr/bin:/bin", **cluster.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def status_of(phase: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((STATUSES / f"{phase}.yaml").read_text())["status"]
    return loaded


@pytest.fixture
def job(cluster: LocalCluster, namespace: str) -> str:
    """API path of the quickstart job in a new namespace; no operator is running."""
    cluster.stop("operator")
    cluster.kubectl("apply", "-n", namespace, "-f", str(QUICKSTART))
    return f"{GROUP}/namespaces/{namespace}/finetunejobs/quickstart"


def test_kubectl_takes_every_jobset_that_plan_prints(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    manifest = yaml.safe_load(QUICKSTART.read_text())
    manifest["metadata"]["namespace"] = namespace
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(manifest))
    planned = finetune(cluster, "plan", "-f", file, "--profile", LOCAL, "-o", "yaml")
    assert planned.returncode == 0, planned.stderr
    applied = cluster.kubectl("apply", "--dry-run=server", "-f", "-", "-o", "name", stdin=planned.stdout)
    assert applied.split() == [
        f"jobset.jobset.x-k8s.io/quickstart-{stage}-1"
        for stage in ("prep", "conv", "train", "eval", "export")
    ]


def test_kubectl_reads_scalars_and_keys_as_the_commands_do(cluster: LocalCluster) -> None:
    values = "".join(f"  v{number}: {text}\n" for number, text in enumerate(SCALARS))
    keys = "".join(f"  {text}: x\n" for text in KEYS)
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
    read = [
        json.loads(cluster.kubectl("label", "--local", "-f", "-", "a=b", "-o", "json", stdin=text))["data"]
        for text in (f"{head}data:\n{values}", f"{head}data:\n{keys}")
    ]
    assert read == [
        {f"v{number}": value for number, value in enumerate(SCALARS.values())},
        dict.fromkeys(KEYS.values(), "x"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "hyperparameters: {learningRate: 2e-5}",
        'hyperparameters: {learningRate: "2e-5"}',
        "hyperparameters: {learningRate: .5}",
        "hyperparameters: {learningRate: 0}",
        "hyperparameters: {learningRate: 1e400}",
        "hyperparameters: {learningRate: 1_000.5}",
        "hyperparameters: {warmupRatio: 1.0}",
        "hyperparameters: {seed: 1_000}",
        "hyperparameters: {seed: 0x10}",
        "hyperparameters: {seed: 017}",
        "hyperparameters: {seed: 1e3}",
        "hyperparameters: {seed: 1.5}",
        "hyperparameters: {seed: 1:30}",
        "suspend: yes",
        "suspend: y",
        'suspend: "yes"',
        "suspend: oN",
        "engineOverrides: {key: on}",
        "engineOverrides: {key: 2026-01-01}",
        "engineOverrides: {key: 1_000}",
        "engineOverrides: {key: 1e400}",
        "engineOverrides: {on: a}",
        "engineOverrides: {key: .inf}",
        "resources: {tpu: v6e-2x2}",
        "resources: {tpu: v6e-2x2x1x1}",
        "resources: {topology: 2x2, accelerator: 0x10}",
    ],
)
def test_validate_judges_as_the_server_does(
    cluster: LocalCluster, namespace: str, line: str, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "apiVersion: tpu-finetune.dev/v1alpha1\nkind: FineTuneJob\nmetadata: {name: judged}\nspec:\n"
        "  model: {uri: gs://models/tiny}\n  datasets: {train: [{uri: gs://data/a.jsonl}]}\n"
        f"  method: {{type: SFT}}\n  {line}\n"
    )
    try:
        cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", str(file))
        taken = True
    except AssertionError:
        taken = False
    assert (validate_text(file.read_text(), file="job.yaml") == []) is taken


@pytest.mark.parametrize("name", CREATED)
def test_validate_takes_nulls_and_generated_names_as_the_server_does(
    cluster: LocalCluster, namespace: str, name: str
) -> None:
    document, taken = CREATED[name]
    text = json.dumps(document).replace('"team-a"}', f'"{namespace}"}}')
    try:
        cluster.kubectl("create", "--dry-run=server", "-n", namespace, "-f", "-", stdin=text)
        created = True
    except AssertionError:
        created = False
    assert created is taken
    assert (validate_text(text, file="job.json") == []) is taken


def test_examples_are_taken_by_the_api_server(cluster: LocalCluster, namespace: str) -> None:
    files = sorted((ROOT / "examples").rglob("*.yaml"))
    manifests = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    # Those of Argo CD and Flux need their CRDs: test_gitops.
    known = [
        each
        for each in manifests
        if not each["apiVersion"].split("/")[0].endswith(("argoproj.io", "fluxcd.io"))
    ]
    assert len(known) > 10
    for manifest in known:
        if manifest["kind"] != "FineTuneProfile":
            manifest["metadata"]["namespace"] = namespace  # the manifests' own namespaces do not exist here
        cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(manifest))


@pytest.mark.parametrize("path", sorted(STATUSES.glob("*.yaml")), ids=lambda path: path.stem)
def test_statuses_of_the_unit_tests_are_ones_that_the_api_server_stores(
    cluster: LocalCluster, job: str, path: Path
) -> None:
    status = yaml.safe_load(path.read_text())["status"]
    assert cluster.patch(f"{job}/status", {"status": status})["status"] == status


def test_watch_shows_the_way_of_a_job_through_a_restart_of_the_server(
    cluster: LocalCluster, job: str
) -> None:
    namespace = job.split("/")[5]
    with subprocess.Popen(
        [FINETUNE, "watch", "quickstart", "-n", namespace],
        env={"PATH": "/usr/bin:/bin", **cluster.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as watching:
        assert watching.stdout is not None
        cluster.patch(f"{job}/status", {"status": status_of("provisioning")})
        told = [watching.stdout.readline()]
        while "▶ Train" not in told[-1]:
            told.append(watching.stdout.readline())
            assert told[-1], told
        cluster.kill("kube-apiserver")
        cluster.await_ready("kube-apiserver")
        cluster.patch(f"{job}/status", {"status": {"waiting": None, **status_of("succeeded")}})
        rest = watching.stdout.read()
    assert watching.returncode == 0, rest
    assert "Exported    gs://ft-artifacts" in rest


def test_status_logs_and_unknown_names(cluster: LocalCluster, job: str) -> None:
    namespace = job.split("/")[5]
    cluster.patch(f"{job}/status", {"status": status_of("failed")})
    page = finetune(cluster, "status", "quickstart", "-n", namespace)
    assert page.returncode == 0
    assert "Fix         Map it: roleMap: {bot: assistant}." in page.stdout
    missing = finetune(cluster, "status", "quikstart", "-n", namespace)
    assert missing.returncode == 1
    assert "Did you mean quickstart?" in missing.stderr
    logs = finetune(cluster, "logs", "quickstart", "-n", namespace)
    assert logs.returncode == 1
    assert "has no pods and no run folder yet" in logs.stderr


def test_reports_of_a_job_from_its_creation_until_after_its_deletion(
    cluster: LocalCluster, job: str, tmp_path: Path
) -> None:
    namespace = job.split("/")[5]
    uri = write_records(tmp_path / "quickstart")

    def page(*arguments: object) -> Page:
        done = finetune(cluster, "report", *arguments, "-n", namespace, "-o", "-")
        assert done.returncode == 0, done.stderr
        return Page(done.stdout)

    new = page("quickstart")
    assert "no status" in new.text("head")
    assert "Loss: the training has measured nothing" in new.text("missing")
    running = status_of("running")
    running["resolved"]["runFolder"] = uri
    cluster.patch(f"{job}/status", {"status": running})
    live = page("quickstart")
    assert "Running" in live.text("head")
    assert "training loss: 600 values" in live.text("training")
    missing = finetune(cluster, "report", "quikstart", "-n", namespace)
    assert missing.returncode == 1
    assert "Did you mean quickstart? The run folder of a deleted job" in missing.stderr
    cluster.kubectl("delete", "finetunejob", "quickstart", "-n", namespace)
    deleted = page("--run", uri)
    assert "Succeeded" in deleted.text("head")
    assert "4 in all, 1 ended by preemption." in deleted.text("attempts")


def test_a_member_of_one_namespace_lists_edits_and_waits_there(
    cluster: LocalCluster, namespace: str, job: str
) -> None:
    """With the rights of a role in the namespace alone, and refused with one line beyond them."""
    cluster.kubectl(
        "create", "role", "tuners", "-n", namespace,
        "--verb=get,list,watch,patch", "--resource=finetunejobs.tpu-finetune.dev",
    )  # fmt: skip
    cluster.kubectl("create", "rolebinding", "tuners", "-n", namespace, "--role=tuners", "--user=alice")

    def as_alice(*arguments: str) -> subprocess.CompletedProcess[str]:
        return finetune(cluster, *arguments, "--as", "alice", "-n", namespace)

    def spec() -> dict[str, Any]:
        found: dict[str, Any] = cluster.get(job)["spec"]
        return found

    cluster.patch(f"{job}/status", {"status": status_of("running")})
    listed = as_alice("list")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.splitlines()[1].split()[:4] == ["quickstart", "Running", "Train", "12/60"]
    assert as_alice("list", "-o", "name", "-l", "no=label").stdout == ""
    assert as_alice("suspend", "quickstart").returncode == 0
    assert spec()["suspend"] is True
    assert as_alice("resume", "quickstart").returncode == 0
    assert spec()["suspend"] is False
    cluster.patch(f"{job}/status", {"status": ended(cluster, job, "failed")})
    assert as_alice("wait", "quickstart", "--timeout", "30s").returncode == 1
    for generation in (1, 2):
        retried = as_alice("retry", "quickstart", "--from-stage", "convert")
        assert retried.returncode == 0, retried.stderr
        assert spec()["retry"] == {"generation": generation, "fromStage": "Convert"}
        cluster.patch(f"{job}/status", {"status": ended(cluster, job, "failed")})
    late = as_alice("cancel", "quickstart")
    assert (late.returncode, spec()["cancel"]) == (0, False)
    assert "has ended (Failed), so there is nothing to cancel" in late.stdout
    cluster.patch(f"{job}/status", {"status": ended(cluster, job, "running")})
    cancelled = as_alice("cancel", "quickstart")
    assert (cancelled.returncode, spec()["cancel"]) == (0, True), cancelled.stderr
    assert "its slice is freed" in cancelled.stdout
    completed = subprocess.run(
        [FINETUNE.with_name("kubectl_complete-finetune"), "status", "-n", namespace, "--as", "alice", "qu"],
        env={"PATH": "/usr/bin:/bin", **cluster.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.split() == ["quickstart", ":4"]
    for refused, fix in ((("list", "-A"), "Ask for a role"), (("profiles",), "a ClusterRoleBinding")):
        done = as_alice(*refused)
        assert done.returncode == 1
        assert "alice" in done.stderr
        assert fix in done.stderr
        assert "Traceback" not in done.stderr


def ended(cluster: LocalCluster, job: str, phase: str) -> dict[str, Any]:
    """The status of that phase, of the job's current generation."""
    return status_of(phase) | {"observedGeneration": cluster.get(job)["metadata"]["generation"]}


def test_profiles_of_the_cluster_are_shown(cluster: LocalCluster) -> None:
    shown = finetune(cluster, "profiles")
    assert shown.returncode == 0, shown.stderr
    assert "Slices    tpu-v" in shown.stdout
    names = finetune(cluster, "profiles", "-o", "name").stdout.splitlines()
    assert "finetuneprofile.tpu-finetune.dev/local" in names
