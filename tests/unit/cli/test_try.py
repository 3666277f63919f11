"""``finetune try``: answers through packages of the caller, and recorded samples without them.

Nothing of a hostile model is executed. ``tests/trainer/test_answers.py`` runs the same program with the real
transformers.
"""

import json
import os
import signal
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from finetune_contract import RunFolder, Sample
from finetune_operator.cli.commands import app
from finetune_operator.results import reader
from tests.unit.cli.exported import ADAPTER, FILES, write_run
from tests.unit.cli.fake_transformers import FakeTransformers
from tests.unit.comparison.runs import preflight, request

FINETUNE = Path(sys.executable).with_name("finetune")


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a Python on PATH nor the caller's cache is used."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeTransformers:
    made = FakeTransformers(tmp_path / "packages", **options)
    monkeypatch.setenv("PYTHONPATH", str(made.folder))
    return made


def model_run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "bot-0badcafe", {"model": FILES})


def adapter_run(tmp_path: Path, *, weights: str = "adapter_model.safetensors", **config: Any) -> Path:
    files = {"adapter_config.json": json.dumps({**ADAPTER, **config}).encode(), weights: b"weights"}
    return write_run(tmp_path / "bot-0badcafe", {"adapter": files})


def ask(run: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["try", "--run", f"file://{run}", *map(str, arguments)])


def write_samples(run: Path, *recorded: Sample, garbage: bytes = b"") -> None:
    (run / "evaluate").mkdir(parents=True)
    lines = "".join(sample.to_json() + "\n" for sample in recorded)
    (run / "evaluate" / "samples.jsonl").write_bytes(garbage + lines.encode())


SAMPLE = Sample(prompt="2+2?", baseline="5\nor so", tuned="4", reference="four")


def test_the_model_answers_greedily_in_its_chat_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = installed(tmp_path, monkeypatch), model_run(tmp_path)
    done = ask(run, "Reset my password")
    assert (done.exit_code, done.stdout) == (0, "answer to user:Reset my password\n"), done.output
    (loaded,) = fake.calls("model")
    assert loaded["trust_remote_code"] is False
    assert loaded["use_safetensors"] is True
    assert loaded["offline"] == "1"
    assert Path(loaded["folder"]).is_relative_to(tmp_path / "cache" / "finetune" / "models")
    assert fake.calls("tokenizer")[0]["trust_remote_code"] is False
    (generated,) = fake.calls("generate")
    assert generated["max_new_tokens"] == 256
    assert generated["sampling"]["do_sample"] is False


def test_length_and_temperature_are_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, run = installed(tmp_path, monkeypatch), model_run(tmp_path)
    assert ask(run, "x", "--max-new-tokens", 6, "--temperature", 0.5).stdout == "answer\n"
    assert fake.calls("generate")[0]["sampling"] == {"do_sample": True, "temperature": 0.5}


def test_a_second_prompt_downloads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    run = model_run(tmp_path)
    ask(run, "x")
    (run / "export/model/model.safetensors").unlink()
    assert ask(run, "y").stdout == "answer to user:y\n"


def test_an_adapter_is_loaded_on_its_base_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, run = installed(tmp_path, monkeypatch), adapter_run(tmp_path)
    done = ask(run, "x")
    assert done.stdout == "answer to user:x\n", done.output
    assert "Base model: Qwen/Qwen3-0.6B" in done.stderr
    (base,) = fake.calls("model")
    assert (base["folder"], base["trust_remote_code"], base["use_safetensors"]) == (
        str(fake.base("Qwen/Qwen3-0.6B")),
        False,
        True,
    )
    assert base["offline"] is None
    assert Path(base["cwd"]) == tmp_path / "cache" / "finetune" / "models", (
        "no folder of the caller has that name"
    )
    assert fake.calls("adapter")[0]["settings"] == {
        "task_type": "CAUSAL_LM", "inference_mode": True, "r": 8, "lora_alpha": 16.0,
        "target_modules": ["q_proj", "v_proj"], "exclude_modules": None, "use_rslora": False,
    }  # fmt: skip


def write_records(
    run: Path, *, revision: str = "c1899de289a04d12100db370d81485cdf75e47ca", **data: Any
) -> None:
    asked = request(**{f"data__{name}": value for name, value in data.items()})
    model = preflight().model.model_copy(update={"source": "Qwen/Qwen3-0.6B", "revision": revision})
    folder = RunFolder(f"file://{run}")
    for uri, record in (
        (folder.request("train", 1, 0), asked),
        (folder.preflight_report, preflight().model_copy(update={"model": model})),
    ):
        path = Path(uri.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record.to_json())


