"""``finetune init``: what it writes is valid, it asks only on a terminal, and a copy takes only what it may."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from finetune_operator.api import MethodType, parse_job
from finetune_operator.api.job import MAX_NAME_LENGTH, NAME_PATTERN
from finetune_operator.api.method import Quantization
from finetune_operator.cli.commands import app
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.documents import read_documents
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests.init import cloned, cloned_manifest, new_manifest, next_names
from finetune_operator.cli.manifests.new_job import NewJob, faults, manifest_text, name_for
from finetune_operator.cli.output_file import save
from finetune_operator.cli.questions import Questions
from finetune_operator.cli.yaml_text import yaml_text
from tests.unit.api.documents import following
from tests.unit.cli.fake_api import FakeApi
from tools.crd import job_crd, root_schema

ROOT = Path(__file__).parents[3]
FINETUNE = Path(sys.executable).with_name("finetune")
MODEL = ("--model", "Qwen/Qwen3-0.6B")
DATA = ("--dataset", "gs://team-a/chat.jsonl")


def init(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(app, ["init", *map(str, arguments)], **options)


def manifest(done: Result) -> dict[str, Any]:
    """The only document that was printed, as kubectl reads it."""
    assert done.exit_code == 0, done.output
    (document,) = read_documents(done.stdout)
    content: dict[str, Any] = document.content
    return content


# --- new jobs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantization", [None, *Quantization])
@pytest.mark.parametrize("lora", [True, False])
@pytest.mark.parametrize("method", MethodType)
def test_a_manifest_of_each_method_is_valid(
    method: MethodType, lora: bool, quantization: Quantization | None
) -> None:
    new = NewJob(
        name="bot", model="a/b", datasets=["a/b"], method=method, lora=lora, quantization=quantization
    )
    text = manifest_text(new)
    assert faults(text, None) == []
    spec = parse_job(yaml.safe_load(text)).spec
    assert spec.method.type is method
    assert (spec.method.lora is not None) is lora
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("method", MethodType)
def test_a_job_of_a_new_manifest_is_evaluated_so_that_it_can_be_compared(
    method: MethodType, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    new = NewJob(name="bot", model="Qwen/Qwen3-4B", datasets=["gs://my-project-data/team-a/a"], method=method)
    file.write_text(manifest_text(new))
    profile = ROOT / "examples" / "profiles" / "gke-v6e.yaml"
    done = CliRunner().invoke(
        app, ["plan", "-f", str(file), "--profile", str(profile), "-n", "team-a", "-o", "json"]
    )
    assert done.exit_code == 0, done.output
    assert "Evaluate" in json.loads(done.stdout)["plans"][0]["stages"]


@pytest.mark.parametrize("method", MethodType)
def test_what_the_comments_suggest_is_valid_too(method: MethodType) -> None:
    text = manifest_text(NewJob(name="bot", model="a/b", datasets=["gs://a/b"], method=method))
    set_all = re.sub(r"^( *)# ( *)(?=[a-z]\w*: )", r"\1\2", text, flags=re.MULTILINE)
    set_all = set_all.replace("{name: PROFILE}", "{name: gke}")
    assert faults(set_all, None) == []
    spec = yaml.safe_load(set_all)["spec"]
    assert {"profileRef", "huggingFaceTokenSecretRef", "resources", "evaluation"} <= spec.keys()
    assert "columns" in spec["datasets"]["train"][0]
    assert {"learningRate"} <= spec["hyperparameters"].keys()


def test_flags_become_a_manifest_that_names_what_to_set_next() -> None:
    done = init(*MODEL, *DATA, "--dataset", "hf://datasets/acme/faq@v2", "--profile", "gke", "-n", "team-a")
    assert manifest(done) == {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "qwen3-0-6b-sft", "namespace": "team-a"},
        "spec": {
            "profileRef": {"name": "gke"},
            "model": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}},
            "datasets": {
                "train": [
                    {"uri": "gs://team-a/chat.jsonl"},
                    {"huggingFace": {"repo": "acme/faq", "revision": "v2"}},
                ],
                "splitFromTrain": {"fraction": 0.05},
            },
            "method": {"type": "SFT", "lora": {"rank": 16}},
            "hyperparameters": {"epochs": 1},
            "evaluation": {"prompts": ["What can you help me with?"]},
        },
    }
    assert "# learningRate: 0.0002" in done.stdout
    for command in ("finetune validate -f", "finetune plan -f", "kubectl apply -f"):
        assert command in done.stderr


def test_validation_rows_and_hyperparameters_are_flags() -> None:
    rows = "gs://team-a/eval.jsonl"
    spec = manifest(init(*MODEL, *DATA, "--validation", rows, "--steps", 120, "--learning-rate", "5e-3"))[
        "spec"
    ]
    assert spec["datasets"] == {"train": [{"uri": "gs://team-a/chat.jsonl"}], "validation": [{"uri": rows}]}
    assert spec["hyperparameters"] == {"steps": 120, "learningRate": 0.005}
    assert manifest(init(*MODEL, *DATA, "--epochs", 3))["spec"]["hyperparameters"] == {"epochs": 3}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--steps", 0), "--steps: is 0, must be at least 1"),
        (("--learning-rate", -1), "--learning-rate: is -1, must be above 0"),
        (("--steps", 1, "--epochs", 1), "--steps and --epochs both set the length"),
        (("--validation", "eval.jsonl"), "--validation: must be gs://"),
    ],
)
def test_values_that_cannot_be_are_refused_by_the_name_of_the_flag(
    flags: Sequence[object], told: str
) -> None:
    done = init(*MODEL, *DATA, *flags)
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr


def test_of_a_file_of_this_machine_is_said_how_a_job_can_read_it() -> None:
    assert "gcloud storage cp" in init(*MODEL, "--dataset", "./chat.jsonl").stderr


@pytest.mark.parametrize(
    ("flags", "method"),
    [
        (("--method", "dpo"), {"type": "DPO", "lora": {"rank": 16}}),
        (("--method", "ORPO", "--no-lora"), {"type": "ORPO"}),
        (("--quantization", "nf4"), {"type": "SFT", "lora": {"rank": 16, "quantization": "NF4"}}),
    ],
)
def test_the_method_is_what_the_flags_say(flags: Sequence[str], method: dict[str, Any]) -> None:
    assert manifest(init(*MODEL, *DATA, *flags))["spec"]["method"] == method


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("Qwen/Qwen3-0.6B", {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}),
        ("hf://Qwen/Qwen3-0.6B", {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}),
        ("hf://models/a/b@v1", {"huggingFace": {"repo": "a/b", "revision": "v1"}}),
        ("gs://bucket/a: b 'c' \"d\" {e}/", {"uri": "gs://bucket/a: b 'c' \"d\" {e}/"}),
        ("file:///models/yes - {x}", {"uri": "file:///models/yes - {x}"}),
        ("gs://bucket/ é 模型 & - y", {"uri": "gs://bucket/ é 模型 & - y"}),
    ],
)
def test_addresses_survive_yaml(model: str, source: dict[str, Any]) -> None:
    assert manifest(init("--model", model, *DATA))["spec"]["model"] == source


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        ((), 2, "--model and --dataset are missing"),
        (MODEL, 2, "--dataset is missing"),
        (DATA, 2, "--model is missing"),
        ((*MODEL, "--dataset", "rows.jsonl"), 2, "--dataset: must be gs://bucket/path or file:///path"),
        ((*MODEL, "--dataset", "./rows.jsonl"), 2, "--dataset: must be gs://bucket/path or file:///path"),
        ((*MODEL, "--dataset", "gs://a/b#c"), 2, "--dataset: must not hold control characters"),
        (("--model", "s3://a/b", *DATA), 2, "--model: must be gs://bucket/path or file:///path"),
        (("--model", "a b/c", *DATA), 2, "--model: must be a repository, OWNER/NAME"),
        ((*MODEL, *DATA, "--name", "Bot"), 2, "--name: must be lower-case letters"),
        ((*MODEL, *DATA, "--name", "b" * 29), 2, "--name: may have at most 28 characters"),
        ((*MODEL, *DATA, "-n", "Team A"), 2, '--namespace: must be lower-case letters, digits and "-"'),
        ((*MODEL, *DATA, "--profile", "a b"), 2, "--profile: must be the name of a Kubernetes object"),
        ((*MODEL, *DATA, "--no-lora", "--quantization", "NF4"), 2, "--quantization is for LoRA"),
        ((*MODEL, *DATA, "--method", "GRPO"), 2, "expected one of SFT, DPO, ORPO"),
        ((*MODEL, *DATA, "--quantization", "FP8"), 2, "expected one of NF4, INT8"),
    ],
)
def test_a_flag_that_is_missing_or_wrong_is_named(flags: Sequence[str], code: int, said: str) -> None:
    done = init(*flags)
    assert (done.exit_code, done.stdout) == (code, "")
    assert said in " ".join(re.sub(r"[│╭╮╰╯─]", " ", done.stderr).split())


@given(model=st.text(max_size=60), method=st.sampled_from(MethodType))
def test_a_name_can_be_made_from_any_model(model: str, method: MethodType) -> None:
    name = name_for(model, method)
    assert re.fullmatch(NAME_PATTERN, name)
    assert len(name) <= MAX_NAME_LENGTH
    assert name.endswith(method.lower())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-0.6B", "qwen3-0-6b-sft"),
        ("hf://a/b@main", "b-sft"),
        ("gs://bucket/models/tiny/", "tiny-sft"),
        ("a/7B", "job-7b-sft"),
        ("a/模型", "job-sft"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1-distill-qwen-sft"),
    ],
)
def test_a_name_is_made_from_the_last_part_of_the_model(model: str, name: str) -> None:
    assert name_for(model, MethodType.SFT) == name


#: Names of files and folders: what a URI may have between two slashes.
SEGMENTS = st.text(
    st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/\\#%*?[]"), min_size=1, max_size=30
).filter(lambda text: text not in {".", ".."})
URIS = SEGMENTS.map(lambda text: f"gs://bucket/{text}")


@given(
    model=URIS,
    datasets=st.lists(URIS, min_size=1, max_size=3),
    name=st.from_regex(NAME_PATTERN, fullmatch=True).filter(lambda text: len(text) <= MAX_NAME_LENGTH),
    method=st.sampled_from(MethodType),
)
def test_every_valid_answer_is_written_so_that_it_reads_as_given(
    model: str, datasets: list[str], name: str, method: MethodType
) -> None:
    text = new_manifest(NewJob(name=name, model=model, datasets=datasets, method=method), None)
    (document,) = read_documents(text)
    spec = parse_job(document.content).spec
    assert document.content["metadata"] == {"name": name}
    assert spec.model.uri == model
    assert [each.uri for each in spec.datasets.train] == datasets


@given(model=st.text(), dataset=st.text(), name=st.text(), profile=st.text(), namespace=st.text())
def test_whatever_is_given_the_result_is_valid_or_a_refusal_that_names_a_flag(
    model: str, dataset: str, name: str, profile: str, namespace: str
) -> None:
    flags = NewJob(name=name, namespace=namespace, profile=profile, model=model, datasets=(dataset,))
    try:
        text = new_manifest(flags, None)
    except CliError as error:
        refused: CliError | None = error
    else:
        refused = None
        parse_job(yaml.safe_load(text))
    assert refused is None or (refused.code == 2 and refused.message.startswith("--"))


def test_the_commands_of_the_quickstart_work_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = (ROOT / "docs" / "quickstart.md").read_text().partition("finetune init ")[2].partition("```")[0]
    commands = [line.split() for line in f"finetune init {block}".replace("\\\n", " ").splitlines()]
    assert [words[1] for words in commands] == ["init", "validate", "plan"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "devcluster").symlink_to(ROOT / "devcluster")
    for words in commands:
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, done.output


def test_with_model_and_data_nothing_is_asked() -> None:
    flags = NewJob(model="a/b", datasets=("a/c",))
    assert new_manifest(flags, Answers()) == new_manifest(flags, None)


def test_a_wrong_flag_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(CliError, match="--model: must be a repository"):
        new_manifest(NewJob(model="a b"), Answers())


# --- questions ------------------------------------------------------------------------------------------------


class Answers(Questions):
    """Answers in order."""

    def __init__(self, *answers: str) -> None:
        self._answers = iter(answers)
        self.questions: list[str] = []

    def _answer(self, prompt: str) -> str:
        self.questions.append(prompt)
        return next(self._answers)


def test_questions_have_defaults_and_refused_answers_are_asked_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = Answers("a b", "Qwen/Qwen3-4B", "rows.jsonl", "gs://a/rows.jsonl", "", "", "", "", "")
    written = yaml.safe_load(new_manifest(NewJob(), answers))
    assert written["metadata"] == {"name": "qwen3-4b-sft"}
    assert written["spec"]["method"] == {"type": "SFT", "lora": {"rank": 16}}
    model, data = capsys.readouterr().err.splitlines()
    assert "must be a repository" in model
    assert "must be gs://" in data


def test_only_what_no_flag_says_is_asked() -> None:
    answers = Answers("a/b", "orpo", "n", "bot", "gke")
    written = yaml.safe_load(new_manifest(NewJob(datasets=("a/c", "a/d")), answers))
    asked = [question.split()[0] for question in answers.questions]
    assert asked == ["Model", "Method", "LoRA", "Name", "Profile"]
    assert written["spec"]["method"] == {"type": "ORPO"}
    assert written["spec"]["profileRef"] == {"name": "gke"}


def on_terminal(answers: bytes, *arguments: str) -> tuple[int, str]:
    """Exit code and everything that the terminal shows."""
    controller, terminal = pty.openpty()
    program = subprocess.Popen(
        [FINETUNE, "init", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb"},
    )
    os.close(terminal)
    os.write(controller, answers)
    shown = b"".join(_read(controller))
    os.close(controller)
    return program.wait(), shown.decode()


def _read(controller: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(controller, 1 << 16)
        except OSError:  # The program has closed the terminal.
            return


def test_on_a_terminal_it_asks_and_writes_what_was_answered(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    code, shown = on_terminal(b"Qwen/Qwen3-0.6B\ngs://a/b.jsonl\n\ndpo\n\nbot\n\n", "--output", str(file))
    assert code == 0, shown
    assert "Method (SFT, DPO, ORPO) [SFT]:" in shown
    written = yaml.safe_load(file.read_text())
    assert written["metadata"]["name"] == "bot"
    assert written["spec"]["method"] == {"type": "DPO", "lora": {"rank": 16}}


def test_the_end_of_the_input_ends_the_questions_and_writes_nothing(tmp_path: Path) -> None:
    code, shown = on_terminal(b"\x04", "--output", str(tmp_path / "job.yaml"))
    assert code == 130
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


# --- files ----------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    file = tmp_path / "a b.yaml"
    done = init(*MODEL, *DATA, "--output", file)
    assert (done.exit_code, done.stdout) == (0, "")
    assert f"kubectl apply -f '{file}'" in done.stderr
    refused = init("--model", "a/other", *DATA, "--output", file)
    assert refused.exit_code == 1
    assert f"{file} exists already." in refused.stderr
    assert "qwen3" in file.read_text()
    assert init("--model", "a/other", *DATA, "--output", file, "--force").exit_code == 0
    assert "other-sft" in file.read_text()
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    absent = tmp_path / "none" / "job.yaml"
    done = init(*MODEL, *DATA, "--output", absent)
    assert done.exit_code == 1
    assert f"{absent}: No such file or directory" in done.stderr
    with pytest.raises(CliError):
        save("text", tmp_path, force=True)
    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.parent.glob(f".{tmp_path.name}*")) == []


# --- copies ---------------------------------------------------------------------------------------------------

SOURCE: dict[str, Any] = {
    "apiVersion": "tpu-finetune.dev/v1alpha1",
    "kind": "FineTuneJob",
    "metadata": {
        "name": "bot",
        "namespace": "team-a",
        "uid": "u",
        "finalizers": ["x"],
        "labels": {"team": "nlp", "app.kubernetes.io/instance": "argo", "kueue.x-k8s.io/queue-name": "q"},
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "argocd.argoproj.io/tracking-id": "x",
            "note": "yes",
        },
    },
    "spec": {
        "suspend": True,
        "cancel": True,
        "retry": {"generation": 3},
        "resumeFrom": {"runFolder": "gs://a/b"},
        "model": {"huggingFace": {"repo": "a/b"}},
        "datasets": {"train": [{"uri": "gs://a/b.jsonl"}], "maxSeqLength": 256},
        "method": {"type": "DPO", "dpo": {"beta": 2e-5}},
        "engineOverrides": {"remat_policy": "full"},
    },
    "status": {"phase": "Failed"},
}


def test_a_copy_has_the_spec_and_labels_and_nothing_that_belongs_to_one_job() -> None:
    assert cloned(SOURCE, "bot-2") == {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {
            "name": "bot-2",
            "namespace": "team-a",
            "labels": {"team": "nlp", "kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"note": "yes"},
        },
        "spec": {
            "model": {"huggingFace": {"repo": "a/b"}},
            "datasets": {"train": [{"uri": "gs://a/b.jsonl"}], "maxSeqLength": 256},
            "method": {"type": "DPO", "dpo": {"beta": 2e-5}},
            "engineOverrides": {"remat_policy": "full"},
        },
    }


def test_a_default_that_the_api_server_adds_is_not_copied() -> None:
    added = {**SOURCE, "spec": {**SOURCE["spec"], "planOnly": False}}
    assert cloned(added, "bot-2") == cloned(SOURCE, "bot-2")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("bot", "bot-2"),
        ("bot-7", "bot-8"),
        ("b" * 28, f"{'b' * 26}-2"),
        (f"{'b' * 26}-9", f"{'b' * 25}-10"),
        ("v-99999999", "v-99999999-2"),
    ],
)
def test_the_next_name_counts_on_and_fits(name: str, first: str) -> None:
    found = next(next_names(name))
    assert found == first
    assert re.fullmatch(NAME_PATTERN, found)
    assert len(found) <= MAX_NAME_LENGTH


async def test_a_copy_gets_a_free_name_and_the_given_parts(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", SOURCE)
    await api.put("finetunejobs", {**SOURCE, "metadata": {"name": "bot-2", "namespace": "team-a"}})
    text = await cloned_manifest(
        connection, "bot", NewJob(model="c/d", datasets=("gs://a/new.jsonl",), profile="gke")
    )
    (document,) = read_documents(text)
    assert faults(text, None) == []
    assert document.content["metadata"]["name"] == "bot-3"
    spec = document.content["spec"]
    assert spec["model"] == {"huggingFace": {"repo": "c/d"}}
    assert spec["datasets"] == {"train": [{"uri": "gs://a/new.jsonl"}], "maxSeqLength": 256}
    assert spec["profileRef"] == {"name": "gke"}
    assert api.lists == [], "a role that can get jobs is enough"


async def test_a_copy_takes_other_hyperparameters_and_validation_rows(
    api: FakeApi, connection: Connection
) -> None:
    datasets = {**SOURCE["spec"]["datasets"], "splitFromTrain": {"fraction": 0.05}}
    before = {"epochs": 3, "learningRate": 1e-4, "globalBatchSize": 8}
    spec = {**SOURCE["spec"], "datasets": datasets, "hyperparameters": before}
    await api.put("finetunejobs", {**SOURCE, "spec": spec})
    given_flags = NewJob(validation=("gs://a/eval.jsonl",), steps=100, learning_rate=5e-3)
    copied = yaml.safe_load(await cloned_manifest(connection, "bot", given_flags))["spec"]
    assert copied["hyperparameters"] == {"globalBatchSize": 8, "learningRate": 0.005, "steps": 100}
    assert copied["datasets"]["validation"] == [{"uri": "gs://a/eval.jsonl"}]
    assert "splitFromTrain" not in copied["datasets"]
    rate_alone = yaml.safe_load(await cloned_manifest(connection, "bot", NewJob(learning_rate=1e-3)))["spec"]
    assert rate_alone["hyperparameters"] == {**before, "learningRate": 0.001}


@pytest.mark.parametrize(
    ("source", "flags", "said"),
    [
        ("bot", {"name": "bot"}, 'FineTuneJob "bot" exists already in namespace team-a'),
        ("bto", {}, 'There is no FineTuneJob "bto" in namespace team-a'),
        ("bot", {"method": MethodType.SFT}, "do not go with --from"),
        ("bot", {"name": "Bot"}, "--name: must be lower-case letters"),
    ],
)
async def test_a_copy_that_is_not_possible_is_refused(
    source: str, flags: dict[str, Any], said: str, api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", SOURCE)
    with pytest.raises(CliError) as refused:
        await cloned_manifest(connection, source, NewJob(**flags))
    assert said in refused.value.message


async def test_a_copy_of_a_plan_says_that_it_would_not_train(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", {**SOURCE, "spec": {**SOURCE["spec"], "planOnly": True}})
    text = await cloned_manifest(connection, "bot", NewJob())
    assert "# planOnly: true ends the job after Preflight" in text
    assert yaml.safe_load(text)["spec"]["planOnly"] is True


def test_from_without_a_cluster_is_one_error(tmp_path: Path) -> None:
    done = init("--from", "bot", "--kubeconfig", tmp_path / "none")
    assert done.exit_code == 1
    assert "no usable kubeconfig" in done.stderr
    assert done.stdout == ""


SPEC = root_schema(job_crd())["properties"]["spec"]


@given(spec=following(SPEC))
def test_a_copy_of_any_job_reads_as_its_spec(spec: dict[str, Any]) -> None:
    job = {**SOURCE, "spec": spec}
    (document,) = read_documents(yaml_text(cloned(job, "bot-2")))
    lifecycle = ("suspend", "cancel", "retry", "resumeFrom")
    kept = {key: each for key, each in spec.items() if key not in lifecycle}
    assert document.content["spec"] == {
        key: each for key, each in kept.items() if (key, each) != ("planOnly", False)
    }
