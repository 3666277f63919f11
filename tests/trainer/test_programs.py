"""Compiled programs are reused by later processes, and no fault of the cache fails a stage."""

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import ExitCode, Outcome, Progress, StageRequest, StageResult, TrainOutcome
from finetune_trainer.engine import compilation_cache as programs_module
from finetune_trainer.engine.compilation_cache import StorageCompilationCache
from finetune_trainer.errors import StageError
from finetune_trainer.storage import StorageClient, open_store
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of
from tests.trainer.stores import BUCKET

KEY, VALUE = "jit_step-0a1b", b"compressed program" * 100


def kept(
    root: str, *, store: StorageClient | None = None, first: bool = True, days: float = 0.0
) -> StorageCompilationCache:
    """Returns the cache as a process sees it after this many days."""
    return StorageCompilationCache(
        f"{root}/programs",
        store or open_store(),
        first=first,
        now=lambda: datetime.now(UTC) + timedelta(days=days),
    )


def damage(root: str, change: Callable[[bytes], bytes]) -> None:
    store, uri = open_store(), f"{root}/programs/{KEY}"
    store.write(uri, change(store.read(uri)))


def test_what_one_process_keeps_the_next_one_has(root: str) -> None:
    assert kept(root).get(KEY) is None
    kept(root).put(KEY, VALUE)
    assert kept(root, first=False).get(KEY) == VALUE


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
        lambda _: b"",
    ],
    ids=["half written", "a flipped bit", "empty"],
)
def test_a_damaged_program_is_a_miss_and_is_replaced(
    root: str, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    kept(root).put(KEY, VALUE)
    damage(root, change)
    programs = kept(root)
    with caplog.at_level(logging.WARNING):
        assert programs.get(KEY) is None
    assert KEY in caplog.text
    programs.put(KEY, VALUE)
    assert kept(root).get(KEY) == VALUE


def test_a_program_that_jax_cannot_load_is_replaced_by_what_it_compiles(root: str) -> None:
    kept(root).put(KEY, b"of another machine")
    programs = kept(root)
    assert programs.get(KEY) == b"of another machine"
    programs.put(KEY, VALUE)
    assert kept(root).get(KEY) == VALUE


class Refusing:
    """A store that refuses the calls with the given names."""

    def __init__(self, *names: str) -> None:
        self._names, self._store, self.calls = names, open_store(), 0

    def __getattr__(self, name: str) -> Any:
        return self._refuse if name in self._names else getattr(self._store, name)

    def _refuse(self, *_: object, **__: object) -> None:
        self.calls += 1
        raise StageError(ExitCode.UNAVAILABLE, "StorageUnavailable", "storage did not respond")


def test_a_store_that_does_not_answer_is_asked_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store: Any = Refusing("read_or_none", "create")
    programs = kept(f"file://{tmp_path}", store=store)
    with caplog.at_level(logging.WARNING):
        for key in ("a", "b", "c"):
            assert programs.get(key) is None
            programs.put(key, VALUE)
    assert store.calls == 2
    assert len(caplog.records) == 2


def test_a_store_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs_module, "_READ_SECONDS", 0.01)
    store, released = open_store(), threading.Event()
    monkeypatch.setattr(store, "read_or_none", lambda _: released.wait())
    assert kept(f"file://{tmp_path}", store=store).get(KEY) is None
    released.set()


@pytest.mark.parametrize("call", ["get", "put"])
def test_a_store_that_always_answers_just_in_time_is_not_waited_for_each_time(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting 19 seconds for each of about seventy programs would take 22 minutes of a slice's time."""
    monkeypatch.setattr(programs_module, "_ALL_READS_SECONDS", 0.1)
    monkeypatch.setattr(programs_module, "_ALL_WRITES_SECONDS", 0.1)
    store, calls = open_store(), 0

    def slow(*_: object, **__: object) -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.04)

    monkeypatch.setattr(store, "read_or_none" if call == "get" else "create", slow)
    programs = kept(f"file://{tmp_path}", store=store)
    for number in range(70):
        programs.get(str(number)) if call == "get" else programs.put(str(number), VALUE)
    assert 1 <= calls <= 3


