"""The real client library against a server with prepared responses."""

import asyncio
import gc
import gzip
import json
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from aiohttp import web
from google.auth.exceptions import GoogleAuthError, MutualTLSChannelError

from finetune_operator.artifacts import shared_store
from finetune_operator.artifacts.port import (
    NAME_LENGTH,
    NAMES_LIMIT,
    PROGRESS_LIMIT,
    RECORD_LIMIT,
    BucketMissing,
    ListingTooLarge,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnauthenticated,
    StorageUnavailable,
    StoredBytes,
)
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.artifacts.tenant_shares import calls_for_tenant

#: The library does not close the response of a failed download; only garbage collection does.
pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@dataclass
class Bucket:
    """Answers every request with ``answer``."""

    answer: Callable[[], web.Response] = lambda: web.Response(status=503)
    serve: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    """Used instead of ``answer`` if the response depends on the request or is sent in parts."""
    paths: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.path_qs}")
        return await self.serve(request) if self.serve else self.answer()


def error(code: int, message: str) -> Callable[[], web.Response]:
    return lambda: web.json_response({"error": {"code": code, "message": message}}, status=code)


@pytest.fixture
async def bucket(unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bucket]:
    made = Bucket()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{unused_tcp_port}")
    monkeypatch.setattr(shared_store, "RETRIES", replace(shared_store.RETRIES, total=0.3))
    yield made
    await runner.cleanup()


