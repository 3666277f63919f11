"""Run folders to which other clients have written: huge, damaged, foreign or inaccessible files."""

import asyncio
import json
from collections.abc import Sequence
from functools import partial

import pytest

from finetune_contract import (
    CacheLayout,
    CheckpointRecord,
    Failure,
    Outcome,
    PreflightOutcome,
    RunFolder,
    Stage,
    TrainOutcome,
)
from finetune_operator.api import Reason
from finetune_operator.artifacts.port import (
    PROGRESS_LIMIT,
    RECORD_LIMIT,
    ListingTooLarge,
    StorageDenied,
    StorageUnavailable,
)
from finetune_operator.lifecycle.attempts.own_attempts import own_attempts
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import RunFolderView, TakeoverRecord
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.run_folder_observer import Folders
from finetune_operator.reconcile.view_cache import ClusterState
from tests.unit.reconcile.fakes import FOLDERS, FakeStore, child, job
from tests.unit.reconcile.records import FINGERPRINT, progress, result, stage_progress

RUN = FOLDERS.run
PREP = AttemptKey(Stage.PREFLIGHT, 1)
GARBAGE = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"{",
    b'{"version": 1}',
    b'{"version": 3}',
    b"[" * 100_000,
    b"1" * 5000,
    b"null",
]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def reader(store: FakeStore) -> RunFolderReader:
    return RunFolderReader(store)


def put(store: FakeStore, uri: str, record: object = None) -> None:
    store.files[uri] = record.to_json().encode() if record is not None else b"{}"  # type: ignore[attr-defined]


def working(jobset: str) -> ClusterState:
    """A JobSet that may be running."""
    return ClusterState.of(Job.parse(job()), [JobSet.parse(child("JobSet", jobset))], [])


def training(store: FakeStore, run: RunFolder = RUN) -> None:
    put(store, run.result("prep", 1), result(Stage.PREFLIGHT))
    put(store, run.result("conv", 1), result(Stage.CONVERT))
    put(store, run.request("train", 1))
    put(store, run.progress, progress(3))


@pytest.mark.parametrize("content", [*GARBAGE, b" " * (RECORD_LIMIT + 1)], ids=lambda each: str(each[:20]))
async def test_a_result_that_is_none_is_malformed_and_blinds_nothing(
    store: FakeStore, reader: RunFolderReader, content: bytes
) -> None:
    training(store)
    store.files[RUN.result("train", 1)] = content
    view = await reader.view(FOLDERS)
    assert view.unreadable is None
    assert view.attempts[AttemptKey(Stage.TRAIN, 1)].result is None
    assert RUN.result("train", 1) in (view.attempts[AttemptKey(Stage.TRAIN, 1)].malformed or "")
    assert view.attempts[PREP].result == result(Stage.PREFLIGHT)


@pytest.mark.parametrize("content", [*GARBAGE, b" " * (PROGRESS_LIMIT + 1)], ids=lambda each: str(each[:20]))
async def test_a_progress_record_that_is_none_leaves_progress_unknown(
    store: FakeStore, reader: RunFolderReader, content: bytes
) -> None:
    training(store)
    store.files[RUN.progress] = content
    view = await reader.view(FOLDERS)
    assert (view.unreadable, view.progress) == (None, None)
    assert view.progress_unknown is not None
    assert view.progress_unknown.reason is Reason.RECORD_MALFORMED
    assert RUN.progress in view.progress_unknown.message


@pytest.mark.parametrize(
    "content",
    [
        *GARBAGE,
        b" " * (PROGRESS_LIMIT + 1),
        b'{"version": 9}',
        stage_progress().model_copy(update={"doing": "x" * 81}).to_json().encode(),
        stage_progress().model_copy(update={"unit": "x" * 17}).to_json().encode(),
        stage_progress().to_json().replace("37", "9" * 30).encode(),
    ],
    ids=lambda each: str(each[:20]),
)
async def test_a_stage_progress_that_is_none_hides_nothing_and_has_nothing_read_again(
    store: FakeStore, reader: RunFolderReader, content: bytes
) -> None:
    conversion, state = AttemptKey(Stage.CONVERT, 1), working("demo-conv-1")
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    put(store, RUN.request("conv", 1))
    store.files[RUN.stage_progress("conv", 1)] = content
    view = await reader.view(FOLDERS, of="demo", state=state, pace=60.0)
    assert (view.unreadable, view.warnings, dict(view.stage_progress)) == (None, (), {})
    assert conversion in view.attempts
    store.calls.clear()
    again = await reader.view(FOLDERS, of="demo", state=state, pace=60.0)
    assert (again.attempts, store.calls) == (view.attempts, [])


