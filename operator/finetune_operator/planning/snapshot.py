"""The immutable ConfigMap ``<job>-plan``: what was decided at admission, so that nothing is resolved twice."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune_contract import CONTRACT_VERSION, CacheLayout, ContractVersion, RunFolder
from finetune_contract.versions import FIRST_VERSION
from finetune_operator.api import API_VERSION, Reason
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.pathways import with_pathways_images

type Object = Mapping[str, Any]

SNAPSHOT_SUFFIX = "-plan"
_FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the ConfigMap says."""

    profile_name: str
    profile_hash: str
    profile: Object
    """The profile's spec at admission; for Pathways with the images that it leaves to the catalogue."""
    spec: Object
    """The merged spec at admission, with the resolved global batch."""
    run_folder: RunFolder
    cache: CacheLayout
    contract: ContractVersion
    """What the trainer image is taken to speak until it says so itself: what the operator spoke at admission."""


def digest(document: Any) -> str:
    """sha256 over canonical JSON, 16 hexadecimal digits: enough to tell two specs apart, short enough to read."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def owner_reference(job: Object) -> dict[str, Any]:
    """Children go when the job goes."""
    return {
        "apiVersion": API_VERSION,
        "kind": "FineTuneJob",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def make_snapshot(job: Object, profile: Object, spec: Object) -> Snapshot:
    """What is to be kept of an admission."""
    metadata, storage = job["metadata"], profile["spec"]["storage"]
    artifacts = storage["artifacts"].rstrip("/")
    return Snapshot(
        profile_name=profile["metadata"]["name"],
        profile_hash=digest(profile["spec"]),
        profile=_with_images(profile["spec"], spec["resources"]["controller"]),
        spec=spec,
        run_folder=RunFolder(resumed.rstrip("/"))
        if (resumed := spec.get("resumeFrom", {}).get("runFolder"))
        else RunFolder.of(artifacts, metadata.get("namespace", "default"), metadata["name"], metadata["uid"]),
        cache=CacheLayout(storage.get("cache", f"{artifacts}/cache").rstrip("/")),
        contract=CONTRACT_VERSION,
    )


def _with_images(profile: Object, controller: str) -> Object:
    """The catalogue's pair for Pathways is named now: it changes with the operator's release, the trainer's image does
    not."""
    if controller != "Pathways":
        return profile
    return {**profile, "images": with_pathways_images(profile["images"])}


def render_snapshot(job: Object, snapshot: Snapshot) -> dict[str, Any]:
    """The ConfigMap. Same job and snapshot, same ConfigMap."""
    metadata = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{metadata['name']}{SNAPSHOT_SUFFIX}",
            "namespace": metadata.get("namespace", "default"),
            "labels": {
                "app.kubernetes.io/name": "finetune",
                "app.kubernetes.io/instance": metadata["name"],
                "app.kubernetes.io/managed-by": "finetune-operator",
                "app.kubernetes.io/component": "plan",
                "tpu-finetune.dev/job": metadata["name"],
                "tpu-finetune.dev/job-uid": metadata["uid"],
            },
            "ownerReferences": [owner_reference(job)],
        },
        "immutable": True,
        "data": {
            "format": _FORMAT,
            "profile-name": snapshot.profile_name,
            "profile-hash": snapshot.profile_hash,
            "profile.json": json.dumps(snapshot.profile, indent=1, sort_keys=True),
            "spec.json": json.dumps(snapshot.spec, indent=1, sort_keys=True),
            "run-folder": snapshot.run_folder.uri,
            "cache": snapshot.cache.uri,
            "contract": str(snapshot.contract),
        },
    }


def read_snapshot(config_map: Object) -> Snapshot:
    """What :func:`render_snapshot` wrote. Raises Refused when it is not that."""
    data = config_map.get("data", {})
    try:
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}, expected {_FORMAT}")
        return Snapshot(
            profile_name=data["profile-name"],
            profile_hash=data["profile-hash"],
            profile=json.loads(data["profile.json"]),
            spec=json.loads(data["spec.json"]),
            run_folder=RunFolder(data["run-folder"]),
            cache=CacheLayout(data["cache"]),
            contract=ContractVersion.parse(data.get("contract", str(FIRST_VERSION))),
        )
    except (KeyError, ValueError) as error:
        raise Refused(
            Reason.INVALID_SPEC,
            f"ConfigMap {config_map['metadata']['name']} is not what this version of the operator wrote "
            f"({error!r}). Create the job again under another name.",
        ) from error
