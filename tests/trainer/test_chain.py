"""Real stages on a tiny model: convert, train, evaluate and export, with a stop in the middle."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster.fixtures.chat_data import write_data
from finetune_contract import Outcome, Progress, StageRequest, StageResult
from tests.trainer.models import qwen3
from tests.trainer.requests import request

LORA = {"lora": {"rank": 4, "alpha": 8.0}}


class Stages:
    """Runs stages in forks of one warm process."""

    def __init__(self, root: Path, server: subprocess.Popen[str]) -> None:
        self.root, self._server = root, server

    def run(self, stage: str, run: str = "run", *, stop_at: int | None = None, **changes: Any) -> StageResult:
        made = request(self.root, stage, run, **changes)
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        environment = {
            "FINETUNE_REQUEST": made.to_json(),
            "TERMINATION_MESSAGE_PATH": str(self.root / "termination"),
        }
        print(json.dumps(environment), file=self._server.stdin, flush=True)
        pid = int(self._server.stdout.readline())
        if stop_at is not None:
            self._stop(pid, run, stop_at)
        ended, code = self._server.stdout.readline().split()
        assert int(ended) == pid
        result = self._result(made)
        assert int(code) == result.exit_code, result.failure
        return result

    def _result(self, made: StageRequest) -> StageResult:
        folder = Path(made.run_folder.removeprefix("file://"))
        path = folder / "attempts" / f"{made.stage.short}-{made.attempt}" / "result.json"
        return StageResult.model_validate_json(path.read_bytes())

    def _stop(self, pid: int, run: str, step: int) -> None:
        """SIGTERM once the progress record has passed ``step``."""
        path = self.root / run / "train/progress.json"
        while not path.exists() or Progress.model_validate_json(path.read_bytes()).step < step:
            os.kill(pid, 0)
            time.sleep(0.01)
        os.kill(pid, signal.SIGTERM)

    def losses(self, run: str) -> dict[int, str]:
        lines = (self.root / run / "train/metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line, parse_float=str) for line in lines]
        return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    root = tmp_path_factory.mktemp("chain")
    (root / "models").mkdir()
    qwen3(root / "models")
    write_data(root / "data")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(root / "jax")}
    with (
        (root / "server.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.warm"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            cwd=Path(__file__).parents[2],
            text=True,
        ) as server,
    ):
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", (root / "server.log").read_text()
        yield Stages(root, server)
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture(scope="module")
def converted(stages: Stages) -> str:
    result = stages.run("Convert", "conversion")
    assert result.details is not None, result.failure
    assert result.details.kind == "Convert"
    assert result.details.manifest.export_proven
    return result.details.manifest.items


def test_preflight_counts_the_rows_and_steps(stages: Stages) -> None:
    result = stages.run("Preflight", "counted", hyperparameters={"steps": None, "epochs": 1.0})
    assert result.details is not None, result.failure
    assert result.details.kind == "Preflight"
    assert (result.details.train.rows, result.details.steps) == (400, 50)


@pytest.mark.parametrize("method", [{}, LORA], ids=["full", "lora"])
def test_the_exported_model_has_the_loss_that_training_ended_with(
    stages: Stages, converted: str, method: dict[str, Any]
) -> None:
    run = "lora" if method else "full"
    trained = stages.run("Train", run, method=method, converted=converted).details
    evaluated = stages.run("Evaluate", run, method=method, converted=converted, train_step=20).details
    exported = stages.run("Export", run, method=method, train_step=20).details
    assert trained is not None
    assert trained.kind == "Train"
    assert evaluated is not None
    assert evaluated.kind == "Evaluate"
    assert exported is not None
    assert exported.kind == "Export"
    assert evaluated.tuned is not None
    assert evaluated.baseline is not None
    assert evaluated.tuned.loss == trained.evaluation_loss
    assert evaluated.tuned.loss < evaluated.baseline.loss
    done = subprocess.run(
        [Path(sys.executable).with_name("finetune-stage"), "evaluate", "--json", "--max-seq-length", "64",
         "--precision", "FP32", "--model", exported.artifacts[0].uri, "--data", stages.root / "data/eval.jsonl"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["loss"] == pytest.approx(trained.evaluation_loss, rel=1e-3)


def test_a_stopped_training_goes_on_as_if_nothing_had_happened(stages: Stages, converted: str) -> None:
    long = {"converted": converted, "hyperparameters": {"steps": 150}, "checkpointing": {"every_steps": 50}}
    stages.run("Train", "undisturbed", **long)
    first = stages.run("Train", "stopped", stop_at=20, **long)
    second = stages.run("Train", "stopped", attempt=2, **long)
    assert (first.outcome, first.exit_code) == (Outcome.STOPPED, 75)
    assert second.outcome is Outcome.SUCCEEDED
    assert first.details is not None
    assert first.details.kind == "Train"
    assert second.details is not None
    assert second.details.kind == "Train"
    assert 0 < first.details.step == second.details.start_step < 150
    assert stages.losses("stopped") == stages.losses("undisturbed")
    assert len(stages.losses("stopped")) == 150


def test_a_loss_that_is_no_number_ends_the_training_before_it_is_saved(
    stages: Stages, converted: str
) -> None:
    result = stages.run(
        "Train",
        "diverged",
        converted=converted,
        hyperparameters={"learning_rate": 1e38, "optimizer": "SGD", "max_grad_norm": 0.0},
    )
    assert result.exit_code == 70
    assert result.failure is not None
    assert result.failure.reason == "Diverged"
    assert not list((stages.root / "diverged/train/checkpoints").glob("[0-9]*"))


def test_packed_rows_are_trained(stages: Stages, converted: str) -> None:
    result = stages.run(
        "Train", "packed", converted=converted, data={"packing": True}, hyperparameters={"steps": 4}
    )
    assert result.outcome is Outcome.SUCCEEDED, result.failure
