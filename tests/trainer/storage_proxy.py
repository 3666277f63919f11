"""A proxy between the object store and its clients: counts bytes read, and breaks connections as a test requires."""

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

#: Headers that apply to a single connection.
_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """One request, before it is forwarded."""

    method: str
    name: str
    """Path and query, unquoted."""
    headers: dict[str, str]
    """By lower-case name."""
    body: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyResponse:
    asked: ProxyRequest
    status: int
    sent: int
    """Bytes of the answer's body that reached the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFault:
    """A fault that replaces the normal handling of a request."""

    status: int | None = None
    """The proxy answers with this status, without forwarding the request."""
    cut: int | None = None
    """The connection breaks after this many bytes of the response's body; -1: before any of the response."""
    lost: bool = False
    """The connection breaks before the store receives the request."""


@dataclass(slots=True)
class StorageProxy:
    """``fault`` returns the fault of a request, or None to forward it.

    ``meet`` is called before that, concurrently for concurrent requests, and may block to delay a request.
    """

    url: str
    answered: list[ProxyResponse] = field(default_factory=list)
    fault: Callable[[ProxyRequest], ProxyFault | None] = lambda _: None
    meet: Callable[[ProxyRequest], None] = lambda _: None

    @property
    def read(self) -> int:
        """Bytes of all responses to GET requests."""
        return sum(each.sent for each in self.answered if each.asked.method == "GET")

    def contents(self, name: str) -> list[ProxyResponse]:
        """Returns the reads of the content of objects whose name contains ``name``."""
        return [
            each
            for each in self.answered
            if each.asked.method == "GET" and "alt=media" in each.asked.name and name in each.asked.name
        ]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def setup(self) -> None:
        super().setup()
        upstream = urlsplit(self.server.store)
        self._upstream = http.client.HTTPConnection(upstream.hostname or "", upstream.port, timeout=60)

    def finish(self) -> None:
        self._upstream.close()
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client has closed the connection
            super().handle()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = ProxyRequest(method=self.command, name=unquote(self.path), headers=headers, body=len(body))
        self.server.made.meet(asked)
        with self.server.lock:
            fault = self.server.made.fault(asked) or ProxyFault()
        if fault.lost:
            self.close_connection = True
        elif fault.status is not None:
            self._send(asked, fault.status, {}, b"", None)
        else:
            self._pass_on(asked, body, fault.cut)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = answer  # noqa: N815 - the server's names

    def _pass_on(self, asked: ProxyRequest, body: bytes, cut: int | None) -> None:
        passed = {name: value for name, value in asked.headers.items() if name not in _HOP}
        self._upstream.request(self.command, self.path, body, passed)
        found = self._upstream.getresponse()
        content = found.read()
        # The store's responses contain its own address, for contents and for resumable uploads.
        store, own = self.server.store, self.server.made.url
        answer = {name: value.replace(store, own) for name, value in found.getheaders()}
        if "json" in (found.getheader("Content-Type") or ""):
            content = content.replace(store.encode(), own.encode())
        self._send(asked, found.status, answer, content, cut)

    def _send(
        self,
        asked: ProxyRequest,
        status: int,
        headers: Mapping[str, str],
        content: bytes,
        cut: int | None,
    ) -> None:
        part = content if cut is None else content[: max(cut, 0)]
        with self.server.lock:
            self.server.made.answered.append(ProxyResponse(asked=asked, status=status, sent=len(part)))
        self.close_connection |= cut is not None
        if cut == -1:
            return
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the server's name
        """Prints nothing: tests read ``StorageProxy.answered``."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, store: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store, self.lock = store, threading.Lock()
        self.made = StorageProxy(url=f"http://127.0.0.1:{self.server_address[1]}")


@contextmanager
def between(store: str) -> Iterator[StorageProxy]:
    """Starts the proxy on a free port, for the store at the address ``store``."""
    with _Server(store) as server:
        thread = threading.Thread(target=server.serve_forever, name="between", daemon=True)
        thread.start()
        yield server.made
        server.shutdown()
        thread.join()