async def test_a_file_with_progress_alone_is_no_attempt(store: FakeStore, reader: RunFolderReader) -> None:
    put(store, RUN.stage_progress("conv", 1), stage_progress())
    view = await reader.view(FOLDERS, of="demo", state=working("demo-conv-1"))
    assert (dict(view.attempts), dict(view.stage_progress)) == ({}, {})


@pytest.mark.parametrize("content", GARBAGE, ids=lambda each: str(each[:20]))
async def test_a_failure_that_is_none_is_ignored_with_a_warning(
    store: FakeStore, reader: RunFolderReader, content: bytes
) -> None:
    training(store)
    store.files[RUN.failure("train", 1)] = content
    view = await reader.view(FOLDERS)
    assert view.attempts[AttemptKey(Stage.TRAIN, 1)].failure is None
    assert [RUN.failure("train", 1) in each for each in view.warnings] == [True]


@pytest.mark.parametrize("content", [*GARBAGE, b'{"version": 9}'], ids=lambda each: str(each[:20]))
async def test_a_cache_manifest_that_is_none_is_a_miss_with_a_warning(
    store: FakeStore, reader: RunFolderReader, content: bytes
) -> None:
    put(store, RUN.result("prep", 1), result(Stage.PREFLIGHT))
    uri = FOLDERS.cache.convert_manifest(FINGERPRINT)
    store.files[uri] = content
    view = await reader.view(FOLDERS)
    assert (view.unreadable, view.convert_manifest) == (None, None)
    assert [uri in each for each in view.warnings] == [True]


@pytest.mark.parametrize("note", ["retry-1.json", "taken-over-0badcafe.json"])
async def test_a_note_that_is_none_leaves_everything_unknown(
    store: FakeStore, reader: RunFolderReader, note: str
) -> None:
    training(store)
    store.files[f"{RUN.attempts}/{note}"] = b"garbage"
    view = await reader.view(FOLDERS)
    assert view.unreadable is not None
    assert view.unreadable.reason is Reason.RECORD_MALFORMED
    assert view.unreadable.alone
    assert note in view.unreadable.message


RETRY = {"generation": 1, "from_stage": "Train", "first": {"Train": 2}}
TAKEOVER = {"uid": "0badcafe-1", "job": "other", "first": {"Train": 2}}


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("retry-2.json", RETRY),
        ("retry-1.json", {**RETRY, "first": {"Train": 1001}}),
        ("retry-1.json", {**RETRY, "first": {"Train": 0}}),
        ("taken-over-another.json", TAKEOVER),
        ("taken-over-0badcafe.json", {**TAKEOVER, "first": {"Export": 10**400}}),
    ],
)
async def test_a_note_that_the_operator_cannot_have_written_is_none(
    store: FakeStore, reader: RunFolderReader, name: str, note: dict[str, object]
) -> None:
    training(store)
    store.files[f"{RUN.attempts}/{name}"] = json.dumps(note).encode()
    for _ in range(2):
        view = await reader.view(FOLDERS)
        assert view.unreadable is not None
        assert view.unreadable.reason is Reason.RECORD_MALFORMED
        assert name in view.unreadable.message


async def test_the_operators_note_takes_the_place_of_one_that_is_none(
    store: FakeStore, reader: RunFolderReader
) -> None:
    training(store)
    store.files[RUN.retry(2)] = json.dumps(RETRY).encode()
    assert (await reader.view(FOLDERS)).unreadable is not None
    store.files[RUN.retry(2)] = json.dumps({**RETRY, "generation": 2}).encode()
    view = await reader.view(FOLDERS)
    assert view.retry is not None
    assert view.retry.generation == 2


