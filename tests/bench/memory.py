"""Memory of train steps as the TPU compiler reports it: the cases that the estimate of ``finetune plan`` is held to.

    python -m tests.bench.memory [--again] [NAME …]

``memory_cases.json`` beside this file holds the cases and what was compiled. Compiles the named cases (default: those
without a result; with ``--again`` all) with the operator's default flags, and writes each result at once, so that an
interrupted run continues. Prints a row for each. The compilers' logs go to standard error. Needs libtpu (``make
tpu-compiler``), 30 to 130 seconds of two cores for a case.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from devcluster import samples
from devcluster.layout import ROOT
from finetune_operator.catalog.xla_flags import default_libtpu_args

DATA = Path(__file__).with_suffix("").with_name("memory_cases.json")
_PUBLISHED = ROOT / "tests" / "trainer" / "published.json"
#: Models that differ from a published configuration in sizes alone.
_RESIZED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Llama-3.1-8B": ("Llama-3.2-1B-Instruct", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128,
        "tie_word_embeddings": False,
    }),
    "Llama-3.1-70B": ("Llama-3.2-1B-Instruct", {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "head_dim": 128, "tie_word_embeddings": False,
    }),
    "Qwen3-8B": ("Qwen3-0.6B", {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False,
    }),
    "Qwen3-14B": ("Qwen3-0.6B", {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
        "tie_word_embeddings": False,
    }),
    "gemma-3-12b-it": ("gemma-3-1b-it", {
        "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 8, "vocab_size": 262208,
    }),
    "gemma-2-9b": ("gemma-2-2b-it", {
        "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
        "num_key_value_heads": 8,
    }),
}  # fmt: skip
_OFFLOAD = ("remat_policy=custom", "decoder_layer_input=offload")


def model_config(name: str) -> dict[str, Any]:
    """Returns the config.json of a case's model."""
    base, sizes = _RESIZED.get(name, (name, {}))
    config: dict[str, Any] = json.loads(_PUBLISHED.read_text())[base]["config"]
    return {**config, **sizes}


def compiled(case: Mapping[str, Any]) -> dict[str, Any]:
    """Compiles the case, in a minute or two, and returns the bytes on each device. Raises SystemExit if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(model_config(case["model"])))
        flags = default_libtpu_args(case["slice"].partition(":")[0])
        started = time.monotonic()
        done = subprocess.run(
            [_trainer_stage(), "compile", "--model", folder, *_arguments(case)],
            env=os.environ | {"TPU_LIBRARY_PATH": str(library()), "LIBTPU_INIT_ARGS": " ".join(flags)},
            stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    answer = json.loads(done.stdout) if done.stdout else {"kind": "nothing"}
    if answer["kind"] != "Measured":
        sys.exit(f"{case['name']}: {answer}")
    return {
        "peak": answer["peak_bytes"],
        "arguments": answer["arguments_bytes"],
        "temporaries": answer["temporaries_bytes"],
        "usable": answer["limit_bytes"],
        "seconds": round(time.monotonic() - started),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "libtpu": _libtpu(),
    }


def _arguments(case: Mapping[str, Any]) -> Iterator[str]:
    for option in ("slice", "slices", "batch", "length", "method", "lora", "quantization", "tensor", "accumulation"):
        if option in case:
            yield from (f"--{option}", str(case[option]))
    remat = _OFFLOAD if case["remat"] == "offload" else (f"remat_policy={case['remat']}",)
    tiled = (f"num_vocab_tiling={case['pieces']}",) if "pieces" in case else ()
    for setting in (*remat, *tiled):
        yield from ("--set", setting)


def _trainer_stage() -> str:
    return str(Path(samples.trainer_python()).with_name("finetune-stage"))


def library() -> Path:
    """Returns libtpu's shared library."""
    venv = subprocess.run(
        [ROOT / "trainer_image/install.sh", "tpu"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    return next(Path(venv).glob("lib/*/site-packages/libtpu/libtpu.so"))


def _libtpu() -> str:
    return next(library().parent.parent.glob("libtpu-*.dist-info")).stem.removeprefix("libtpu-")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    cases = json.loads(DATA.read_text())
    for case in (each for part in cases.values() for each in part):
        if case["name"] in options.names if options.names else options.again or "compiled" not in case:
            result = compiled(case)
            record(case, result)
            print(case["name"], result, flush=True)


def record(done: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Adds a result to the data file, which may have been edited meanwhile."""
    cases = json.loads(DATA.read_text())
    for case in (each for part in cases.values() for each in part):
        if {**case, "compiled": None} == {**done, "compiled": None}:
            case["compiled"] = result
    write(cases)


def write(cases: Mapping[str, list[dict[str, Any]]]) -> None:
    """Writes the data file, a line for each case."""
    parts = (
        f' "{part}": [\n' + ",\n".join(f"  {json.dumps(case)}" for case in rows) + "\n ]"
        for part, rows in cases.items()
    )
    DATA.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    main()
