"""ResourceQuotas of a namespace, compared with what a job needs on the slices that it may take."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from finetune_operator.api import Reason
from finetune_operator.lifecycle.children.fields import section, text
from finetune_operator.lifecycle.children.jobset import quantity
from finetune_operator.objects import Object
from finetune_operator.planning import Plan, Refused
from finetune_operator.planning.slices.choice import slice_label

_CHIPS = "requests.google.com/tpu"


def needs(*, slices: int, hosts: int, chips: int, heads: int) -> Mapping[str, int]:
    """Returns what a JobSet counts as in a quota, by resource. ``hosts``: of each slice. ``chips``: of each host.
    ``heads``: of Pathways."""
    pods = slices * hosts + heads
    return {
        _CHIPS: slices * hosts * chips,
        "pods": pods,
        "count/pods": pods,
        "count/jobs.batch": slices + heads,
        "count/jobsets.jobset.x-k8s.io": 1,
    }


_RESOURCES = tuple(needs(slices=1, hosts=1, chips=1, heads=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A ResourceQuota that applies to every pod of its namespace."""

    name: str
    hard: Mapping[str, int]
    """Limits of what :func:`needs` counts, by resource."""

    @classmethod
    def parse(cls, found: Object) -> Self | None:
        """Returns None for one that applies to some pods only. Never raises on an object of an API server."""
        if not applies_to_all_pods(found):
            return None
        hard = section(section(found, "spec"), "hard")
        limits = {key: quantity(hard[key]) for key in _RESOURCES if key in hard}
        return cls(
            name=text(section(found, "metadata"), "name") or "",
            hard={key: limit for key, limit in limits.items() if limit is not None},
        )

    def shortage(self, what: str, needed: Mapping[str, int]) -> str | None:
        """Returns which limit is too low for what needs that, even if nothing is used; None: all have room."""
        return next(
            (
                f"allows {limit} of {resource}, and {what} needs {needed[resource]}"
                for resource, limit in self.hard.items()
                if needed[resource] > limit
            ),
            None,
        )


def applies_to_all_pods(quota: Object) -> bool:
    """Whether a ResourceQuota has no scopes, which choose pods."""
    spec = section(quota, "spec")
    return not (spec.get("scopes") or spec.get("scopeSelector"))


def check_quotas(plan: Plan, quotas: Iterable[Quota]) -> str | None:
    """Returns a remark if quotas, even unused, have no room for some slice that the job may take; None if for all.

    Raises Refused if they have room for none.
    """
    others = plan.memory.candidates if plan.memory else []
    meshes = {plan.placement.shape.name: plan.mesh} | {each.slice.name: each.mesh for each in others}
    heads, short = 0 if plan.pathways is None else 1, list[str]()
    for number, (name, mesh) in enumerate(sorted(meshes.items(), key=lambda each: each[1].devices)):
        what = slice_label(name, mesh.slices)
        if len(meshes) > 1 and number == 0:
            what = f"even {what}, the smallest slice that the job may take,"
        needed = needs(slices=mesh.slices, hosts=mesh.hosts, chips=mesh.chips_per_host, heads=heads)
        lacks = ((quota.name, lack) for quota in quotas if (lack := quota.shortage(what, needed)))
        short += [f"ResourceQuota {own} of namespace {plan.job.namespace} {lack}." for own, lack in lacks][:1]
    if len(short) < len(meshes):
        return f"{short[-1]} Training can start only on a smaller slice." if short else None
    raise Refused(
        Reason.QUOTA_TOO_SMALL,
        f"{short[0]} Ask the platform team for a larger quota, or name a smaller slice in spec.resources; the job "
        "continues automatically.",
    )