async def test_a_retry_that_was_never_asked_for_is_not_read(
    store: FakeStore, reader: RunFolderReader
) -> None:
    training(store)
    store.files[f"{RUN.attempts}/retry-7.json"] = b"garbage"
    view = await reader.view(FOLDERS, retry=6)
    assert (view.unreadable, view.retry) == (None, None)


@pytest.mark.parametrize("file", ["result", "progress"])
async def test_a_record_of_a_newer_major_version_is_distinguished_from_garbage(
    store: FakeStore, reader: RunFolderReader, file: str
) -> None:
    training(store)
    newer = json.dumps({"version": 4, "whatever": {"comes": []}}).encode()
    store.files[RUN.result("train", 1) if file == "result" else RUN.progress] = newer
    view = await reader.view(FOLDERS)
    files = view.attempts[AttemptKey(Stage.TRAIN, 1)]
    assert files.malformed is None
    if file == "result":
        assert files.newer is not None
    else:
        assert view.progress_unknown is not None
        assert view.progress_unknown.reason is Reason.CONTRACT_NEWER


@pytest.mark.parametrize(
    "name",
    ["config.json", "manifest.json", "log-tail.txt", "a/result.json", "result.json/x", "result.json.tmp"],
)
async def test_a_folder_of_foreign_files_is_no_attempt(
    store: FakeStore, reader: RunFolderReader, name: str
) -> None:
    store.files[f"{RUN.attempts}/eval-999/{name}"] = b"{}"
    assert await reader.view(FOLDERS) == RunFolderView()


@pytest.mark.parametrize(
    "folder", ["eval-1000", "train-0", "train-1.10000", "train-1.0", "train-01", "Train-1"]
)
async def test_numbers_beyond_bounds_are_no_attempts(
    store: FakeStore, reader: RunFolderReader, folder: str
) -> None:
    store.files[f"{RUN.attempts}/{folder}/result.json"] = b"{}"
    assert await reader.view(FOLDERS) == RunFolderView()


async def test_records_of_foreign_attempts_are_not_read(store: FakeStore, reader: RunFolderReader) -> None:
    training(store)
    for number in range(2, 500):
        put(store, RUN.result("eval", number), result(Stage.EVALUATE, number))
    named = {"name": "Train", "phase": "Running", "jobSet": "demo-train-1", "attempt": 1}
    history = [
        {"stage": stage, "jobSet": f"demo-{short}-1", "attempt": 1, "reason": "Succeeded"}
        for stage, short in (("Preflight", "prep"), ("Convert", "conv"))
    ]
    known = job(stages=[named], attempts={"total": 3, "history": history})
    own = partial(own_attempts, job=Job.parse(known), jobsets=(), pods=())
    view = await reader.view(FOLDERS, own=own)
    assert len(view.attempts) == 3
    assert len(view.foreign_attempts) == 498
    assert len(store.calls) < 10


async def test_more_names_than_are_listed_leave_everything_unknown(
    store: FakeStore, reader: RunFolderReader
) -> None:
    store.fault = lambda moment, call: (
        ListingTooLarge(RUN.attempts, 20_000) if moment == "before" and call.startswith("list") else None
    )
    view = await reader.view(FOLDERS)
    assert view.unreadable is not None
    assert view.unreadable.reason is Reason.RUN_FOLDER_TOO_LARGE
    assert view.unreadable.alone


async def test_records_of_many_attempts_are_read_up_to_a_limit(
    store: FakeStore, reader: RunFolderReader
) -> None:
    stopped = result(Stage.TRAIN).model_copy(update={"outcome": Outcome.STOPPED, "exit_code": 75})
    padded = stopped.to_json().encode() + b" " * (RECORD_LIMIT - 1000)
    for restart in range(40):
        store.files[RUN.result("train", 1, restart)] = padded
    view = await reader.view(FOLDERS)
    assert view.unreadable is not None
    assert view.unreadable.reason is Reason.RUN_FOLDER_TOO_LARGE
    reads = [call for call in store.calls if call.startswith("read")]
    assert len(reads) <= 32, "reading stops when the limit is reached"


