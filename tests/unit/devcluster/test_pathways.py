"""The stand-in for Pathways' servers keeps to what a JobSet renders, and the nodes give a pod what it needs for it."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest
import yaml

from devcluster.agent.addresses import host_aliases, pod_address, resolve_names
from devcluster.agent.environment import ConfigError, pathways_proxy_environment
from devcluster.layout import MANIFESTS
from devcluster.pathways import flags
from devcluster.pathways.__main__ import chosen
from devcluster.pathways.flags import ClientFlags, ResourceManagerFlags
from devcluster.pathways.images import JAX, PROXY, SERVER
from devcluster.pathways.servers import WorkerRejectedError
from finetune_operator.catalog import all_shapes, jax_of_image, pathways_images
from tests.pathways_plans import SHAPES, plan, train

SCRATCH = "--gcs_scratch_location=gs://scratch"


def test_the_local_profile_names_the_stand_in_and_its_jax_is_the_trainers() -> None:
    profile = yaml.safe_load((MANIFESTS / "profile-local.yaml").read_text())
    images = profile["spec"]["images"]
    assert (images["pathwaysServer"], images["pathwaysProxy"]) == (SERVER, PROXY)
    assert jax_of_image(SERVER) == jax_of_image(PROXY) == JAX == pathways_images().jax


@pytest.mark.parametrize(("name", "shape", "slices"), SHAPES)
def test_rendered_flags_are_understood(name: str, shape: Any, slices: int) -> None:
    jobs = train(plan(shape, slices))["spec"]["replicatedJobs"]
    head, worker = (job["template"]["spec"]["template"]["spec"] for job in jobs)
    manager, proxy = (container["args"] for container in head["initContainers"])
    assert flags.server(manager) == ResourceManagerFlags(port=29001, slices=slices, chips=shape.chips)
    at_head = {"manager_host": "$(PATHWAYS_HEAD)", "manager_port": 29001}
    assert flags.proxy(proxy) == ClientFlags(port=29000, **at_head)
    assert flags.server(worker["containers"][0]["args"]) == ClientFlags(port=29005, **at_head)
    chips = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={shape.chips * slices}",
    }
    assert pathways_proxy_environment({"JAX_PLATFORMS": "proxy"}, {"spec": head}) == chips


def test_every_slices_name_is_understood() -> None:
    for shape in all_shapes():
        if shape.pathways_instance_type:
            manager = [
                "--server_port=1",
                SCRATCH,
                "--node_type=resource_manager",
                "--instance_count=1",
                f"--instance_type={shape.pathways_instance_type}",
            ]
            assert flags.server(manager) == ResourceManagerFlags(port=1, slices=1, chips=shape.chips)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--server_port=1", SCRATCH, "--resource_manager_address=h:1", "--elastic=1"], "--elastic=1"),
        (["--server_port=1", SCRATCH], "--resource_manager_address"),
        (
            ["--server_port=1", "--gcs_scratch_location=/tmp", "--resource_manager_address=h:1"],
            "not a gs:// URI",
        ),
        (["--server_port=1", SCRATCH, "--resource_manager_address=h"], "not HOST:PORT"),
        (
            [
                "--server_port=1",
                SCRATCH,
                "--node_type=resource_manager",
                "--instance_count=1",
                "--instance_type=v6e-8",
            ],
            "v6e-8 is not a slice",
        ),
    ],
)
def test_what_is_not_understood_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        flags.server(arguments)
    assert words in capsys.readouterr().err


def test_without_a_resource_manager_there_are_no_devices_to_stand_in_for() -> None:
    assert pathways_proxy_environment({"JAX_PLATFORMS": "cpu"}, {"spec": {}}) == {}
    with pytest.raises(ConfigError, match="no resource manager"):
        pathways_proxy_environment({"JAX_PLATFORMS": "proxy"}, {"spec": {}})


def pod(hostname: str, coordinator: str = "", uid: str = "u1") -> dict[str, Any]:
    labels = {"jobset.sigs.k8s.io/jobset-uid": uid, "jobset.sigs.k8s.io/coordinator": coordinator}
    return {
        "metadata": {
            "uid": f"pod-{hostname}",
            "labels": {key: value for key, value in labels.items() if value},
        },
        "spec": {"hostname": hostname},
    }


def test_pods_have_addresses_of_their_own_and_find_the_head_by_name() -> None:
    name = "run-pathways-head-0-0.pabc"
    head, worker = pod("run-pathways-head-0-0", name), pod("run-worker-0-1", name)
    assert pod_address(head) != pod_address(worker)
    assert pod_address(head) != pod_address(pod("run-pathways-head-0-0", uid="u2"))
    assert resolve_names(f"grpc://{name}:29000", host_aliases(worker)) == f"grpc://{pod_address(head)}:29000"
    alone = {"metadata": {"uid": "a"}, "spec": {}}
    assert pod_address(alone).startswith("127.")
    assert host_aliases(alone) == {}


#: Of this process alone, as others may run these tests at the same time.
ADDRESS = f"127.99.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
MANAGER, PROXY_PORT = 29601, 29600


@contextlib.asynccontextmanager
async def running(server: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(server)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def manager() -> Coroutine[None, None, None]:
    slices = ["--instance_count=1", "--instance_type=tpuv6e:2x4", "--node_type=resource_manager"]
    return chosen("server", [f"--server_port={MANAGER}", SCRATCH, *slices], {"POD_ADDRESS": ADDRESS})


def client(image: str, port: int, **environment: str) -> Coroutine[None, None, None]:
    to_manager = f"--resource_manager_address={ADDRESS}:{MANAGER}"
    arguments: Sequence[str] = [f"--server_port={port}", SCRATCH, to_manager]
    return chosen(image, arguments, {"POD_ADDRESS": ADDRESS, **environment})


def worker(host: int, hosts: str = "a,b", slice_number: int = 0) -> Coroutine[None, None, None]:
    told = {
        "TPU_WORKER_ID": str(host),
        "TPU_WORKER_HOSTNAMES": hosts,
        "MEGASCALE_SLICE_ID": str(slice_number),
    }
    return client("server", 29610 + 10 * host, **told)


async def devices() -> int:
    """What the proxy sends to a client, as soon as it does."""
    while True:
        try:
            reader, writer = await asyncio.open_connection(ADDRESS, PROXY_PORT)
        except OSError:
            await asyncio.sleep(0.01)
            continue
        try:
            return int(json.loads(await reader.readline())["devices"])
        finally:
            writer.close()


async def test_the_proxy_answers_when_the_workers_of_all_hosts_are_there() -> None:
    async with running(client("proxy_server", PROXY_PORT)), running(manager()), running(worker(0)):
        asked = asyncio.create_task(devices())
        done, _ = await asyncio.wait({asked}, timeout=0.6)
        assert not done
        async with running(worker(1)):
            assert await asyncio.wait_for(asked, 10) == 8


async def test_workers_register_anew_with_a_manager_that_was_started_again() -> None:
    async with running(client("proxy_server", PROXY_PORT)), running(worker(0)), running(worker(1)):
        for _ in range(2):
            async with running(manager()):
                assert await asyncio.wait_for(devices(), 10) == 8


async def test_a_worker_of_another_slice_is_refused() -> None:
    async with running(manager()):
        with pytest.raises(WorkerRejectedError, match="slice 3, but there are 1"):
            await asyncio.wait_for(worker(0, slice_number=3), 10)
        with pytest.raises(WorkerRejectedError, match="3 hosts cannot share 8 chips"):
            await asyncio.wait_for(worker(0, hosts="a,b,c"), 10)
