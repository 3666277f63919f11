"""Real stages on tiny models, in forks of one warm process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finetune_contract import StageRequest, StageResult
from finetune_contract.request import SLICE_VARIABLES
from tests.trainer.requests import request

_STEP_DONE = "finetune_trainer.training.trainer:FineTuneTrainer._post_process_train_step"


class Running:
    """One process of ``finetune-stage``."""

    def __init__(self, stages: "Stages", pid: int, log: Path) -> None:
        self._stages, self.pid, self._log = stages, pid, log

    def wait(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        return int(self._stages.ask({"wait": self.pid}))

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")


class Stages:
    """Starts stages. ``root`` contains ``models/qwen3`` and ``data/*.jsonl``, and a folder for every run."""

    def __init__(self, root: Path, server: subprocess.Popen[str]) -> None:
        self.root, self._server = root, server
        self._logs = 0

    def ask(self, message: object) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(message), file=self._server.stdin, flush=True)
        return self._server.stdout.readline()

    def start(
        self,
        *arguments: str,
        fault: Sequence[Any] = (),
        **environment: str,
    ) -> Running:
        self._logs += 1
        log = self.root / f"stage-{self._logs}.log"
        told = {
            "TERMINATION_MESSAGE_PATH": str(self.root / f"termination-{self._logs}"),
            "TMPDIR": str(self.root),
            **environment,
        }
        order = {
            "environment": told, "arguments": list(arguments), "log": str(log), "fault": list(fault) or None,
        }  # fmt: skip
        return Running(self, int(self.ask({"start": order})), log)

    def run(
        self,
        stage: str,
        run: str = "run",
        *,
        stop_at: int | None = None,
        fault: Sequence[Any] = (),
        **changes: Any,
    ) -> StageResult:
        """Runs one stage and returns its result.

        ``changes`` apply to the request. ``stop_at``: SIGTERM is sent when the process has done this many steps.
        """
        made = request(self.root, stage, run, **changes)
        if stop_at is not None:
            fault = ("terminated_at", _STEP_DONE, stop_at)
        running = self.start(fault=fault, FINETUNE_REQUEST=made.to_json())
        code = running.wait()
        result = result_of(made)
        assert result is not None, running.log[-4000:]
        assert code == result.exit_code, result.failure
        return result

    def pair(self, made: StageRequest, *, faults: Sequence[Sequence[Any]] = ((), ())) -> list[Running]:
        """Starts the stage in two processes of one device each, as on a slice of two hosts."""
        return self.hosts(made, faults)

    def hosts(self, made: StageRequest, faults: Sequence[Sequence[Any]], **environment: str) -> list[Running]:
        """Starts the stage as ``pair`` does, with one process for each of ``faults``."""
        coordinator = f"127.0.0.1:{free_port()}"
        return [
            self.start(
                fault=fault,
                FINETUNE_REQUEST=made.to_json(),
                TPU_WORKER_HOSTNAMES=",".join(f"host-{host}" for host in range(len(faults))),
                TPU_WORKER_ID=str(index),
                JAX_COORDINATOR_ADDRESS=coordinator,
                **environment,
            )
            for index, fault in enumerate(faults)
        ]

    def evaluate(self, model: str, *options: str) -> dict[str, Any]:
        """Runs ``finetune-stage evaluate`` on ``data/eval.jsonl``, as a user runs it by hand."""
        data = f"file://{self.root}/data/eval.jsonl"
        running = self.start(
            "evaluate", "--json", "--max-seq-length", "64", "--precision", "FP32", "--model", model, "--data", data,
            *options,
        )  # fmt: skip
        assert running.wait() == 0, running.log[-4000:]
        found: dict[str, Any] = json.loads(running.log.splitlines()[-1])
        return found

    def losses(self, run: str) -> dict[int, str]:
        """Returns the loss of each step as the metrics print it."""
        lines = (self.root / run / "train/metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line, parse_float=str) for line in lines]
        return {row["step"]: row["loss"] for row in rows if "loss" in row}


def result_of(made: StageRequest) -> StageResult | None:
    path = attempt_folder(made) / "result.json"
    return StageResult.model_validate_json(path.read_bytes()) if path.exists() else None


def attempt_folder(made: StageRequest) -> Path:
    folder = Path(made.run_folder.removeprefix("file://"))
    return folder / "attempts" / f"{made.stage.short}-{made.attempt}"


def await_file(path: Path) -> None:
    """Waits until the file exists, which shows how far the stage is."""
    while not path.exists():
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serve(root: Path) -> Iterator[Stages]:
    with (
        (root / "server.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.warm"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            # Python's copy of the environment: libtpu, once loaded, changes TPU_WORKER_ID only in that of the process.
            # MaxText sets XLA_FLAGS in a process that configures it, which is this one after some tests.
            cwd=Path(__file__).parents[2], text=True,
            env={name: value for name, value in os.environ.items() if name not in SLICE_VARIABLES},
        ) as server,
    ):  # fmt: skip
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n", (root / "server.log").read_text()
        yield Stages(root, server)
        assert server.stdin is not None
        server.stdin.close()
