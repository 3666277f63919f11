"""The Pathways controller: its images, its scratch folder, and the slices that support it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from finetune_operator.api import FineTuneProfileSpec, Reason
from finetune_operator.api.placement import Controller
from finetune_operator.catalog import jax_of_image, pathways_images
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import DefaultedProfileSpec
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.slices.topology import Placement

#: Default of other tools: one bucket for all users, to which compiled programs and arguments would leak.
SHARED_STAGING = "gs://cloud-pathways-staging"

_SERVER, _PROXY = "pathwaysServer", "pathwaysProxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pathways:
    """Parameters of Pathways' servers."""

    server: str
    """Image of the resource manager and the workers."""
    proxy: str
    """Image of the proxy that the trainer's JAX connects to."""
    scratch: str
    """``gs://`` folder without a trailing slash."""
    instance_type: str
    """Instance type of a slice, as Pathways names it: ``tpuv6e:4x4``."""
    head_node_selector: Mapping[str, str]

    @property
    def jax(self) -> str | None:
        """JAX release of the images; None if digests hide it."""
        return jax_of_image(self.server) or jax_of_image(self.proxy)


def with_pathways_images(images: Object) -> dict[str, Any]:
    """Returns the profile's images, with the catalog's pair for those that it does not name."""
    known = pathways_images()
    return {_SERVER: known.server, _PROXY: known.proxy, **images}


def pathways_faults(profile: FineTuneProfileSpec) -> Iterator[str]:
    """Yields invalid Pathways settings of a profile, as sentences that end with a fix."""
    jax = pathways_images().jax
    images = {_SERVER: profile.images.pathways_server, _PROXY: profile.images.pathways_proxy}
    named = {name: image for name, image in images.items() if image is not None}
    if len(named) == 1:
        (present,), (missing,) = named, images.keys() - named
        yield (
            f"images.{present} is set and images.{missing} is not; both must be of one release: "
            f"set both, or neither for those of jax-{jax}."
        )
    for name, image in named.items():
        found = jax_of_image(image)
        if found is not None and found != jax:
            yield (
                f"images.{name} {image} is for JAX {found}, but the trainer has JAX {jax}: "
                f"use the tag jax-{jax}."
            )
        elif found is None and "@" not in image:
            yield (
                f"images.{name} {image} does not name its JAX release, and the trainer has JAX {jax}: "
                f"use the tag jax-{jax}, or a digest."
            )
    if (scratch := profile.storage.pathways_scratch) and (fault := _scratch_fault(scratch)):
        yield f"storage.pathwaysScratch {fault}"


def resolve_pathways(profile: DefaultedProfileSpec, namespace: str, placement: Placement) -> Pathways:
    """Resolves Pathways for a job's slice, with the images of the profile in the stored plan. Raises Refused.

    The servers run programs that they find in their scratch folder, so each namespace has its own.
    """
    shape = placement.shape
    instance_type = shape.pathways_instance_type
    if instance_type is None:
        raise _not_possible(
            f"Pathways does not know {shape.accelerator} {shape.topology}: use another slice, or McJAX."
        )
    if placement.queued_provisioning:
        raise _not_possible(
            f"capacity {placement.capacity} is provisioned through a queue, which takes jobs of one set of pods, "
            "and Pathways has a head and workers: use Spot, OnDemand or Reservation, or McJAX."
        )
    storage, images = profile.storage, profile.images
    scratch = (
        f"{storage.pathways_scratch.rstrip('/')}/{namespace}"
        if storage.pathways_scratch
        else f"{storage.artifacts.rstrip('/')}/{namespace}/pathways"
    )
    fault = _scratch_fault(scratch)
    if fault:
        raise _not_possible(
            f"Pathways' scratch folder {fault} The profile names it: storage.pathwaysScratch."
        )
    if images.pathways_server is None or images.pathways_proxy is None:
        # Admission names them in every stored plan with this controller.
        raise _not_possible("the stored plan names no images of Pathways: create the job again.")
    return Pathways(
        server=images.pathways_server,
        proxy=images.pathways_proxy,
        scratch=scratch,
        instance_type=instance_type,
        head_node_selector=profile.pathways.head_node_selector or {},
    )


def refuse_other_controller(admitted: str, now: Controller) -> None:
    """Raises Refused if an edit changes the controller, since converted model and checkpoints are laid out for one."""
    if now != admitted:
        raise Refused(
            Reason.PATHWAYS_NOT_POSSIBLE,
            f"spec.resources.controller is {now}, but the job was admitted with {admitted}, for which its converted "
            f"model and checkpoints are laid out. Set it to {admitted} again, or create a job with another name.",
        )


def _scratch_fault(uri: str) -> str | None:
    if not uri.startswith("gs://"):
        return f"is {uri}, which Pathways' servers cannot read: use a folder in gs://."
    if f"{uri}/".startswith(f"{SHARED_STAGING}/"):
        return f"is {uri}, a bucket that all users of Pathways share: use a bucket of your own."
    return None


def _not_possible(why: str) -> Refused:
    return Refused(Reason.PATHWAYS_NOT_POSSIBLE, f"spec.resources.controller is Pathways, but {why}")