async def test_what_is_remembered_takes_its_room_in_every_look(
    store: FakeStore, reader: RunFolderReader
) -> None:
    found = result(Stage.PREFLIGHT)
    assert isinstance(found.details, PreflightOutcome)
    long = found.details.model_copy(update={"warnings": ["w" * 200_000]})
    for number in range(1, 20):
        put(store, RUN.result("prep", number), found.model_copy(update={"details": long}))
    for _ in range(4):
        view = await reader.view(FOLDERS)
        assert view.unreadable is not None
        assert view.unreadable.reason is Reason.RUN_FOLDER_TOO_LARGE


async def test_a_thousand_attempts_that_did_not_succeed_are_held_in_brief(
    store: FakeStore, reader: RunFolderReader
) -> None:
    saved = CheckpointRecord(step=1, uri=f"gs://a/{'x' * 100}", metrics={"loss": 1.5})
    reached = TrainOutcome(step=7, total_steps=9, end_ids=[], checkpoints=[saved] * 10)
    ended = {"outcome": Outcome.STOPPED, "exit_code": 75, "details": reached}
    stopped = result(Stage.TRAIN).model_copy(update=ended)
    judged = Failure(code=75, reason="Preempted", message="a pod was taken away", evidence="e" * 4096)
    for restart in range(1000):
        put(store, RUN.result("train", 1, restart), stopped)
        put(store, RUN.failure("train", 1, restart), judged)
    for _ in range(2):
        view = await reader.view(FOLDERS)
        assert view.unreadable is None
        first = view.attempts[AttemptKey(Stage.TRAIN, 1, 0)]
        assert first.result is not None
        assert first.result.details == TrainOutcome(step=7, total_steps=9, end_ids=[])
        assert first.failure == judged.model_copy(update={"evidence": ""})
        assert view.attempts[AttemptKey(Stage.TRAIN, 1, 999)].failure == judged


async def test_many_notes_of_takeovers_are_not_read(store: FakeStore, reader: RunFolderReader) -> None:
    for number in range(101):
        note = (
            TakeoverRecord(uid=f"{number:08}", job="x", namespace="team", first={}).model_dump_json().encode()
        )
        store.files[f"{RUN.attempts}/taken-over-{number:08}.json"] = note
    view = await reader.view(FOLDERS)
    assert view.unreadable is not None
    assert view.unreadable.reason is Reason.RUN_FOLDER_TOO_LARGE
    assert len(store.calls) == 1


@pytest.mark.parametrize("fingerprint", ["../../team-b/x", "a/b", "", "x" * 129, "a b"])
async def test_a_fingerprint_that_is_none_leads_nowhere(
    store: FakeStore, reader: RunFolderReader, fingerprint: str
) -> None:
    record = result(Stage.PREFLIGHT).to_json().replace(FINGERPRINT, fingerprint)
    store.files[RUN.result("prep", 1)] = record.encode()
    await reader.view(FOLDERS)
    assert not [call for call in store.calls if "manifest" in call]


# --- denied access and unavailable storage


def deny(store: FakeStore, *parts: str) -> None:
    store.fault = lambda moment, call: (
        StorageDenied(call, "403") if moment == "before" and any(part in call for part in parts) else None
    )


async def test_a_file_that_is_denied_in_a_folder_that_is_listed_is_this_folders_fault(
    store: FakeStore, reader: RunFolderReader
) -> None:
    training(store)
    deny(store, "result.json")
    view = await reader.view(FOLDERS)
    assert view.unreadable is not None
    assert view.unreadable.reason is Reason.STORAGE_PERMISSION_DENIED


async def test_a_denied_folder_is_at_fault_only_where_others_are_not_denied(
    store: FakeStore, reader: RunFolderReader
) -> None:
    other = Folders(run=RunFolder("file:///runs/team/other-00000000"), cache=CacheLayout("file:///cache"))
    deny(store, "/runs/")
    for _ in range(3):
        for folders in (FOLDERS, other):
            view = await reader.view(folders)
            assert view.unreadable is not None
            assert view.unreadable.reason is Reason.STORE_UNAVAILABLE
    deny(store, FOLDERS.run.uri)
    assert (await reader.view(other)).unreadable is None
    view = await reader.view(FOLDERS)
    assert view.unreadable is not None
    assert view.unreadable.reason is Reason.STORAGE_PERMISSION_DENIED
    deny(store)
    assert (await reader.view(FOLDERS)).unreadable is None


