"""What one hostile tenant can make the operator hold, who has as many reconciles at once as a namespace may."""

import json
import tracemalloc
from typing import Any

import pytest

from finetune_contract import CacheLayout, RunFolder, Stage, StageResult
from finetune_operator.artifacts.port import RECORD_LIMIT
from finetune_operator.lifecycle.observed import AttemptKey
from finetune_operator.reconcile.files_of_look import HELD_LIMIT
from finetune_operator.reconcile.run_folder import Folders, RunFolderReader
from finetune_operator.runtime.settings import Settings
from tests.unit.reconcile.fakes import FakeStore
from tests.unit.reconcile.records import result

#: Above what the operator takes without jobs; the chart's limit is 256Mi.
MOST = 100 * 2**20
AT_ONCE = Settings.model_fields["workers"].default // 2


def document(stage: Stage, **details: Any) -> dict[str, Any]:
    whole = result(stage).model_dump(mode="json", exclude_defaults=True)
    return {**whole, "details": {**whole.get("details", {"kind": str(stage)}), **details}}


def many_checkpoints() -> bytes:
    metrics = {f"{number}": number / 7 for number in range(16)}
    one = {"step": 1, "uri": "gs://a/b", "metrics": metrics}
    return json.dumps(document(Stage.TRAIN, step=1, total_steps=1, checkpoints=[one] * 1000)).encode()


def many_datasets() -> bytes:
    """Short texts, each an object of its own."""
    uses = [
        {"path": "p", "result": "Hit", "fingerprint": "f", "miss_because": [f"{n}{m}é" for m in range(60)]}
        for n in range(256)
    ]
    inputs = {f"{number}ü": f"{number}é" for number in range(256)}
    return json.dumps(
        document(Stage.PREFLIGHT, prepared=uses, fingerprint_inputs=inputs), ensure_ascii=False
    ).encode()


def wide_text() -> bytes:
    """Python takes four bytes for each character of a text that has one emoji."""
    text = "x" * (RECORD_LIMIT - 2000) + "🙂"
    return json.dumps(document(Stage.PREFLIGHT, warnings=[text]), ensure_ascii=False).encode()


CONTENTS = {"checkpoints": many_checkpoints, "datasets": many_datasets, "wide text": wide_text}


@pytest.mark.parametrize("what", CONTENTS)
async def test_the_looks_of_one_namespace_hold_less_than_the_operator_has(what: str) -> None:
    content = CONTENTS[what]()
    assert len(content) <= RECORD_LIMIT
    StageResult.model_validate_json(content)
    store, jobs = FakeStore(), []
    # As many as a look holds.
    fits = HELD_LIMIT // len(content)
    for number in range(AT_ONCE):
        run = RunFolder(f"gs://a/t/j{number}-00000000")
        jobs.append(Folders(run=run, cache=CacheLayout("gs://cache")))
        store.files |= {run.result("prep", each): content for each in range(1, fits + 1)}
    reader = RunFolderReader(store)
    tracemalloc.start()
    try:
        views = [await reader.view(folders, of=folders.run.uri) for folders in jobs]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(view.unreadable is None for view in views)
    assert all(AttemptKey(Stage.PREFLIGHT, fits) in view.attempts for view in views)
    print(f"{what}: {fits} records a look, {held / 2**20:.1f} MiB")
    assert held < MOST
