"""The commands as people type them: output, exit codes, errors without tracebacks, quick help."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner, Result

from finetune_operator.cli.commands import app

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
  namespaces: ["*"]
  images: {trainer: example/trainer@sha256:1}
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


def test_plan_shows_stages_slice_batch_names_and_run_folder() -> None:
    done = finetune("plan", "-f", QUICKSTART, "--profile", LOCAL)
    assert done.exit_code == 0, done.output
    for told in (
        "quickstart-prep-1",
        "quickstart-export-1",
        "v6e-4 2x2",
        "8 rows per step",
        "every 100 steps or 600 s; the last 2 are kept, the last is exported",
        " tokens each, padded to a width that the TPU's attention kernel accepts",
        "Preflight compiles the train step and all other programs of the job for the slice",
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


def test_the_yaml_of_a_plan_says_that_memory_and_disk_of_convert_and_export_are_known_later() -> None:
    done = finetune("plan", "-f", QUICKSTART, "--profile", LOCAL, "-o", "yaml")
    jobsets = {each["metadata"]["name"].split("-")[1]: each for each in yaml.safe_load_all(done.stdout)}
    later = {
        name: each["metadata"].get("annotations", {}).get("tpu-finetune.dev/known-later", "")
        for name, each in jobsets.items()
    }
    assert [name for name, notes in later.items() if "host memory and disk" in notes] == ["conv", "export"]


def test_plan_as_json_holds_the_facts_and_the_same_jobsets() -> None:
    told = json.loads(finetune("plan", "-f", QUICKSTART, "--profile", LOCAL, "-o", "json").stdout)
    documents = finetune("plan", "-f", QUICKSTART, "--profile", LOCAL, "-o", "yaml").stdout
    assert told["version"] == 1
    (plan,) = told["plans"]
    assert plan["jobSets"] == list(yaml.safe_load_all(documents))
    assert plan["resources"]["tpu"] == "v6e-4"
    assert plan["stages"] == ["Preflight", "Convert", "Train", "Evaluate", "Export"]


def test_plan_shows_what_pathways_needs() -> None:
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
    (facts,) = json.loads(finetune("plan", "-f", PATHWAYS, "--profile", CLOUD, "-o", "json").stdout)["plans"]
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
    assert "pass the ConfigMap with -f as well" in done.stderr


def test_a_profile_in_the_same_file_needs_no_option(tmp_path: Path) -> None:
    both = tmp_path / "both.yaml"
    both.write_text(f"{QUICKSTART.read_text()}---\n{LOCAL.read_text()}")
    assert finetune("plan", "-f", both).exit_code == 0


def test_plan_without_a_profile_says_how_to_get_one() -> None:
    done = finetune("plan", "-f", QUICKSTART, "--offline")
    assert done.exit_code == 1
    assert "contains no FineTuneProfile" in done.stderr
    assert "kubectl get finetuneprofile" in done.stderr


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_what_the_operator_would_refuse_is_reported_in_its_words(command: str, tmp_path: Path) -> None:
    later = tmp_path / "later.yaml"
    later.write_text(LATER)
    done = finetune(
        *(("plan", "-f", QUICKSTART, "--profile", later) if command == "plan" else ("validate", "-f", later))
    )
    assert done.exit_code == 1
    assert "NotYetSupported" in done.stderr
    assert "spec.storage.optimizerStateTTLSeconds = 60 (remove it)" in done.stderr


JOB: dict[str, Any] = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {"name": "bot", "namespace": "team-a"},
    "spec": {
        "profileRef": {"name": "strict"},
        "model": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}},
        "datasets": {"train": [{"uri": "gs://data/chat.jsonl"}]},
        "method": {"type": "SFT"},
    },
}
STRICT: dict[str, Any] = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneProfile",
    "metadata": {"name": "strict"},
    "spec": {
        "owner": {"team": "ml", "contact": "#ml-help"},
        "namespaces": ["team-a"],
        "images": {"trainer": "example/trainer@sha256:1"},
        "storage": {"artifacts": "gs://art/runs"},
        "flavors": [
            {
                "name": "one",
                "capacity": "Spot",
                "accelerator": "tpu-v6e-slice",
                "topologies": ["2x2"],
                "chipsPerHost": 4,
            }
        ],
        "cpuPool": {"maxMemory": "115Gi"},
        "constraints": {"uris": {"read": ["gs://data/*", "hf://models/Qwen/*"]}},
    },
}
ALONE = (
    "1 file valid.\nOf bot only schema and rules were checked: pass their profile with -f "
    "as well, or use `finetune plan --profile FILE`.\n"
)


def written(folder: Path, *documents: Any) -> Path:
    file = folder / f"{len(list(folder.iterdir()))}.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return file


def changed(document: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {**document, "spec": {**document["spec"], **spec}}


def test_validate_without_a_profile_says_what_was_not_judged(tmp_path: Path) -> None:
    done = finetune("validate", "-f", written(tmp_path, JOB))
    assert (done.exit_code, done.stdout) == (0, ALONE)
    done = finetune("validate", "-f", written(tmp_path, STRICT))
    assert (done.exit_code, done.stdout) == (0, "1 file valid.\n")
    other = {**STRICT, "metadata": {"name": "other"}}
    assert finetune("validate", "-f", written(tmp_path, JOB, other)).stdout == ALONE


MARKED = {"annotations": {"tpu-finetune.dev/is-default-profile": "true"}}


@pytest.mark.parametrize(
    ("profiles", "refusal"),
    [
        ([STRICT], ""),
        ([STRICT, changed({**STRICT, "metadata": {"name": "others", **MARKED}}, namespaces=["team-b"])], ""),
        ([STRICT, {**STRICT, "metadata": {"name": "default", **MARKED}}], ""),
        ([STRICT, {**STRICT, "metadata": {"name": "second"}}], "NoDefaultProfile"),
        ([changed(STRICT, namespaces=["team-b"])], "NoDefaultProfile"),
        ([{**STRICT, "metadata": {"name": each, **MARKED}} for each in "ab"], "AmbiguousDefaultProfile"),
    ],
)
def test_plan_and_validate_choose_the_profile_as_the_operator_does(
    profiles: list[Any], refusal: str, tmp_path: Path
) -> None:
    spec = {key: value for key, value in JOB["spec"].items() if key != "profileRef"}
    file = written(tmp_path, {**JOB, "spec": spec}, *profiles)
    validated, planned = finetune("validate", "-f", file), finetune("plan", "-f", file)
    assert (validated.exit_code, planned.exit_code) == ((1, 1) if refusal else (0, 0)), validated.output
    if not refusal:
        assert validated.stdout == "1 file valid.\n"
    else:
        assert f"{file}: bot: {refusal}: spec.profileRef is left out" in validated.stderr
        assert planned.stderr == f"Error: {validated.stderr}"


def test_plan_chooses_among_the_profiles_of_its_option_alone(tmp_path: Path) -> None:
    spec = {key: value for key, value in JOB["spec"].items() if key != "profileRef"}
    file, other = written(tmp_path, {**JOB, "spec": spec}, STRICT), written(tmp_path, STRICT)
    assert finetune("plan", "-f", file, "--profile", other).exit_code == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": {"huggingFace": {"repo": "evil/model"}}}, "PolicyViolation"),
    ({"resources": {"tpu": "v6e-16"}}, "NoFlavorFits"),
    ({"hyperparameters": {"globalBatchSize": 6}, "resources": {"tpu": "v6e-4"}}, "BatchMismatch"),
    ({"engineOverrides": {"learning_rate": "1"}}, "InvalidSpec"),
    ({"method": {"type": "SFT", "lora": {"rank": "64"}}}, '"64" is text; write 64 without quotes'),
    ({"method": {"type": "SFT", "lora": {"rank": 0}}}, "must be at least 1"),
    ({"datasets": {"train": [{"uri": "gs://data/a//b"}]}}, "empty segments"),
    ({"model": {"huggingFace": {"repo": "a b"}}}, "OWNER/NAME"),
]


@pytest.mark.parametrize(
    ("repo", "allowed", "meant"),
    [
        ("meta-lama/Llama-3.1-8B", ["Qwen/*", "meta-llama/Llama-3.1-*"], "meta-llama/Llama-3.1-8B"),
        ("Qwen/Qwen3-06B", ["Qwen/Qwen3-0.6B"], "Qwen/Qwen3-0.6B"),
        ("meta-lama/Llama-2-7B", ["meta-llama/Llama-3.1-*"], None),
        ("acme/Qwen3-0.6B", ["Qwen/*"], None),
    ],
)
def test_a_mistyped_model_is_answered_with_the_allowed_one(
    repo: str, allowed: list[str], meant: str | None, tmp_path: Path
) -> None:
    job, profile = (
        changed(JOB, model={"huggingFace": {"repo": repo}}),
        changed(STRICT, models={"allow": allowed}),
    )
    said = finetune("plan", "-f", written(tmp_path, job, profile)).stderr
    assert (
        f"does not cover spec.model {repo}: {f'did you mean {meant}? Else ' if meant else ''}use a model"
        in said
    )


@pytest.mark.parametrize(("spec", "said"), REFUSED)
def test_validate_with_the_profile_says_what_plan_says(
    spec: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file, profile = written(tmp_path, changed(JOB, **spec)), written(tmp_path, STRICT)
    validated = finetune("validate", "-f", file, "-f", profile)
    assert validated.exit_code == 1
    assert said in validated.stderr
    planned = finetune("plan", "-f", file, "--profile", profile)
    assert planned.exit_code == 1
    assert "after validation" not in planned.output
    assert planned.stderr == f"Error: {validated.stderr}"
    assert len(planned.stderr.splitlines()) == 1


def test_validate_judges_by_the_profile_in_the_same_file(tmp_path: Path) -> None:
    assert finetune("validate", "-f", written(tmp_path, JOB, STRICT)).stdout == "1 file valid.\n"
    broken = changed(STRICT, storage={"artifacts": "gs://art/runs", "cache": "gs://art/runs/cache"})
    done = finetune("validate", "-f", written(tmp_path, JOB, broken))
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1


def test_validate_does_not_fail_for_what_the_cluster_alone_knows(tmp_path: Path) -> None:
    template = {"chatTemplate": {"configMapRef": {"name": "chat", "key": "t"}}}
    other = changed(JOB, datasets={**JOB["spec"]["datasets"], **template})
    done = finetune("validate", "-f", written(tmp_path, other, STRICT))
    assert done.exit_code == 0
    assert "Of bot only schema and rules were checked" in done.stdout
    assert "ChatTemplateNotFound" in done.stdout


# --- a job that starts from another one's model ----------------------------------------------------------------

SECOND = changed(
    {**JOB, "metadata": {"name": "second", "namespace": "team-a"}},
    model={"fromJob": {"name": "bot", "checkpoint": "Best"}},
)
ALLOWS = changed(STRICT, models={"allow": ["Qwen/*"]})


@pytest.mark.parametrize(
    "broken",
    [
        {"resources": {"tpu": "v6e-16"}},
        {"resources": {"tpu": "v6e-4"}, "hyperparameters": {"globalBatchSize": 6}},
    ],
)
@pytest.mark.parametrize("documents", [(), (JOB,)], ids=["alone", "beside its source"])
def test_a_job_that_starts_from_another_is_judged_by_its_profile(
    broken: dict[str, Any], documents: tuple[Any, ...], tmp_path: Path
) -> None:
    file = written(tmp_path, changed(SECOND, **broken), *documents, ALLOWS)
    validated, planned = finetune("validate", "-f", file), finetune("plan", "-f", file)
    assert (validated.exit_code, planned.exit_code) == (1, 1)
    assert "NoFlavorFits" in validated.stderr or "BatchMismatch" in validated.stderr
    assert planned.stderr == f"Error: {validated.stderr}"


def test_the_source_of_a_job_is_taken_from_the_same_manifests(tmp_path: Path) -> None:
    done = finetune("validate", "-f", written(tmp_path, SECOND), written(tmp_path, ALLOWS, JOB))
    assert (done.exit_code, done.stdout) == (0, "2 files valid.\n")
    planned = finetune("plan", "-f", written(tmp_path, SECOND, JOB, ALLOWS))
    assert planned.exit_code == 0, planned.output
    assert "gs://art/runs/team-a/bot-<uid>/export/model, which FineTuneJob bot exports" in planned.stdout
    assert "model (from the FineTuneJob that it starts from)" in planned.stdout
    assert "Not checked" not in planned.stdout


def test_the_model_of_the_source_and_its_export_are_judged(tmp_path: Path) -> None:
    third = {**SECOND, "metadata": {"name": "third", "namespace": "team-a"}}
    third = changed(third, model={"fromJob": {"name": "second"}})
    free = {**STRICT, "metadata": {"name": "free"}}
    other = changed(JOB, profileRef={"name": "free"}, model={"huggingFace": {"repo": "Qwen/other"}})
    only = changed(STRICT, models={"allow": ["Qwen/Qwen3-0.6B"]})
    done = finetune("validate", "-f", written(tmp_path, other, third, SECOND, only, free))
    assert done.stderr.count("does not cover spec.model Qwen/other") == 1, (
        "the other starts from a refused job"
    )
    adapter = changed(JOB, method={"type": "SFT", "lora": {"rank": 4}}, export={"content": "Adapter"})
    done = finetune("validate", "-f", written(tmp_path, adapter, SECOND, ALLOWS))
    assert done.exit_code == 1
    assert "second: SourceJobUnusable" in done.stderr


@pytest.mark.parametrize(
    ("source", "why", "refused"),
    [
        (None, "is not among the manifests", ""),
        (
            {**JOB, "metadata": {"name": "bot", "namespace": "team-b"}},
            "is not among the manifests",
            "ProfileNotAllowed",
        ),
        (
            changed(JOB, profileRef={"name": "gone"}),
            "is itself refused (ProfileNotFound)",
            "ProfileNotFound",
        ),
        (
            changed(JOB, model={"huggingFace": {"repo": "evil/model"}}),
            "is itself refused (PolicyViolation)",
            "PolicyViolation",
        ),
    ],
)
def test_what_an_unknown_source_leaves_open_is_said(
    source: dict[str, Any] | None, why: str, refused: str, tmp_path: Path
) -> None:
    others = [] if source is None else [source]
    done = finetune("plan", "-f", written(tmp_path, SECOND, *others, ALLOWS))
    assert done.exit_code == (1 if source else 0), done.output
    assert refused in done.stderr
    told = f'spec.model.fromJob: FineTuneJob "bot" {why}. Everything but its model was checked.'
    assert f"Not checked  {told}" in done.stdout
    if source is None:
        assert f"second: {told}" in finetune("validate", "-f", written(tmp_path, SECOND, ALLOWS)).stdout


def test_jobs_that_start_from_each_other_are_said(tmp_path: Path) -> None:
    first = changed(JOB, model={"fromJob": {"name": "second"}})
    done = finetune("validate", "-f", written(tmp_path, first, SECOND, ALLOWS))
    assert done.stdout.count("starts from a job that is only partly known") == 2


def test_validate_remarks_what_may_not_be_meant(tmp_path: Path) -> None:
    nobody = changed(STRICT, namespaces=[])
    done = finetune("validate", "-f", written(tmp_path, nobody))
    assert done.exit_code == 0
    assert "strict: spec.namespaces lists none, so no job can run under it" in done.stdout


@pytest.mark.parametrize(("field", "usual"), [("maxMemory", "8Gi"), ("maxEphemeralStorage", "16Gi")])
def test_validate_remarks_nodes_that_are_small_for_preflight(field: str, usual: str, tmp_path: Path) -> None:
    small = finetune("validate", "-f", written(tmp_path, changed(STRICT, cpuPool={field: "4000Mi"})))
    assert small.exit_code == 0
    assert f"spec.cpuPool.{field}: 4000Mi is less than the {usual} that Preflight requests" in small.stdout
    enough = finetune("validate", "-f", written(tmp_path, changed(STRICT, cpuPool={field: usual})))
    assert enough.stdout == "1 file valid.\n"


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_a_job_without_a_namespace_gets_a_hint_to_name_one(command: str, tmp_path: Path) -> None:
    file = written(tmp_path, {**JOB, "metadata": {"name": "bot"}}, STRICT)
    done = finetune(command, "-f", file)
    assert done.exit_code == 1
    assert (
        "serves the namespaces team-a, and metadata.namespace is not set, which here means default"
        in done.stderr
    )
    assert "add" not in done.stderr
    assert finetune(command, "-f", file, "-n", "team-a").exit_code == 0
    assert 'not team-b: to allow it, add "team-b"' in finetune(command, "-f", file, "-n", "team-b").stderr


def test_validate_takes_many_files_and_stdin() -> None:
    done = finetune("validate", "-f", QUICKSTART, LOCAL)
    assert (done.exit_code, done.stdout) == (0, "2 files valid.\n")
    refused = finetune("validate", "-f", "-", stdin=LATER)
    assert refused.exit_code == 1
    assert "stdin: later: NotYetSupported" in refused.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: [", ":1: is not valid YAML"),
        ("- 1\n", "must be an object, not a list"),
        ("apiVersion: v1\nkind: Pod\n", "contains no FineTuneJob."),
        (
            yaml.safe_dump({**JOB, "kind": "FinetuneJob"}),
            'unknown kind "FinetuneJob": did you mean FineTuneJob?',
        ),
        (yaml.safe_dump({**JOB, "apiVersion": "v1"}), "Write apiVersion: tpu-finetune.dev/v1alpha1"),
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


# --- folders and several files ---------------------------------------------------------------------------------


def folder_with(folder: Path, **files: Any) -> Path:
    """A folder of manifests, each file with the documents of that name; ``__`` is a folder, ``_`` a dot."""
    for name, documents in files.items():
        file = folder / name.replace("__", "/").replace("_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(documents if isinstance(documents, str) else yaml.safe_dump_all(documents))
    return folder


def named(name: str, **spec: Any) -> dict[str, Any]:
    return {**changed(JOB, **spec), "metadata": {"name": name, "namespace": "team-a"}}


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_a_folder_is_read_as_kubectl_reads_it(command: str, tmp_path: Path) -> None:
    folder_with(
        tmp_path,
        a_yaml=[named("one")],
        b_yml=[named("two")],
        c_json=json.dumps(named("three"), indent="\t"),
        d_yaml=[STRICT],
        notes_txt="no manifest: [",
        below__e_yaml=[named("four")],
    )
    flat = finetune(command, "-f", tmp_path)
    deep = finetune(command, "-f", tmp_path, "-R")
    assert (flat.exit_code, deep.exit_code) == (0, 0), flat.output + deep.output
    if command == "plan":
        heads = re.findall(r"^(\w+), with profile", flat.stdout, re.MULTILINE)
        assert heads == ["one", "two", "three"]
        assert "four, with profile strict" in deep.stdout
    else:
        assert (flat.stdout, deep.stdout) == ("4 files valid.\n", "5 files valid.\n")


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_an_invalid_document_hides_nothing_of_the_others(command: str, tmp_path: Path) -> None:
    one = yaml.safe_dump(named("one"))
    refused = yaml.safe_dump(named("two", model={"huggingFace": {"repo": "evil/model"}}))
    invalid = yaml.safe_dump(named("three", cache="Sometimes"))
    folder_with(tmp_path, a_yaml="\n---\n".join([one, "kind: [", invalid, refused]), b_yaml=[STRICT])
    done = finetune(command, "-f", tmp_path)
    file = f"{tmp_path}/a.yaml"
    start = len(one.splitlines()) + 2
    assert done.exit_code == 1
    assert f"{file}:{start + 2} (document 2): is not valid YAML" in done.stderr
    assert re.search(rf"{file}:\d+ \(document 3\): spec.cache: unknown value", done.stderr)
    assert re.search(rf"{file}:\d+ \(document 4\): two: PolicyViolation: ", done.stderr)
    assert ("one, with profile strict" if command == "plan" else "1 of 2 files valid.") in done.stdout


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_objects_of_other_kinds_are_skipped_in_one_line(command: str, tmp_path: Path) -> None:
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
    folder_with(
        tmp_path, a_yaml=[space, named("one"), STRICT], kustomization_yaml=[{"resources": ["a.yaml"]}]
    )
    done = finetune(command, "-f", tmp_path)
    assert done.exit_code == 0, done.output
    assert "Skipped, as only FineTuneJobs and FineTuneProfiles are read: Namespace team-a" in done.output
    assert json.loads(finetune("plan", "-f", tmp_path, "-o", "json").output)["version"] == 1


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_a_chat_template_of_another_file_is_used_and_not_skipped(command: str, tmp_path: Path) -> None:
    template, job = MIXTURE.read_text().split("---\n")
    folder_with(tmp_path, a_yaml=job, b_yaml=template, c_yaml=CLOUD.read_text())
    done = finetune(command, "-f", tmp_path)
    assert done.exit_code == 0, done.output
    assert "Skipped" not in done.output


@pytest.mark.parametrize("command", ["plan", "validate"])
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "contains no file that ends in .json, .yaml, .yml; -R reads the folders below it, too"),
        ({"a_yaml": "kind: Pod\n"}, "contains no FineTuneJob"),
    ],
)
def test_a_folder_without_a_job_is_an_error(
    command: str, files: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = finetune(command, "-f", folder_with(tmp_path, **files))
    assert done.exit_code == 1
    assert f"{tmp_path}: {said}" in done.stderr


def test_a_file_is_read_once_and_of_equal_objects_the_last_counts(tmp_path: Path) -> None:
    file = written(tmp_path, JOB, STRICT)
    assert finetune("validate", "-f", file, "-f", tmp_path).stdout == "1 file valid.\n"
    wider = changed(STRICT, constraints={"uris": {"read": ["gs://data/*", "hf://models/*"]}})
    other = written(tmp_path, wider, changed(JOB, model={"huggingFace": {"repo": "other/model"}}))
    done = finetune("validate", "-f", file, "-f", other)
    assert done.exit_code == 0, done.output
    assert f"{other}: FineTuneProfile strict replaces the one in {file}:" in done.stdout
    assert f"{other}:" in done.stdout
    assert done.stdout.count("replaces the one in") == 2


def test_a_folder_that_cannot_be_read_and_a_link_into_nothing_are_named(tmp_path: Path) -> None:
    (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
    folder_with(tmp_path, a_yaml=[JOB, STRICT])
    done = finetune("validate", "-f", tmp_path)
    assert done.exit_code == 1
    assert f"{tmp_path}/gone.yaml: No such file or directory" in done.stderr
    assert "1 of 2 files valid." in done.stdout


def test_pipes_and_devices_in_a_folder_are_named_and_not_read(tmp_path: Path) -> None:
    folder_with(tmp_path, a_yaml=[JOB, STRICT])
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for command in ("validate", "plan"):
        done = finetune(command, "-f", tmp_path)
        assert done.exit_code == 1
        for name in ("pipe.yaml", "zero.yaml"):
            assert f"{tmp_path}/{name}: is not a file" in done.stderr


def test_a_file_without_end_is_not_read_whole() -> None:
    done = finetune("validate", "-f", "/dev/zero")
    assert done.exit_code == 1
    assert "/dev/zero: has more than 16,777,216 characters" in done.stderr


def test_texts_of_a_manifest_change_no_terminal_and_begin_no_line(tmp_path: Path) -> None:
    hostile = "\x1b[2J\x9b31m\u202e\n::error::red"
    other = {"kind": hostile, "metadata": {"name": hostile}}
    file = written(tmp_path, JOB, STRICT, changed(JOB, **{hostile: hostile}), other)
    for command in ("validate", "plan"):
        shown = finetune(command, "-f", file).output
        assert "red" in shown
        assert all(each.isprintable() or each == "\n" for each in shown)
        assert "\n::error" not in shown


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
    assert "The cluster at http://127.0.0.1:1 does not respond" in done.stderr


@pytest.mark.parametrize(
    ("verb", "instead"),
    [("get", "finetune list"), ("apply", "kubectl apply -f"), ("delete", "kubectl delete")],
)
def test_a_verb_of_kubectl_leads_to_what_does_its_work(verb: str, instead: str) -> None:
    done = finetune(verb, "-f", "job.yaml")
    assert done.exit_code == 2
    assert f'There is no command "{verb}"' in done.stderr
    assert instead in done.stderr


def test_a_misspelt_command_gets_a_suggestion() -> None:
    done = finetune("statsu", "x")
    assert done.exit_code == 2
    assert "Did you mean 'status'?" in done.output


@pytest.mark.parametrize(
    "module", ["kubernetes.client", "kubernetes.aio.client", "google", "aiohttp", "kopf", "pydantic"]
)
def test_help_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, finetune_operator.cli.commands; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["st"], ["status", ":4"]),
        (["wait", "--time"], ["--timeout", ":4"]),
        (["list", "-o", "j"], ["json", ":4"]),
        (["plan", "-f", ""], [":0"]),
        (["plan", "--profile", ""], [":0"]),
        (["init", "--output", ""], [":0"]),
        (["list", "--output", "j"], ["json", ":4"]),
    ],
)
def test_kubectl_completes_the_plugin(words: list[str], completions: list[str]) -> None:
    program = Path(sys.executable).with_name("kubectl_complete-finetune")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == completions


def test_names_are_completed_by_none_without_a_cluster(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("kubectl_complete-finetune")
    absent = tmp_path / "none"
    done = subprocess.run(
        [program, "status", "--kubeconfig", absent, "a"], capture_output=True, text=True, check=True
    )
    assert (done.stdout.split(), done.stderr) == ([":4"], "")


def test_kubectl_runs_the_plugin_under_its_own_name() -> None:
    program = Path(sys.executable).with_name("kubectl-finetune")
    done = subprocess.run([program, "wait"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "kubectl finetune wait" in done.stderr


def test_the_page_about_the_command_names_all_commands() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"^\| `finetune ([a-z]+)", page, re.MULTILINE)) == commands
