"""Notices of real jobs reach a real receiver, also after a crash, with the rights that the chart gives for it."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.layout import CHART
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer, warm_operator
from tests.integration.helm import helm
from tests.integration.jobs import PROFILE, job_path, phase

KEY = bytes(range(32))
RECORD = "/api/v1/namespaces/finetune-system/configmaps/finetune-operator-notifications"


class Receiver(ThreadingHTTPServer):
    """An endpoint that checks signatures, and takes notices unless ``status`` is another one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 204
        self.taken: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.changed = threading.Condition()

    def handle_notice(self, headers: dict[str, str], body: bytes) -> int:
        content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        signature = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
        if headers["webhook-signature"] != f"v1,{signature}":
            return 401
        with self.changed:
            (self.taken if self.status == 204 else self.refused).append(json.loads(body))
            self.changed.notify_all()
        return self.status

    def kinds(self, job: str, *, refused: bool = False) -> set[str]:
        """The kinds of the notices of a job."""
        found = self.refused if refused else self.taken
        return {each["type"].rsplit(".", 1)[1] for each in found if each["data"]["name"] == job}

    def await_kinds(self, job: str, *kinds: str, refused: bool = False) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.kinds(job, refused=refused) >= {*kinds}, timeout=60), (
                self.taken,
                self.refused,
            )


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.handle_notice(dict(self.headers), body))
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Prints nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def url(receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The receiver's URL, which the operators that start from now on get with the key."""
    key = tmp_path / "key"
    key.write_text(f"whsec_{base64.b64encode(KEY).decode()}\n")
    found = f"http://127.0.0.1:{receiver.server_port}/notices"
    monkeypatch.setenv("FINETUNE_WEBHOOK_URL", found)
    monkeypatch.setenv("FINETUNE_WEBHOOK_KEY_FILE", str(key))
    return found


def grant(cluster: LocalCluster, url: str) -> None:
    """Applies the role that the chart has with a webhook."""
    done = helm(
        "template", "finetune-operator", str(CHART), "-n", "finetune-system",
        "--set", f"notifications.url={url},notifications.keySecret=webhook", "-s", "templates/rbac.yaml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (role,) = (each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Role")
    cluster.apply(role)


def test_notices_are_signed_and_reach_the_receiver_although_it_and_the_operator_fail(
    double: LocalCluster, namespace: str, receiver: Receiver, url: str, tmp_path: Path
) -> None:
    grant(double, url)
    with warm_operator.running(double, tmp_path / "operator", double.ports["kube-apiserver"]) as operator:
        double.apply(fake_trainer.job(namespace, "seen", PROFILE, planOnly=True))
        receiver.await_kinds("seen", "admitted", "ended")
        receiver.status = 503
        double.apply(fake_trainer.job(namespace, "missed", PROFILE, planOnly=True))
        # The receiver's failure delays neither the job nor the attempt to report it.
        double.wait(job_path(namespace, "missed"), phase("Planned"), seconds=60)
        receiver.await_kinds("missed", "ended", refused=True)
        operator.kill()
        receiver.status = 204
        receiver.await_kinds("missed", "admitted", "ended")
        # The record is written with the right that the chart grants for it.
        delivered = {each["id"] for each in receiver.taken if each["data"]["name"] == "missed"}
        double.wait(
            RECORD,
            lambda found: delivered <= json.loads(found["data"]["notifications.json"])["delivered"].keys(),
        )
    ended = {each["id"]: each for each in receiver.taken if each["type"].endswith(".ended")}
    assert sorted(each["data"]["name"] for each in ended.values()) == ["missed", "seen"]
    assert {each["data"]["phase"] for each in ended.values()} == {"Planned"}
