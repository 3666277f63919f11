"""The commands as people type them: output, exit codes, errors without tracebacks, quick help."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from finetune_operator.cli.main import app

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
MIXTURE = ROOT / "examples" / "mixture.yaml"
PATHWAYS = ROOT / "examples" / "pathways.yaml"
CLOUD = ROOT / "examples" / "profiles" / "gke-v6e.yaml"
LOCAL = ROOT / "devcluster" / "manifests" / "profile-local.yaml"

LATER = """
apiVersion: tpu-finetune.dev/v1alpha1
kind: FineTuneProfile
metadata: {name: later}
spec:
  images: {trainer: example/trainer:1}
  storage: {artifacts: gs://a/b, optimizerStateTTLSeconds: 60}
  flavors: [{name: one, capacity: Spot, accelerator: tpu-v6e-slice, topologies: [2x2], chipsPerHost: 4}]
"""


def finetune(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def test_the_version_is_that_of_the_package() -> None:
    done = finetune("--version")
    assert (done.exit_code, done.stdout) == (0, f"finetune {version('finetune-operator')}\n")


def test_the_module_is_a_program() -> None:
    command = [sys.executable, "-m", "finetune_operator.cli.main", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"finetune {version('finetune-operator')}\n"


def test_plan_tells_stages_slice_batch_names_and_run_folder() -> None:
    done = finetune("plan", "-f", QUICKSTART, "--profile", LOCAL)
    assert done.exit_code == 0, done.output
    for told in (
        "quickstart-prep-1",
        "quickstart-export-1",
        "v6e-4 2x2",
        "8 rows a step",
        "every 100 steps or 600 s; the last 2 are kept, the last is exported",
        "Preflight compiles the train step",
        "gs://ft-artifacts/default/",
    ):
        assert told in done.stdout


def test_plan_as_yaml_is_one_jobset_a_document() -> None:
    done = finetune("plan", "-f", QUICKSTART, "--profile", LOCAL, "-o", "yaml")
    jobsets = list(yaml.safe_load_all(done.stdout))
    assert [jobset["kind"] for jobset in jobsets] == ["JobSet"] * 5
    assert [jobset["metadata"]["name"].split("-")[1] for jobset in jobsets] == [
        "prep",
        "conv",
        "train",
        "eval",
        "export",
    ]


def test_plan_as_json_holds_the_facts_and_the_same_jobsets() -> None:
    told = json.loads(finetune("plan", "-f", QUICKSTART, "--profile", LOCAL, "-o", "json").stdout)
    documents = finetune("plan", "-f", QUICKSTART, "--profile", LOCAL, "-o", "yaml").stdout
    assert told["jobSets"] == list(yaml.safe_load_all(documents))
    assert told["resources"]["tpu"] == "v6e-4"
    assert told["stages"] == ["Preflight", "Convert", "Train", "Evaluate", "Export"]


def test_plan_tells_what_pathways_needs() -> None:
    done = finetune("plan", "-f", PATHWAYS, "--profile", CLOUD)
    assert done.exit_code == 0, done.output
    for told in (
        "Pathways: one JAX process on a CPU node",
        "head: 48 cores and 232 GB on a node with cloud.google.com/gke-nodepool=finetune-head",
        "workers: 2 of 4 chips, 1 x tpuv6e:2x4",
        "pathways/server:jax-",
        "pathways/proxy_server:jax-",
        "scratch: gs://my-project-finetune-scratch",
    ):
        assert told in done.stdout
    facts = json.loads(finetune("plan", "-f", PATHWAYS, "--profile", CLOUD, "-o", "json").stdout)
    assert facts["resources"]["controller"] == "Pathways"
    assert facts["pathways"]["workers"] == 2
    train = facts["jobSets"][2]["spec"]["replicatedJobs"]
    assert [group["name"] for group in train] == ["pathways-head", "worker"]


def test_plan_as_yaml_writes_everything_out() -> None:
    text = finetune("plan", "-f", PATHWAYS, "--profile", CLOUD, "-o", "yaml").stdout
    assert "*id" not in text
    assert "&id" not in text


def test_plan_finds_the_chat_template_in_the_jobs_file(tmp_path: Path) -> None:
    done = finetune("plan", "-f", MIXTURE, "--profile", CLOUD)
    assert done.exit_code == 0, done.output
    assert "gs://my-project-data/team-a/chats/*.jsonl (Auto, weight 3)" in done.stdout
    assert "acme/faq, split train (QuestionAnswer, weight 1)" in done.stdout
    assert "2 % of the training rows, held back" in done.stdout
    alone = tmp_path / "alone.yaml"
    alone.write_text(MIXTURE.read_text().partition("---\n")[2])
    done = finetune("plan", "-f", alone, "--profile", CLOUD)
    assert done.exit_code == 1
    assert (
        'ChatTemplateNotFound: spec.datasets.chatTemplate.configMapRef: there is no ConfigMap "team-tem'
        in done.stderr
    )
    assert "put the ConfigMap into the same file" in done.stderr


def test_a_profile_in_the_same_file_needs_no_option(tmp_path: Path) -> None:
    both = tmp_path / "both.yaml"
    both.write_text(f"{QUICKSTART.read_text()}---\n{LOCAL.read_text()}")
    assert finetune("plan", "-f", both).exit_code == 0


def test_plan_without_a_profile_says_how_to_get_one() -> None:
    done = finetune("plan", "-f", QUICKSTART)
    assert done.exit_code == 1
    assert "holds no FineTuneProfile" in done.stderr
    assert "kubectl get finetuneprofile" in done.stderr


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_what_the_operator_would_refuse_is_told_in_its_words(command: str, tmp_path: Path) -> None:
    later = tmp_path / "later.yaml"
    later.write_text(LATER)
    done = finetune(
        *(("plan", "-f", QUICKSTART, "--profile", later) if command == "plan" else ("validate", "-f", later))
    )
    assert done.exit_code == 1
    assert "NotYetSupported" in done.stderr
    assert "spec.storage.optimizerStateTTLSeconds = 60 (remove it)" in done.stderr


def test_validate_takes_many_files_and_stdin() -> None:
    done = finetune("validate", "-f", QUICKSTART, LOCAL)
    assert (done.exit_code, done.stdout) == (0, "2 files in order.\n")
    refused = finetune("validate", "-f", "-", stdin=LATER)
    assert refused.exit_code == 1
    assert "stdin: later: NotYetSupported" in refused.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: [", ":1: is no YAML"),
        ("- 1\n", "is no Kubernetes object"),
        ("apiVersion: v1\nkind: Pod\n", "holds 0 FineTuneJobs"),
    ],
)
def test_files_that_are_no_job_are_named(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    done = finetune("plan", "-f", file, "--profile", LOCAL)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: {file}")
    assert told in done.stderr


def test_a_missing_file_is_named() -> None:
    assert "Error: /no/such: No such file" in finetune("plan", "-f", "/no/such").stderr
    assert "/no/such: No such file" in finetune("validate", "-f", "/no/such").stderr


@pytest.mark.parametrize("command", ["status", "watch", "logs"])
def test_without_a_cluster_the_error_says_what_to_set(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = finetune(command, "quickstart", "--kubeconfig", tmp_path / "none")
    assert done.exit_code == 1
    assert "no usable kubeconfig" in done.stderr
    assert "Set KUBECONFIG" in done.stderr
    assert "Traceback" not in done.output


def test_a_cluster_that_does_not_answer_is_named(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    server = {"name": "gone", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "gone", "context": {"cluster": "gone", "user": "me", "namespace": "team-a"}}
    kubeconfig.write_text(
        json.dumps(
            {
                "clusters": [server],
                "contexts": [context],
                "users": [{"name": "me", "user": {}}],
                "current-context": "gone",
            }
        )
    )
    done = finetune("status", "quickstart", "--kubeconfig", kubeconfig)
    assert done.exit_code == 1
    assert "The cluster at http://127.0.0.1:1 does not answer" in done.stderr


def test_a_misspelt_command_gets_a_suggestion() -> None:
    done = finetune("statsu", "x")
    assert done.exit_code == 2
    assert "Did you mean 'status'?" in done.output


@pytest.mark.parametrize("module", ["kubernetes", "google", "aiohttp", "kopf", "pydantic"])
def test_help_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, finetune_operator.cli.main; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
