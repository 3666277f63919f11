"""Pathways on the local nodes: the profile's images are theirs, and JAX on the head gets its devices on the CPU."""

from typing import Any

import pytest
import yaml

from devcluster.agent.environment import ConfigError, pathways_proxy_environment
from devcluster.layout import MANIFESTS
from devcluster.pathways import JAX, PROXY, SERVER
from finetune_operator.catalog import jax_of_image, pathways_images
from tests.pathways_plans import SHAPES, plan, train


def test_the_local_profile_names_the_local_images_and_their_jax_is_the_trainers() -> None:
    profile = yaml.safe_load((MANIFESTS / "profile-local.yaml").read_text())
    images = profile["spec"]["images"]
    assert (images["pathwaysServer"], images["pathwaysProxy"]) == (SERVER, PROXY)
    assert jax_of_image(SERVER) == jax_of_image(PROXY) == JAX == pathways_images().jax


@pytest.mark.parametrize(("name", "shape", "slices"), SHAPES)
def test_the_head_gets_a_device_for_each_chip_of_its_workers(name: str, shape: Any, slices: int) -> None:
    head = train(plan(shape, slices))["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pathways_proxy_environment({"JAX_PLATFORMS": "proxy"}, {"spec": head}) == {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={shape.chips * slices}",
    }


def test_without_a_resource_manager_there_are_no_devices_to_stand_in_for() -> None:
    assert pathways_proxy_environment({"JAX_PLATFORMS": "cpu"}, {"spec": {}}) == {}
    with pytest.raises(ConfigError, match="no resource manager"):
        pathways_proxy_environment({"JAX_PLATFORMS": "proxy"}, {"spec": {}})
