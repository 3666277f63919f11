from datetime import timedelta

import pytest

from finetune_contract import ConvertOutcome, Failure, HostProgress, Outcome, Stage
from finetune_operator.api import Reason
from finetune_operator.artifacts.port import StorageUnavailable, StoredBytes
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import AttemptFiles, ReadFailure, RunFolderView, TakeoverRecord
from finetune_operator.reconcile.listing import attempt_of
from finetune_operator.reconcile.run_folder import RunFolderReader
from tests.unit.reconcile.fakes import FOLDERS, NOW, FakeStore
from tests.unit.reconcile.records import FINGERPRINT, manifest, progress, result

RUN = FOLDERS.run


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def put(store: FakeStore, uri: str, record: object = None) -> None:
    store.files[uri] = record.to_json().encode() if record is not None else b"{}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("folder", "key"),
    [
        ("train-2", AttemptKey(Stage.TRAIN, 2)),
        ("prep-999", AttemptKey(Stage.PREFLIGHT, 999)),
        ("train", None),
        ("train-x", None),
        ("training-1", None),
        ("", None),
    ],
)
def test_attempt_folders_are_distinguished_from_other_names(folder: str, key: AttemptKey | None) -> None:
    assert attempt_of(folder) == key


async def test_an_empty_folder_is_an_empty_view(store: FakeStore) -> None:
    assert await RunFolderReader(store).view(FOLDERS) == RunFolderView()


async def test_a_started_attempt_is_an_entry_without_records(store: FakeStore) -> None:
    put(store, RUN.request("prep", 1))
    view = await RunFolderReader(store).view(FOLDERS)
    assert view.attempts == {AttemptKey(Stage.PREFLIGHT, 1): AttemptFiles()}


async def test_results_and_failures_are_read_per_attempt(store: FakeStore) -> None:
    failed = Failure(code=69, reason="HubUnavailable", message="no answer")
    put(store, RUN.failure("prep", 1), failed)
    put(store, RUN.result("prep", 2), result(Stage.PREFLIGHT, 2))
    view = await RunFolderReader(store).view(FOLDERS)
    assert view.attempts[AttemptKey(Stage.PREFLIGHT, 1)].failure == failed
    assert view.attempts[AttemptKey(Stage.PREFLIGHT, 2)].result == result(Stage.PREFLIGHT, 2)


async def test_the_record_of_a_stopped_attempt_is_read_anew(store: FakeStore) -> None:
    """Kueue suspends and resumes a JobSet; the same attempt then writes its final result."""
    stopped = result(Stage.TRAIN).model_copy(update={"outcome": Outcome.STOPPED, "exit_code": 75})
    put(store, RUN.result("train", 1), stopped)
    reader = RunFolderReader(store)
    await reader.view(FOLDERS)
    put(store, RUN.result("train", 1), result(Stage.TRAIN))
    view = await reader.view(FOLDERS)
    assert view.attempts[AttemptKey(Stage.TRAIN, 1)].result == result(Stage.TRAIN)


async def test_written_once_is_read_once(store: FakeStore) -> None:
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    reader = RunFolderReader(store)
    first = await reader.view(FOLDERS)
    assert await reader.view(FOLDERS) == first
    assert store.calls.count(f"read {RUN.result('prep', 1)}") == 1


async def test_a_failure_that_the_operator_judged_anew_is_seen_at_once(store: FakeStore) -> None:
    put(store, RUN.failure("train", 1), Failure(code=1, reason="ProcessDied", message="a peer was gone"))
    reader = RunFolderReader(store)
    await reader.view(FOLDERS)
    judged = Failure(code=75, reason="Preempted", message="Kubernetes took a pod away")
    put(store, RUN.failure("train", 1), judged)
    view = await reader.view(FOLDERS)
    assert view.attempts[AttemptKey(Stage.TRAIN, 1)].failure == judged


