"""Pathways' container images (``pathways_images.json``): one pair for each release of JAX.

Server, proxy and the JAX of the trainer image share one protocol without a version check: with a different release, the
client waits forever. So the image tag names the JAX release, which must be the trainer's.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: Matches ``jax-0.9.0`` and ``20260128-jax_0.9.0``.
_JAX_IN_TAG = re.compile(r"(?:^|[-_.])jax[-_](\d+\.\d+\.\d+)(?![\d.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathwaysImages:
    """Pair of images for one release of JAX."""

    jax: str
    """JAX release in the trainer image (pinned by ``trainer_image/requirements.in``)."""
    server: str
    """Image of the resource manager and the workers."""
    proxy: str


@cache
def pathways_images() -> PathwaysImages:
    """Returns the pair of images for this release's trainer."""
    text = files("finetune_operator.catalog").joinpath("pathways_images.json").read_text(encoding="utf-8")
    return PathwaysImages(**json.loads(text))


def jax_of_image(image: str) -> str | None:
    """Returns the JAX release that an image's tag names; None if it names none."""
    reference = image.partition("@")[0]
    # A colon before the last slash belongs to a registry's port.
    tag = reference.rpartition("/")[2].partition(":")[2]
    found = _JAX_IN_TAG.search(tag)
    return found[1] if found else None
