"""Memory that a hostile tenant can make the operator use with a namespace's maximum of concurrent reconciles."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from finetune_contract import CacheLayout, RunFolder, Stage, StageResult
from finetune_operator.artifacts.port import NAMES_LIMIT, RECORD_LIMIT
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.run_folder_files import HELD_LIMIT
from finetune_operator.reconcile.run_folder_observer import Folders
from finetune_operator.runtime.settings import Settings
from tests.unit.reconcile.records import result

pytestmark = pytest.mark.slow

#: Maximum bytes above what the operator uses without jobs; the chart's limit is 512Mi.
MOST = 100 * 2**20
AT_ONCE = Settings.model_fields["workers"].default // 2


def document(stage: Stage, **details: Any) -> dict[str, Any]:
    whole = result(stage).model_dump(mode="json", exclude_defaults=True)
    return {**whole, "details": {**whole.get("details", {"kind": str(stage)}), **details}}


def many_datasets() -> bytes:
    """Returns a record with many short texts, each of which is a separate Python object."""
    uses = [
        {"path": "p", "result": "Hit", "fingerprint": "f", "miss_because": [f"{n}{m}é" for m in range(60)]}
        for n in range(256)
    ]
    inputs = {f"{number}ü": f"{number}é" for number in range(256)}
    return json.dumps(
        document(Stage.PREFLIGHT, prepared=uses, fingerprint_inputs=inputs), ensure_ascii=False
    ).encode()


def wide_text() -> bytes:
    """Returns a record with a long text and one emoji, for which Python uses four bytes for each character."""
    text = "x" * (RECORD_LIMIT - 2000) + "🙂"
    return json.dumps(document(Stage.PREFLIGHT, warnings=[text]), ensure_ascii=False).encode()


CONTENTS = {"datasets": many_datasets, "wide text": wide_text}


class Bucket:
    """A store in which each run folder has the maximum number of names and as many of these records as may be held."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.own = frozenset(
            AttemptKey(Stage.PREFLIGHT, number) for number in range(1, HELD_LIMIT // len(content) + 1)
        )

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> list[str]:
        own = [f"prep-{key.number}/result.json" for key in self.own]
        foreign = (f"eval-{n % 998 + 1}.{n // 998 + 1}/result.json" for n in range(limit - len(own)))
        return [*own, *foreign]

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        await asyncio.sleep(0)
        return bytes(bytearray(self._content)) if "/prep-" in uri else None

    async def write(self, uri: str, content: bytes) -> None:
        raise AssertionError("reading a run folder writes nothing")


@pytest.mark.parametrize("what", CONTENTS)
async def test_the_looks_of_one_namespace_take_less_than_the_operator_has(what: str) -> None:
    content = CONTENTS[what]()
    assert len(content) <= RECORD_LIMIT
    StageResult.model_validate_json(content)
    bucket = Bucket(content)
    reader = RunFolderReader(bucket)
    runs = [RunFolder(f"gs://a/t/j{number}-00000000") for number in range(AT_ONCE)]
    looks = [
        reader.view(Folders(run=run, cache=CacheLayout("gs://cache")), of=run.uri, own=lambda *_: bucket.own)
        for run in runs
    ]
    tracemalloc.start()
    try:
        views = await asyncio.gather(*looks)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for view in views:
        assert view.unreadable is None
        assert view.attempts.keys() == bucket.own
    print(f"{what}: {len(bucket.own)} records a look, {held / 2**20:.0f} MiB, {most / 2**20:.0f} MiB at most")
    assert most < MOST