def test_the_template_and_the_base_are_those_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = installed(tmp_path, monkeypatch), adapter_run(tmp_path)
    hostile = {"turns": "other", "return_tensors": "np", "add_generation_prompt": False}
    arguments = {"enable_thinking": False, **hostile}
    write_records(run, chat_template_arguments=arguments, chat_template_date="2026-07-04")
    done = ask(run, "x")
    assert done.stdout == "answer to user:x\n", done.output
    (template,) = fake.calls("template")
    assert (template["variables"], template["today"]) == ({"enable_thinking": False}, "04 Jul 2026")
    (base,) = fake.calls("snapshot")
    assert base["revision"] == "c1899de289a04d12100db370d81485cdf75e47ca"
    assert f"Base model: Qwen/Qwen3-0.6B at {base['revision']}" in done.stderr


@pytest.mark.parametrize("revision", ["main", "../../x", "sha256:" + "0" * 64, ""])
def test_what_is_no_commit_is_not_used_as_a_revision(
    revision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = installed(tmp_path, monkeypatch), adapter_run(tmp_path)
    write_records(run, revision=revision)
    assert ask(run, "x").exit_code == 0
    assert fake.calls("snapshot")[0]["revision"] is None


def test_a_base_that_the_caller_names_has_no_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = installed(tmp_path, monkeypatch), adapter_run(tmp_path)
    write_records(run)
    assert ask(run, "x", "--base", "acme/other").exit_code == 0
    assert fake.calls("snapshot")[0]["revision"] is None


def test_records_that_are_unreadable_are_named_and_the_model_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, run = installed(tmp_path, monkeypatch), model_run(tmp_path)
    write_records(run)
    path = Path(RunFolder(f"file://{run}").request("train", 1, 0).removeprefix("file://"))
    path.write_bytes(b"\xff\x1b[2J")
    done = ask(run, "x")
    assert done.stdout == "answer to user:x\n", done.output
    assert "request.json is not a valid record" in done.stderr
    assert fake.calls("template")[0] | {"variables": {}, "today": None} == fake.calls("template")[0]


def test_of_an_adapter_s_configuration_only_known_settings_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(tmp_path, monkeypatch)
    hostile = {
        "auto_mapping": {"parent_library": "evil"},
        "corda_config": {"cache_file": "/etc"},
        "runtime_config": {},
    }
    assert ask(adapter_run(tmp_path, **hostile), "x").exit_code == 0
    assert not hostile.keys() & fake.calls("adapter")[0]["settings"].keys()


@pytest.mark.parametrize(
    "base",
    [
        "/etc",
        "../../x",
        "./x",
        "gs://models/base",
        "a/b/c",
        "https://evil/x",
        "~/x",
        "",
        "a\nb",
        "C:\\x",
        "-x/y",
    ],
)
def test_a_base_model_that_is_no_repository_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    fake = installed(tmp_path, monkeypatch)
    done = ask(adapter_run(tmp_path, base_model_name_or_path=base), "x")
    assert done.exit_code == 1
    assert "which is no repository of the Hugging Face Hub" in done.stderr
    assert "--base DIR" in done.stderr
    assert not (fake.folder / "calls.jsonl").exists()


def test_a_base_model_can_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = installed(tmp_path, monkeypatch)
    run = adapter_run(tmp_path, base_model_name_or_path="gs://models/base")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert ask(run, "x", "--base", "base").exit_code == 0
    assert ask(run, "x", "--base", "Qwen/Qwen3-4B").exit_code == 0
    assert [each["folder"] for each in fake.calls("model")] == [
        str(tmp_path / "base"),
        str(fake.base("Qwen/Qwen3-4B")),
    ]
    refused = ask(model_run(tmp_path / "other"), "x", "--base", "base")
    assert "--base is for adapters" in refused.stderr


@pytest.mark.parametrize(
    ("config", "weights", "message"),
    [
        ({}, "adapter_model.bin", "holds adapter_model.bin, with which it could run code"),
        ({}, "other.safetensors", "holds no adapter_model.safetensors"),
        (
            {"peft_type": "XLORA"},
            "adapter_model.safetensors",
            "is not the configuration of a LoRA adapter: peft_type",
        ),
        ({"r": 10**9}, "adapter_model.safetensors", "LoRA adapter: r:"),
        ({"target_modules": "(a+)+$"}, "adapter_model.safetensors", "LoRA adapter: target_modules"),
    ],
)
def test_an_adapter_that_is_not_one_of_ours_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], weights: str, message: str
) -> None:
    fake = installed(tmp_path, monkeypatch)
    done = ask(adapter_run(tmp_path, weights=weights, **config), "x")
    assert done.exit_code == 1
    assert message in done.stderr
    assert not (fake.folder / "calls.jsonl").exists()


