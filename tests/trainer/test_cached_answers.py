"""A cached answer of the compiler about a train step is used only for the same question."""

import json
import sys
from pathlib import Path

import pytest

from finetune_contract import CacheLayout
from finetune_trainer import families
from finetune_trainer.compiled.compile_client import CompileClient, CompilerUnavailable
from finetune_trainer.compiled.compile_protocol import (
    Candidate,
    CompileFailure,
    CompileResponse,
    CompileSuccess,
)
from finetune_trainer.storage import open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request

SLICE = {
    "name": "v5e-4", "family": "v5e", "topology": "2x2", "hosts": 1, "chips": 4, "devices": 4, "hbm_gib": 16,
}  # fmt: skip
ANSWER = CompileSuccess(
    peak_bytes=1, limit_bytes=2, arguments_bytes=1, temporaries_bytes=0, flops=1.0, hbm_bytes=1.0, network_bytes=0.0,
)  # fmt: skip


@pytest.fixture
def asking(tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> CompileClient:
    """Returns a client whose compiler ends at once, so that only the cache can answer."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    library = tmp_path / "libtpu.so"
    library.touch()
    write_model(tmp_path / "model", TinyModelSpec(family="qwen3"))
    made = request(tmp_path, "Preflight", cache=root, memory={"source": "Compile", "slice": SLICE})
    plan = families.read(tmp_path / "model")
    return CompileClient(made, plan, tmp_path / "model", open_store(), {"TPU_LIBRARY_PATH": str(library)})


def candidate(batch: int) -> Candidate:
    mesh = {"hosts": 1, "chips_per_host": 4, "fsdp": 4}
    return Candidate.model_validate({"slice": SLICE, "mesh": mesh, "global_batch": batch})


def test_an_answer_to_the_same_question_is_taken(asking: CompileClient, root: str) -> None:
    fingerprint = asking.fingerprint(candidate(4))
    kept = CompileResponse(answer=ANSWER, fingerprint=fingerprint).to_json()
    open_store().write(CacheLayout(root).compiled(fingerprint), kept)
    assert asking(candidate(4)) == ANSWER


@pytest.mark.parametrize("kind", ["another question", "no question", "no answer", "huge"])
def test_anything_else_is_not(asking: CompileClient, root: str, kind: str) -> None:
    fingerprint = asking.fingerprint(candidate(4))
    other = CompileResponse(answer=ANSWER, fingerprint=asking.fingerprint(candidate(8))).to_json()
    content = {
        "another question": other,
        "no question": CompileResponse(answer=ANSWER).to_json(),
        "no answer": json.dumps({"kind": "Measured"}),
        "huge": CompileResponse(answer=ANSWER, fingerprint=fingerprint).to_json() + " " * (1 << 20),
    }[kind]
    open_store().write(CacheLayout(root).compiled(fingerprint), content)
    with asking, pytest.raises(CompilerUnavailable):
        asking(candidate(4))


#: A compiler that answers with its environment and its process id.
ECHO = """#!/bin/bash
read job
while read candidate; do
  echo "{\\"answer\\": {\\"kind\\": \\"NotCompiled\\", \\"message\\": \\"$$ $LIBTPU_INIT_ARGS|$XLA_FLAGS\\"}}"
done
"""


def on(flags: dict[str, str] | None) -> Candidate:
    made = candidate(4)
    return made.model_copy(update={"slice": made.slice.model_copy(update={"flags": flags})})


def test_each_slice_is_compiled_for_with_its_own_flags(
    tmp_path: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = tmp_path / "echo"
    echo.write_text(ECHO)
    echo.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(echo))
    write_model(tmp_path / "model", TinyModelSpec(family="qwen3"))
    (tmp_path / "libtpu.so").touch()
    environment = {
        "TPU_LIBRARY_PATH": str(tmp_path / "libtpu.so"),
        "XLA_FLAGS": "--of-preflight",
        "FINETUNE_SLICE_XLA_FLAGS": "",
        "FINETUNE_SLICE_LIBTPU_INIT_ARGS": "--first",
    }
    made = request(tmp_path, "Preflight", cache=root, memory={"source": "Compile", "slice": SLICE})
    plan = families.read(tmp_path / "model")
    said: list[str] = []
    with CompileClient(made, plan, tmp_path / "model", open_store(), environment) as asking:
        for flags in (None, None, {"LIBTPU_INIT_ARGS": "--second"}, {"XLA_FLAGS": "--third"}, {}):
            answer = asking(on(flags))
            assert isinstance(answer, CompileFailure)
            said.append(answer.message)
        same = asking.fingerprint(on({"LIBTPU_INIT_ARGS": "--first"}))
        assert same == asking.fingerprint(on(None)), "whether the environment or the candidate sets the flags"
        assert same != asking.fingerprint(on({"LIBTPU_INIT_ARGS": "--second"}))
    assert [each.partition(" ")[2] for each in said] == ["--first|", "--first|", "--second|", "|--third", "|"]
    assert said[0] == said[1], "one process compiles all candidates with the same flags"
