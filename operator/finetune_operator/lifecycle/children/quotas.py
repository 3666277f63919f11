"""ResourceQuotas of a namespace, compared with the slices that a job may take."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from finetune_operator.api import Reason
from finetune_operator.lifecycle.children.fields import Object, section, text
from finetune_operator.lifecycle.children.jobset import quantity
from finetune_operator.planning import Plan, Refused

_CHIPS = "requests.google.com/tpu"
_PODS = ("pods", "count/pods")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A ResourceQuota that applies to every pod of its namespace."""

    name: str
    hard: Mapping[str, int]
    """Limits of chips and pods, by resource."""

    @classmethod
    def parse(cls, found: Object) -> Self | None:
        """Returns None for one that applies to some pods only. Never raises on an object of an API server."""
        if not applies_to_all_pods(found):
            return None
        hard = section(section(found, "spec"), "hard")
        limits = {key: quantity(hard[key]) for key in (_CHIPS, *_PODS) if key in hard}
        return cls(
            name=text(section(found, "metadata"), "name") or "",
            hard={key: limit for key, limit in limits.items() if limit is not None},
        )


def applies_to_all_pods(quota: Object) -> bool:
    """Whether a ResourceQuota has no scopes, which choose pods."""
    spec = section(quota, "spec")
    return not (spec.get("scopes") or spec.get("scopeSelector"))


def reduced_quota(found: Object) -> Object | None:
    """Reduces a ResourceQuota to what :meth:`Quota.parse` reads; None if that returns None."""
    if not applies_to_all_pods(found):
        return None
    hard = section(section(found, "spec"), "hard")
    return {
        "metadata": {"name": text(section(found, "metadata"), "name") or ""},
        "spec": {"hard": {key: hard[key] for key in (_CHIPS, *_PODS) if key in hard}},
    }


def check_quotas(plan: Plan, quotas: Iterable[Quota]) -> None:
    """Raises Refused if a quota, even unused, has no room for any slice that the job may take."""
    others = plan.memory.candidates if plan.memory else []
    slices = {plan.placement.shape.name: plan.mesh} | {each.slice.name: each.mesh for each in others}
    chips = {name: mesh.slices * mesh.hosts * mesh.chips_per_host for name, mesh in slices.items()}
    head = 0 if plan.pathways is None else 1
    pods = {name: mesh.slices * mesh.hosts + head for name, mesh in slices.items()}
    for quota in quotas:
        for resource, limit in quota.hard.items():
            needs = chips if resource == _CHIPS else pods
            name = min(needs, key=lambda each: needs[each])
            if needs[name] > limit:
                what = name if len(slices) == 1 else f"even {name}, the smallest slice that the job may take,"
                raise Refused(
                    Reason.QUOTA_TOO_SMALL,
                    f"ResourceQuota {quota.name} of namespace {plan.job.namespace} allows {limit} of {resource}, and "
                    f"{what} needs {needs[name]}. Ask the platform team for a larger quota, or name a smaller slice "
                    "in spec.resources; the job continues automatically.",
                )