def test_programs_are_read_where_none_may_be_written(tmp_path: Path) -> None:
    root = f"file://{tmp_path}"
    kept(root).put(KEY, VALUE)
    store: Any = Refusing("create")
    programs = kept(root, store=store)
    programs.put("other", VALUE)
    assert programs.get(KEY) == VALUE


def test_a_program_goes_a_month_after_its_last_use(root: str) -> None:
    for key in ("used", "unused"):
        kept(root).put(key, VALUE)
    kept(root, days=20).collect()
    assert kept(root).get("unused") == VALUE
    kept(root, days=31).collect()
    assert kept(root).get("unused") is None


def test_a_program_in_use_is_written_again_so_that_it_stays(tmp_path: Path) -> None:
    root = f"file://{tmp_path}"
    kept(root).put(KEY, VALUE)
    path = tmp_path / "programs" / KEY
    long_ago = datetime.now(UTC) - timedelta(days=20)
    os.utime(path, (long_ago.timestamp(), long_ago.timestamp()))
    programs = kept(root)
    programs.collect()
    assert programs.get(KEY) == VALUE
    kept(root, days=15).collect()
    assert kept(root).get(KEY) == VALUE


STEPS = 4


class Attempts:
    """Attempts at one training, each in a process of its own, that share one folder of programs."""

    def __init__(self, stages: Stages, converted: str, folder: str, **environment: str) -> None:
        self._stages, self._converted, self._folder = stages, converted, folder
        self._environment = environment

    def request(self, run: str, attempt: int, stage: str, **changes: Any) -> StageRequest:
        asked = {
            "converted": self._converted,
            "hyperparameters": {"steps": STEPS},
            "checkpointing": {"every_steps": 2},
            "evaluation": {"baseline": False, "prompts": []},
            **changes,
        }
        return request(self._stages.root, stage, run, attempt=attempt, **asked)

    def run(
        self, run: str, attempt: int, stage: str = "Train", *, fault: Sequence[Any] = (), **changes: Any
    ) -> tuple[StageResult, str]:
        """Runs an attempt, and returns its result and its log."""
        made = self.request(run, attempt, stage, **changes)
        running = self._stages.start(
            fault=fault,
            FINETUNE_REQUEST=made.to_json(),
            JAX_COMPILATION_CACHE_DIR=self._folder,
            **self._environment,
        )
        running.wait()
        result = result_of(made)
        assert result is not None, running.log[-4000:]
        return result, running.log

    def progress(self, run: str) -> Progress:
        return Progress.model_validate_json((self._stages.root / run / "train/progress.json").read_bytes())


