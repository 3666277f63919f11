"""A job's plan as it is stored: the decisions of admission, so that nothing is resolved twice.

It is one immutable ConfigMap in the operator's own namespace, where tenants cannot write: a plan decides images,
service accounts and folders, so write access to it amounts to the rights of the operator and the profile. It names its
job by namespace, name and uid, and holds a sha256 over its own data. Owner references cannot cross namespaces, so the
operator deletes the plans of deleted jobs (:mod:`finetune_operator.reconcile.plans`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from finetune_contract import CONTRACT_VERSION, CacheLayout, ContractVersion, JobIdentity, RunFolder
from finetune_operator.api import API_VERSION, Reason, canonical
from finetune_operator.objects import Object
from finetune_operator.planning.defaulted import DefaultedProfileSpec, profile_spec
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.slices.pathways import with_pathways_images

#: Fields that a user changes while the job runs and that do not affect its result.
LIFECYCLE = ("suspend", "cancel", "planOnly", "retry")
#: Labels of a plan: the component, and the namespace of its job.
PLAN_COMPONENT = {"app.kubernetes.io/component": "plan"}
JOB_NAMESPACE_LABEL = "tpu-finetune.dev/job-namespace"
_JOB_LABEL, _UID_LABEL = "tpu-finetune.dev/job", "tpu-finetune.dev/job-uid"
_FORMAT = "2"
_DIGEST = "digest"
_JOB_LABELS = "job-labels.json"
#: Keys of the ConfigMap's data that this release reads; a newer release may store more.
_KEYS = frozenset(
    {
        "format", "job-namespace", "job-name", "job-uid", "profile-name", "profile-hash", "profile.json", "spec.json",
        "run-folder", "cache", "contract", _JOB_LABELS, _DIGEST,
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)  # without slots: every reconcile reads the cached properties
class StoredPlan:
    """Contents of a stored plan."""

    job: JobIdentity
    profile_name: str
    profile_hash: str
    profile: Object
    """The profile's spec at admission; for Pathways including the catalog's images that it does not name."""
    spec: Object
    """The merged spec at admission, with the resolved global batch and without ``LIFECYCLE``."""
    contract: ContractVersion
    """Version of the contract that the operator supported at admission. The trainer image is assumed to support it
    until it reports its own."""
    job_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the job that the profile copies (``pod.jobLabels``), at admission."""
    more: Mapping[str, str] = field(default_factory=dict)
    """Further data that a newer operator has stored: kept, so that the digest stays the same."""

    @cached_property
    def profile_spec(self) -> DefaultedProfileSpec:
        """Model of ``profile``. Raises Refused if this version of the operator cannot read it."""
        return profile_spec(self.profile_name, self.profile)

    @property
    def run_folder(self) -> RunFolder:
        """Run folder of ``spec.resumeFrom``, or the job's own below the profile's artifacts."""
        if resumed := self.spec.get("resumeFrom", {}).get("runFolder"):
            return RunFolder(resumed.rstrip("/"))
        return RunFolder.of(_artifacts(self.profile), self.job.namespace, self.job.name, self.job.uid)

    @property
    def cache(self) -> CacheLayout:
        """The namespace's own part of the profile's cache, unless the profile shares one (``storage.cacheScope``)."""
        return CacheLayout(cache_root(self.profile, self.job.namespace))

    @property
    def programs(self) -> str:
        """Folder of the namespace's compiled programs. JAX runs what it finds there, so it is among the namespace's own
        artifacts even if the profile shares one cache among namespaces."""
        return f"{_artifacts(self.profile)}/{self.job.namespace}/programs"

    @cached_property
    def digest(self) -> str:
        """sha256 over all stored data, 64 hexadecimal digits. JobSets and the status record it."""
        return _sha256(self.data)

    @cached_property
    def data(self) -> Mapping[str, str]:
        """Data of the ConfigMap, without the digest over them."""
        return {
            "format": _FORMAT,
            "job-namespace": self.job.namespace,
            "job-name": self.job.name,
            "job-uid": self.job.uid,
            "profile-name": self.profile_name,
            "profile-hash": self.profile_hash,
            "profile.json": _readable(self.profile),
            "spec.json": _readable(self.spec),
            "run-folder": self.run_folder.uri,
            "cache": self.cache.uri,
            "contract": str(self.contract),
            **({_JOB_LABELS: json.dumps(self.job_labels, sort_keys=True)} if self.job_labels else {}),
            **self.more,
        }

    @classmethod
    def make(cls, job: Object, profile_name: str, profile_hash: str, profile: Object, spec: Object) -> Self:
        """Returns the plan to store for an admission. ``profile`` is the spec of the profile."""
        copied = profile.get("pod", {}).get("jobLabels", ())
        labels = job["metadata"].get("labels") or {}
        if spec["resources"]["controller"] == "Pathways":
            # The catalog's images change with the operator's release, while the trainer image does not.
            profile = {**profile, "images": with_pathways_images(profile["images"])}
        return cls(
            job=identity(job),
            profile_name=profile_name,
            profile_hash=profile_hash,
            profile=profile,
            spec={name: value for name, value in spec.items() if name not in LIFECYCLE},
            contract=CONTRACT_VERSION,
            job_labels={key: labels[key] for key in copied if key in labels},
        )


