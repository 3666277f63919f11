"""Preflight's data check at scale: rows per second and memory for a growing number of short rows; and the time that a
resumed training needs until its first batch, by the number of steps done before.

Run in the trainer's environment: python -m tests.bench.data [ROWS ...]   (default: 100,000 and 1,000,000)
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from finetune_trainer.data.batches import TrainBatches
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages import data_check
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request


def measure(rows: int) -> dict[str, float]:
    """Measures in this process, which must not have read any data before."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_model(root / "models/qwen3", TinyModelSpec())
        (root / "data").mkdir()
        with (root / "data/train.jsonl").open("w") as file:
            for i in range(rows):
                turns = [
                    ("user", f"What is {i} plus {i % 97}?"),
                    ("assistant", f"It is {i + i % 97}, of course."),
                ]
                file.write(json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}) + "\n")
        asked = request(
            root, "Preflight", data={"validation": [], "packing": True},
            hyperparameters={"steps": None, "epochs": 1.0},
        )  # fmt: skip

        def context() -> StageContext:
            return StageContext(
                request=asked, store=open_store(), processes=Processes(count=1, index=0),
                stopper=ImmediateStop(), scratch=root,
            )  # fmt: skip

        context().renderer.prompt("imports what it needs")
        started, cpu, before = time.perf_counter(), time.process_time(), _peak()
        first = data_check.check(context())
        seconds, peak = time.perf_counter() - started, _peak() - before
        cpu = time.process_time() - cpu
        started = time.perf_counter()
        again = data_check.check(context())
        assert (first.prepared[0].result, again.prepared[0].result) == ("Miss", "Hit")
        assert first.train[0].report.rows == again.train[0].report.rows == rows
        return {
            "rows": rows,
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu, 2),
            "rows_per_second": round(rows / seconds),
            "peak_mb_above_start": round(peak, 1),
            "seconds_from_cache": round(time.perf_counter() - started, 2),
            **{
                f"first_batch_after_{steps}_steps": first_batch(context(), steps)
                for steps in (0, 1_000, 1_000_000)
            },
        }


def first_batch(context: StageContext, steps: int) -> float:
    """Returns the time until the first batch after ``steps`` steps, in milliseconds."""
    data = context.training_data()
    h = context.request.hyperparameters
    batches = TrainBatches(
        rows=data.rows, parts=data.parts, batch_size=h.global_batch_size, seed=h.seed, shuffle=True
    )
    started = time.perf_counter()
    batches.batch(steps)
    return round(1000 * (time.perf_counter() - started), 1)


def _peak() -> float:
    """Returns the peak memory of the process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    match sys.argv[1:]:
        case ["--one", rows]:
            print(json.dumps(measure(int(rows))))
        case sizes:
            for rows in sizes or ["100000", "1000000"]:
                subprocess.run([sys.executable, "-m", "tests.bench.data", "--one", rows], check=True)


if __name__ == "__main__":
    main()
