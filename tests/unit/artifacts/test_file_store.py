import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from finetune_operator.artifacts.port import (
    NAME_LENGTH,
    RECORD_LIMIT,
    ListingTooLarge,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnavailable,
    StoredBytes,
)
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_storage.errors import ObjectMissing
from finetune_storage.files import FileStore


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for folder in tmp_path.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)


def every_file(root: Path) -> list[Path]:
    """Returns all files, including temporary ones."""
    return [path for path in root.rglob("*") if path.is_file()]


async def test_what_was_written_is_read_and_listed(root: Path) -> None:
    store = SharedStore()
    await store.write(f"file://{root}/attempts/train-1/result.json", b"{}")
    await store.write(f"file://{root}/attempts/train-1/failure.json", b"{}")
    assert await store.read(f"file://{root}/attempts/train-1/result.json") == b"{}"
    assert await store.list(f"file://{root}/attempts") == ["train-1/failure.json", "train-1/result.json"]


ALONE = """
import asyncio, sys
sys.modules.update(dict.fromkeys(["google.cloud", "google.auth", "google.api_core", "requests"]))
import finetune_operator.cli.main
from finetune_operator.artifacts.shared_store import SharedStore
asyncio.run(SharedStore().write(sys.argv[1], b"{}"))
print(asyncio.run(SharedStore().read(sys.argv[1])))
"""


def test_without_a_bucket_no_library_of_google_is_needed(root: Path) -> None:
    command = [sys.executable, "-c", ALONE, f"file://{root}/x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "b'{}'\n", done.stderr


async def test_what_is_not_there_is_none_and_empty(root: Path) -> None:
    store = SharedStore()
    (root / "a-file").write_text("x")
    assert await store.read(f"file://{root}/nothing") is None
    assert await store.read(f"file://{root}") is None
    assert await store.read(f"file://{root}/a-file/below") is None
    assert await store.list(f"file://{root}/nothing") == []


@pytest.mark.parametrize("name", [".partial-abc", ".writing-abc"])
async def test_a_file_that_is_being_written_is_not_listed(root: Path, name: str) -> None:
    (root / name).write_text("half")
    assert await SharedStore().list(f"file://{root}") == []


async def test_a_write_replaces_whole_and_leaves_nothing_behind(root: Path) -> None:
    uri = f"file://{root}/progress.json"
    for content in (b"long long long", b"short"):
        await SharedStore().write(uri, content)
    assert await SharedStore().read(uri) == b"short"
    assert await SharedStore().list(f"file://{root}") == ["progress.json"]


async def test_an_object_is_created_once_and_never_replaced(root: Path) -> None:
    uri = f"file://{root}/v1/2026-11-21/record.json"
    assert await SharedStore().create(uri, b"first")
    assert not await SharedStore().create(uri, b"second")
    assert await SharedStore().read(uri) == b"first"
    assert await SharedStore().list(f"file://{root}") == ["v1/2026-11-21/record.json"]
    assert [str(path.relative_to(root)) for path in every_file(root)] == ["v1/2026-11-21/record.json"]


async def test_an_object_is_not_created_by_a_former_leader(root: Path) -> None:
    store = SharedStore(may_write=lambda: False)
    with pytest.raises(StorageUnavailable):
        await store.create(f"file://{root}/record.json", b"x")
    assert every_file(root) == []


async def test_a_write_that_is_no_longer_allowed_changes_nothing(root: Path) -> None:
    uri = f"file://{root}/failure.json"
    allowed = True
    store = SharedStore(may_write=lambda: allowed)
    await store.write(uri, b"by the leader")
    allowed = False
    with pytest.raises(StorageUnavailable):
        await store.write(uri, b"by a former leader")
    assert await store.read(uri) == b"by the leader"
    assert await store.list(f"file://{root}") == ["failure.json"]


async def test_a_part_begins_at_its_offset_and_ends_with_the_file(root: Path) -> None:
    (root / "model").write_bytes(b"0123456789")
    store, uri = SharedStore(), f"file://{root}/model"
    parts = [await store.read_part(uri, start=start, size=4) for start in (0, 4, 8, 12)]
    assert parts == [b"0123", b"4567", b"89", b""]
    assert await store.read_part(f"file://{root}/nothing", start=0, size=4) is None


async def test_names_stand_for_themselves_as_for_the_trainer(root: Path) -> None:
    for name in ("a b", "a%20b", "a#b?c"):
        (root / name).write_text(name)
        assert await SharedStore().read(f"file://{root}/{name}") == name.encode()


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
async def test_no_permission_is_denied_and_not_absence(root: Path) -> None:
    (root / "closed").mkdir(mode=0)
    with pytest.raises(StorageDenied):
        await SharedStore().list(f"file://{root}/closed")


async def test_a_fault_of_the_disk_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> object:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(StorageUnavailable, match="Input/output error"):
        await SharedStore().read("file:///x")


@pytest.mark.parametrize("uri", ["file://relative/path", "s3://bucket/x", "no-uri"])
async def test_other_uris_are_refused_by_name(uri: str) -> None:
    with pytest.raises(StorageError, match=uri):
        await SharedStore().read(uri)


@pytest.fixture
def run(root: Path) -> Path:
    """A run folder with one attempt, as pods write it."""
    (root / "team" / "demo-0badcafe" / "attempts" / "train-1").mkdir(parents=True)
    return root / "team" / "demo-0badcafe"


async def test_a_huge_file_is_not_read(run: Path) -> None:
    file = run / "attempts/train-1/result.json"
    with file.open("wb") as sparse:
        # A sparse file costs its writer nothing.
        sparse.truncate(2**40)
    with pytest.raises(ObjectTooLarge, match="larger than the limit of 1,048,576 bytes"):
        await SharedStore().read(f"file://{file}")
    os.truncate(file, RECORD_LIMIT)
    assert len(await SharedStore().read(f"file://{file}") or b"") == RECORD_LIMIT


async def test_pipes_devices_and_links_are_ignored_and_block_nothing(run: Path) -> None:
    folder = run / "attempts/train-1"
    os.mkfifo(folder / "result.json")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "itself").symlink_to("itself")
    (folder / "above").symlink_to("../..")
    (folder / "failure.json").write_text("{}")
    store = SharedStore()
    async with asyncio.timeout(5):
        assert await store.list(f"file://{run}/attempts") == ["train-1/failure.json"]
        for name in ("result.json", "zero", "itself", "above", "itself/x"):
            assert await store.read(f"file://{folder}/{name}") is None
    assert await store.read("file:///dev/zero") is None


