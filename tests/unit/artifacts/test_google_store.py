"""The real client library against a server that answers as told."""

import gc
import json
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from finetune_operator.artifacts import google_store
from finetune_operator.artifacts.google_store import GoogleStore
from finetune_operator.artifacts.port import StorageDenied, StorageError, StorageUnavailable

#: The library leaves the answer to a download that failed to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@dataclass
class Bucket:
    """Answers every request with ``answer``."""

    answer: Callable[[], web.Response] = lambda: web.Response(status=503)
    paths: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.paths.append(f"{request.method} {request.path_qs}")
        return self.answer()


def error(code: int, message: str) -> Callable[[], web.Response]:
    return lambda: web.json_response({"error": {"code": code, "message": message}}, status=code)


@pytest.fixture
async def bucket(unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bucket]:
    made = Bucket()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setattr(google_store, "_RETRY", google_store._RETRY.with_timeout(0.3))
    yield made
    await runner.cleanup()


@pytest.fixture
def store(bucket: Bucket) -> Iterator[GoogleStore]:
    made = GoogleStore()
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """What the library leaves behind goes here, and not in somebody else's test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def test_an_object_is_read_without_credentials_from_an_emulator(
    bucket: Bucket, store: GoogleStore
) -> None:
    bucket.answer = lambda: web.Response(body=b"{}")
    assert await store.read("gs://team/run/a b#1.json") == b"{}"
    assert bucket.paths == ["GET /download/storage/v1/b/team/o/run%2Fa%20b%231.json?alt=media"]


async def test_a_folder_is_listed_by_relative_names(bucket: Bucket, store: GoogleStore) -> None:
    items = [{"name": "run/attempts/train-1/b"}, {"name": "run/attempts/train-1/a"}]
    bucket.answer = lambda: web.Response(text=json.dumps({"items": items}), content_type="application/json")
    assert await store.list("gs://team/run/attempts") == ["train-1/a", "train-1/b"]
    assert "prefix=run%2Fattempts%2F" in bucket.paths[0]


async def test_an_object_that_is_not_there_is_none(bucket: Bucket, store: GoogleStore) -> None:
    bucket.answer = lambda: web.Response(status=404, text="No such object: team/x")
    assert await store.read("gs://team/x") is None


async def test_a_bucket_that_is_not_there_is_no_absence(bucket: Bucket, store: GoogleStore) -> None:
    bucket.answer = lambda: web.Response(status=404, text="The specified bucket does not exist.")
    with pytest.raises(StorageError, match="gs://team/x: there is no bucket team"):
        await store.read("gs://team/x")
    bucket.answer = error(404, "The specified bucket does not exist.")
    with pytest.raises(StorageError, match="there is no bucket team"):
        await store.list("gs://team/x")


async def test_a_missing_role_is_named(bucket: Bucket, store: GoogleStore) -> None:
    bucket.answer = error(403, "sa@project does not have storage.objects.list access.")
    with pytest.raises(StorageDenied, match=r"does not have storage.objects.list.*roles/storage"):
        await store.list("gs://team/x")


async def test_credentials_that_are_not_accepted_are_denied(bucket: Bucket, store: GoogleStore) -> None:
    bucket.answer = error(401, "Invalid credentials")
    with pytest.raises(StorageDenied, match="no usable Google credentials"):
        await store.list("gs://team/x")


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_store_that_is_busy_or_broken_is_tried_again_and_then_unavailable(
    bucket: Bucket, store: GoogleStore, code: int
) -> None:
    bucket.answer = error(code, "try again")
    for call in (store.read("gs://team/x"), store.list("gs://team/x"), store.write("gs://team/x", b"")):
        with pytest.raises(StorageUnavailable, match="gs://team/x"):
            await call
    assert len(bucket.paths) > 3


async def test_no_server_at_all_is_unavailable_in_one_line(
    bucket: Bucket,
    store: GoogleStore,
    unused_tcp_port_factory: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{unused_tcp_port_factory()}")
    with pytest.raises(StorageUnavailable) as caught:
        await store.list("gs://team/x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("uri", ["gs:///x", "file:///x"])
async def test_other_uris_are_refused(store: GoogleStore, uri: str) -> None:
    with pytest.raises(StorageError, match="expected gs://bucket/name"):
        await store.read(uri)
