"""The trainer against the bare MaxText commands, in pairs on the same machine, every stage in a process of its own.

    python -m tests.bench.trainer [--runs 5] [--steps 60] [--large-gb 1.0]

Both sides convert, train and export the same Qwen3 on the same rows with the same settings: MaxText's own commands
(bare_chain.py) and ``finetune-stage`` on ``file://``. Our side also proves the export and writes progress, and the
ratio includes both. With ``--large-gb`` a model with that many gigabytes of weights is converted and exported once per
side and run, and the peak memory of each process is measured. Prints Markdown tables of medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import samples
from devcluster.fixtures.chat_data import write_data
from devcluster.layout import ROOT
from finetune_contract import RunFolder, StageResult
from tests.trainer.requests import request

#: A step takes about a quarter of a second on two cores, so that the costs around a step do not dominate.
MIDDLE = {
    "layers": 8,
    "hidden": 512,
    "heads": 8,
    "kv_heads": 4,
    "head_dim": 64,
    "intermediate": 1536,
    "vocab": 4096,
}
BATCH, SEQUENCE, RATE = 8, 64, 1e-3
#: The first steps include compilation, and are not counted.
WARM_UP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The wall time and the peak memory in bytes of one process."""

    seconds: float
    peak: int


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--large-gb", type=float, default=0.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_data(work / "data")
        _model(work / "models/qwen3", MIDDLE)
        rows = [_pair(work, options.steps, run) for run in range(options.runs)]
        _print("Training a model of 27 M parameters", rows)
        ratio = statistics.median(row["our step"] / row["bare step"] for row in rows)
        print(f"step time, ours / bare, median of {len(rows)} pairs: {ratio:.3f}")
        ratio = statistics.median(row["our chain"] / row["bare chain"] for row in rows)
        print(f"convert, train and export, ours / bare: {ratio:.2f}\n")
    if options.large_gb:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            write_data(work / "data")
            size = _model(work / "models/qwen3", _large(options.large_gb))
            _print(
                f"Converting and exporting {size / 1e9:.2f} GB of bfloat16 weights",
                [_weights(work, run, size) for run in range(options.runs)],
            )


def _pair(work: Path, steps: int, run: int) -> dict[str, float]:
    bare = {
        stage: _bare(work / f"bare-{run}", work, stage, steps) for stage in ("convert", "train", "export")
    }
    ours, converted = _ours(work, f"ours-{run}", steps)
    theirs = [json.loads(line) for line in (work / f"bare-{run}/metrics.jsonl").read_text().splitlines()]
    bare_steps = [row["perf/step_time_seconds"] for row in theirs if "perf/step_time_seconds" in row][
        WARM_UP:-1
    ]
    lines = (work / f"ours-{run}/train/metrics.jsonl").read_text().splitlines()
    our_steps = [row["seconds"] for row in map(json.loads, lines) if "seconds" in row][WARM_UP:-1]
    assert converted
    return {
        "bare step": statistics.median(bare_steps),
        "our step": statistics.median(our_steps),
        "bare train": bare["train"].seconds,
        "our train": ours["Train"].seconds,
        "bare chain": sum(cost.seconds for cost in bare.values()),
        "our chain": sum(cost.seconds for cost in ours.values()),
        "bare train, peak GB": bare["train"].peak / 1e9,
        "our train, peak GB": ours["Train"].peak / 1e9,
    }


def _weights(work: Path, run: int, size: int) -> dict[str, float]:
    """Returns the seconds and peak bytes of conversion and export, per gigabyte of weights."""
    bare_work = work / f"bare-{run}"
    bare_convert = _bare(bare_work, work, "convert", 1)
    bare_export = _bare(bare_work, work, "export-converted", 1)
    our_convert, converted = _stage(work, f"ours-{run}", "Convert")
    # One step of training would take minutes at this size, so the converted model is exported as if it were trained.
    _as_if_trained(work / f"ours-{run}", converted)
    our_export, _ = _stage(work, f"ours-{run}", "Export", train_step=1)
    found: dict[str, float] = {}
    for name, cost in (
        ("bare convert", bare_convert), ("our convert, proof included", our_convert),
        ("bare export", bare_export), ("our export", our_export),
    ):  # fmt: skip
        found[f"{name}, s per GB"] = cost.seconds / (size / 1e9)
        found[f"{name}, peak GB per GB"] = cost.peak / size
    return found