async def test_a_long_history_of_preemptions_costs_its_last_attempt_alone(store: FakeStore) -> None:
    stopped = result(Stage.TRAIN).model_copy(update={"outcome": Outcome.STOPPED, "exit_code": 75})
    judged = Failure(code=75, reason="Preempted", message="Kubernetes took a pod away")
    for restart in range(50):
        put(store, RUN.result("train", 1, restart), stopped)
        put(store, RUN.failure("train", 1, restart), judged)
    reader = RunFolderReader(store)
    first = await reader.view(FOLDERS)
    store.calls.clear()
    assert await reader.view(FOLDERS) == first
    assert [call for call in store.calls if "/attempts/" in call] == [
        f"read {RUN.result('train', 1, 49)}",
        f"read {RUN.failure('train', 1, 49)}",
    ]


async def test_a_judgement_that_the_operator_writes_again_is_seen(store: FakeStore) -> None:
    judged = Failure(code=69, reason="Hung", message="Training stands still", seconds=900.0)
    longer = judged.model_copy(update={"seconds": 960.0})
    put(store, RUN.failure("train", 1), judged)
    reader = RunFolderReader(store)
    await reader.view(FOLDERS)
    put(store, RUN.failure("train", 1), longer)
    view = await reader.view(FOLDERS)
    assert view.attempts[AttemptKey(Stage.TRAIN, 1)].failure == longer


async def test_memory_is_bounded(store: FakeStore) -> None:
    for number in range(1, 6):
        put(store, RUN.result("prep", number), result(Stage.PREFLIGHT, number))
    reader = RunFolderReader(store, remembered_bytes=100)
    await reader.view(FOLDERS)
    view = await reader.view(FOLDERS)
    assert len(view.attempts) == 5
    assert store.calls.count(f"read {RUN.result('prep', 1)}") == 2


async def test_the_conversion_is_looked_up_by_the_latest_preflight(store: FakeStore) -> None:
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT, 1, fingerprint="0" * 64))
    put(store, RUN.result("prep", 2), result(Stage.PREFLIGHT, 2))
    put(store, FOLDERS.cache.convert_manifest(FINGERPRINT), manifest())
    assert (await RunFolderReader(store).view(FOLDERS)).convert_manifest == manifest()


async def test_a_conversion_that_was_deleted_is_not_remembered(store: FakeStore) -> None:
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    put(store, FOLDERS.cache.convert_manifest(FINGERPRINT), manifest())
    reader = RunFolderReader(store)
    await reader.view(FOLDERS)
    del store.files[FOLDERS.cache.convert_manifest(FINGERPRINT)]
    assert (await reader.view(FOLDERS)).convert_manifest is None


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff",
        b'{"files": [{"path": "model.safetensors"}]}',
        b'{"version": 4}',
        b"[" * 100_000,
        b"",
        b" " * 2**21,
    ],
    ids=["truncated", "not text", "an export's manifest", "another version", "deep", "empty", "huge"],
)
async def test_a_conversion_that_cannot_be_understood_is_a_miss_and_blocks_no_job(
    store: FakeStore, content: bytes
) -> None:
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    store.files[FOLDERS.cache.convert_manifest(FINGERPRINT)] = content
    view = await RunFolderReader(store).view(FOLDERS)
    assert (view.unreadable, view.convert_manifest) == (None, None)
    assert view.convert_manifest_fault.startswith("its manifest in the cache cannot be read: ")
    (warning,) = view.warnings
    assert FOLDERS.cache.convert_manifest(FINGERPRINT) in warning


async def test_the_cache_is_not_read_once_the_job_has_converted_the_model(store: FakeStore) -> None:
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    own = result(Stage.CONVERT).model_copy(update={"details": ConvertOutcome(manifest=manifest())})
    put(store, RUN.result("conv", 1), own)
    store.files[FOLDERS.cache.convert_manifest(FINGERPRINT)] = b"{"
    view = await RunFolderReader(store).view(FOLDERS)
    assert (view.unreadable, view.convert_manifest, view.convert_manifest_fault) == (None, None, "")
    assert not [call for call in store.calls if "/convert/" in call]


async def test_progress_is_read_anew_while_training_and_once_after_it(store: FakeStore) -> None:
    put(store, RUN.request("train", 1))
    put(store, RUN.progress, progress(3))
    reader = RunFolderReader(store)
    assert (await reader.view(FOLDERS)).progress == progress(3)
    put(store, RUN.progress, progress(10))
    put(store, RUN.result("train", 1), result(Stage.TRAIN))
    assert (await reader.view(FOLDERS)).progress == progress(10)
    store.calls.clear()
    await reader.view(FOLDERS)
    assert f"read {RUN.progress}" not in store.calls


