"""Pathways' container images (``pathways_images.json``): one pair for each release of JAX.

Server, proxy and the JAX of the trainer's image speak one protocol without a version check: another release shows as a
client that waits for ever. So the tag tells the release, and it must be the trainer's.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: ``jax-0.9.0``; ``20260128-jax_0.9.0``.
_JAX_IN_TAG = re.compile(r"(?:^|[-_.])jax[-_](\d+\.\d+\.\d+)(?![\d.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathwaysImages:
    """The pair for one release of JAX."""

    jax: str
    """That the trainer's image holds (``trainer_image/requirements.in`` pins it)."""
    server: str
    """Resource manager and workers."""
    proxy: str


@cache
def pathways_images() -> PathwaysImages:
    """The pair that belongs to this release's trainer."""
    text = files("finetune_operator.catalog").joinpath("pathways_images.json").read_text(encoding="utf-8")
    return PathwaysImages(**json.loads(text))


def jax_of_image(image: str) -> str | None:
    """The release of JAX that an image's tag names; None where it names none."""
    reference = image.partition("@")[0]
    # A colon before the last slash is that of a registry's port.
    tag = reference.rpartition("/")[2].partition(":")[2]
    found = _JAX_IN_TAG.search(tag)
    return found[1] if found else None
