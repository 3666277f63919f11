"""The files that an attempt writes: records and exit codes, and no secrets."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jax.errors import JaxRuntimeError

from finetune_contract import (
    CONTRACT_VERSION,
    CheckpointPolicy,
    DiscardedCheckpoint,
    EvaluationPoint,
    ExitCode,
    Failure,
    Outcome,
    Progress,
    RunFolder,
    StageResult,
    StepMetrics,
)
from finetune_contract.failure import PEER_LOST
from finetune_contract.result import MOST_CHECKPOINTS
from finetune_trainer.commands import evaluate as evaluate_cli
from finetune_trainer.commands.main import main
from finetune_trainer.engine.compilation_counter import CompilationCounter
from finetune_trainer.errors import StageError
from finetune_trainer.process.latest_writer import LatestWriter
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.redaction import BLOT, Redactor
from finetune_trainer.stages import resumption
from finetune_trainer.stages.attempt import AttemptRecorder, LogTail, as_stage_error
from finetune_trainer.storage import open_store
from finetune_trainer.training.report import ProgressReporter, thinned
from finetune_trainer.training.retention import Retention
from tests.trainer.requests import request

CANARY = "hf_canary5f1dcanary"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def attempt(root: Path, *, host: int = 0, **changes: Any) -> AttemptRecorder:
    redact = Redactor({"HF_TOKEN": CANARY})
    return AttemptRecorder(
        request=request(root, "Preflight", **changes),
        store=open_store(),
        first=host == 0,
        host=host,
        tail=LogTail(redact),
        redact=redact,
        termination=root / "termination",
        now=lambda: NOW,
    )


def fail(made: AttemptRecorder, error: BaseException) -> int:
    return made.failed(made.failure_of(error))


def result(root: Path) -> StageResult:
    return StageResult.model_validate_json((root / "run/attempts/prep-1/result.json").read_bytes())


def test_a_failure_is_recorded_reported_to_kubernetes_and_becomes_its_exit_code(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    made.begin()
    error = StageError(
        ExitCode.BAD_DATA, "DatasetEmpty", "the dataset is empty", where="spec.datasets.train[0]"
    )
    assert fail(made, error) == 65
    found = result(tmp_path)
    assert (found.outcome, found.exit_code) == (Outcome.FAILED, 65)
    assert found.failure is not None
    assert found.failure.reason == "DatasetEmpty"
    assert (
        tmp_path / "termination"
    ).read_text() == "DatasetEmpty: spec.datasets.train[0]: the dataset is empty."
    # Whether the short stage reported its progress before it failed is left to chance.
    assert {p.name for p in (tmp_path / "run/attempts/prep-1").iterdir()} - {"progress.json"} == {
        "request.json", "result.json", "failure.json", "log-tail.txt",
    }  # fmt: skip


def written(root: Path) -> dict[str, str]:
    """Returns the files of the attempt."""
    folder = root / "run/attempts/prep-1"
    return {path.name: path.read_text() for path in folder.iterdir()} if folder.exists() else {}


def test_a_process_other_than_the_first_writes_its_failure_and_nothing_else(tmp_path: Path) -> None:
    made = attempt(tmp_path, host=1)
    made.begin()
    assert fail(made, MemoryError("no more")) == ExitCode.OUT_OF_MEMORY
    assert set(written(tmp_path)) == {"failure.json"}
    assert Failure.model_validate_json(written(tmp_path)["failure.json"]).host == 1


def test_of_several_failures_the_first_one_is_kept(tmp_path: Path) -> None:
    fail(attempt(tmp_path, host=1), MemoryError("no more"))
    fail(attempt(tmp_path), RuntimeError("the other one is gone"))
    assert Failure.model_validate_json(written(tmp_path)["failure.json"]).reason == "OutOfMemory"
    assert result(tmp_path).failure is not None


def test_the_first_process_records_what_another_has_published(tmp_path: Path) -> None:
    told = attempt(tmp_path / "elsewhere", host=1).failure_of(
        StageError(ExitCode.BAD_DATA, "BadRow", "row 41")
    )
    assert attempt(tmp_path).failed(told) == ExitCode.BAD_DATA
    assert result(tmp_path).failure == told


def test_a_process_that_only_misses_another_leaves_no_record_of_it(tmp_path: Path) -> None:
    fail(attempt(tmp_path, host=1), StageError(ExitCode.UNAVAILABLE, PEER_LOST, "host 0 is gone"))
    assert written(tmp_path) == {}


LOST = JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:4242")


@pytest.mark.parametrize(
    ("count", "error", "lost"),
    [
        (2, LOST, True),
        (2, JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out"), True),
        (1, LOST, False),
        (2, JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (2, ConnectionResetError("Connection reset by peer"), False),
        (2, StageError(ExitCode.BAD_DATA, "BadRow", "gloo"), False),
    ],
)
def test_a_lost_process_is_distinguished_from_other_errors(count: int, error: Exception, lost: bool) -> None:
    found = Processes(count=count, index=0).cause(error)
    assert (isinstance(found, StageError) and found.reason == PEER_LOST) is lost
    assert lost or found is error


def test_an_end_that_could_not_be_recorded_is_not_the_end(tmp_path: Path) -> None:
    """The store fails once, and the failure to write the record is itself recorded as the failure."""
    made = attempt(tmp_path)
    (tmp_path / "run").touch()  # a file where a folder must be
    with pytest.raises(StageError) as caught:
        made.stopped()
    (tmp_path / "run").unlink()
    assert fail(made, caught.value) == result(tmp_path).exit_code != 75


def test_the_first_end_counts(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    assert made.stopped() == 75
    assert fail(made, ValueError("too late")) == 75
    assert result(tmp_path).outcome is Outcome.STOPPED


def test_no_secret_reaches_any_record(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    made.begin()
    try:
        raise ValueError(f"https://user:{CANARY}@hub")
    except ValueError as error:
        fail(made, error)
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert CANARY.encode() not in everything
    assert BLOT.encode() in everything


ERRORS = [
    (MemoryError(), 78),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes"), 78),
    (PermissionError(13, "denied"), 77),
    (RuntimeError("PERMISSION_DENIED: storage.objects.get"), 77),
    (RuntimeError("PERMISSION_DENIED: Anonymous caller … [http_response_code='403']"), 77),
    (RuntimeError("PERMISSION_DENIED: Anonymous caller … [http_response_code='401']"), 69),
    (ConnectionResetError(), 69),
    (RuntimeError("UNAVAILABLE: failed to connect"), 69),
    (StageError(ExitCode.DIVERGED, "Diverged", "x"), 70),
    (RuntimeError("something else"), 1),
    (KeyError("x"), 1),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=[repr(e)[:40] for e, _ in ERRORS])
def test_exceptions_become_exit_codes(error: Exception, code: int, tmp_path: Path) -> None:
    assert fail(attempt(tmp_path), error) == code


@pytest.mark.parametrize(
    "error",
    [
        StageError(ExitCode.BAD_DATA, "X", "it is bad", where="\ud83d", actual="\ud83d", fix="Mend \ud83d."),
        ValueError("\ud83d"),
    ],
)
def test_half_of_a_character_in_an_error_does_not_cost_its_record(error: Exception, tmp_path: Path) -> None:
    """JSON escapes can put such half characters into config.json, an index or a chat template."""
    fail(attempt(tmp_path), error)
    failure = result(tmp_path).failure
    assert failure is not None
    assert r"\ud83d" in failure.message


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
        report = ProgressReporter(
            folder,
            store,
            attempt=attempt,
            restart=0,
            total_steps=9,
            start_step=start,
            discarded=[DiscardedCheckpoint(step=6, why="d/file is missing")] if start else [],
            seconds={"startup": 2.0, "productive": 0.5 * (end - start)},
            compilations=CompilationCounter(requested=3, found=1),
            peak_memory=lambda: 1000 + start,
            ideal_seconds=0.2,
            now=lambda: NOW,
            pause=0,
        )
        for step in range(start + 1, end + 1):
            report.step(step, StepMetrics(loss=1 / step, tokens=10), 0.5)
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
    assert progress.mfu == pytest.approx(0.4)
    assert [point[0] for point in progress.curve] == list(range(1, 10))
    assert progress.peak_memory_bytes == 1004
    assert progress.discarded == [DiscardedCheckpoint(step=6, why="d/file is missing")]
    assert progress.compilations == 2  # of the last attempt
    # The first attempt has six steps, and the second five, two of which are repeated.
    assert progress.seconds == {"startup": 4.0, "productive": 4.5, "recomputed": 1.0}


def test_a_curve_is_thinned_evenly_with_its_ends() -> None:
    points = [(step, float(step)) for step in range(1000)]
    kept = thinned(points, 48)
    assert len(kept) == 48
    assert (kept[0], kept[-1]) == (points[0], points[-1])


def test_a_write_that_fails_is_reported_at_the_end_and_not_before() -> None:
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
from finetune_trainer.process.stopping import SigtermHandler, exit_now
stopper = SigtermHandler(lambda: exit_now(75))
if sys.argv[1] == "deferred":
    stopper.defer()
print("ready", flush=True)
while not stopper.requested:
    sum(range(1000))
print("noticed", flush=True)
if sys.argv[1] == "deferred":
    exit_now(75)
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


def test_what_is_wrong_with_a_request_is_said_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        "FINETUNE_REQUEST": '{"stage": "Trane", "attempt": "hf_secret", "unheard_of": 1}',
        "TERMINATION_MESSAGE_PATH": str(tmp_path / "t"),
    }
    assert main(told) == ExitCode.CONTRACT_UNSUPPORTED
    said = capsys.readouterr().err
    assert said == f"{(tmp_path / 't').read_text()}\n"
    head, *lines, last = said.splitlines()
    assert head == (
        "ContractUnsupported: FINETUNE_REQUEST is not a valid request for this trainer, which supports version "
        f"{CONTRACT_VERSION} of the contract:"
    )
    assert "  job: Field required" in lines
    assert any(line.startswith("  stage: Input should be 'Preflight', 'Convert'") for line in lines)
    assert last == "Use the trainer image of the operator's release."
    assert "http" not in said
    assert "hf_secret" not in said


@pytest.mark.parametrize(
    "version", [{"requires": "3.999"}, {"version": 4}, {"version": 4, "requires": "4.0"}]
)
def test_a_request_of_a_newer_contract_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], version: dict[str, Any]
) -> None:
    asked = json.loads(request(tmp_path, "Preflight").to_json()) | {"method": {"type": "Newest"}} | version
    told = {"FINETUNE_REQUEST": json.dumps(asked), "TERMINATION_MESSAGE_PATH": str(tmp_path / "t")}
    assert main(told) == ExitCode.CONTRACT_UNSUPPORTED
    said = capsys.readouterr().err
    needed = version.get("requires", "4.0")
    assert said.startswith(
        f"ContractUnsupported: The request needs version {needed} of the contract, and this trainer supports "
        f"{CONTRACT_VERSION}."
    )
    assert said == f"{(tmp_path / 't').read_text()}\n"
    assert not (tmp_path / "run").exists()


def test_a_run_that_a_newer_trainer_began_is_not_continued_by_an_older_one(tmp_path: Path) -> None:
    """A field of the request that is unknown to the older trainer may have affected training."""
    now = request(tmp_path, "Preflight", job={"uid": "another"})
    folder = RunFolder(now.run_folder)
    before = json.loads(request(tmp_path, "Preflight").to_json()) | {"requires": "3.999"}
    open_store().write(folder.request("prep", 1), json.dumps(before))
    context = SimpleNamespace(folder=folder, store=open_store(), request=now)
    with pytest.raises(StageError, match=r"needs version 3\.999 of the contract") as refused:
        resumption.check(context, None)  # type: ignore[arg-type]
    assert refused.value.reason == "ResumeMismatch"


def test_every_result_says_what_the_image_speaks(tmp_path: Path) -> None:
    made = attempt(tmp_path)
    made.begin()
    made.stopped()
    assert result(tmp_path).supports == str(CONTRACT_VERSION)


def test_the_help_by_hand_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate_cli.main(["--help"])
    assert "{evaluate,compile}" in capsys.readouterr().out


def test_arguments_that_make_no_request_are_reported_by_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        evaluate_cli.main(["evaluate", "--model", "s3://bucket/model", "--data", "/tmp/x"])
        == ExitCode.BAD_REQUEST
    )
    said = capsys.readouterr().err
    assert "BadRequest: these arguments are invalid:\n  model.uri: String should match pattern" in said


def test_of_very_many_checkpoints_a_result_names_the_newest_and_the_best() -> None:
    policy = CheckpointPolicy(every_steps=1, every_seconds=600, keep_last=5000, keep_best=1)
    retention = Retention(policy=policy, measured={7: 0.5, 4999: 1.5})
    told = [record.step for record in retention.records(range(1, 5001), RunFolder("gs://b/run"))]
    assert len(told) == MOST_CHECKPOINTS
    assert told[0] == 7
    assert told[1:] == list(range(5001 - MOST_CHECKPOINTS + 1, 5001))
