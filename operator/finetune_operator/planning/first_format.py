"""Plans of format 1, which earlier releases kept as ``<job>-plan`` in the job's own namespace.

Whoever may create ConfigMaps there may have written or replaced one. So it is read once, for a job whose status names a
profile but no stored plan, and only what can be verified is taken over: the profile by its hash in the status, which
tenants cannot write, and the spec by the profile's rules.
"""

import json
from collections.abc import Mapping
from typing import Any

from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import BUILT_IN, lookup, merge
from finetune_operator.planning.pathways import with_pathways_images
from finetune_operator.planning.policy import check_policy
from finetune_operator.planning.snapshot import LIFECYCLE, Snapshot, digest, identity

type Object = Mapping[str, Any]

_PATHWAYS_IMAGES = ("pathwaysServer", "pathwaysProxy")


def first_format_name(job: Object) -> str | None:
    """Name of the ConfigMap in the job's namespace that may be taken over; None for a job that needs none."""
    status = job.get("status") or {}
    if lookup(status, "resolved.profile.hash") is None or lookup(status, "resolved.plan") is not None:
        return None
    return f"{job['metadata']['name']}-plan"


def take_over(job: Object, config_map: Object | None) -> Snapshot:
    """The plan that a job of an earlier release runs under. Raises Refused (PlanMissing, PolicyViolation).

    The profile keeps what it meant when the job was admitted: rules that were not written forbade nothing, and one
    cache served all namespaces.
    """
    hashed = lookup(job.get("status") or {}, "resolved.profile.hash")
    name = lookup(job.get("status") or {}, "resolved.profile.name")
    data = (config_map or {}).get("data") or {}
    try:
        profile, spec = json.loads(data["profile.json"]), json.loads(data["spec.json"])
        if data["format"] != "1" or data["profile-name"] != name:
            raise ValueError("it is of another format or profile")
        profile = _verified(profile, spec["resources"]["controller"], hashed)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused(
            Reason.PLAN_MISSING,
            f'The job was admitted by an earlier release under profile "{name}" ({hashed}), and ConfigMap '
            f"{job['metadata']['name']}-plan in its namespace does not hold that plan ({error!r}). Create the job "
            "again; spec.resumeFrom continues from its last checkpoint.",
        ) from error
    as_admitted = merge(
        profile, {"storage": {"cacheScope": "Profile"}, "constraints": {"mode": "Open"}}, profile
    )
    base = merge(BUILT_IN, profile.get("defaults", {}))
    check_policy(job, str(name), as_admitted, spec, base)
    return Snapshot(
        job=identity(job),
        profile_name=str(name),
        profile_hash=str(hashed),
        profile=as_admitted,
        spec={key: value for key, value in spec.items() if key not in LIFECYCLE},
        contract=None,
    )


def _verified(profile: Object, controller: str, hashed: object) -> Object:
    """The profile's spec as the status names it. Raises ValueError."""
    if digest(profile) == hashed:
        return profile
    # Its hash was taken before the catalogue's images for Pathways were filled in; the catalogue still has them.
    images = {key: value for key, value in profile["images"].items() if key not in _PATHWAYS_IMAGES}
    plain = {**profile, "images": images}
    if controller != "Pathways" or digest(plain) != hashed:
        raise ValueError("its profile is not the one that the job was admitted under")
    return {**plain, "images": with_pathways_images(images)}
