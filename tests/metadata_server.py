"""A stand-in for GKE's metadata server, with its protocol and its faults, and a bucket that wants its tokens.

Environment variables lead google-auth to it: ``GCE_METADATA_HOST`` and ``GCE_METADATA_IP``.
"""

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

#: What the metadata server calls an account with roles of its own, as of a ServiceAccount without annotation.
ACCOUNT = "my-project.svc.id.goog"
#: The account that the bucket names.
CALLER = "team-a@my-project.iam.gserviceaccount.com"
#: What IAM's refusals look like when the metadata server passes them on.
REFUSAL = (
    "Unable to generate access token; IAM returned 403 Forbidden: "
    "Permission 'iam.serviceAccounts.getAccessToken' denied"
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has given up waiting is no fault."""


class _Handler(BaseHTTPRequestHandler):
    owner: "Http"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.owner.lock:
            self.owner.paths.append(f"{self.command} {self.path}")
        status, headers, content = self.owner.answer(self, body)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815  names of the base class

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Http:
    """A server on a port that stays its own also while it does not listen."""

    port: int = 0
    paths: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _server: _Server | None = None

    def __post_init__(self) -> None:
        if not self.port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", self.port), handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Connections are refused from now on."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        raise NotImplementedError


@dataclass
class MetadataServer(Http):
    """``fault``: the status with which requests for the account and its token are answered; None: with both."""

    fault: int | None = None
    text: str = REFUSAL
    lifetime: int = 3600
    """Seconds that a token is valid. google-auth renews one that has less than four minutes left with each request."""
    hangs: threading.Event | None = None
    """If set, answers wait for it."""
    tokens: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return {"GCE_METADATA_HOST": self.address, "GCE_METADATA_IP": self.address}

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Metadata-Flavor": "Google", "Content-Type": "application/json"}
        if self.hangs is not None:
            self.hangs.wait(60)
        if request.headers.get("Metadata-Flavor") != "Google":
            return 403, headers, b"Missing Metadata-Flavor:Google header."
        path = request.path.partition("?")[0]
        if "/service-accounts/" in path and self.fault:
            return self.fault, {**headers, "Content-Type": "application/text"}, self.text.encode()
        if path.endswith("/token"):
            self.tokens += 1
            said = {
                "access_token": f"token-{self.tokens}",
                "expires_in": self.lifetime,
                "token_type": "Bearer",
            }
            return 200, headers, json.dumps(said).encode()
        if "/service-accounts/" in path:
            account = {"aliases": ["default"], "email": ACCOUNT, "scopes": ["cloud-platform"]}
            return 200, headers, json.dumps(account).encode()
        if path.endswith("/project-id"):
            return 200, {**headers, "Content-Type": "application/text"}, b"my-project"
        return (200, headers, b"computeMetadata/\n") if path == "/" else (404, headers, b"Not Found")


@dataclass
class Bucket(Http):
    """Serves ``content`` as every object, to requests with a token of the metadata server."""

    content: bytes = b"{}"
    crc32c: str = "KXvQqg=="
    refused: bool = False
    """Whether the account has no role."""

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        allowed = request.headers.get("Authorization", "").startswith("Bearer token-")
        if self.refused or not allowed:
            code = 403 if allowed else 401
            message = f"{CALLER} does not have storage.objects.get access to the Google Cloud Storage object."
            said = {"error": {"code": code, "message": message}}
            return code, {"Content-Type": "application/json"}, json.dumps(said).encode()
        path, _, query = request.path.partition("?")
        stored = {"name": "k", "bucket": "b", "generation": "1", "size": str(len(self.content))}
        stored["crc32c"] = self.crc32c
        if "uploadType=resumable" in query and request.command == "POST":
            return 200, {"Location": f"http://{self.address}/session"}, b""
        if request.command in ("POST", "PUT") or ("/o/" in path and "alt=media" not in query):
            return 200, {"Content-Type": "application/json"}, json.dumps(stored).encode()
        if path.endswith(("/o", "/b/b")):
            return 200, {"Content-Type": "application/json"}, json.dumps({"items": []}).encode()
        headers = {"Content-Type": "application/octet-stream", "X-Goog-Hash": f"crc32c={self.crc32c}"}
        return 200, headers, self.content


@contextmanager
def listening[T: Http](server: T) -> Iterator[T]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
