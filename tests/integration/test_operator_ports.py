"""The adapters against the real API server and the real object store emulator."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from finetune_operator.artifacts.port import StorageError
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cluster.api_server_client import ApiServerClient, CallLimits
from finetune_operator.cluster.connect import user_context
from finetune_operator.cluster.lease import LeaderElection, LeaseSettings
from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    JOBS,
    LEASES,
    Conflict,
    NotFound,
    Rejected,
)
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer


@pytest.fixture
async def api(cluster: LocalCluster) -> AsyncIterator[ApiServerClient]:
    configuration = (await user_context(str(cluster.kubeconfig))).configuration
    async with ApiServerClient(configuration, limits=CallLimits(page_size=2)) as made:
        yield made


def config_map(namespace: str, name: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, "labels": labels},
        "data": {"key": "value"},
    }


async def test_a_status_is_replaced_whole_at_the_version_that_was_seen(
    api: ApiServerClient, namespace: str
) -> None:
    made = await api.create(JOBS, fake_trainer.job(namespace, "demo", "no-such-profile"))
    version = made["metadata"]["resourceVersion"]
    assert made["status"] == {"observedGeneration": -1}
    first = {"observedGeneration": 1, "phase": "Pending", "summary": "one"}
    patched = await api.patch_status(JOBS, namespace, "demo", first, resource_version=version)
    assert patched["status"] == first
    assert patched["metadata"]["generation"] == made["metadata"]["generation"]
    with pytest.raises(Conflict, match="modified"):
        await api.patch_status(JOBS, namespace, "demo", first, resource_version=version)
    second = {"observedGeneration": 1, "phase": "Pending"}
    patched = await api.patch_status(
        JOBS, namespace, "demo", second, resource_version=patched["metadata"]["resourceVersion"]
    )
    assert patched["status"] == second


async def test_a_status_that_the_schema_does_not_allow_is_rejected_by_path(
    api: ApiServerClient, namespace: str
) -> None:
    await api.create(JOBS, fake_trainer.job(namespace, "demo", "no-such-profile"))
    with pytest.raises(Rejected, match=r"status\.phase"):
        await api.patch_status(JOBS, namespace, "demo", {"phase": "Sleeping"}, resource_version=None)


async def test_create_get_list_and_delete(api: ApiServerClient, namespace: str) -> None:
    for number in range(5):
        await api.create(CONFIG_MAPS, config_map(namespace, f"c{number}", wanted="yes"))
    await api.create(CONFIG_MAPS, config_map(namespace, "other"))
    listed = await api.list(CONFIG_MAPS, namespace, labels={"wanted": "yes"})
    assert sorted(each["metadata"]["name"] for each in listed) == [f"c{number}" for number in range(5)]
    with pytest.raises(Conflict, match="already exists"):
        await api.create(CONFIG_MAPS, config_map(namespace, "c0"))

    found = await api.get(CONFIG_MAPS, namespace, "c0")
    await api.delete(CONFIG_MAPS, namespace, "c0", uid="another", foreground=True)
    await api.get(CONFIG_MAPS, namespace, "c0")
    await api.delete(CONFIG_MAPS, namespace, "c0", uid=found["metadata"]["uid"], foreground=False)
    with pytest.raises(NotFound, match="c0"):
        await api.get(CONFIG_MAPS, namespace, "c0")
    await api.delete(CONFIG_MAPS, namespace, "c0", uid=found["metadata"]["uid"], foreground=False)


async def test_an_apply_that_changes_nothing_writes_nothing(api: ApiServerClient, namespace: str) -> None:
    first = await api.apply(CONFIG_MAPS, config_map(namespace, "c"))
    again = await api.apply(CONFIG_MAPS, config_map(namespace, "c"))
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    stale = config_map(namespace, "c")
    stale["metadata"]["resourceVersion"] = "1"
    with pytest.raises(Conflict):
        await api.apply(CONFIG_MAPS, stale)


async def test_leadership_goes_from_hand_to_hand(api: ApiServerClient, namespace: str) -> None:
    started: asyncio.Queue[str] = asyncio.Queue()
    ends = {"a": asyncio.Event(), "b": asyncio.Event()}

    def run(identity: str) -> asyncio.Task[None]:
        settings = LeaseSettings(namespace=namespace, name="leader", identity=identity, retry_every=0.2)

        async def work() -> None:
            started.put_nowait(identity)
            await ends[identity].wait()

        return asyncio.create_task(LeaderElection(api, settings).run(work))

    tasks = {"a": run("a")}
    assert await started.get() == "a"
    tasks["b"] = run("b")
    lease = await api.get(LEASES, namespace, "leader")
    assert lease["spec"]["holderIdentity"] == "a"
    ends["a"].set()
    assert await started.get() == "b"
    lease = await api.get(LEASES, namespace, "leader")
    assert lease["spec"]["holderIdentity"] == "b"
    assert lease["spec"]["leaseTransitions"] == 1
    ends["b"].set()
    await asyncio.gather(*tasks.values())


async def test_the_object_store_as_the_operator_uses_it(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    store = SharedStore()
    await store.write("gs://ft-artifacts/ports/attempts/prep-1/request.json", b"{}")
    await store.write("gs://ft-artifacts/ports/attempts/prep-1/request.json", b'{"a": 1}')
    assert await store.read("gs://ft-artifacts/ports/attempts/prep-1/request.json") == b'{"a": 1}'
    assert await store.list("gs://ft-artifacts/ports/attempts") == ["prep-1/request.json"]
    assert await store.read("gs://ft-artifacts/ports/nothing") is None
    assert await store.list("gs://ft-artifacts/nothing") == []
    with pytest.raises(StorageError, match="bucket no-such-bucket does not exist"):
        await store.list("gs://no-such-bucket/x")


async def test_collections_are_read_page_by_page_and_without_their_data_where_asked(
    api: ApiServerClient, namespace: str
) -> None:
    empty = [
        page async for page in api.pages(CONFIG_MAPS, namespace, labels={"none": "here"}, metadata_only=True)
    ]
    assert [each for page in empty for each in page] == []
    for number in range(3):
        await api.create(CONFIG_MAPS, config_map(namespace, f"p{number}", wanted="paged"))
    for metadata_only in (False, True):
        pages = api.pages(CONFIG_MAPS, namespace, labels={"wanted": "paged"}, metadata_only=metadata_only)
        found = [each async for page in pages for each in page]
        assert sorted(each["metadata"]["name"] for each in found) == ["p0", "p1", "p2"]
        assert all(("data" in each) is not metadata_only for each in found)
