"""The API server client against a small HTTP server with prepared responses."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from finetune_operator.cluster.api_server_client import ApiServerClient, CallLimits
from finetune_operator.cluster.port import (
    JOBS,
    JOBSETS,
    PODS,
    AlreadyExists,
    Conflict,
    NotFound,
    NotLeading,
    Rejected,
    ResponseTooLarge,
    Unavailable,
)
from finetune_operator.objects import Object

LIMITS = CallLimits(
    connect_seconds=1,
    read_seconds=0.2,
    write_seconds=0.2,
    attempts=3,
    page_bytes=2**20,
    list_bytes=3 * 2**20,
)


def status(code: int, message: str = "said the server", **headers: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=code, headers=headers)


def ok(**body: Any) -> web.Response:
    return web.json_response(body or {"metadata": {"name": "demo"}})


@dataclass
class Server:
    """Sends the prepared responses in order and then repeats the last one; records all requests."""

    answers: list[Callable[[], web.StreamResponse]] = field(default_factory=list)
    requests: list[tuple[str, str, dict[str, str], str, Any]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    seen: list[tuple[str, str, int]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append(
            (
                request.method,
                request.path,
                dict(request.query),
                request.headers.get("Content-Type", ""),
                json.loads(body) if body else None,
            )
        )
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        return answer()

    def observe(self, verb: str, resource: str, code: int, _seconds: float) -> None:
        self.seen.append((verb, resource, code))

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


@pytest.fixture
def leading() -> list[bool]:
    """The answers to whether the client may write, in their order; the last one is repeated."""
    return [True]


@pytest.fixture
async def server(unused_tcp_port: int, leading: list[bool]) -> AsyncIterator[tuple[Server, ApiServerClient]]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{unused_tcp_port}"

    def may_write() -> bool:
        return leading.pop(0) if len(leading) > 1 else leading[0]

    async with ApiServerClient(
        configuration, limits=LIMITS, observer=made.observe, may_write=may_write, sleep=made.sleep
    ) as cluster:
        yield made, cluster
    await runner.cleanup()


type Both = tuple[Server, ApiServerClient]


async def test_paths_and_verbs(server: Both) -> None:
    http, cluster = server
    http.answers = [ok]
    await cluster.get(JOBS, "team", "demo")
    await cluster.get(PODS, "team", "a-pod")
    await cluster.create(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}})
    await cluster.apply(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}})
    assert [(method, path, query) for method, path, query, _, _ in http.requests] == [
        ("GET", "/apis/tpu-finetune.dev/v1alpha1/namespaces/team/finetunejobs/demo", {}),
        ("GET", "/api/v1/namespaces/team/pods/a-pod", {}),
        (
            "POST",
            "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets",
            {"fieldManager": "finetune-operator"},
        ),
        (
            "PATCH",
            "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/x",
            {"fieldManager": "finetune-operator", "force": "true"},
        ),
    ]
    assert http.requests[-1][3] == "application/apply-patch+yaml"
    assert http.seen == [
        ("get", "finetunejobs", 200),
        ("get", "pods", 200),
        ("create", "jobsets", 200),
        ("apply", "jobsets", 200),
    ]


async def test_a_client_that_may_not_write_sends_no_write(server: Both, leading: list[bool]) -> None:
    http, cluster = server
    http.answers = [ok]
    leading[:] = [False]
    writes = [
        cluster.create(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}}),
        cluster.apply(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}}),
        cluster.patch_status(JOBS, "team", "demo", {}, resource_version="1"),
        cluster.delete(JOBSETS, "team", "x", uid="u", foreground=True),
    ]
    for write in writes:
        with pytest.raises(NotLeading):
            await write
    await cluster.get(JOBS, "team", "demo")
    assert [method for method, *_ in http.requests] == ["GET"]


async def test_a_write_is_not_repeated_once_the_client_may_not_write(
    server: Both, leading: list[bool]
) -> None:
    http, cluster = server
    http.answers = [lambda: status(429)]
    leading[:] = [True, False]
    with pytest.raises(NotLeading):
        await cluster.create(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}})
    assert len(http.requests) == 1


async def test_a_list_is_selected_by_labels_and_fields(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: web.json_response({"items": []})]
    await cluster.list(
        PODS,
        "team",
        labels={"a": frozenset({"y", "x"}), "b": "z"},
        fields={"involvedObject.name": "p", "involvedObject.kind": "Pod"},
    )
    _, _, query, _, _ = http.requests[0]
    assert query == {
        "limit": str(LIMITS.page_size),
        "labelSelector": "a in (x,y),b=z",
        "fieldSelector": "involvedObject.kind=Pod,involvedObject.name=p",
    }


async def test_pages_of_metadata_hold_more_objects(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: web.json_response({"metadata": {}, "items": None})]
    assert [page async for page in cluster.pages(PODS, None, metadata_only=True)] == [[]]
    _, _, query, _, _ = http.requests[0]
    assert query == {"limit": str(LIMITS.metadata_page_size)}


async def test_a_status_is_replaced_whole_and_only_at_the_version_that_was_seen(server: Both) -> None:
    http, cluster = server
    http.answers = [ok]
    await cluster.patch_status(JOBS, "team", "demo", {"phase": "Running"}, resource_version="7")
    _, path, _, content_type, body = http.requests[0]
    assert path.endswith("/finetunejobs/demo/status")
    assert content_type == "application/json-patch+json"
    assert body == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "add", "path": "/status", "value": {"phase": "Running"}},
    ]
    assert http.seen == [("patch", "finetunejobs/status", 200)]


async def test_a_delete_is_of_the_same_object_and_gone_is_fine(server: Both) -> None:
    http, cluster = server
    http.answers = [ok, lambda: status(404), lambda: status(409)]
    for _ in range(3):
        await cluster.delete(JOBSETS, "team", "x", uid="u-1", foreground=True)
    body = http.requests[0][4]
    assert body["preconditions"] == {"uid": "u-1"}
    assert body["propagationPolicy"] == "Foreground"


async def test_a_list_reads_every_page_by_exact_labels(server: Both) -> None:
    http, cluster = server
    http.answers = [
        lambda: ok(items=[{"n": 1}], metadata={"continue": "more"}),
        lambda: ok(items=[{"n": 2}], metadata={}),
    ]
    assert await cluster.list(JOBSETS, "team", labels={"b": "2", "a": "1"}) == [{"n": 1}, {"n": 2}]
    assert [query for _, _, query, _, _ in http.requests] == [
        {"limit": "100", "labelSelector": "a=1,b=2"},
        {"limit": "100", "labelSelector": "a=1,b=2", "continue": "more"},
    ]


async def test_a_label_may_have_one_of_several_values(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: ok(items=[], metadata={})]
    await cluster.list(JOBSETS, "team", labels={"uid": frozenset({"b", "a"}), "kind": "x"})
    assert http.requests[0][2]["labelSelector"] == "kind=x,uid in (a,b)"


async def test_a_list_whose_history_has_gone_begins_again_once(server: Both) -> None:
    http, cluster = server
    http.answers = [
        lambda: ok(items=[{"n": 1}], metadata={"continue": "more"}),
        lambda: status(410),
        lambda: ok(items=[{"n": 1}, {"n": 2}], metadata={}),
    ]
    assert len(await cluster.list(JOBSETS, None)) == 2


async def test_a_name_that_is_taken_is_distinguished_from_other_conflicts(server: Both) -> None:
    http, cluster = server
    for reason, error in (("AlreadyExists", AlreadyExists), ("Conflict", Conflict)):
        http.answers = [lambda reason=reason: web.json_response({"reason": reason}, status=409)]
        with pytest.raises(Conflict) as caught:
            await cluster.create(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}})
        assert type(caught.value) is error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, Rejected),
        (401, Unavailable),
        (403, Rejected),
        (404, NotFound),
        (409, Conflict),
        (422, Rejected),
        (429, Unavailable),
        (500, Unavailable),
        (504, Unavailable),
    ],
)
async def test_errors_say_what_was_asked_and_what_the_server_said(
    server: Both, code: int, error: type[Exception]
) -> None:
    http, cluster = server
    http.answers = [lambda: status(code)]
    with pytest.raises(error, match=rf"POST /apis/.*/jobsets: {code} said the server"):
        await cluster.create(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}})


async def test_reads_are_tried_again_with_growing_waits(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: status(503), lambda: status(500), ok]
    await cluster.get(JOBS, "team", "demo")
    assert http.waits == [0.25, 0.5]


async def test_reads_give_up_in_the_end(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: status(503)]
    with pytest.raises(Unavailable):
        await cluster.get(JOBS, "team", "demo")
    assert len(http.requests) == 3


async def test_a_write_that_may_have_arrived_is_not_repeated(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: status(503)]
    with pytest.raises(Unavailable):
        await cluster.create(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}})
    assert len(http.requests) == 1


async def test_the_server_says_when_to_come_back_also_for_writes(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: status(429, **{"Retry-After": "2"}), ok]
    await cluster.create(JOBSETS, {"metadata": {"namespace": "team", "name": "x"}})
    assert http.waits == [2.0]


async def test_a_long_wait_is_left_to_the_queue(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: status(429, **{"Retry-After": "60"})]
    with pytest.raises(Unavailable) as caught:
        await cluster.get(JOBS, "team", "demo")
    assert caught.value.retry_after == 60
    assert http.waits == []


async def test_an_answer_that_is_no_json_is_a_broken_connection(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: web.Response(text="<html>please log in</html>")]
    with pytest.raises(Unavailable, match="not JSON"):
        await cluster.get(JOBS, "team", "demo")


async def test_an_object_that_is_nested_without_an_end_is_read(server: Both) -> None:
    http, cluster = server
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    http.answers = [lambda: web.Response(text=f'{{"metadata":{{"name":"demo","managedFields":[{deep}]}}}}')]
    assert (await cluster.get(JOBS, "team", "demo"))["metadata"]["name"] == "demo"


async def test_bytes_that_are_not_utf_8_are_replaced(server: Both) -> None:
    http, cluster = server
    text = b'{"metadata":{"name":"demo","managedFields":[{"fieldsV1":{"f:\xff":{}}}]}}'
    http.answers = [lambda: web.Response(body=text)]
    assert (await cluster.get(JOBS, "team", "demo"))["metadata"]["name"] == "demo"


async def test_a_server_that_is_away_is_unavailable(unused_tcp_port: int) -> None:
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{unused_tcp_port}"
    seen: list[int] = []
    async with ApiServerClient(
        configuration, limits=CallLimits(attempts=1), observer=lambda *call: seen.append(call[2])
    ) as cluster:
        with pytest.raises(Unavailable, match="GET /api/v1/namespaces/team/pods/x"):
            await cluster.get(PODS, "team", "x")
    assert seen == [0]


def large(count: int) -> Callable[[], web.StreamResponse]:
    """Returns a response with one page of objects of about 400 KiB each, which is not the last page."""
    return lambda: ok(items=[{"n": "x" * 400_000}] * count, metadata={"continue": f"after-{count}"})


async def test_a_page_that_is_too_large_is_asked_for_with_fewer_objects(server: Both) -> None:
    http, cluster = server
    end = partial(ok, items=[{"n": 2}], metadata={})
    http.answers = [partial(ok, items=[{"n": 1}], metadata={"continue": "more"}), large(3), large(2), end]
    assert len(await cluster.list(PODS, "team")) == 4
    assert [(query["limit"], query.get("continue")) for _, _, query, _, _ in http.requests] == [
        ("100", None),
        ("100", "more"),
        ("25", "more"),
        ("25", "after-2"),
    ]


async def test_after_small_pages_more_objects_are_asked_for_again(server: Both) -> None:
    http, cluster = server
    more = partial(ok, items=[{"n": 1}], metadata={"continue": "more"})
    http.answers = [large(3), large(3), *[more] * 3, partial(ok, items=[], metadata={})]
    await cluster.list(PODS, "team")
    assert [query["limit"] for _, _, query, _, _ in http.requests] == ["100", "25", "6", "12", "24", "48"]


async def test_what_is_kept_of_each_page_counts_with_all_that_was_read(server: Both) -> None:
    http, cluster = server

    def keep(found: Object) -> Object | None:
        return {"kept": found["n"]} if found["n"] else None

    http.answers = [
        lambda: ok(items=[{"n": 0, "much": "x" * 1000}, {"n": 1}], metadata={"continue": "more"}),
        lambda: ok(items=[{"n": 0}], metadata={"continue": "more"}),
        lambda: ok(items=[{"n": 2}], metadata={}),
    ]
    pages = [page async for page in cluster.kept(PODS, "team", labels={"a": "b"}, keep=keep)]
    assert pages == [[{"kept": 1}], [], [{"kept": 2}]]
    http.answers = [lambda: ok(items=[{"n": 0}] * 15_000, metadata={"continue": "more"})]
    with pytest.raises(ResponseTooLarge, match="20000 objects"):
        [page async for page in cluster.kept(PODS, "team", keep=keep)]


async def test_few_large_answers_are_held_at_once(server: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    http, cluster = server
    http.answers = [partial(ok, n="x" * 300_000)]
    waiting, most = set(), 0
    answer = ApiServerClient._read

    async def read(self: ApiServerClient, *more: Any) -> bytearray:
        nonlocal most
        content = await answer(self, *more)
        waiting.add(id(content))
        most = max(most, len(waiting))
        await asyncio.sleep(0.01)
        waiting.remove(id(content))
        return content

    monkeypatch.setattr(ApiServerClient, "_read", read)
    await asyncio.gather(*(cluster.get(PODS, "team", str(number)) for number in range(12)))
    assert len(http.requests) == 12
    assert 1 < most <= LIMITS.large_answers


async def test_an_object_that_is_too_large_alone_is_refused_by_its_collection(server: Both) -> None:
    http, cluster = server
    http.answers = [large(3)]
    with pytest.raises(
        ResponseTooLarge, match="GET /api/v1/namespaces/team/pods: the response has more than 1 MiB"
    ):
        await cluster.list(PODS, "team")
    assert [query["limit"] for _, _, query, _, _ in http.requests] == ["100", "25", "6", "1"]


async def test_a_listing_of_more_than_can_be_held_ends(server: Both) -> None:
    http, cluster = server
    http.answers = [large(2)]
    with pytest.raises(ResponseTooLarge, match=r"namespaces/team/pods with uid=u: more than 3 MiB"):
        await cluster.list(PODS, "team", labels={"uid": "u"})
    assert len(http.requests) == 4


async def test_a_listing_of_too_many_objects_ends(server: Both) -> None:
    http, cluster = server
    http.answers = [lambda: ok(items=[{}] * 15_000, metadata={"continue": "more"})]
    with pytest.raises(ResponseTooLarge, match="20000 objects"):
        await cluster.list(PODS, "team")
