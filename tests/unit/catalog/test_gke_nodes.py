"""What nodes leave to pods."""

import pytest

from finetune_contract.tpu import TpuMachine, machines
from finetune_operator.catalog import host_requests
from finetune_operator.catalog.gke_nodes import allocatable_gib, request_cores


@pytest.mark.parametrize(("vcpus", "reserved"), [(1, 0.06), (2, 0.07), (4, 0.08), (24, 0.13), (180, 0.52)])
def test_cores_beside_the_reservation_and_the_daemonsets(vcpus: int, reserved: float) -> None:
    left = vcpus - reserved - request_cores(vcpus)
    assert 2 <= left < 3


@pytest.mark.parametrize("machine", machines().values(), ids=lambda machine: machine.name)
def test_a_host_with_published_figures_has_room_for_its_pod_and_the_daemonsets(machine: TpuMachine) -> None:
    asked = host_requests(machine.name)
    gib = int(asked["memory"].removesuffix("Gi"))
    # clouds publish GiB as GB, and the kernel keeps up to 3 % for itself
    assert gib + 1 <= allocatable_gib(0.97 * machine.memory_gb)
    assert gib > 0.8 * machine.memory_gb * 10**9 / 2**30
    assert 0.85 * machine.vcpus < int(asked["cpu"]) <= machine.vcpus - 2


def test_a_host_without_published_figures_requests_nothing() -> None:
    assert host_requests("tpu7-standard-4t") == {}