@pytest.mark.thorough
def test_later_attempts_and_stages_compile_nothing_and_damage_costs_one_compilation(
    stages: Stages, converted: str, server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    folder, run = f"gs://{BUCKET}/{tmp_path.name}/programs", f"programs-{tmp_path.name}"
    attempts = Attempts(stages, converted, folder, STORAGE_EMULATOR_HOST=server)
    cold, _ = attempts.run(run, 1)
    assert cold.compilations is not None
    assert cold.compilations > 10
    losses = stages.losses(run)

    shutil.rmtree(stages.root / run / f"train/checkpoints/{STEPS}")
    resumed, _ = attempts.run(run, 2)
    assert isinstance(resumed.details, TrainOutcome)
    assert (resumed.details.start_step, resumed.compilations) == (2, 0)
    progress = attempts.progress(run)
    assert progress.compilations == 0
    assert {"startup", "data", "restore", "compile", "first_step", "productive"} <= progress.seconds.keys()

    store = open_store()
    largest = max(store.entries(folder), key=lambda entry: entry.size)
    content = store.read(largest.uri)
    store.write(largest.uri, content[: len(content) // 2])
    mended, log = attempts.run(f"{run}-again", 1)
    assert (mended.outcome, mended.compilations) == (Outcome.SUCCEEDED, 1)
    assert largest.uri in log
    assert len(store.read(largest.uri)) > len(content) // 2
    assert stages.losses(f"{run}-again") == stages.losses(run) == losses

    evaluation = {"evaluation": {"prompts": ["What is the capital of France?"], "max_new_tokens": 16}}
    trained = {"train_step": STEPS, **evaluation}
    assert attempts.run(run, 1, "Evaluate", **trained)[0].compilations
    assert attempts.run(run, 2, "Evaluate", **trained)[0].compilations == 0


def test_what_the_first_attempt_never_reached_is_counted_by_the_attempt_that_compiles_it(
    stages: Stages, converted: str, tmp_path: Path
) -> None:
    folder, run = tmp_path / "programs", f"programs-{tmp_path.name}"
    attempts = Attempts(stages, converted, f"file://{folder}")
    done = "finetune_trainer.training.trainer:FineTuneTrainer._post_process_train_step"
    stopped, _ = attempts.run(run, 1, fault=("terminated_at", done, 1))
    assert stopped.outcome is Outcome.STOPPED
    before = {path.name for path in folder.iterdir()}
    assert stopped.compilations == len(before)
    resumed, _ = attempts.run(run, 2)
    added = {path.name for path in folder.iterdir()} - before
    assert resumed.outcome is Outcome.SUCCEEDED
    assert any(name.startswith("jit_step-") for name in added)  # the loss on the validation rows
    assert resumed.compilations == len(added)


PAIR = {"prompt": "What is the capital of France?", "chosen": "Paris.", "rejected": "I do not know."}
DPO_LORA = {"type": "DPO", "max_prompt_length": 24, "lora": {"rank": 4, "alpha": 8.0}}


@pytest.mark.parametrize(
    ("method", "ended"),
    [
        pytest.param({}, ["Train"], id="sft"),
        pytest.param(DPO_LORA, ["Train", "Evaluate"], id="dpo-lora", marks=pytest.mark.thorough),
    ],
)
def test_stages_find_every_program_that_preflight_has_compiled(
    method: dict[str, Any], ended: list[str], stages: Stages, converted: str, tmp_path: Path
) -> None:
    """What preflight compiles from shapes alone has JAX's key of what the stages run, including schedule and tokens."""
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    run, folder = f"programs-{tmp_path.name}", tmp_path / "filled"
    (tmp_path / "pairs.jsonl").write_text(json.dumps(PAIR) + "\n")
    data: dict[str, Any] = {}
    if method:
        source = {"path": "spec.datasets.train[0]", "name": "pairs", "uri": f"file://{tmp_path}/pairs.jsonl"}
        data = {"data": {"train": [source], "validation": [source | {"path": "spec.datasets.validation[0]"}]}}
    asked: dict[str, Any] = {
        "mesh": {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        "method": method,
        "hyperparameters": {"steps": STEPS, "schedule": "Linear", "warmup_steps": 1},
        "evaluation": {
            "baseline": True, "every_steps": 2, "max_new_tokens": 16,
            "prompts": ["What is the capital of France?"] if "Evaluate" in ended else [],
        },
        **data,
    }  # fmt: skip
    attempts = Attempts(stages, converted, f"file://{folder}", **devices)
    beforehand = stages.start(
        fault=("compiled_beforehand",),
        FINETUNE_REQUEST=attempts.request(run, 1, "Train", **asked).to_json(),
        JAX_COMPILATION_CACHE_DIR=f"file://{folder}",
        **devices,
    )
    assert beforehand.wait() == 0, beforehand.log[-4000:]
    filled = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    large = {"jit_step", *({"jit_known", "jit_run"} if method else ())}
    assert {name.partition("-")[0] for name in filled} >= large
    for stage in ended:
        found, log = attempts.run(run, 1, stage, **asked, train_step=STEPS if stage == "Evaluate" else None)
        assert found.outcome is Outcome.SUCCEEDED, log[-4000:]
    assert {name: (folder / name).stat().st_mtime_ns for name in filled} == filled
    missed = {path.name for path in folder.iterdir()} - filled.keys()
    assert not {name for name in missed if name.partition("-")[0] in large}


def test_a_folder_that_cannot_be_written_fails_no_stage(
    stages: Stages, converted: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    attempts = Attempts(stages, converted, f"file://{tmp_path}/file/programs")
    result, log = attempts.run(f"programs-{tmp_path.name}", 1)
    assert result.outcome is Outcome.SUCCEEDED
    assert result.compilations
    assert log.count("compiled programs cannot be stored") == 1