async def test_progress_of_a_stopped_attempt_continues_in_the_next(store: FakeStore) -> None:
    put(store, RUN.result("train", 1), result(Stage.TRAIN, outcome=Outcome.STOPPED))
    put(store, RUN.progress, progress(3))
    reader = RunFolderReader(store)
    await reader.view(FOLDERS)
    put(store, RUN.progress, progress(4))
    assert (await reader.view(FOLDERS)).progress == progress(4)


@pytest.mark.parametrize("failing", ["list ", "result.json", "manifest.json", "progress.json"])
async def test_a_store_that_cannot_be_asked_is_never_absence(store: FakeStore, failing: str) -> None:
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    put(store, RUN.request("train", 1))
    store.fault = lambda moment, call: (
        StorageUnavailable("gs://b", "no response within 20 s")
        if moment == "before" and failing in call
        else None
    )
    unreadable = ReadFailure(reason=Reason.STORE_UNAVAILABLE, message="gs://b: no response within 20 s.")
    assert await RunFolderReader(store).view(FOLDERS) == RunFolderView(unreadable=unreadable)


async def test_a_record_of_another_version_is_named_and_not_half_understood(store: FakeStore) -> None:
    store.files[RUN.result("prep", 1)] = b'{"version": 4}'
    files = (await RunFolderReader(store).view(FOLDERS)).attempts[AttemptKey(Stage.PREFLIGHT, 1)]
    assert files.result is None
    assert files.newer is not None
    assert files.newer.startswith(f"{RUN.result('prep', 1)} was written under version 4 of the contract")


async def test_what_was_there_before_a_job_took_the_folder_over_is_not_its_own(store: FakeStore) -> None:
    """This also holds if the operator remembers the last records of the previous job."""
    put(store, RUN.result("train", 1), result(Stage.TRAIN))
    put(store, RUN.progress, progress(10))
    reader = RunFolderReader(store)
    assert (await reader.view(FOLDERS)).progress == progress(10)
    first = dict.fromkeys(Stage, 1) | {Stage.TRAIN: 2}
    notes = [
        TakeoverRecord(
            uid=f"{name}-0000", job=name, namespace="team", first=first | {Stage.PREFLIGHT: number}
        )
        for number, name in ((3, "aaaaaaaa"), (2, "bbbbbbbb"))
    ]
    for note in notes:
        store.files[RUN.taken_over(note.uid)] = note.model_dump_json().encode()
    view = await reader.view(FOLDERS)
    assert [note.job for note in view.takeovers] == ["bbbbbbbb", "aaaaaaaa"]
    assert (view.attempts, view.progress) == ({}, None)
    put(store, RUN.result("train", 2), result(Stage.TRAIN, 2))
    put(store, RUN.progress, progress(20))
    view = await reader.view(FOLDERS)
    assert list(view.attempts) == [AttemptKey(Stage.TRAIN, 2)]
    assert view.progress == progress(20)


@pytest.mark.parametrize("ahead", [7200, -7200])
async def test_progress_has_the_stores_time_whatever_the_nodes_clock_says(
    store: FakeStore, ahead: int
) -> None:
    by_node = progress(3).model_copy(update={"updated": NOW + timedelta(seconds=ahead)})
    put(store, RUN.request("train", 1))
    store.files[RUN.progress] = StoredBytes.of(by_node.to_json().encode(), NOW)
    view = await RunFolderReader(store).view(FOLDERS)
    assert view.progress is not None
    assert view.progress.updated == NOW


async def test_the_progress_of_hosts_has_the_stores_time(store: FakeStore) -> None:
    by_node = HostProgress(attempt=1, host=0, step=3, updated=NOW - timedelta(hours=2))
    store.files[RUN.host(0)] = StoredBytes.of(by_node.to_json().encode(), NOW)
    assert (await RunFolderReader(store).hosts(RUN, 1))[0].updated == NOW
