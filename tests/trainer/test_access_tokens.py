"""google-auth and google-cloud-storage themselves, against a metadata server that is late, restarts or refuses."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from google.auth import exceptions
from google.auth.compute_engine import _metadata

from finetune_contract import ExitCode
from finetune_storage import access_tokens
from finetune_storage.files import FileStore
from finetune_storage.google import GoogleStore
from finetune_trainer.errors import StageError
from finetune_trainer.storage import RETRIES, StorageClient
from tests.metadata_server import CALLER, Bucket, MetadataServer, listening
from tests.trainer.requests import request


class Retries:
    """What happens at the retries of requests, which do not wait."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.then: Callable[[int], None] = lambda _: None

    def __call__(self, error: Exception) -> None:
        self.errors.append(error)
        self.then(len(self.errors))


@pytest.fixture
def retries(monkeypatch: pytest.MonkeyPatch) -> Retries:
    made = Retries()
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    return made


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with listening(Bucket()) as made:
        yield made


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    """Not started yet. Nothing else of this machine gives credentials."""
    made = MetadataServer()
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("GCE_METADATA_IP", made.address)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", made.address)
    monkeypatch.setattr(_metadata, "_METADATA_DEFAULT_TIMEOUT", 0.2)
    yield made
    made.stop()


@pytest.fixture
def gcs(bucket: Bucket, retries: Retries, monkeypatch: pytest.MonkeyPatch) -> GoogleStore:
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", f"http://{bucket.address}")
    return GoogleStore(replace(RETRIES, first=0.001, longest=0.001, total=5, retrying=retries))


@pytest.fixture
def store(gcs: GoogleStore) -> StorageClient:
    return StorageClient(local=FileStore(), gcs=gcs)


def refusal(store: StorageClient) -> StageError:
    with pytest.raises(StageError) as caught:
        store.read("gs://b/k")
    assert caught.value.where == "gs://b/k"
    return caught.value


def test_a_token_of_the_metadata_server_reads_the_bucket(
    store: StorageClient, metadata: MetadataServer, retries: Retries
) -> None:
    metadata.start()
    assert store.read("gs://b/k") == b"{}"
    assert metadata.tokens
    assert retries.errors == []


def test_a_metadata_server_that_comes_late_is_waited_for(
    store: StorageClient, metadata: MetadataServer, retries: Retries
) -> None:
    def come(number: int) -> None:
        if number == 3:
            metadata.start()

    retries.then = come
    assert store.read("gs://b/k") == b"{}"
    assert {type(error) for error in retries.errors} == {exceptions.DefaultCredentialsError}


