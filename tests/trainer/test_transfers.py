"""Transfers of large files to and from a bucket over unreliable connections."""

import gc
import hashlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from finetune_contract import ExitCode
from finetune_storage import google
from finetune_storage.files import FileStore
from finetune_storage.google import GoogleStore
from finetune_trainer.errors import StageError
from finetune_trainer.storage import RETRIES, StorageClient
from tests.trainer.storage_proxy import ProxyFault, ProxyRequest, StorageProxy, between
from tests.trainer.stores import BUCKET

MIB = 2**20
SIZE = 9 * MIB + 5


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[StorageProxy]:
    with between(server) as made:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", made.url)
        monkeypatch.setattr(google, "_PIECE", MIB)
        monkeypatch.setattr(google, "_UPLOAD_PIECE", MIB)
        yield made


@pytest.fixture
def store(proxy: StorageProxy) -> Iterator[StorageClient]:
    with closing(GoogleStore(RETRIES)) as gcs:
        yield StorageClient(local=FileStore(), gcs=gcs)
    with warnings.catch_warnings():  # the library does not close broken connections
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(os.urandom(SIZE))
    return tmp_path / "source"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"gs://{BUCKET}/{tmp_path.name}/large"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def now_and_then(method: str, fault: ProxyFault) -> Callable[[ProxyRequest], ProxyFault | None]:
    """For ``StorageProxy.fault``: every third request of the method gets ``fault``."""
    seen = 0

    def decide(asked: ProxyRequest) -> ProxyFault | None:
        nonlocal seen
        if asked.method != method:
            return None
        seen += 1
        return fault if seen % 3 == 0 else None

    return decide


class InPairs:
    """For ``StorageProxy.meet``: a request for contents continues when a second one is in progress."""

    def __init__(self, method: str) -> None:
        self._method, self._pair = method, threading.Barrier(2)

    def __call__(self, asked: ProxyRequest) -> None:
        if asked.method == self._method and (asked.body or "range" in asked.headers):
            with suppress(threading.BrokenBarrierError):  # then all requests continue
                self._pair.wait(timeout=30)

    @property
    def broken(self) -> bool:
        return self._pair.broken


def test_the_pieces_of_a_file_are_fetched_at_the_same_time(
    proxy: StorageProxy, store: StorageClient, source: Path, uri: str, tmp_path: Path
) -> None:
    store.upload_file(source, uri)
    proxy.meet = pieces = InPairs("GET")
    store.fetch_file(uri, tmp_path / "target")
    assert not pieces.broken


def test_the_files_of_a_folder_are_transferred_at_the_same_time(
    proxy: StorageProxy, store: StorageClient, uri: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for shard in range(4):
        (folder / f"{shard}").write_bytes(b"shard" * 100)
    for method in ("PUT", "GET"):
        proxy.meet = files = InPairs(method)
        if method == "PUT":
            store.upload_folder(folder, uri)
        else:
            store.fetch_folder(uri, tmp_path / "again")
        assert not files.broken
    assert sorted(each.name for each in (tmp_path / "again").iterdir()) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "fault",
    [ProxyFault(cut=300_000), ProxyFault(cut=-1), ProxyFault(status=503)],
    ids=["cut off", "no answer", "503"],
)
def test_a_download_continues_where_its_connection_broke(
    proxy: StorageProxy, store: StorageClient, source: Path, uri: str, tmp_path: Path, fault: ProxyFault
) -> None:
    store.upload_file(source, uri)
    proxy.fault = now_and_then("GET", fault)
    store.fetch_file(uri, tmp_path / "target")
    assert digest(tmp_path / "target") == digest(source)
    assert proxy.read < 1.2 * SIZE


def test_the_time_for_retries_counts_for_each_piece(
    proxy: StorageProxy,
    store: StorageClient,
    source: Path,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time does not start at the beginning of the file, since a download may take longer than storage may be
    unreachable."""
    begun: list[str] = []
    monkeypatch.setattr(google, "_PIECES_AT_ONCE", 1)
    store.upload_file(source, uri)
    proxy.fault = lambda asked: begun.append(asked.headers.get("range", ""))  # type: ignore[func-returns-value]
    store.fetch_file(uri, tmp_path / "target")
    ranges = [each for each in begun if each]
    assert len(ranges) == len(set(ranges)) == 10
    assert ranges[-1] == f"bytes={9 * MIB}-{SIZE - 1}"


@pytest.mark.parametrize(
    "fault", [ProxyFault(lost=True), ProxyFault(status=503)], ids=["no connection", "503"]
)
def test_an_upload_repeats_no_more_than_a_piece(
    proxy: StorageProxy, store: StorageClient, source: Path, uri: str, tmp_path: Path, fault: ProxyFault
) -> None:
    proxy.fault = now_and_then("PUT", fault)
    store.upload_file(source, uri)
    sent = [each.asked.body for each in proxy.answered if each.asked.method == "PUT"]
    assert max(sent) <= MIB
    proxy.fault = lambda _: None
    assert digest(store.fetch_file(uri, tmp_path / "target")) == digest(source)


def test_a_download_of_other_bytes_than_the_bucket_lists_is_refused(
    proxy: StorageProxy,
    store: StorageClient,
    source: Path,
    uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store.upload_file(source, uri)
    monkeypatch.setattr("google_crc32c.extend", lambda crc, _: crc)
    with pytest.raises(StageError) as caught:
        store.fetch_file(uri, tmp_path / "target")
    assert caught.value.code is ExitCode.UNAVAILABLE


def test_a_part_of_a_file_is_read_alone(
    proxy: StorageProxy, store: StorageClient, source: Path, uri: str
) -> None:
    store.upload_file(source, uri)
    for place in (uri, f"file://{source}"):
        before = proxy.read
        assert store.read_range(place, 1000, 2000) == source.read_bytes()[1000:2000]
        assert proxy.read - before <= 1000
    assert store.read_range(uri, SIZE - 10, SIZE + 10) == source.read_bytes()[-10:]