async def test_links_in_a_run_folder_lead_nowhere(root: Path, run: Path) -> None:
    other = root / "other" / "secret-12345678" / "attempts" / "train-1"
    other.mkdir(parents=True)
    (other / "result.json").write_text("{}")
    store = SharedStore()
    (run.parent / "linked-0badcafe").symlink_to(other.parents[1])
    (run / "train").symlink_to(other)
    (run / "attempts" / "train-2").symlink_to(other)
    assert await store.list(f"file://{run.parent}/linked-0badcafe/attempts") == []
    assert await store.read(f"file://{run}/train/result.json") is None
    assert await store.read(f"file://{run}/attempts/train-2/result.json") is None
    for uri in (
        f"{run.parent}/linked-0badcafe/attempts/x.json",
        f"{run}/attempts/train-2/x.json",
        f"{run.parent}/linked-0badcafe/status.json",
    ):
        with pytest.raises(StorageError):
            await store.write(f"file://{uri}", b"{}")
    assert sorted(path.name for path in other.iterdir()) == ["result.json"]
    assert not (other.parents[1] / "status.json").exists()


@pytest.mark.parametrize("name", ["demo-0badcafe", "demo"])
@pytest.mark.parametrize("linked", ["preflight", "attempts", "train"])
async def test_no_folder_of_a_run_can_be_a_link(root: Path, name: str, linked: str) -> None:
    secret = root / "secret" / "train-1"
    secret.mkdir(parents=True)
    (secret / "report.json").write_text("secret")
    (root / "team-a" / name).mkdir(parents=True)
    (root / "team-a" / name / linked).symlink_to(root / "secret")
    uri = f"file://{root}/team-a/{name}/{linked}"
    store = SharedStore()
    assert await store.read(f"{uri}/train-1/report.json") is None
    assert await store.list(uri) == []
    assert await store.list(f"{uri}/train-1") == []
    with pytest.raises(StorageError):
        await store.write(f"{uri}/x.json", b"{}")
    assert [each.name for each in (root / "secret").iterdir()] == ["train-1"]


