"""An object store for tests: fake-gcs-server, which the local cluster also runs."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUCKET = "bucket"


def program() -> Path | None:
    """The server's program, if the programs of the local cluster have been built."""
    cache = Path(os.environ.get("FINETUNE_CACHE", "~/.cache/finetune-tpu")).expanduser()
    built = sorted(cache.glob("go/bin-*/fake-gcs-server"))
    return built[-1] if built else None


@contextmanager
def fake_gcs(server: Path) -> Iterator[str]:
    """Serves an empty bucket on a free port of this machine, and yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [server, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}",
         "-external-url", address, "-backend", "memory", "-log-level", "error"]
    )  # fmt: skip
    try:
        _create_bucket(address)
        yield address
    finally:
        process.terminate()
        process.wait()


def _create_bucket(address: str) -> None:
    body = json.dumps({"name": BUCKET}).encode()
    request = urllib.request.Request(
        f"{address}/storage/v1/b", data=body, headers={"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
