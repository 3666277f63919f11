"""What stages report while they run."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from finetune_contract import Outcome, StageProgress
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter
from tests.trainer.requests import request
from tests.trainer.stages import Stages, attempt_folder

BEGUN = datetime(2026, 11, 25, 12, tzinfo=UTC)


def ticking() -> Callable[[], datetime]:
    """Returns a clock that advances by a second with each look."""
    seconds = count()
    return lambda: BEGUN + timedelta(seconds=next(seconds))


class Written:
    """Keeps what is written; a test can wait for the first write, and for that of all that there is."""

    def __init__(self, error: Exception | None = None) -> None:
        self.contents: list[bytes] = []
        self.first, self.whole = threading.Event(), threading.Event()
        self._error = error

    def __call__(self, content: bytes) -> None:
        self.contents.append(content)
        self.first.set()
        if self.newest.done == self.newest.total:
            self.whole.set()
        if self._error:
            raise self._error

    @property
    def newest(self) -> StageProgress:
        return StageProgress.model_validate_json(self.contents[-1])


def test_however_much_is_counted_one_write_follows_in_a_pause() -> None:
    written = Written()
    reporter = StageProgressReporter(written, now=ticking(), pause=3600.0)
    reporter.begin("converting the weights", 1000, "tensors", total_bytes=4000)
    written.first.wait()
    for _ in range(1000):
        reporter.advance(1, 4)
    reporter.close()
    assert len(written.contents) == 1
    assert written.newest.doing == "converting the weights"


def test_the_newest_state_is_written() -> None:
    written = Written()
    reporter = StageProgressReporter(written, now=ticking(), pause=0.0)
    reporter.begin("reading rows", unit="rows")
    reporter.begin("converting the weights", 3, "tensors", total_bytes=12)
    reporter.advance(1, 4)
    reporter.advance(5, 4)
    written.whole.wait()
    reporter.close()
    found = written.newest
    assert (found.done, found.total, found.unit) == (3, 3, "tensors"), (
        "a padded batch counts no more than there is"
    )
    assert (found.done_bytes, found.total_bytes) == (8, 12)
    assert BEGUN < found.since < found.updated


def test_a_store_that_fails_does_not_end_the_stage() -> None:
    written = Written(PermissionError("no objectUser"))
    reporter = StageProgressReporter(written, now=ticking(), pause=0.0)
    reporter.begin("uploading the model", 2, "files")
    written.first.wait()
    reporter.advance()
    reporter.close()


def test_a_caller_that_is_no_stage_reports_nowhere() -> None:
    SILENT.begin("evaluating by hand")
    SILENT.advance()
    SILENT.close()


def test_nothing_is_counted_before_an_activity_has_begun() -> None:
    written = Written()
    reporter = StageProgressReporter(written, now=ticking(), pause=0.0)
    reporter.advance(1, 4)
    reporter.close()
    assert written.contents == []


def reports(stages: Stages, stage: str, run: str, **changes: Any) -> list[StageProgress]:
    """Runs a stage. Returns the last state of each of its activities, in order."""
    path = stages.root / f"{run}-{stage}.progress"
    result = stages.run(stage, run, fault=("records_progress", str(path)), **changes)
    assert result.outcome is Outcome.SUCCEEDED, result.failure
    states = [StageProgress.model_validate_json(line) for line in path.read_bytes().splitlines()]
    last: dict[datetime, StageProgress] = {}
    for state in states:
        before = last.get(state.since)
        if before is not None:
            assert state.doing == before.doing
            assert state.done >= before.done
            assert state.done_bytes >= before.done_bytes
        last[state.since] = state
    assert all(state.since <= state.updated for state in last.values())
    return list(last.values())


def complete(found: list[StageProgress]) -> dict[str, tuple[int, str]]:
    """Returns what has been counted of each activity with a total; all of them must have reached it."""
    counted = {each.doing: each for each in found if each.total is not None}
    for each in counted.values():
        assert each.done == each.total, each
        assert each.total_bytes is None or each.done_bytes == each.total_bytes, each
    return {doing: (each.done, each.unit) for doing, each in counted.items()}


def test_preflight_counts_rows_and_the_stages_of_the_smoke_test(stages: Stages) -> None:
    found = reports(stages, "Preflight", "progress-prep", use_cache="Off", smoke={"steps": 1, "examples": 8})
    rows = {each.doing: (each.done, each.total, each.unit) for each in found if each.unit == "rows"}
    assert rows["reading the rows of spec.datasets.train[0]"] == (400, None, "rows")
    assert complete(found) == {"running the smoke test": (4, "stages")}, "the stages inside are silent"


def test_convert_counts_tensors_and_bytes_of_the_conversion_and_of_its_proof(stages: Stages) -> None:
    found = reports(stages, "Convert", "progress-conv", use_cache="Off")
    counted = complete(found)
    tensors = counted["converting the weights"]
    assert counted["comparing the converted weights with the model's"] == tensors
    assert tensors[1] == "tensors"
    (weights,) = [each for each in found if each.doing == "converting the weights"]
    assert weights.total_bytes


def test_train_reports_until_its_first_step_and_the_later_stages_count(
    stages: Stages, converted: str
) -> None:
    lora = {"method": {"lora": {"rank": 4, "alpha": 8.0}}}
    run = "progress-chain"
    trained = reports(stages, "Train", run, converted=converted, **lora)
    assert [each.doing for each in trained][-2:] == [
        "loading the model",
        "compiling and running the first step",
    ]
    assert trained[-1].done == 0
    evaluated = complete(reports(stages, "Evaluate", run, converted=converted, train_step=20, **lora))
    for model in ("base model", "tuned model"):
        assert evaluated[f"{model}: generating answers"] == (1, "answers")
        assert evaluated[f"{model}: loss on faq"] == (64, "sequences")
    both = {"export": {"content": "Both"}}
    exported = reports(stages, "Export", run, converted=converted, train_step=20, **lora, **both)
    counted = complete(exported)
    assert counted["writing the weights"][1] == "tensors"
    assert counted["uploading the model"][1] == counted["uploading the adapter"][1] == "files"


def test_a_stage_leaves_its_last_report_in_the_folder_of_its_attempt(stages: Stages) -> None:
    """Written as it is, without a fault: at least what the stage did first."""
    made = request(stages.root, "Preflight", "progress-file", use_cache="Off")
    stages.run("Preflight", "progress-file", use_cache="Off")
    found = StageProgress.model_validate_json((attempt_folder(made) / "progress.json").read_bytes())
    assert found.doing


def test_only_the_first_process_reports(stages: Stages, converted: str) -> None:
    run = "progress-pair"
    changes = {"converted": converted, "mesh": {"hosts": 2, "chips_per_host": 1, "fsdp": 2}}
    first = stages.run("Train", run, converted=converted)
    assert first.outcome is Outcome.SUCCEEDED, first.failure
    made = request(stages.root, "Evaluate", run, train_step=20, **changes)
    paths = [stages.root / f"{run}-{host}.progress" for host in range(2)]
    running = stages.pair(made, faults=[("records_progress", str(path)) for path in paths])
    assert [each.wait() for each in running] == [0, 0], running[0].log[-4000:]
    assert [path.exists() for path in paths] == [True, False]