@pytest.fixture
def store(bucket: Bucket) -> SharedStore:
    return SharedStore()


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """Collects the responses that the library has not closed, so that no other test reports them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def test_an_object_is_read_without_credentials_from_an_emulator(
    bucket: Bucket, store: SharedStore
) -> None:
    bucket.answer = lambda: web.Response(body=b"{}")
    assert await store.read("gs://team/run/a b#1.json") == b"{}"
    assert bucket.paths == ["GET /download/storage/v1/b/team/o/run%2Fa%20b%231.json?alt=media"]


async def test_a_folder_is_listed_by_relative_names(bucket: Bucket, store: SharedStore) -> None:
    items = [{"name": "run/attempts/train-1/b"}, {"name": "run/attempts/train-1/a"}]
    bucket.answer = lambda: web.Response(text=json.dumps({"items": items}), content_type="application/json")
    assert await store.list("gs://team/run/attempts") == ["train-1/a", "train-1/b"]
    assert "prefix=run%2Fattempts%2F" in bucket.paths[0]


async def test_a_write_that_is_no_longer_allowed_sends_nothing(bucket: Bucket) -> None:
    bucket.answer = lambda: web.Response(status=404, text="No such object: team/x")
    store = SharedStore(may_write=lambda: False)
    with pytest.raises(StorageUnavailable):
        await store.write("gs://team/x", b"by a former leader")
    assert bucket.paths == []
    assert await store.read("gs://team/x") is None


async def test_an_object_is_created_only_if_there_is_none(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = lambda: web.json_response({"name": "v1/record.json", "bucket": "ledger"})
    assert await store.create("gs://ledger/v1/record.json", b"{}")
    assert "ifGenerationMatch=0" in bucket.paths[0]
    refused = error(412, "At least one of the pre-conditions you specified did not hold.")

    for content, created in ((b"[]", False), (b"another record", False), (b"{}", True)):

        async def serve(request: web.Request, content: bytes = content) -> web.StreamResponse:
            return refused() if request.method == "POST" else web.Response(body=content)

        bucket.serve = serve
        # The same content is this writer's, whose first response was lost.
        assert await store.create("gs://ledger/v1/record.json", b"{}") is created


async def test_an_object_that_is_not_there_is_none(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = lambda: web.Response(status=404, text="No such object: team/x")
    assert await store.read("gs://team/x") is None


async def test_a_bucket_that_is_not_there_is_no_absence(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = lambda: web.Response(status=404, text="The specified bucket does not exist.")
    with pytest.raises(StorageError, match="gs://team/x: bucket team does not exist"):
        await store.read("gs://team/x")
    bucket.answer = error(404, "The specified bucket does not exist.")
    with pytest.raises(StorageError, match="bucket team does not exist"):
        await store.list("gs://team/x")


async def test_a_missing_role_is_named(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = error(403, "sa@project does not have storage.objects.list access.")
    with pytest.raises(StorageDenied, match=r"does not have storage.objects.list.*roles/storage"):
        await store.list("gs://team/x")


async def test_credentials_that_are_not_accepted_are_denied(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = error(401, "Invalid credentials")
    with pytest.raises(StorageUnauthenticated, match="no usable Google credentials"):
        await store.list("gs://team/x")


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_store_that_is_busy_or_broken_is_tried_again_and_then_unavailable(
    bucket: Bucket, store: SharedStore, code: int
) -> None:
    bucket.answer = error(code, "try again")
    for call in (store.read("gs://team/x"), store.list("gs://team/x"), store.write("gs://team/x", b"")):
        with pytest.raises(StorageUnavailable, match="gs://team/x"):
            await call
    assert len(bucket.paths) > 3


async def test_no_server_at_all_is_unavailable_in_one_line(
    bucket: Bucket,
    store: SharedStore,
    unused_tcp_port_factory: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{unused_tcp_port_factory()}")
    with pytest.raises(StorageUnavailable) as caught:
        await store.list("gs://team/x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("uri", ["gs:///x", "gs:/b/x"])
async def test_other_uris_are_refused(store: SharedStore, uri: str) -> None:
    with pytest.raises(StorageError, match="expected gs://bucket/path"):
        await store.read(uri)


async def test_a_huge_object_is_not_read(bucket: Bucket, store: SharedStore) -> None:
    asked: list[str | None] = []
    sent = 0

    async def serve(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        asked.append(request.headers.get("Range"))
        response = web.StreamResponse()
        # A server that does not support ranges sends the whole object.
        response.content_length = 2**40
        await response.prepare(request)
        try:
            while True:
                await response.write(bytes(2**16))
                sent += 2**16
        except ConnectionError:
            return response

    bucket.serve = serve
    with pytest.raises(
        ObjectTooLarge, match=r"gs://team/x: the file is larger than the limit of 1,048,576 bytes"
    ):
        await store.read("gs://team/x")
    with pytest.raises(ObjectTooLarge, match="65,536"):
        await store.read("gs://team/x", limit=PROGRESS_LIMIT)
    assert asked == [f"bytes=0-{RECORD_LIMIT}", f"bytes=0-{PROGRESS_LIMIT}"]
    assert sent < 2**27, "only the content of the socket buffers is sent, not the whole object"


@pytest.mark.parametrize(("size", "whole"), [(PROGRESS_LIMIT, True), (PROGRESS_LIMIT + 1, False)])
async def test_an_object_as_large_as_the_limit_is_read(
    bucket: Bucket, store: SharedStore, size: int, whole: bool
) -> None:
    content = b"x" * size
    bucket.answer = lambda: web.Response(status=206, body=content[: PROGRESS_LIMIT + 1])
    if whole:
        assert await store.read("gs://team/x", limit=PROGRESS_LIMIT) == content
    else:
        with pytest.raises(ObjectTooLarge):
            await store.read("gs://team/x", limit=PROGRESS_LIMIT)


async def test_a_small_object_does_not_unpack_into_a_large_one(bucket: Bucket, store: SharedStore) -> None:
    packed = gzip.compress(bytes(64 * 2**20))
    assert len(packed) < RECORD_LIMIT
    bucket.answer = lambda: web.Response(body=packed, headers={"Content-Encoding": "gzip"})
    assert await store.read("gs://team/x") == packed


async def test_an_empty_object_is_no_absence(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = error(416, "Request range not satisfiable")
    assert await store.read("gs://team/x") == b""


@pytest.mark.parametrize(
    ("checksum", "intact"), [("2Kkj/Q==", False), ("Rb3gRQ==", True), ("Rb3gRQ==,md5=AAAA", True)]
)
async def test_a_record_that_is_damaged_on_its_way_is_unavailable(
    bucket: Bucket, store: SharedStore, checksum: str, intact: bool
) -> None:
    """The library compares no checksum of an answer to a range, such as that of a read with a limit."""
    content = b'{"manifest": 9}'
    headers = {"Content-Range": f"bytes 0-14/{len(content)}", "X-Goog-Hash": f"crc32c={checksum}"}
    bucket.answer = lambda: web.Response(status=206, body=content, headers=headers)
    if intact:
        assert await store.read("gs://team/run/status.json") == content
        return
    with pytest.raises(StorageUnavailable, match="Checksum mismatch"):
        await store.read("gs://team/run/status.json")


async def test_the_body_of_an_object_that_is_too_large_is_not_waited_for(
    bucket: Bucket, store: SharedStore
) -> None:
    """The answer begins with the size of the object."""

    async def serve(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Range": f"bytes 0-{RECORD_LIMIT}/{2**30}", "X-Goog-Generation": "7"}
        response = web.StreamResponse(status=206, headers=headers)
        response.content_length = RECORD_LIMIT + 1
        await response.prepare(request)
        await response.write(b"x" * 2**19)
        await asyncio.sleep(3600)
        return response

    bucket.serve = serve
    with pytest.raises(ObjectTooLarge):
        await store.read("gs://team/run/status.json")


@pytest.mark.parametrize("kind", [GoogleAuthError, MutualTLSChannelError])
async def test_any_failure_of_the_credentials_is_said_as_such(
    bucket: Bucket, store: SharedStore, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def failing(**_: object) -> None:
        raise kind("no client certificate")

    monkeypatch.setattr("finetune_storage.google.storage.Client", failing)
    with pytest.raises(StorageUnauthenticated, match="no usable Google credentials: no client certificate"):
        await store.read("gs://team/run/status.json")
    assert bucket.paths == []


async def test_a_part_is_one_range_and_fewer_bytes_mean_the_end(bucket: Bucket, store: SharedStore) -> None:
    asked: list[str | None] = []
    content = b"0123456789"

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Range"))
        wanted = request.http_range
        if wanted.start >= len(content):
            return web.json_response({"error": {"code": 416, "message": "range"}}, status=416)
        return web.Response(status=206, body=content[wanted])

    bucket.serve = serve
    parts = [await store.read_part("gs://team/x", start=start, size=4) for start in (0, 4, 8, 12)]
    assert parts == [b"0123", b"4567", b"89", b""]
    assert asked == ["bytes=0-3", "bytes=4-7", "bytes=8-11", "bytes=12-15"]


async def test_a_part_takes_no_more_memory_than_its_size(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = lambda: web.Response(body=bytes(1000))
    with pytest.raises(ObjectTooLarge):
        await store.read_part("gs://team/x", start=0, size=999)


async def test_a_part_of_what_does_not_exist_is_none(bucket: Bucket, store: SharedStore) -> None:
    bucket.answer = lambda: web.Response(status=404, text="No such object: team/x")
    assert await store.read_part("gs://team/x", start=0, size=4) is None
    bucket.answer = lambda: web.Response(status=404, text="The specified bucket does not exist.")
    with pytest.raises(BucketMissing, match="bucket team does not exist"):
        await store.read_part("gs://team/x", start=0, size=4)


async def test_a_person_who_is_refused_gets_no_advice_about_the_operator(bucket: Bucket) -> None:
    bucket.answer = error(403, "ada@example.com does not have storage.objects.get access.")
    store = SharedStore(advice="")
    with pytest.raises(StorageDenied) as caught:
        await store.list("gs://team/x")
    assert caught.value.message.endswith("storage.objects.get access.")


async def test_a_listing_ends_above_its_limit_and_asks_for_no_more(
    bucket: Bucket, store: SharedStore
) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        first = int(request.query.get("pageToken", "0"))
        page = range(first, first + min(1000, int(request.query["maxResults"])))
        items = [{"name": f"run/{number:09}"} for number in page]
        return web.json_response({"items": items, "nextPageToken": str(page.stop)})

    bucket.serve = serve
    with pytest.raises(ListingTooLarge, match="the folder contains more files than the limit of 20,000"):
        await store.list("gs://team/run")
    assert len(bucket.paths) == NAMES_LIMIT / 1000 + 1
    bucket.paths.clear()
    with pytest.raises(ListingTooLarge):
        await store.list("gs://team/run", limit=5)
    assert len(bucket.paths) == 1
    assert "maxResults=6" in bucket.paths[0]


async def test_names_that_no_trainer_writes_are_left_out(bucket: Bucket, store: SharedStore) -> None:
    names = ["a", "b" * NAME_LENGTH, "c" * (NAME_LENGTH + 1)]
    bucket.answer = lambda: web.json_response({"items": [{"name": f"run/{name}"} for name in names]})
    assert await store.list("gs://team/run") == names[:2]


async def silent(_request: web.Request) -> web.StreamResponse:
    """Accepts the request and never responds."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def trickling(request: web.Request) -> web.StreamResponse:
    """Sends every byte in time, but never ends the response."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.01)


async def endless_pages(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(0.01)
    return web.json_response({"items": [], "nextPageToken": "more"})


@pytest.mark.parametrize("serve", [silent, trickling, endless_pages])
async def test_the_deadline_ends_the_work_and_not_the_wait_alone(
    bucket: Bucket, serve: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> None:
    bucket.serve = serve
    store = SharedStore(seconds=0.3)
    asked = (
        [store.list("gs://team/run")]
        if serve is endless_pages
        else [store.list("gs://team/run"), store.read("gs://team/x"), store.write("gs://team/x", b"{}")]
    )
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(answer, StorageUnavailable), answer
    await store.ended()
    requests = len(bucket.paths)
    bucket.serve = None
    bucket.answer = lambda: web.Response(body=b"{}")
    with calls_for_tenant("another"):
        assert await store.read("gs://team/y") == b"{}"
    assert len(bucket.paths) == requests + 1, "the earlier calls send no more requests"


async def test_a_caller_that_is_cancelled_leaves_no_request_behind(
    bucket: Bucket, store: SharedStore
) -> None:
    begun = asyncio.Event()

    def busy() -> web.Response:
        begun.set()
        return web.Response(status=503)

    bucket.answer = busy
    writing = asyncio.ensure_future(store.write("gs://team/x", b"{}"))
    await begun.wait()
    writing.cancel()
    await store.ended()
    requests = len(bucket.paths)
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert len(bucket.paths) == requests


@pytest.mark.parametrize(
    ("slow", "other"),
    [
        ("gs://artifacts/team-a/demo-0badcafe/attempts", "gs://artifacts/team-b/demo-12345678/attempts"),
        ("gs://team-a/demo-0badcafe/attempts", "gs://team-b/demo-12345678/attempts"),
    ],
)
async def test_the_silence_of_one_tenants_folder_costs_others_nothing(
    bucket: Bucket, store: SharedStore, slow: str, other: str
) -> None:
    hanging = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        if "team-a" in request.path_qs:
            hanging.set()
            return await silent(request)
        return web.Response(body=b"{}")

    bucket.serve = serve
    calls = [asyncio.ensure_future(store.list(f"{slow}/{number}")) for number in range(30)]
    await hanging.wait()
    # Hanging calls have a deadline of 20 s: a call that waited for one of them would exceed this timeout.
    async with asyncio.timeout(10):
        for number in range(30):
            assert await store.read(f"{other}/{number}") == b"{}"
    assert not any(call.done() for call in calls)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_tenants_are_kept_apart_below_any_root(bucket: Bucket, store: SharedStore) -> None:
    async def serve(request: web.Request) -> web.StreamResponse:
        return await silent(request) if "team-a" in request.path_qs else web.Response(body=b"{}")

    bucket.serve = serve
    with calls_for_tenant("team-a"):
        calls = [asyncio.ensure_future(store.read(f"gs://all/x/team-a/{number}")) for number in range(70)]
    with calls_for_tenant("team-b"):
        async with asyncio.timeout(10):
            assert await store.read("gs://all/x/team-b/demo") == b"{}"
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize(
    ("header", "stored"),
    [
        ("Sat, 21 Nov 2026 12:00:00 GMT", datetime(2026, 11, 21, 12, tzinfo=UTC)),
        ("yesterday", None),
        (None, None),
    ],
)
async def test_content_knows_when_the_store_wrote_it(
    bucket: Bucket, store: SharedStore, header: str | None, stored: datetime | None
) -> None:
    headers = {"Last-Modified": header} if header else {}
    bucket.answer = lambda: web.Response(body=b"{}", headers=headers)
    content = await store.read("gs://b/progress.json")
    assert content == b"{}"
    assert isinstance(content, StoredBytes)
    assert content.stored == stored