async def test_a_store_that_is_away_is_no_fault_of_the_folder(
    store: FakeStore, reader: RunFolderReader
) -> None:
    store.fault = lambda moment, call: StorageUnavailable(call, "no answer") if moment == "before" else None
    view = await reader.view(FOLDERS)
    assert view.unreadable is not None
    assert not view.unreadable.alone


# --- hosts


async def test_hosts_are_read_by_the_numbers_of_the_mesh(store: FakeStore, reader: RunFolderReader) -> None:
    for number in range(500):
        store.files[RUN.host(number)] = b"{}"
    running = most = 0
    read = store.read

    async def counted(uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return await read(uri, limit=limit)

    store.read = counted  # type: ignore[method-assign]
    assert await reader.hosts(RUN, 64) == {}
    assert len(store.calls) == 64
    assert most <= 16


# --- memory


class IndexedStore(FakeStore):
    """A store whose listing does not search the files of all jobs."""

    async def list(self, uri: str, *, limit: int = 20_000) -> Sequence[str]:
        self.calls.append(f"list {uri}")
        return ["conv-1/result.json", "prep-1/result.json", "train-1/request.json"]


@pytest.mark.slow
async def test_thousands_of_live_jobs_cost_three_requests_a_look() -> None:
    """The three requests are one listing, the cache's manifest and the progress record."""
    store, jobs = IndexedStore(), []
    for number in range(5000):
        run = RunFolder(f"gs://a/t/j{number}-00000000")
        jobs.append(Folders(run=run, cache=CacheLayout("gs://cache")))
        training(store, run)
    reader = RunFolderReader(store)
    for _ in range(2):
        store.calls.clear()
        for folders in jobs:
            await reader.view(folders, of=folders.run.uri)
    assert len(store.calls) <= 3 * len(jobs)


async def test_what_a_job_leaves_behind_is_forgotten(store: FakeStore, reader: RunFolderReader) -> None:
    training(store)
    await reader.view(FOLDERS, of="demo")
    reader.forget("demo")
    store.calls.clear()
    await reader.view(FOLDERS, of="demo")
    assert f"read {RUN.result('prep', 1)}" in store.calls


async def test_what_is_remembered_is_bounded_by_bytes(store: FakeStore) -> None:
    reader = RunFolderReader(store, remembered_bytes=10_000)
    for number in range(200):
        run = RunFolder(f"file:///runs/team/j{number}-00000000")
        training(store, run)
        await reader.view(Folders(run=run, cache=CacheLayout("file:///cache")), of=number)
    assert reader._remembered.size <= 10_000


async def test_an_old_damaged_record_is_read_once(store: FakeStore, reader: RunFolderReader) -> None:
    for number in range(1, 20):
        store.files[RUN.result("train", number)] = b"x" * (RECORD_LIMIT + number % 2)
    put(store, RUN.request("train", 20))
    for _ in range(4):
        await reader.view(FOLDERS)
    store.calls.clear()
    view = await reader.view(FOLDERS)
    assert view.attempts[AttemptKey(Stage.TRAIN, 1)].malformed
    assert len(store.calls) <= 3


async def test_the_progress_of_a_training_that_was_asked_for_again_is_read_anew(
    store: FakeStore, reader: RunFolderReader
) -> None:
    put(store, RUN.result("train", 1), result(Stage.TRAIN))
    put(store, RUN.progress, progress(10))
    await reader.view(FOLDERS)
    put(store, RUN.request("train", 2))
    put(store, RUN.progress, progress(1))
    assert (await reader.view(FOLDERS)).progress == progress(1)


async def test_a_judgement_of_the_operator_is_kept_beside_a_malformed_result(
    store: FakeStore, reader: RunFolderReader
) -> None:
    judged = Failure(code=75, reason="Preempted", message="Kubernetes took a pod away")
    put(store, RUN.failure("train", 1), judged)
    store.files[RUN.result("train", 1)] = b"garbage"
    files = (await reader.view(FOLDERS)).attempts[AttemptKey(Stage.TRAIN, 1)]
    assert files.failure == judged
    assert files.malformed is not None
