"""The operator's store, with google-auth itself, against a metadata server that is late, restarts or refuses."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from google.auth.compute_engine import _metadata

from finetune_operator.artifacts import shared_store
from finetune_operator.artifacts.port import StorageDenied, StorageUnauthenticated, StorageUnavailable
from finetune_operator.artifacts.shared_store import SharedStore
from tests.metadata_server import CALLER, Bucket, MetadataServer, listening


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    with listening(Bucket()) as made:
        monkeypatch.setenv("API_ENDPOINT_OVERRIDE", f"http://{made.address}")
        yield made


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    """Not started yet. Nothing else of this machine gives credentials."""
    made = MetadataServer(lifetime=60)
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("GCE_METADATA_IP", made.address)
    monkeypatch.setattr(_metadata, "_GCE_METADATA_HOST", made.address)
    monkeypatch.setattr("google.auth._exponential_backoff.time.sleep", lambda _: None)
    brief = replace(shared_store.RETRIES, first=0.1, longest=0.1, total=0.1)
    monkeypatch.setattr(shared_store, "RETRIES", brief)
    yield made
    made.stop()


@pytest.fixture
def store(bucket: Bucket, metadata: MetadataServer) -> SharedStore:
    return SharedStore()


async def test_a_late_metadata_server_is_a_store_that_is_away(
    store: SharedStore, metadata: MetadataServer
) -> None:
    with pytest.raises(StorageUnavailable, match="credentials are not available now"):
        await store.read("gs://b/k")
    metadata.start()
    assert await store.read("gs://b/k") == b"{}"


@pytest.mark.parametrize("fault", ["restart", 429, 500, 502, 503])
async def test_a_restart_at_the_renewal_of_the_token_is_a_store_that_is_away(
    store: SharedStore, metadata: MetadataServer, fault: str | int
) -> None:
    metadata.start()
    assert await store.read("gs://b/k") == b"{}"
    if isinstance(fault, int):
        metadata.fault, metadata.text = fault, "restarting"
    else:
        metadata.stop()
    with pytest.raises(StorageUnavailable, match="credentials are not available now"):
        await store.read("gs://b/k")
    metadata.fault = None
    if fault == "restart":
        metadata.start()
    assert await store.read("gs://b/k") == b"{}"


@pytest.mark.parametrize("fault", [400, 403, 404])
async def test_a_refusal_by_sts_or_iam_is_no_outage(
    store: SharedStore, metadata: MetadataServer, fault: int
) -> None:
    metadata.fault = fault
    metadata.start()
    with pytest.raises(StorageUnauthenticated, match="getAccessToken"):
        await store.read("gs://b/k")
    metadata.fault = None
    assert await store.read("gs://b/k") == b"{}"


async def test_a_refusal_of_the_bucket_names_account_and_role(
    store: SharedStore, metadata: MetadataServer, bucket: Bucket
) -> None:
    bucket.refused = True
    metadata.start()
    with pytest.raises(StorageDenied, match=rf"{CALLER}.*roles/storage\.objectUser"):
        await store.read("gs://b/k")
    bucket.refused = False
    assert await store.read("gs://b/k") == b"{}"


@pytest.mark.parametrize("where", ["laptop", "key"])
async def test_credentials_that_a_person_has_to_give_are_no_outage(
    store: SharedStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "laptop":
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    else:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    with pytest.raises(StorageUnauthenticated, match="no usable Google credentials"):
        await store.read("gs://b/k")