def identity(job: Object) -> JobIdentity:
    """Returns the job's namespace, name and uid."""
    metadata = job["metadata"]
    return JobIdentity(
        namespace=metadata.get("namespace", "default"), name=metadata["name"], uid=metadata["uid"]
    )


def cache_root(profile: Object, namespace: str) -> str:
    """Returns the folder with the cache of a profile's jobs in that namespace."""
    storage = profile["storage"]
    shared = storage.get("cacheScope", "Namespace") == "Profile"
    if "cache" in storage:
        root = storage["cache"].rstrip("/")
        return root if shared else f"{root}/{namespace}"
    return f"{_artifacts(profile)}/cache" if shared else f"{_artifacts(profile)}/{namespace}/cache"


def digest(document: Any) -> str:
    """Returns the first 16 hexadecimal digits of the sha256 over canonical JSON: short, but enough to compare specs."""
    return _sha256(document)[:16]


def _sha256(document: Any) -> str:
    text = json.dumps(canonical(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _readable(document: Object) -> str:
    """Returns canonical JSON with one value per line, sorted by key. The digest is over this text: no other encoder may
    write a number or a character in another way."""
    return json.dumps(canonical(document), indent=1, sort_keys=True)


def owner_reference(job: Object) -> dict[str, Any]:
    """Returns the job's owner reference for its children, which are garbage-collected with the job."""
    return {
        "apiVersion": API_VERSION,
        "kind": "FineTuneJob",
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def plan_name(uid: str) -> str:
    """Returns the name of the ConfigMap that holds the plan of the job with that uid."""
    return f"finetune-plan-{uid}"


def render_stored_plan(stored: StoredPlan) -> dict[str, Any]:
    """Returns the ConfigMap, without a namespace. The same plan always gives the same ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": plan_name(stored.job.uid),
            "labels": {
                "app.kubernetes.io/name": "finetune",
                "app.kubernetes.io/instance": stored.job.name,
                "app.kubernetes.io/managed-by": "finetune-operator",
                **PLAN_COMPONENT,
                _JOB_LABEL: stored.job.name,
                JOB_NAMESPACE_LABEL: stored.job.namespace,
                _UID_LABEL: stored.job.uid,
            },
        },
        "immutable": True,
        "data": {**stored.data, _DIGEST: stored.digest},
    }


def stored_plan_in(config_map: Object | None) -> StoredPlan | Refused | None:
    """Returns the plan in a ConfigMap, or why it cannot be read; None without a ConfigMap."""
    try:
        return None if config_map is None else read_stored_plan(config_map)
    except Refused as refused:
        return refused


def read_stored_plan(config_map: Object) -> StoredPlan:
    """Returns the plan that :func:`render_stored_plan` wrote. Raises Refused (PlanMissing) if it differs."""
    data, metadata = config_map.get("data") or {}, config_map["metadata"]
    try:
        if data["format"] != _FORMAT:
            raise ValueError(f"format {data['format']}, expected {_FORMAT}")
        stored = StoredPlan(
            job=JobIdentity(namespace=data["job-namespace"], name=data["job-name"], uid=data["job-uid"]),
            profile_name=data["profile-name"],
            profile_hash=data["profile-hash"],
            profile=json.loads(data["profile.json"]),
            spec=json.loads(data["spec.json"]),
            contract=ContractVersion.parse(data["contract"]),
            job_labels=json.loads(data.get(_JOB_LABELS, "{}")),
            more={name: value for name, value in data.items() if name not in _KEYS},
        )
        hashed = {name: value for name, value in data.items() if name != _DIGEST}
        if _sha256(hashed) != data[_DIGEST]:
            raise ValueError("its data do not match its digest")
        if (data["run-folder"], data["cache"]) != (stored.run_folder.uri, stored.cache.uri):
            raise ValueError("its folders do not follow from its data")
        # What was read is what would be written: formatting it again takes longer than the rest.
        vars(stored).update(data=hashed, digest=data[_DIGEST])
        if metadata["name"] != plan_name(stored.job.uid):
            raise ValueError(f"it is the plan of the job with uid {stored.job.uid}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused(
            Reason.PLAN_MISSING,
            f"ConfigMap {metadata['name']} in the operator's namespace is not a plan that this version of the operator "
            f"wrote ({error!r}). Ask the platform team to delete it: the operator then makes the plan again from the "
            "job and its profile, where both are unchanged since the job was admitted.",
        ) from error
    return stored


def _artifacts(profile: Object) -> str:
    folder: str = profile["storage"]["artifacts"]
    return folder.rstrip("/")