async def test_a_link_far_below_a_run_folder_is_not_followed(root: Path, run: Path) -> None:
    (root / "secret").mkdir()
    (root / "secret" / "x.tfevents").write_text("secret")
    (run / "train" / "tensorboard" / "a").mkdir(parents=True)
    (run / "train" / "tensorboard" / "a" / "b").symlink_to(root / "secret")
    uri = f"file://{run}/train/tensorboard/a/b/x.tfevents"
    assert await SharedStore().read_part(uri, start=0, size=8) is None


async def test_links_in_an_export_lead_nowhere(root: Path, run: Path) -> None:
    (root / "secret").mkdir()
    (root / "secret" / "key").write_text("secret")
    (run / "export" / "model" / "train").mkdir(parents=True)
    (run / "export" / "model" / "key").symlink_to(root / "secret" / "key")
    (run / "export" / "model" / "link").symlink_to(root)
    (run / "evaluate").symlink_to(root / "secret")
    store = SharedStore()
    for name in ("export/model/key", "export/model/link/secret/key", "evaluate/key"):
        assert await store.read(f"file://{run}/{name}") is None
        assert await store.read_part(f"file://{run}/{name}", start=0, size=8) is None
    (run / "export" / "model" / "train" / "key").symlink_to(root / "secret" / "key")
    assert await store.read(f"file://{run}/export/model/train/key") is None


@pytest.mark.parametrize("name", ["storage", "export", "train", "attempts", "convert"])
async def test_a_root_that_the_platform_has_linked_is_followed(root: Path, run: Path, name: str) -> None:
    (root / name).symlink_to(run.parent)
    uri = f"file://{root}/{name}/demo-0badcafe/attempts"
    await SharedStore().write(f"{uri}/train-1/failure.json", b"{}")
    assert await SharedStore().list(uri) == ["train-1/failure.json"]


async def test_a_write_replaces_a_link_and_not_what_it_leads_to(root: Path, run: Path) -> None:
    (root / "precious").write_text("kept")
    (run / "attempts/train-1/failure.json").symlink_to(root / "precious")
    await SharedStore().write(f"file://{run}/attempts/train-1/failure.json", b"{}")
    assert (root / "precious").read_text() == "kept"
    assert await SharedStore().read(f"file://{run}/attempts/train-1/failure.json") == b"{}"


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
async def test_a_listing_ends_above_its_limit(run: Path, make: Callable[[Path], None]) -> None:
    for number in range(12):
        make(run / "attempts/train-1" / str(number))
    with pytest.raises(ListingTooLarge, match="more files than the limit of 10"):
        await SharedStore().list(f"file://{run}/attempts", limit=10)


async def test_names_that_no_trainer_writes_are_left_out(run: Path) -> None:
    deep = run / "attempts"
    for _ in range(40):
        deep /= "d" * 60
    deep.mkdir(parents=True)
    (deep / "x").touch()
    (run / "attempts" / ("b" * (NAME_LENGTH - 1))).touch()
    assert await SharedStore().list(f"file://{run}/attempts") == ["b" * (NAME_LENGTH - 1)]


async def test_content_knows_when_it_was_written(root: Path) -> None:
    (root / "progress.json").write_bytes(b"{}")
    os.utime(root / "progress.json", (0, 1_800_000_000))
    content = await SharedStore().read(f"file://{root}/progress.json")
    assert isinstance(content, StoredBytes)
    assert content.stored == datetime.fromtimestamp(1_800_000_000, UTC)


