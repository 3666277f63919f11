"""Pathways' images and the JAX that they are for."""

import re
from pathlib import Path

import pytest

from finetune_operator.catalog import all_shapes, jax_of_image, pathways_images

LOCK = Path(__file__).parents[3] / "trainer_image" / "requirements.txt"


def test_the_pair_is_for_the_trainers_jax() -> None:
    pinned = re.search(r"^jax==(\S+)", LOCK.read_text(), re.MULTILINE)
    assert pinned is not None
    known = pathways_images()
    assert known.jax == pinned[1]
    assert jax_of_image(known.server) == jax_of_image(known.proxy) == known.jax


@pytest.mark.parametrize(
    ("image", "jax"),
    [
        ("us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:jax-0.9.0", "0.9.0"),
        ("registry.example:5000/pathways/server:20260128-jax_0.9.0", "0.9.0"),
        ("mirror/sidecar:20260423-python_3.12-jax_0.10.0", "0.10.0"),
        ("mirror/server:jax-0.11.0@sha256:" + "0" * 64, "0.11.0"),
        ("mirror/server@sha256:" + "0" * 64, None),
        ("mirror/server:latest", None),
        ("mirror/server", None),
        ("registry.example:5000/jax-0.9.0/server", None),
        ("mirror/server:ajax-0.9.0", None),
        ("mirror/server:jax-0.9", None),
    ],
)
def test_the_tag_names_the_jax(image: str, jax: str | None) -> None:
    assert jax_of_image(image) == jax


def test_only_single_device_machines_are_unknown_to_pathways() -> None:
    unknown = {shape.accelerator for shape in all_shapes() if shape.pathways_instance_type is None}
    assert unknown == {"tpu-v5-lite-device"}


@pytest.mark.parametrize(
    ("accelerator", "topology", "chips", "instance_type"),
    [
        ("tpu-v4-podslice", "2x2x2", 4, "tpuv4:2x2x2"),
        ("tpu-v5-lite-podslice", "4x4", 4, "tpuv5e:4x4"),
        ("tpu-v5-lite-podslice", "2x4", 8, "tpuv5e1t:2x4"),
        ("tpu-v5p-slice", "4x4x4", 4, "tpuv5:4x4x4"),
        ("tpu-v6e-slice", "16x16", 4, "tpuv6e:16x16"),
        ("tpu-v6e-slice", "2x4", 4, "tpuv6e:2x4"),
        ("tpu-v6e-slice", "2x4", 8, "tpuv6e1t:2x4"),
        ("tpu7x", "4x4x8", 4, "tpu7x:4x4x8"),
    ],
)
def test_instance_types_are_pathways_own_names(
    accelerator: str, topology: str, chips: int, instance_type: str
) -> None:
    (found,) = (
        shape
        for shape in all_shapes()
        if (shape.accelerator, shape.topology, shape.chips_per_host) == (accelerator, topology, chips)
    )
    assert found.pathways_instance_type == instance_type
