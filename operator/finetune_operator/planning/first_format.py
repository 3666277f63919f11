"""Plans of format 1, which earlier releases stored as ``<job>-plan`` in the job's own namespace.

Any user who can create ConfigMaps there may have written or replaced one. So it is read only once, for a job whose
status names a profile but no stored plan, and only verifiable parts are migrated: the profile, the run folder and the
model of another job are verified against the status, which tenants cannot write, and the spec against the API's schema.
The profile's rules apply to the spec before anything starts (:func:`.admission.replan`); running children stay within
its limits even if the rules refuse it.
"""

import json
from collections.abc import Mapping
from typing import Any

from finetune_contract import CONTRACT_VERSION
from finetune_operator.api import InvalidObject, Reason, parse_job
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup, merge
from finetune_operator.planning.slices.pathways import with_pathways_images
from finetune_operator.planning.stored_plan import LIFECYCLE, StoredPlan, digest, identity

type Object = Mapping[str, Any]

_PATHWAYS_IMAGES = ("pathwaysServer", "pathwaysProxy")


def first_format_name(job: Object) -> str | None:
    """Returns the name of the ConfigMap in the job's namespace to migrate; None if the job needs none."""
    status = job.get("status") or {}
    if lookup(status, "resolved.profile.hash") is None or lookup(status, "resolved.plan") is not None:
        return None
    return f"{job['metadata']['name']}-plan"


def take_over(job: Object, config_map: Object | None) -> StoredPlan:
    """Returns the plan under which a job of an earlier release runs. Raises Refused (PlanMissing).

    The profile keeps its meaning at admission: missing rules forbade nothing, and one cache served all namespaces.
    These plans record no version of the contract. The trainer image is assumed to support this operator's version; an
    image that does not support it refuses the request.
    """
    hashed = lookup(job.get("status") or {}, "resolved.profile.hash")
    name = lookup(job.get("status") or {}, "resolved.profile.name")
    data = (config_map or {}).get("data") or {}
    try:
        profile, spec = json.loads(data["profile.json"]), json.loads(data["spec.json"])
        if data["format"] != "1" or data["profile-name"] != name:
            raise ValueError("it is of another format or profile")
        profile = _verified(profile, lookup(spec, "resources.controller"), hashed)
        _check_schema(job, spec)
        snapshot = StoredPlan(
            job=identity(job),
            profile_name=str(name),
            profile_hash=str(hashed),
            profile=_as_meant(profile),
            spec={key: value for key, value in spec.items() if key not in LIFECYCLE},
            contract=CONTRACT_VERSION,
        )
        _check_status(job, snapshot)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused(
            Reason.PLAN_MISSING,
            f'The job was admitted by an earlier release under profile "{name}" ({hashed}), and ConfigMap '
            f"{job['metadata']['name']}-plan in its namespace does not hold that plan ({error!r}). Create the job "
            "again; spec.resumeFrom continues from its last checkpoint.",
        ) from error
    return snapshot


def _as_meant(profile: Object) -> Object:
    """Returns the profile with the earlier release's implicit defaults written out."""
    return merge(profile, {"storage": {"cacheScope": "Profile"}, "constraints": {"mode": "Open"}}, profile)


def _check_schema(job: Object, spec: Object) -> None:
    """Raises ValueError if ``spec`` is invalid beyond the faults of the job itself under today's schema.

    The API server accepted the latter when the job was created.
    """
    model = spec["model"]
    if "fromJob" in model:
        # Resolved at admission; _check_status verifies the resolved model.
        reference = {"fromJob": job["spec"]["model"]["fromJob"]}
        model = {key: value for key, value in model.items() if key != "uri"} | reference
    new = _faults({**job, "spec": {**spec, "model": model}}) - _faults(job)
    if new:
        raise ValueError(f"spec.json does not follow the API: {min(new)}"[:300])


def _faults(job: Object) -> set[str]:
    try:
        parse_job(job)
    except InvalidObject as error:
        return {f"{fault.path}: {fault.message}" for fault in error.faults}
    return set()


def _check_status(job: Object, snapshot: StoredPlan) -> None:
    """Raises ValueError if the plan names another run folder or model than the status.

    The operator itself writes into the run folder, and rules for the model of another job apply to its base model.
    """
    resolved, model = job["status"]["resolved"], snapshot.spec["model"]
    if snapshot.run_folder.uri != resolved["runFolder"]:
        raise ValueError("its run folder is not the one that the status names")
    lineage = model.get("fromJob")
    reported = resolved.get("model", {})
    if lineage != reported.get("fromJob") or (
        lineage and model["uri"].rstrip("/") != reported["source"].rstrip("/")
    ):
        raise ValueError("its model is not the one that the status names")


def _verified(profile: Object, controller: object, hashed: object) -> Object:
    """Returns the profile's spec that the status names. Raises ValueError if it is another one."""
    if digest(profile) == hashed:
        return profile
    # The hash was taken before the catalog's images for Pathways were filled in; the catalog still has them.
    images = {key: value for key, value in profile["images"].items() if key not in _PATHWAYS_IMAGES}
    plain = {**profile, "images": images}
    if controller != "Pathways" or digest(plain) != hashed:
        raise ValueError("its profile is not the one that the job was admitted under")
    return {**plain, "images": with_pathways_images(images)}