def _ours(work: Path, run: str, steps: int) -> tuple[dict[str, Cost], str]:
    settings: dict[str, Any] = {
        "hyperparameters": {"steps": steps, "global_batch_size": BATCH, "learning_rate": RATE},
        "checkpointing": {"every_steps": steps},
        "evaluation": {"prompts": [], "baseline": False},
    }
    convert, converted = _stage(work, run, "Convert", **settings)
    train, _ = _stage(work, run, "Train", converted=converted, **settings)
    export, _ = _stage(work, run, "Export", train_step=steps, **settings)
    return {"Convert": convert, "Train": train, "Export": export}, converted


def _stage(work: Path, run: str, stage: str, **changes: Any) -> tuple[Cost, str]:
    """Runs a stage and returns its cost, and the address of the converted model if the stage is Convert."""
    made = request(work, stage, run, cache=f"file://{work}/{run}/cache", **changes)
    python = Path(samples.trainer_python())
    cost = _run(
        [str(python.with_name("finetune-stage"))], {"FINETUNE_REQUEST": made.to_json(), "TMPDIR": str(work)}
    )
    path = RunFolder(made.run_folder).result(made.stage.short, made.attempt).removeprefix("file://")
    details = StageResult.model_validate_json(Path(path).read_bytes()).details
    return cost, details.manifest.items if details is not None and details.kind == "Convert" else ""


def _bare(folder: Path, work: Path, stage: str, steps: int) -> Cost:
    folder.mkdir(exist_ok=True)
    settings = folder / "settings.json"
    settings.write_text(
        json.dumps(
            {
                "model": str(work / "models/qwen3"), "work": str(folder), "train": str(work / "data/train.jsonl"),
                "validation": str(work / "data/eval.jsonl"), "steps": steps, "batch": BATCH, "sequence": SEQUENCE,
                "learning_rate": RATE, "chips": 1, "metrics": str(folder / "metrics.jsonl"),
            }
        )
    )  # fmt: skip
    return _run(
        [samples.trainer_python(), str(Path(__file__).with_name("bare_chain.py")), stage, str(settings)], {}
    )


def _run(command: list[str], environment: Mapping[str, str]) -> Cost:
    """Runs the command on one CPU device with an empty compilation cache. Exits if it fails."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile() as log:
        told = os.environ | {
            "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "JAX_COMPILATION_CACHE_DIR": cache,
            "TERMINATION_MESSAGE_PATH": f"{cache}/termination", **environment,
        }  # fmt: skip
        started = time.monotonic()
        process = subprocess.Popen(command, env=told, stdout=log, stderr=log, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        if process.returncode:
            log.seek(0)
            sys.exit(f"{command} failed:\n{log.read().decode(errors='replace')[-3000:]}")
    return Cost(seconds=seconds, peak=usage.ru_maxrss * 1024)


def _as_if_trained(run: Path, converted: str) -> None:
    target = run / "train/checkpoints/1/model_params"
    target.parent.mkdir(parents=True)
    target.symlink_to(converted.removeprefix("file://"))


def _large(gigabytes: float) -> dict[str, int]:
    """Returns the dimensions of a Qwen3 with about this many gigabytes of bfloat16 weights."""
    hidden, intermediate, heads, kv_heads, head_dim = 1024, 3072, 16, 8, 128
    layer = hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * intermediate
    return {
        "layers": max(1, round(gigabytes * 1e9 / 2 / layer)), "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
        "head_dim": head_dim, "intermediate": intermediate, "vocab": 4096,
    }  # fmt: skip


def _model(folder: Path, sizes: Mapping[str, int]) -> int:
    """Writes the model and returns the bytes of its weights."""
    code = (
        "from pathlib import Path; from tests.doubles.tiny_models import TinyModelSpec, write_model; "
        f"write_model(Path({str(folder)!r}), TinyModelSpec(**{dict(sizes)!r}))"
    )
    subprocess.run([samples.trainer_python(), "-c", code], check=True, cwd=ROOT)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _print(title: str, rows: list[dict[str, float]]) -> None:
    print(f"{title}\n\n| | median | min | max |\n|---|---|---|---|")
    for key in rows[0]:
        values = [row[key] for row in rows]
        print(f"| {key} | {statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f} |")
    print(flush=True)


if __name__ == "__main__":
    main()
