"""The proxy before the object store, with a stand-in for the store."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.doubles.bucket_iam import Grant
from tests.doubles.bucketproxy import BucketProxy

ACCOUNT = "team-a/ft-cpu"
OBJECT = "/storage/v1/b/bucket/o/team-a%2Fx"


class _Store(BaseHTTPRequestHandler):
    """Answers with links to itself, as fake-gcs-server does."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        host, port = self.server.server_address[:2]
        link = f"http://{host!s}:{port}{self.path}"
        content = json.dumps({"mediaLink": link, "got": body.decode()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if "uploadType=resumable" in self.path:
            self.send_header("Location", f"{link}&upload_id=7")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _answer  # noqa: N815  the names are http.server's

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[BucketProxy]:
    store = ThreadingHTTPServer(("127.0.0.1", 0), _Store)
    thread = threading.Thread(target=store.serve_forever, args=(0.01,))
    thread.start()
    grant = Grant(account=ACCOUNT, role="roles/storage.objectUser", bucket="bucket", folder="team-a/")
    with BucketProxy([grant]) as running:
        running.serve(f"http://127.0.0.1:{store.server_port}")
        yield running
    store.shutdown()
    thread.join()
    store.server_close()


def ask(
    proxy: BucketProxy, path: str, account: str = ACCOUNT, method: str = "GET", body: bytes | None = None
) -> tuple[int, dict[str, object], str]:
    """Status, JSON body and Location."""
    request = urllib.request.Request(proxy.endpoint(account) + path, data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer), answer.headers.get("Location", "")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), ""


def test_what_is_not_given_is_refused_in_cloud_storages_words(proxy: BucketProxy) -> None:
    status, body, _ = ask(proxy, "/storage/v1/b/bucket/o/team-b%2Fx")
    assert status == 403
    error = body["error"]
    assert isinstance(error, dict)
    assert error["code"] == 403
    assert "team-a/ft-cpu does not have storage.objects.get access" in error["message"]
    assert error["errors"][0]["reason"] == "forbidden"
    assert [str(access) for access in proxy.denied] == [
        "team-a/ft-cpu: storage.objects.get on bucket/team-b/x denied"
    ]


def test_links_in_answers_lead_through_the_proxy_but_content_is_as_it_is(proxy: BucketProxy) -> None:
    _, body, _ = ask(proxy, OBJECT)
    assert body["mediaLink"] == proxy.endpoint(ACCOUNT) + OBJECT
    _, body, _ = ask(proxy, f"{OBJECT}?alt=media")
    assert not str(body["mediaLink"]).startswith(proxy.url)


def test_an_upload_in_parts_belongs_to_the_account_that_began_it(proxy: BucketProxy) -> None:
    path = "/upload/storage/v1/b/bucket/o?uploadType=resumable"
    _, _, location = ask(proxy, path, method="POST", body=b'{"name": "team-a/x"}')
    assert location == f"{proxy.endpoint(ACCOUNT)}{path}&upload_id=7"
    large = b"x" * (2 << 20)
    status, body, _ = ask(proxy, location.removeprefix(proxy.endpoint(ACCOUNT)), method="PUT", body=large)
    assert (status, body["got"]) == (200, large.decode())
    status, _, _ = ask(proxy, f"{path}&upload_id=7", account="team-b/ft-cpu", method="PUT", body=b"x")
    assert status == 403


def test_what_is_held_is_answered_when_it_is_released(proxy: BucketProxy) -> None:
    answered = threading.Event()

    def wait() -> None:
        ask(proxy, OBJECT)
        answered.set()

    with proxy.held("bucket", "team-a/"):
        thread = threading.Thread(target=wait)
        thread.start()
        assert ask(proxy, "/storage/v1/b/bucket/o/team-b%2Fx")[0] == 403
        assert not answered.is_set()
    thread.join()
    assert answered.is_set()