@pytest.mark.parametrize(
    "name",
    ["adapter_config.json", "Adapter_Config.JSON", "sub/adapter_config.json"]
    + [f"weights.{end}" for end in ("bin", "pt", "pth", "pkl", "pickle", "ckpt", "BIN")],
)
def test_a_model_with_files_that_lead_libraries_elsewhere_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fake = installed(tmp_path, monkeypatch)
    hostile = json.dumps({**ADAPTER, "base_model_name_or_path": "/private/model"}).encode()
    done = ask(write_run(tmp_path / "bot-0badcafe", {"model": {**FILES, name: hostile}}), "x")
    assert done.exit_code == 1
    assert f"holds {name.lower()}, with which it could run code" in done.stderr
    assert not (fake.folder / "calls.jsonl").exists()
    assert not (tmp_path / "cache").exists(), "it is not downloaded"


def test_a_model_without_its_configuration_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(tmp_path, monkeypatch)
    done = ask(write_run(tmp_path / "bot-0badcafe", {"model": {"model.safetensors": b""}}), "x")
    assert (done.exit_code, "holds no config.json" in done.stderr) == (1, True), done.stderr
    assert not (fake.folder / "calls.jsonl").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": {"attn_implementation": "evil/kernel"}}, "config.json: attn_implementation chooses"),
        (
            {"config.json": {"text_config": {"_experts_implementation": {"": "evil/kernel"}}}},
            "config.json: _experts_implementation chooses",
        ),
        (
            {"model.safetensors.index.json": {"weight_map": {"w": "../other/w.safetensors"}}},
            "index.json names",
        ),
        ({"model.safetensors.index.json": {"weight_map": {"w": "model.gguf"}}}, "index.json names"),
        ({"config.json": []}, None),
    ],
)
def test_a_model_s_own_files_lead_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, Any], message: str | None
) -> None:
    fake = installed(tmp_path, monkeypatch)
    written = {name: json.dumps(content).encode() for name, content in files.items()}
    done = ask(write_run(tmp_path / "bot-0badcafe", {"model": {**FILES, **written}}), "x")
    if message is None:  # It is transformers' task to refuse it.
        assert done.exit_code == 0
        return
    assert done.exit_code == 1
    assert message in done.stderr
    assert not (fake.folder / "calls.jsonl").exists()


def test_of_a_base_model_only_configuration_and_safetensors_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = installed(tmp_path, monkeypatch)
    assert ask(adapter_run(tmp_path), "x").exit_code == 0
    (fetched,) = fake.calls("snapshot")
    chosen = [
        name
        for name in (
            "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json",
            "pytorch_model.bin", "modeling_evil.py", "evil.pkl", "original/consolidated.00.pth",
        )
        if any(fnmatch(name, pattern) for pattern in fetched["patterns"])
    ]  # fmt: skip
    assert chosen == [
        "config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"
    ]  # fmt: skip


@pytest.mark.parametrize("given", [(), ("--base", "base")])
def test_a_base_model_that_is_itself_an_adapter_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]
) -> None:
    fake = installed(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    for folder in (fake.base("Qwen/Qwen3-0.6B"), tmp_path / "base"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "adapter_config.json").write_text(json.dumps(ADAPTER))
    done = ask(adapter_run(tmp_path), "x", *given)
    assert done.exit_code == 1
    assert "the model has an adapter_config.json, and is not loaded" in done.stderr
    assert not (fake.folder / "calls.jsonl").exists() or not fake.calls("model")


def test_without_transformers_the_recorded_samples_are_shown_and_how_to_get_answers(tmp_path: Path) -> None:
    run = model_run(tmp_path)
    write_samples(run, SAMPLE, SAMPLE.model_copy(update={"prompt": "3+3?"}))
    done = ask(run, "x")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[:9] == [
        "Prompt:", "  2+2?", "Base model:", "  5", "  or so", "Tuned model:", "  4", "Reference:", "  four"
    ]  # fmt: skip
    assert done.stdout.splitlines()[-1] == f"The first 2 of file://{run}/evaluate/samples.jsonl."
    assert done.stderr.startswith("Error: No Python here has torch and transformers")
    assert "`pip install torch transformers`" in done.stderr
    assert not (tmp_path / "cache").exists(), "nothing is downloaded that is not used"


def test_without_a_prompt_the_recorded_samples_are_shown(tmp_path: Path) -> None:
    run = model_run(tmp_path)
    write_samples(run, SAMPLE.model_copy(update={"baseline": ""}))
    done = CliRunner().invoke(app, ["try", "--run", f"file://{run}"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:6] == [
        "Prompt:",
        "  2+2?",
        "Base model:",
        "  (empty)",
        "Tuned model:",
        "  4",
    ]
    (run / "evaluate" / "samples.jsonl").unlink()
    done = CliRunner().invoke(app, ["try", "--run", f"file://{run}"])
    assert done.exit_code == 1
    assert "has no recorded answers" in done.stderr


def test_an_empty_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, empty=True)
    done = ask(model_run(tmp_path), "x")
    assert done.exit_code == 0
    assert "The model's answer is empty." in done.stderr


def test_an_adapter_needs_peft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, peft=False)
    assert "torch and transformers and peft" in ask(adapter_run(tmp_path), "x").stderr