@pytest.mark.parametrize("target", ["link", "a0/below", "nothing"])
def test_a_link_to_no_file_hides_no_other_file(root: Path, target: str) -> None:
    files = [f"{letter}{number}" for letter in "az" for number in range(5)]
    for name in files[:5]:
        (root / name).touch()
    (root / "link").symlink_to(target)
    for name in files[5:]:
        (root / name).touch()
    assert FileStore().names(f"file://{root}", limit=100, longest=100) == files
    assert len(list(FileStore()._below(f"file://{root}"))) == 11  # the link counts


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of a user whom permissions bind, as which the test runs."""
    with tempfile.TemporaryDirectory() as name:
        folder, user = Path(name), os.geteuid()
        if user == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            os.seteuid(user)
            for path in (folder, *folder.rglob("*")):
                if path.is_dir():
                    path.chmod(0o755)


def test_an_unreadable_subfolder_of_a_trusted_folder_is_passed_over(unprivileged: Path) -> None:
    (unprivileged / "lost+found").mkdir(mode=0)
    (unprivileged / "rows.jsonl").touch()
    uri = f"file://{unprivileged}"
    assert FileStore().names(uri, limit=10, longest=100) == ["rows.jsonl"]
    with pytest.raises(StorageDenied):
        FileStore().names(f"{uri}/lost+found", limit=10, longest=100)
    with pytest.raises(StorageDenied):
        FileStore(lambda path: (path.name,)).names(uri, limit=10, longest=100)


def test_a_folder_that_may_be_searched_but_not_listed_serves_its_files(unprivileged: Path) -> None:
    folder = unprivileged / "folder"
    folder.mkdir()
    (folder / "inner").mkdir()
    folder.chmod(0o311)
    for store in (FileStore(), FileStore(lambda path: path.parts[-2:])):
        store.write(f"file://{folder}/record.json", b"{}")
        assert store.read(f"file://{folder}/record.json") == b"{}"
        assert store.names(f"file://{folder}/inner", limit=10, longest=100) == []


def test_a_refused_listing_leaves_no_folder_open(root: Path) -> None:
    deep = root.joinpath(*"d" * 16)
    deep.mkdir(parents=True)
    for number in range(30):
        (deep / str(number)).touch()
    errors: list[ListingTooLarge] = []
    gc.disable()
    try:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            try:
                FileStore().names(f"file://{root}", limit=20, longest=100)
            except ListingTooLarge as error:
                errors.append(error)
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        gc.enable()
    assert len(errors) == 3


@pytest.mark.parametrize("limit", [None, 2**24])
def test_a_read_holds_content_at_most_twice(root: Path, limit: int | None) -> None:
    size = 2**24
    (root / "model").write_bytes(b"x" * size)
    tracemalloc.start()
    try:
        content = FileStore().read(f"file://{root}/model", limit)
        assert content is not None
        assert len(content) == size
        assert tracemalloc.get_traced_memory()[1] < 2.1 * size
    finally:
        tracemalloc.stop()


def test_a_file_above_the_limit_is_refused_with_its_version_and_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "record").write_bytes(b"0123456789")
    version = getattr(FileStore().read(f"file://{root}/record", 10), "version", "")
    assert version
    for call in ("read", "pread"):
        monkeypatch.setattr(os, call, lambda *_: pytest.fail("content was read"))
    with pytest.raises(ObjectTooLarge) as caught:
        FileStore().read(f"file://{root}/record", 9)
    assert caught.value.version == version


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
async def test_a_write_that_something_of_a_pod_obstructs_is_unavailable(run: Path, kind: str) -> None:
    target = run / "attempts" / "x"
    (run / "elsewhere").mkdir()
    if kind == "file":
        target.write_text("x")
    elif kind == "link":
        target.symlink_to(run / "elsewhere")
    else:
        (target / "record.json").mkdir(parents=True)
    with pytest.raises(StorageUnavailable):
        await SharedStore().write(f"file://{target}/record.json", b"{}")
    assert list((run / "elsewhere").iterdir()) == []


def test_the_upload_of_a_vanished_source_says_that_it_is_missing(root: Path) -> None:
    with pytest.raises(ObjectMissing):
        FileStore().upload(root / "nothing", f"file://{root}/copy")
    assert every_file(root) == []
