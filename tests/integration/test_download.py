"""``finetune download`` from a real object store: interrupted, resumed, refused."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.trainer.stores import BUCKET, fake_gcs, program
from tests.unit.cli.exported import contents, write_run

FINETUNE = Path(sys.executable).with_name("finetune")
MIB = 2**20
SIZE = 16 * MIB


class Gate(ThreadingHTTPServer):
    """Stands before the object store; holds or refuses the requests for parts from an offset on."""

    daemon_threads = True

    def __init__(self, store: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store = store
        self.ranges: list[str] = []
        """Ranges that were requested of the large file."""
        self.hold_from: int | None = None
        self.status: int | None = None
        """Sent instead of any response, with the message."""
        self.message = "Ada may not"
        self.held = threading.Event()
        """A request is held."""
        self.open = threading.Event()
        """The held requests end."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Gate
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        gate = self.server
        asked = self.headers.get("Range", "")
        if gate.status is not None:
            self._send(gate.status, json.dumps({"error": {"message": gate.message}}).encode())
            return
        if "safetensors" in self.path and asked:
            gate.ranges.append(asked)
            start = int(asked.removeprefix("bytes=").partition("-")[0])
            if gate.hold_from is not None and start >= gate.hold_from:
                gate.held.set()
                gate.open.wait()
                self.close_connection = True
                return
        request = urllib.request.Request(gate.store + self.path, headers={"Range": asked} if asked else {})
        try:
            with urllib.request.urlopen(request) as answer:
                self._send(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            self._send(error.code, error.read())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def opened(store: str) -> Iterator[Gate]:
    gate = Gate(store)
    thread = threading.Thread(target=gate.serve_forever, daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        gate.open.set()
        gate.shutdown()
        gate.server_close()
        thread.join()


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    built = program()
    if built is None:
        pytest.skip("fake-gcs-server is not built: make cluster-programs")
    with fake_gcs(built) as address:
        yield address


@pytest.fixture
def gate(store: str) -> Iterator[Gate]:
    with opened(store) as running:
        yield running


@pytest.fixture(scope="module")
def run(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a large model, here and in the bucket at the same path."""
    folder = tmp_path_factory.mktemp("runs") / "bot-0badcafe"
    files = {"config.json": b"{}", "model.safetensors": os.urandom(SIZE), "empty": b""}
    write_run(folder, {"model": files})
    for name, content in contents(folder).items():
        upload(store, f"runs/bot-0badcafe/{name}", content)
    return folder


def upload(store: str, name: str, content: bytes) -> None:
    url = f"{store}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
    urllib.request.urlopen(urllib.request.Request(url, data=content, method="POST")).close()


def finetune(gate: Gate | None, folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    emulator = {"STORAGE_EMULATOR_HOST": gate.address} if gate else {}
    return subprocess.Popen(
        [FINETUNE, "download", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **emulator, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    with process:
        out, err = process.communicate(timeout=120)
    assert "Traceback" not in err
    return process.returncode, out, err


RUN = ("--run", f"gs://{BUCKET}/runs/bot-0badcafe", "--to", "out")


def test_a_download_that_ctrl_c_has_ended_continues_with_a_range(
    gate: Gate, run: Path, tmp_path: Path
) -> None:
    gate.hold_from = SIZE // 2
    first = finetune(gate, tmp_path, *RUN)
    assert gate.held.wait(60)
    first.send_signal(signal.SIGINT)
    code, out, err = ended(first)
    assert (code, out, err) == (130, "", "Interrupted; the same command continues.\n")
    left = (tmp_path / "out/model.safetensors.partial").stat().st_size
    assert 0 < left <= SIZE // 2
    assert not (tmp_path / "out/model.safetensors").exists()
    assert not (tmp_path / "out/manifest.json").exists()

    gate.open.set()
    gate.hold_from = None
    gate.ranges.clear()
    code, out, err = ended(finetune(gate, tmp_path, *RUN))
    assert (code, out) == (0, "out\n"), err
    starts = sorted(int(each.removeprefix("bytes=").partition("-")[0]) for each in gate.ranges)
    assert starts[0] == left
    assert contents(tmp_path / "out") == contents(run / "export/model")

    gate.ranges.clear()
    assert ended(finetune(gate, tmp_path, *RUN))[0] == 0
    assert gate.ranges == []


@pytest.mark.thorough
def test_a_store_that_goes_away_in_between_leaves_what_the_next_call_continues(
    gate: Gate, run: Path, tmp_path: Path
) -> None:
    gate.hold_from = SIZE // 4
    gate.open.set()  # held requests end at once, without a response
    code, out, err = ended(finetune(gate, tmp_path, *RUN))
    assert (code, out) == (1, "")
    assert err.startswith(
        "Error: The store does not respond: gs://bucket/runs/bot-0badcafe/export/model/model.safe"
    )
    assert len(err.splitlines()) == 2
    gate.hold_from = None
    assert ended(finetune(gate, tmp_path, *RUN))[0] == 0
    assert contents(tmp_path / "out") == contents(run / "export/model")


def test_a_file_that_was_changed_in_the_bucket_is_not_kept(
    store: str, gate: Gate, run: Path, tmp_path: Path
) -> None:
    for path, content in contents(run / "export").items():
        changed = b"[]" if path == "model/config.json" else content
        upload(store, f"runs/other-0badcafe/export/{path}", changed)
    code, _, err = ended(
        finetune(gate, tmp_path, "--run", f"gs://{BUCKET}/runs/other-0badcafe", "--to", "out")
    )
    assert code == 1
    assert "model/config.json is not the file that its manifest lists" in err
    assert not (tmp_path / "out/config.json").exists()
    assert not (tmp_path / "out/config.json.partial").exists()


@pytest.mark.parametrize(
    ("status", "message", "fix"),
    [
        (403, "cannot be read: GET http", "roles/storage.objectViewer"),
        (401, "no usable Google credentials", "gcloud auth application-default login"),
    ],
)
def test_a_store_that_refuses_is_one_line_with_a_fix(
    gate: Gate, run: Path, tmp_path: Path, status: int, message: str, fix: str
) -> None:
    gate.status = status
    code, out, err = ended(finetune(gate, tmp_path, *RUN))
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 2
    assert message in err
    assert fix in err


def test_a_bucket_and_a_run_that_do_not_exist_are_named(gate: Gate, run: Path, tmp_path: Path) -> None:
    code, _, err = ended(finetune(gate, tmp_path, "--run", f"gs://{BUCKET}/runs/none-0badcafe"))
    assert (code, "holds no finished export" in err) == (1, True), err
    # The local store's response to a read does not name the bucket; the cloud's does.
    gate.status, gate.message = 404, "The specified bucket does not exist."
    code, _, err = ended(finetune(gate, tmp_path, "--run", "gs://no-such-bucket/a"))
    assert (code, "bucket no-such-bucket does not exist" in err) == (1, True), err


def test_without_credentials_it_says_how_to_log_in(tmp_path: Path) -> None:
    # The environment names no credentials, and the metadata server of a cloud machine is not asked.
    code, _, err = ended(finetune(None, tmp_path, *RUN, NO_GCE_CHECK="true"))
    assert code == 1
    assert len(err.splitlines()) == 2
    assert "no usable Google credentials" in err
    assert "gcloud auth application-default login" in err


def test_a_person_s_credentials_need_no_project(gate: Gate, tmp_path: Path) -> None:
    """Those of ``gcloud auth application-default login`` name none: the token is refused, not a missing project."""
    (tmp_path / "adc.json").write_text(
        json.dumps(
            {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c",
             "token_uri": f"{gate.address}/token"}
        )
    )  # fmt: skip
    code, _, err = ended(
        finetune(None, tmp_path, *RUN, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / "adc.json"))
    )
    assert code == 1
    assert len(err.splitlines()) == 2, err
    assert "project" not in err.lower()