def test_a_python_on_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTransformers(tmp_path / "packages")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{fake.folder}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(python.parent))
    assert ask(model_run(tmp_path), "x").stdout == "answer to user:x\n"


def test_a_job_that_exported_nothing_shows_its_samples_and_why(tmp_path: Path) -> None:
    run = tmp_path / "bot-0badcafe"
    write_samples(run, SAMPLE)
    done = ask(run, "x")
    assert done.exit_code == 1
    assert "Tuned model:" in done.stdout
    assert "holds no finished export" in done.stderr


def test_orbax_parameters_alone_do_not_answer(tmp_path: Path) -> None:
    run = write_run(tmp_path / "bot-0badcafe", {"orbax": {"items/_METADATA": b"{}"}})
    assert "Orbax parameters are for MaxText" in ask(run, "x").stderr


def test_samples_are_bounded_and_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = model_run(tmp_path)
    hostile = Sample(prompt="\x1b[2J\x07\u202eevil", tuned="y" * 100_000)
    write_samples(run, hostile, *[SAMPLE] * 50, garbage=b"\xff\xfe\n{\n[]\n" + b"[" * 5000 + b"\n")
    shown = ask(run, "x").stdout
    assert "evil" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert max(map(len, shown.splitlines())) < 2100
    assert shown.count("Prompt:") == 5
    monkeypatch.setattr(reader, "_FIRST_SAMPLES", 50)
    assert ask(run, "x").stdout == "", "a line that is cut is no sample"


def test_no_module_of_the_caller_s_folder_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch)
    run = model_run(tmp_path)
    folder = tmp_path / "here"
    folder.mkdir()
    for name in ("transformers", "torch", "json", "importlib"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.chdir(folder)
    assert ask(run, "x").stdout == "answer to user:x\n"
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("generate", "message"),
    [
        ("raise ValueError('no\\nroom')", "The model could not answer: ValueError: no"),
        ("import os; os._exit(9)", "its process ended with 9"),
        ("sys.exit(3)", "its process ended with 3"),
    ],
)
def test_a_model_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generate: str, message: str
) -> None:
    installed(tmp_path, monkeypatch, generate=generate)
    done = ask(model_run(tmp_path), "x")
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2


def test_an_answer_controls_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    assert ask(model_run(tmp_path), "\x1b[2J\nx").stdout == "answer to user:\nx\n"


def test_ctrl_c_ends_the_model_without_a_word(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    fake = FakeTransformers(
        tmp_path / "packages",
        generate=f"import time; open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(600)",
    )
    run = model_run(tmp_path)
    with subprocess.Popen(
        [FINETUNE, "try", "--run", f"file://{run}", "x"],
        env={
            "PATH": str(tmp_path / "nothing"),
            "PYTHONPATH": str(fake.folder),
            "XDG_CACHE_HOME": str(tmp_path / "c"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        model = int(ready.read_text())
        os.kill(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "")
    with pytest.raises(ProcessLookupError):
        os.kill(model, 0)


@pytest.mark.parametrize(
    "arguments",
    [(), ("a", "b", "c"), ("bot", "x", "--max-new-tokens", "0"), ("bot", "x", "--run", "gs://a/b")],
)
def test_arguments_that_ask_nothing_are_refused_with_code_2(arguments: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["try", *arguments]).exit_code == 2
