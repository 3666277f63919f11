"""What an attempt leaves behind: records, exit codes, and never a secret."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import EvaluationPoint, ExitCode, Metrics, Outcome, Progress, RunFolder, StageResult
from finetune_trainer.attempt import Attempt, LogTail, as_stage_error
from finetune_trainer.errors import StageError
from finetune_trainer.processes import Processes
from finetune_trainer.redaction import BLOT, Redactor
from finetune_trainer.storage import open_store
from finetune_trainer.training.report import LatestWriter, Report, thinned
from tests.trainer.requests import request

CANARY = "hf_canary5f1dcanary"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(root: Path, *, first: bool = True, **changes: Any) -> Attempt:
    redact = Redactor({"HF_TOKEN": CANARY})
    return Attempt(
        request=request(root, "Preflight", **changes),
        store=open_store(),
        first=first,
        host=0,
        tail=LogTail(redact),
        redact=redact,
        termination=root / "termination",
        now=lambda: NOW,
    )


def result(root: Path) -> StageResult:
    return StageResult.model_validate_json((root / "run/attempts/prep-1/result.json").read_bytes())


def test_a_failure_is_recorded_told_to_kubernetes_and_becomes_its_exit_code(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    made.begin()
    error = StageError(
        ExitCode.BAD_DATA, "DatasetEmpty", "the dataset is empty", where="spec.datasets.train[0]"
    )
    assert made.failed(error) == 65
    found = result(tmp_path)
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 65)
    assert found.failure is not None
    assert found.failure.reason == "DatasetEmpty"
    assert (
        tmp_path / "termination"
    ).read_text() == "DatasetEmpty: spec.datasets.train[0]: the dataset is empty."
    assert {p.name for p in (tmp_path / "run/attempts/prep-1").iterdir()} == {
        "request.json", "result.json", "failure.json", "log-tail.txt",
    }  # fmt: skip


def test_only_process_0_writes_and_the_others_have_the_same_code(tmp_path: Path) -> None:
    made = attempt(tmp_path, first=False)
    made.begin()
    assert made.failed(MemoryError("no more")) == ExitCode.OUT_OF_MEMORY
    assert not (tmp_path / "run").exists()


def test_the_first_end_counts(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    assert made.stopped() == 75
    made.failed(ValueError("too late"))
    assert result(tmp_path).outcome is Outcome.STOPPED


def test_no_secret_reaches_any_record(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    made.begin()
    try:
        raise ValueError(f"https://user:{CANARY}@hub")
    except ValueError as error:
        made.failed(error)
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert CANARY.encode() not in everything
    assert BLOT.encode() in everything


ERRORS = [
    (MemoryError(), 78),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"), 78),
    (PermissionError(13, "denied"), 77),
    (RuntimeError("PERMISSION_DENIED: storage.objects.get"), 77),
    (ConnectionResetError(), 69),
    (RuntimeError("UNAVAILABLE: failed to connect"), 69),
    (StageError(ExitCode.DIVERGED, "Diverged", "x"), 70),
    (RuntimeError("something else"), 1),
    (KeyError("x"), 1),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[repr(e)[:40] for e, _ in ERRORS])
def test_exceptions_become_exit_codes(error: Exception, code: int, tmp_path: Path) -> None:
    assert attempt(tmp_path).failed(error) == code


def test_the_cause_counts_where_the_error_itself_says_nothing() -> None:
    error = RuntimeError("reading failed")
    error.__cause__ = PermissionError(13, "denied")
    found = as_stage_error(error)
    assert found is not None
    assert found.code is ExitCode.PERMISSION_DENIED


def test_short_values_and_paths_are_no_secrets() -> None:
    redact = Redactor({"HF_TOKEN": "abc", "HF_TOKEN_PATH": "/run/secrets/token", "MY_SECRET": "s3cr3t-value"})
    assert redact("abc /run/secrets/token s3cr3t-value") == f"abc /run/secrets/token {BLOT}"


def test_metrics_of_earlier_attempts_stay_and_recomputed_steps_are_replaced(tmp_path: Path) -> None:
    folder, store = RunFolder(f"file://{tmp_path}"), open_store()

    def train(start: int, end: int, attempt: int) -> None:
        report = Report(
            folder, store, attempt=attempt, total_steps=9, start_step=start, now=lambda: NOW, pause=0
        )
        for step in range(start + 1, end + 1):
            report.step(step, Metrics(loss=1 / step, tokens=10), 0.5)
        report.evaluation(EvaluationPoint(step=end, loss=0.5, perplexity=1.6, tokens=3))
        report.checkpoints([end])
        report.close()

    train(0, 6, 1)
    train(4, 9, 2)
    rows = [json.loads(line) for line in (tmp_path / "train/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 10))
    assert [row["step"] for row in rows if "evaluation_loss" in row] == [9]
    progress = Progress.model_validate_json((tmp_path / "train/progress.json").read_bytes())
    assert (progress.step, progress.attempt, progress.start_step, progress.checkpoints) == (9, 2, 4, [9])
    assert progress.tokens_per_second == 20
    assert progress.step_time_p50 == 0.5
    assert [point[0] for point in progress.curve] == list(range(1, 10))


def test_a_curve_is_thinned_evenly_with_its_ends() -> None:
    points = [(step, float(step)) for step in range(1000)]
    kept = thinned(points, 48)
    assert len(kept) == 48
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_a_write_that_fails_is_told_at_the_end_and_not_before() -> None:
    def write(uri: str, content: bytes) -> None:
        raise PermissionError(uri)

    writer = LatestWriter(write, pause=0)
    writer.put("file:///a", b"1")
    with pytest.raises(PermissionError):
        writer.close()


def test_processes_are_numbered_through_all_slices() -> None:
    environment = {
        "TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "1", "MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1",
    }  # fmt: skip
    found = Processes.of(environment)
    assert (found.count, found.index, found.first) == (4, 3, False)
    alone = Processes.of({})
    assert (alone.count, alone.index, alone.first) == (1, 0, True)


STOPPING = """
import sys, time
from finetune_trainer.stopping import Stopper, exit_now
stopper = Stopper(lambda: exit_now(75))
if sys.argv[1] == "deferred":
    stopper.defer()
print("ready", flush=True)
while not stopper.requested:
    sum(range(1000))
print("noticed", flush=True)
if sys.argv[1] == "deferred":
    stopper.resume()
time.sleep(60)
"""


@pytest.mark.parametrize(("mode", "told"), [("at once", ""), ("deferred", "noticed\n")])
def test_a_signal_ends_the_process_where_nothing_is_lost_and_is_noticed_where_something_is(
    mode: str, told: str
) -> None:
    child = subprocess.Popen([sys.executable, "-c", STOPPING, mode], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert told in child.stdout.read()
        assert child.wait(timeout=30) == 75


def test_without_a_request_the_program_says_what_it_wants(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("finetune-stage")],
        env={"PATH": os.environ["PATH"], "TERMINATION_MESSAGE_PATH": str(tmp_path / "t")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.BAD_REQUEST
    assert "FINETUNE_REQUEST is not set" in done.stderr
    assert "FINETUNE_REQUEST is not set" in (tmp_path / "t").read_text()
