"""Run folders with records of a trainer image or an operator of a newer release."""

import json

from finetune_contract import Stage
from finetune_contract.base import Record
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import RetryRecord
from finetune_operator.reconcile.run_folder import RunFolderReader
from tests.unit.contract.samples import with_unknown_keys
from tests.unit.reconcile.fakes import FOLDERS, FakeStore
from tests.unit.reconcile.records import FINGERPRINT, manifest, progress, result

RUN = FOLDERS.run


def put(store: FakeStore, uri: str, record: Record) -> None:
    more = with_unknown_keys(type(record), json.loads(record.to_json()))
    store.files[uri] = json.dumps(more).encode()


async def test_all_that_this_operator_knows_of_newer_records_is_read() -> None:
    store, retry = FakeStore(), RetryRecord(generation=2, from_stage=Stage.TRAIN, first={Stage.TRAIN: 2})
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    store.files[RUN.request("train", 1)] = b"{}"
    put(store, RUN.progress, progress(40))
    put(store, FOLDERS.cache.convert_manifest(FINGERPRINT), manifest())
    note = {**json.loads(retry.model_dump_json()), "by": "a newer operator"}
    store.files[RUN.retry(2)] = json.dumps(note).encode()
    view = await RunFolderReader(store).view(FOLDERS)
    assert view.unreadable is None
    assert view.attempts[AttemptKey(Stage.PREFLIGHT, 1)].result == result(Stage.PREFLIGHT)
    assert view.progress == progress(40)
    assert view.convert_manifest == manifest()
    assert view.retry == retry


async def test_an_old_attempts_failure_of_a_newer_major_version_hides_that_attempt_alone() -> None:
    store = FakeStore()
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    store.files[RUN.failure("train", 1)] = b'{"version": 4}'
    put(store, RUN.result("train", 2), result(Stage.TRAIN))
    view = await RunFolderReader(store).view(FOLDERS)
    assert view.unreadable is None
    assert "version 4" in (view.attempts[AttemptKey(Stage.TRAIN, 1)].newer or "")
    assert view.attempts[AttemptKey(Stage.TRAIN, 2)].result == result(Stage.TRAIN)