def test_a_metadata_server_that_does_not_answer_is_waited_for(
    store: StorageClient, metadata: MetadataServer, retries: Retries, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata.hangs = threading.Event()
    metadata.start()
    monkeypatch.setattr(_metadata.ping, "__defaults__", (0.2, 3))
    monkeypatch.setattr(_metadata.get, "__defaults__", (*_metadata.get.__defaults__[:-3], 0.2, "GET", None))
    retries.then = lambda _: metadata.hangs.set() if metadata.hangs else None
    assert store.read("gs://b/k") == b"{}"
    assert retries.errors


@pytest.mark.parametrize("fault", [408, 429, 500, 502, 503, 504])
def test_a_metadata_server_that_is_overloaded_is_waited_for(
    store: StorageClient, metadata: MetadataServer, retries: Retries, fault: int
) -> None:
    metadata.fault, metadata.text = fault, "try again"

    def recover(number: int) -> None:
        if number == 2:
            metadata.fault = None

    retries.then = recover
    metadata.start()
    assert store.read("gs://b/k") == b"{}"
    assert {type(error) for error in retries.errors} == {exceptions.RefreshError}


REQUESTS: dict[str, Callable[[StorageClient, Path], object]] = {
    "read": lambda store, _: store.read("gs://b/k"),
    "write": lambda store, _: store.write("gs://b/k", b"{}"),
    "create": lambda store, _: store.create("gs://b/k", b"{}"),
    "read_range": lambda store, _: store.read_range("gs://b/k", 0, 2),
    "list": lambda store, _: list(store.entries("gs://b/k")),
    "upload": lambda store, folder: store.upload_file(folder / "file", "gs://b/k"),
    "download": lambda store, folder: store.fetch_file("gs://b/k", folder / "copy"),
    "delete": lambda store, _: store.delete("gs://b/k"),
}


@pytest.mark.parametrize("restart", ["refuses", 503, 502])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_restart_at_the_renewal_of_a_token_is_waited_for(
    store: StorageClient,
    metadata: MetadataServer,
    retries: Retries,
    tmp_path: Path,
    name: str,
    restart: str | int,
) -> None:
    """As after an hour: the token of the first request has expired."""
    metadata.lifetime = 60
    metadata.start()
    assert store.read("gs://b/k") == b"{}"

    def recover(number: int) -> None:
        if number == 2:
            metadata.fault = None
            if restart == "refuses":
                metadata.start()

    retries.then = recover
    if isinstance(restart, int):
        metadata.fault, metadata.text = restart, "restarting"
    else:
        metadata.stop()
    (tmp_path / "file").write_bytes(b"{}")
    REQUESTS[name](store, tmp_path)
    assert len(retries.errors) == 2


@pytest.mark.parametrize("fault", [None, 503])
def test_a_metadata_server_that_stays_away_is_no_fault_of_the_user(
    store: StorageClient,
    gcs: GoogleStore,
    metadata: MetadataServer,
    retries: Retries,
    fault: int | None,
) -> None:
    gcs.retries = replace(gcs.retries, total=0.05)
    if fault:
        metadata.fault = fault
        metadata.start()
    error = refusal(store)
    assert (error.code, error.reason) == (ExitCode.UNAVAILABLE, "StorageUnavailable")
    assert "metadata server" in error.what
    assert retries.errors


@pytest.mark.parametrize("fault", [400, 403, 404])
def test_a_refusal_by_sts_or_iam_is_denied_at_once_and_names_the_role(
    store: StorageClient, metadata: MetadataServer, retries: Retries, fault: int
) -> None:
    """The operator starts the next attempt while the grant may still arrive."""
    metadata.fault = fault
    metadata.start()
    error = refusal(store)
    assert (error.code, error.reason) == (ExitCode.PERMISSION_DENIED, "StoragePermissionDenied")
    assert "roles/iam.workloadIdentityUser" in error.fix
    assert "getAccessToken" in error.actual
    assert retries.errors == []


@pytest.mark.parametrize("name", REQUESTS)
def test_a_refusal_of_the_bucket_names_account_and_role(
    store: StorageClient,
    metadata: MetadataServer,
    bucket: Bucket,
    retries: Retries,
    tmp_path: Path,
    name: str,
) -> None:
    bucket.refused = True
    metadata.start()
    (tmp_path / "file").write_bytes(b"{}")
    with pytest.raises(StageError) as caught:
        REQUESTS[name](store, tmp_path)
    assert caught.value.code is ExitCode.PERMISSION_DENIED
    assert CALLER in caught.value.actual
    assert "roles/storage.objectViewer" in caught.value.fix
    assert retries.errors == []


def test_credentials_that_are_configured_and_not_there_are_not_waited_for(
    store: StorageClient, metadata: MetadataServer, retries: Retries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    error = refusal(store)
    assert error.code is ExitCode.PERMISSION_DENIED
    assert "/nonexistent/key.json" in error.actual
    assert retries.errors == []


def test_outside_of_a_cluster_missing_credentials_are_not_waited_for(
    store: StorageClient, metadata: MetadataServer, retries: Retries, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "GCE_METADATA_IP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_metadata, "is_on_gce", lambda request: False)
    assert refusal(store).code is ExitCode.PERMISSION_DENIED
    assert retries.errors == []


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (exceptions.RefreshError("Unable to acquire impersonated credentials", '{"error": {"code": 403}}'), False),
        (exceptions.RefreshError("Unable to acquire impersonated credentials", '{"error": {"code": 503}}'), True),
        (exceptions.OAuthError("Error code invalid_target: …", '{"error": "invalid_target"}'), False),
        (exceptions.OAuthError("Error code internal_failure", '{"error": "internal_failure"}'), True),
        (exceptions.RefreshError("invalid_grant: Bad Request", {"error": "invalid_grant"}), False),
        (exceptions.RefreshError("Unexpected response: the service account info is missing 'email' field."), True),
        (exceptions.TransportError(ConnectionResetError()), True),
        (exceptions.RefreshError({"unknown": 1}, retryable=True), True),
        (ValueError("403"), False),
    ],
)  # fmt: skip
def test_every_kind_of_refusal_is_distinguished_from_a_fault(
    error: Exception, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    assert access_tokens.may_come(error) is passes


def program(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A process as in a pod, with the waiting times of the libraries."""
    without = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={name: value for name, value in os.environ.items() if name not in without} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


STAGE = "from finetune_trainer.commands.main import run; run()"


def test_a_process_in_a_pod_waits_for_the_metadata_server(bucket: Bucket, metadata: MetadataServer) -> None:
    environment = metadata.environment | {"API_ENDPOINT_OVERRIDE": f"http://{bucket.address}"}
    with program(STAGE, "access", "--read", "gs://b/k", **environment) as process:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "retrying" in line)
        metadata.start()
        rest, _ = process.communicate(timeout=60)
    assert "the metadata server does not respond" in said
    assert (process.returncode, rest.strip()) == (0, '{"faults": []}')


def test_a_stage_that_can_write_no_record_ends_with_its_exit_code_and_message(
    bucket: Bucket, metadata: MetadataServer, tmp_path: Path
) -> None:
    bucket.refused = True
    metadata.start()
    termination = tmp_path / "termination"
    environment = metadata.environment | {
        "API_ENDPOINT_OVERRIDE": f"http://{bucket.address}",
        "FINETUNE_REQUEST": request(tmp_path, "Preflight", run_folder="gs://b/team-a/run").to_json(),
        "TERMINATION_MESSAGE_PATH": str(termination),
    }
    with program(STAGE, **environment) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == ExitCode.PERMISSION_DENIED, log
    assert termination.read_text().startswith("StoragePermissionDenied: gs://b/team-a/run/attempts/prep-1/")
    assert "roles/storage.objectViewer" in termination.read_text()


TENSORSTORE = """
import tensorstore
from finetune_trainer.stages.attempt import as_stage_error
try:
    tensorstore.KvStore.open({"driver": "gcs", "bucket": "bucket", "path": ""}).result().read("k").result()
except ValueError as error:
    print(int(as_stage_error(error).code))
"""


@pytest.mark.parametrize(
    ("late", "code"), [(True, ExitCode.UNAVAILABLE), (False, ExitCode.PERMISSION_DENIED)]
)
def test_tensorstore_without_a_token_is_distinguished_from_one_that_is_refused(
    bucket: Bucket, metadata: MetadataServer, late: bool, code: ExitCode
) -> None:
    """If the metadata server does not answer at its first use, its requests have no token."""
    bucket.refused = True
    if not late:
        metadata.start()
    environment = {
        "GCE_METADATA_ROOT": metadata.address,
        "TENSORSTORE_GCS_HTTP_URL": f"http://{bucket.address}",
        "HOME": "/nonexistent",
    }
    with program(TENSORSTORE, **environment) as process:
        said, log = process.communicate(timeout=60)
    assert said.strip() == str(int(code)), log
