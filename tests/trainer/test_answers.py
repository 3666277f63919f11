"""The program behind ``finetune try`` with the real transformers and PEFT: right answers, and no code of a model."""

import json
import pickle
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.doubles.tiny_models import TinyModelSpec, write_model

pytestmark = pytest.mark.reference

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "operator/finetune_operator/cli/results/answer.py"
#: Weights so large that each of them changes the answer.
MODEL = TinyModelSpec(dtype="float32", std=0.3)
RANK, ALPHA = 4, 8.0
MODULE = "model.layers.0.self_attn.q_proj"
PROMPT = "What is the capital of Japan?"


@pytest.fixture(scope="module")
def python() -> str:
    environment = subprocess.run(
        [ROOT / "trainer_image/install.sh", "reference"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    return f"{environment}/bin/python"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "base", MODEL)


@pytest.fixture(scope="module")
def answered_by_base(python: str, base: Path) -> dict[str, Any]:
    return run(python, base)


def run(python: str, folder: Path, **asked: Any) -> dict[str, Any]:
    """The program's output for a question about a folder."""
    question = {
        "folder": str(folder),
        "prompt": PROMPT,
        "maxNewTokens": 12,
        "temperature": 0,
        "base": None,
        "revision": None,
        "arguments": {},
        "date": None,
        "adapter": None,
    }
    done = subprocess.run(
        [python, PROGRAM],
        input=json.dumps(question | asked),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder.parent,
    )
    answered: dict[str, Any] = json.loads(done.stdout)
    return answered


def write_adapter(folder: Path, pair: tuple[np.ndarray, np.ndarray], tokenizer: Path) -> Path:
    """Writes an adapter with the files of our export, with its tokenizer's."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(tokenizer / name, folder / name)
    prefix = f"base_model.model.{MODULE}"
    tensors = dict(zip((f"{prefix}.lora_A.weight", f"{prefix}.lora_B.weight"), pair, strict=True))
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_model_answers_as_transformers_alone_does(
    python: str, base: Path, answered_by_base: dict[str, Any]
) -> None:
    alone = subprocess.run(
        [python, ROOT / "trainer_image/reference/answers.py", base, "12"],
        input=json.dumps([PROMPT]), check=True, capture_output=True, text=True,
    )  # fmt: skip
    (wanted,) = json.loads(alone.stdout)
    assert wanted
    assert answered_by_base == {"answer": wanted.strip()}


def test_an_adapter_answers_as_the_merged_model(
    python: str, base: Path, answered_by_base: dict[str, Any], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    weights: Mapping[str, np.ndarray] = load_file(base / "model.safetensors")
    out, into = weights[f"{MODULE}.weight"].shape
    a = random.normal(size=(RANK, into)).astype(np.float32)
    b = random.normal(size=(out, RANK)).astype(np.float32)
    merged = tmp_path / "merged"
    shutil.copytree(base, merged)
    changed = {**weights, f"{MODULE}.weight": weights[f"{MODULE}.weight"] + ALPHA / RANK * (b @ a)}
    save_file(changed, merged / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": ["q_proj"],
        "exclude_modules": None,
        "use_rslora": False,
    }
    # one of the two layers has no weights of its own in the adapter, and is left as it is
    adapter = write_adapter(tmp_path / "adapter", (a, b), base)
    answered = run(python, adapter, base=str(base), adapter=settings)
    assert answered == run(python, merged)
    assert answered != answered_by_base


def test_an_adapters_answer_ends_where_its_own_folder_says(python: str, base: Path, tmp_path: Path) -> None:
    """The base model's files stop elsewhere. Every token is an end here, so that the answer is the first one."""
    width = load_file(base / "model.safetensors")[f"{MODULE}.weight"].shape
    pair = np.zeros((RANK, width[1]), np.float32), np.zeros((width[0], RANK), np.float32)
    adapter = write_adapter(tmp_path / "adapter", pair, base)
    settings = {
        "r": RANK, "lora_alpha": ALPHA, "target_modules": ["q_proj"], "exclude_modules": None, "use_rslora": False,
    }  # fmt: skip
    asked = {"base": str(base), "adapter": settings}
    first = run(python, adapter, **asked, maxNewTokens=1)
    assert first != run(python, adapter, **asked)
    (adapter / "generation_config.json").write_text(json.dumps({"eos_token_id": list(range(MODEL.vocab))}))
    assert run(python, adapter, **asked) == first


def test_code_of_a_model_is_not_executed(python: str, base: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    shutil.copytree(base, hostile)
    config = json.loads((hostile / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    }
    (hostile / "config.json").write_text(json.dumps(config))
    (hostile / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    assert "error" in run(python, hostile)
    assert not (tmp_path / "executed").exists()


def test_a_model_leads_to_no_other_folder(python: str, base: Path, tmp_path: Path) -> None:
    """With PEFT installed, transformers takes the base of an adapter's configuration, of any path."""
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copyfile(base / name, hostile / name)
    settings = {
        "base_model_name_or_path": str(base),
        "peft_type": "LORA",
        "r": 4,
        "target_modules": ["q_proj"],
    }
    (hostile / "adapter_config.json").write_text(json.dumps(settings))
    refused = "ValueError: the model has an adapter_config.json, and is not loaded"
    assert run(python, hostile) == {"error": refused}
    shutil.copytree(base, tmp_path / "base")
    (tmp_path / "base" / "adapter_config.json").write_text(json.dumps(settings))
    assert run(python, hostile, base=str(tmp_path / "base")) == {"error": refused}


class Bomb:
    def __init__(self, place: Path) -> None:
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self._place), "w")


def test_pickled_weights_are_not_read(python: str, base: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    shutil.copytree(base, hostile)
    (hostile / "model.safetensors").unlink()
    (hostile / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "executed")))
    assert "safetensors" in run(python, hostile)["error"]
    assert not (tmp_path / "executed").exists()


def test_a_tokenizer_without_a_chat_template_gets_the_prompt_alone(
    python: str, base: Path, answered_by_base: dict[str, Any], tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(base, plain)
    config = json.loads((plain / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (plain / "tokenizer_config.json").write_text(json.dumps(config))
    (plain / "chat_template.jinja").unlink(missing_ok=True)
    answered = run(python, plain)
    assert answered["answer"]
    assert answered != answered_by_base
