"""What fits where: full-size models of published shapes compiled for whole slices, on a machine without a TPU.

    python -m tests.bench.fits [--choose] [--slice v6e:4x4 …] [--method lora full] [--batch 32] [llama-8b …]

For each model, method and slice, this compiles the train step with the first of preflight's remat policies that fits,
then the loss on validation rows and answers of 128 tokens to 64 prompts of 512. ``--choose`` compiles everything that
preflight compiles for a job that sets neither remat policy nor mesh, and shows its choice. The compiler runs with the
operator's default flags. Prints a row for each, in GiB per chip; the commands and their logs go to standard error.
Needs libtpu (``make tpu-compiler``).
"""

import argparse
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devcluster import samples
from devcluster.layout import ROOT
from finetune_operator.catalog.xla_flags import default_libtpu_args
from tests.bench.sizes import MODELS

#: In the order of preflight's search: the policy that needs the most memory is first.
_REMAT = (
    ("remat_policy=minimal_with_context",),
    ("remat_policy=save_qkv_proj",),
    ("remat_policy=full",),
    ("remat_policy=custom", "decoder_layer_input=offload"),
)
_PROGRAMS = ("Loss", "Generate")
_SECONDS = re.compile(r"compiled in (\d+) s: ")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["llama-8b", "qwen3-14b", "gemma-27b", "llama-70b"])
    parser.add_argument("--slice", action="append", help="default: v6e:4x4 (v6e-16) and v5p:2x2x4 (v5p-32)")
    parser.add_argument("--method", nargs="*", default=["lora", "full"], choices=["lora", "full"])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--choose", action="store_true")
    options = parser.parse_args()
    print(
        "| model | slice | method | remat policy | train | loss | answers | s of each compile | in all, s (CPU s) |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            model = Path(folder) / name
            model.mkdir()
            (model / "config.json").write_text(json.dumps(MODELS[name]))
            for place in options.slice or ["v6e:4x4", "v5p:2x2x4"]:
                for method in options.method:
                    _row(_Compile(model=model, place=place, method=method, options=options))


class _Compile:
    """``finetune-stage compile`` of one model, method and slice."""

    def __init__(self, *, model: Path, place: str, method: str, options: argparse.Namespace) -> None:
        self.model, self.place, self.method, self.choose = model, place, method, options.choose
        self._arguments = ["--model", str(model), "--slice", place]
        self._arguments += ["--batch", str(options.batch), "--length", str(options.length)]
        self._arguments += ["--lora", "16"] if method == "lora" else []
        self.seconds: list[str] = []
        """The duration of each compilation."""

    def __call__(self, *arguments: str, programs: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Returns the answers; none if preflight would end the job."""
        whole = [*self._arguments, *arguments, *(word for each in programs for word in ("--program", each))]
        print(f"\nfinetune-stage compile {shlex.join(whole)}", file=sys.stderr, flush=True)
        flags = default_libtpu_args(self.place.partition(":")[0])
        done = subprocess.run(
            [str(Path(samples.trainer_python()).with_name("finetune-stage")), "compile", *whole],
            env=os.environ | {"TPU_LIBRARY_PATH": _library(), "LIBTPU_INIT_ARGS": " ".join(flags)},
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        print(done.stderr, done.stdout, file=sys.stderr, flush=True)
        self.seconds += _SECONDS.findall(done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]


def _row(run: _Compile) -> None:
    before, started = _cpu_seconds(), time.monotonic()
    told = _chosen(run) if run.choose else _first_that_fits(run)
    seconds, cpu = time.monotonic() - started, _cpu_seconds() - before
    cells = [
        run.model.name,
        run.place,
        run.method,
        *told,
        ", ".join(run.seconds),
        f"{seconds:.0f} ({cpu:.0f})",
    ]
    print("|", " | ".join(cells), "|", flush=True)


def _first_that_fits(run: _Compile) -> list[str]:
    for remat in _REMAT:
        settings = [word for each in ("num_vocab_tiling=8", *remat) for word in ("--set", each)]
        (step,) = run(*settings, programs=["Train"])
        if step["kind"] == "Measured":
            others = run(*settings, programs=_PROGRAMS)
            return [remat[-1].partition("=")[2], *map(_gib, [step, *others])]
    return ["none", _gib(step), "", ""]


def _chosen(run: _Compile) -> list[str]:
    answers = run("--choose", programs=_PROGRAMS)
    if not answers:
        return ["none", "does not fit", "", ""]
    (outcome,) = answers
    mesh, tuning = outcome["mesh"], outcome["tuning"]
    chosen = f"{tuning.get('remat_policy')}, fsdp {mesh.get('fsdp')} x tensor {mesh.get('tensor', 1)}"
    return [
        chosen,
        _gib(outcome),
        "; ".join(outcome.get("programs", [])),
        "; ".join(outcome.get("uncompiled", [])),
    ]


def _gib(answer: dict[str, Any]) -> str:
    peak, limit = answer.get("peak_bytes", answer.get("needed_bytes")), answer["limit_bytes"]
    rows = f", {answer['rows']} rows" if answer.get("rows") else ""
    return f"{peak / 2**30:.2f} of {limit / 2**30:.2f}{rows}" if peak else f"more than {limit / 2**30:.2f}"


def _library() -> str:
    venv = subprocess.run(
        [ROOT / "trainer_image/install.sh", "tpu"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    return str(next(Path(venv).glob("lib/*/site-packages/libtpu/libtpu.so")))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
