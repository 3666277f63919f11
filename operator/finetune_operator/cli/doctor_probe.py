"""The pods of ``finetune doctor --probe``: one for each account of a profile, and what their ends mean. Pure.

A pod runs ``finetune-stage access`` with the account, the image and the environment of the profile's stages, always on
the nodes of stages without TPU.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from finetune_operator.cli.doctor_checks import Finding, State, serving
from finetune_operator.cli.doctor_setup import Setup
from finetune_operator.cluster.port import Object
from finetune_operator.planning.stored_plan import cache_root
from finetune_operator.rendering.pod import CONTAINER, SCRATCH, restricted, unprivileged

#: Of the pods of this command.
LABEL = "tpu-finetune.dev/doctor"
#: Nodes that are created for the pod take minutes.
DEADLINE_SECONDS = 600
CHECK = "storage"
_GOOGLE_ACCOUNT = "iam.gke.io/gcp-service-account"
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CANNOT_START = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One pod: an account, an image, and the folders that stages with that account use."""

    profile: str
    account: str
    image: str
    stages: Literal["cpu", "tpu"]
    read: Sequence[str]
    write: Sequence[str]
    pod: Object
    """Its manifest."""


def probes(setup: Setup) -> list[Probe]:
    """Returns the pods that the profiles serving the namespace need."""
    return [_probe(setup, profile, stages) for profile in serving(setup) for stages in ("cpu", "tpu")]


def _probe(setup: Setup, profile: Object, stages: Literal["cpu", "tpu"]) -> Probe:
    name, spec, namespace = profile["metadata"]["name"], profile["spec"], setup.namespace
    storage, images = spec["storage"], spec["images"]
    artifacts, cache = f"{storage['artifacts'].rstrip('/')}/{namespace}", cache_root(spec, namespace)
    inputs = [folder for each in _readable(spec) if (folder := _folder(each))]
    read = [*inputs, *([cache] if stages == "tpu" else [])]
    write = [artifacts, *([cache] if stages == "cpu" else [])]
    account = (spec.get("serviceAccounts") or {}).get(stages, "default")
    image = images.get("cpu", images["trainer"]) if stages == "cpu" else images["trainer"]
    return Probe(
        profile=name,
        account=account,
        image=image,
        stages=stages,
        read=read,
        write=write,
        pod=_manifest(spec, f"finetune-doctor-{stages}-", namespace)
        | {"spec": _pod_spec(spec, account, image, _command(read, write))},
    )


def _readable(spec: Object) -> Sequence[str]:
    return ((spec.get("constraints") or {}).get("uris") or {}).get("read") or ()


def _folder(pattern: str) -> str | None:
    """The folder in which everything that matches lies; None if it is not in a bucket."""
    if not pattern.startswith("gs://"):
        return None
    fixed, wildcard, _ = pattern.partition("*")
    folder = fixed.rpartition("/")[0] if wildcard else fixed.rstrip("/")
    return folder if folder.removeprefix("gs://") not in ("", "gs:/") else None


def _command(read: Sequence[str], write: Sequence[str]) -> list[str]:
    options = [("--read", each) for each in read] + [("--write", each) for each in write]
    return ["finetune-stage", "access", *(part for option in options for part in option)]


def _manifest(spec: Object, prefix: str, namespace: str) -> dict[str, Any]:
    settings = spec.get("pod") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": prefix,
            "namespace": namespace,
            "labels": {**(settings.get("labels") or {}), LABEL: "access"},
            "annotations": dict(settings.get("annotations") or {}),
        },
    }


def _pod_spec(spec: Object, account: str, image: str, command: Sequence[str]) -> dict[str, Any]:
    pool, own = spec.get("cpuPool") or {}, (spec.get("pod") or {}).get("env") or ()
    env = {"HOME": SCRATCH, "TMPDIR": SCRATCH, "JAX_PLATFORMS": "cpu"}
    named = {each["name"] for each in own}
    container = {
        "name": CONTAINER,
        "image": image,
        "command": list(command),
        "env": [
            *({"name": name, "value": value} for name, value in env.items() if name not in named),
            *own,
        ],
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "64Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {**unprivileged(), "readOnlyRootFilesystem": True},
        "terminationMessagePath": "/dev/termination-log",
        "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH}],
    }
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        **restricted(account, grace_seconds=5),
        "nodeSelector": dict(pool.get("nodeSelector") or {}),
        "tolerations": list(pool.get("tolerations") or ()),
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }


def ended(pod: Object) -> bool:
    """Whether no more is to be learned from the pod."""
    reason = _waiting(pod)[0]
    # The kubelet's first error of a pull may pass.
    stuck = reason in (*_NO_IMAGE, *_CANNOT_START) and reason != "ErrImagePull"
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or stuck


def not_tested(setup: Setup) -> Finding:
    """What the report says without ``--probe``."""
    return Finding(
        CHECK,
        State.UNKNOWN,
        "Buckets and images were not tried.",
        f"finetune doctor --probe --namespace {setup.namespace}, which runs two pods for each profile",
    )


def refused(setup: Setup, probe: Probe, status: int | None, message: str) -> Finding:
    """The finding for a pod that the API server does not take."""
    if status == HTTPStatus.FORBIDDEN and re.search(r"cannot create resource \"?pods", message):
        fix = f"kubectl create rolebinding finetune-probe --namespace {setup.namespace} --clusterrole edit --user YOU"
        return Finding(CHECK, State.UNKNOWN, f"You may not create pods in {setup.namespace}.", fix)
    fix = f"kubectl edit resourcequota --namespace {setup.namespace}"
    if "PodSecurity" in message:
        fix = f"kubectl edit finetuneprofile {probe.profile}, or the namespace's Pod Security level"
    elif "serviceaccount" in message.lower():
        fix = f"kubectl create serviceaccount {probe.account} --namespace {setup.namespace}"
    return Finding(CHECK, State.MISSING, f"A pod of {_who(setup, probe)} is not admitted: {message}", fix)


def judged(setup: Setup, probe: Probe, pod: Object | None) -> Iterator[Finding]:
    """Yields the findings of a pod as it was last seen; None if it is gone."""
    if pod is None:
        yield Finding(CHECK, State.UNKNOWN, f"The pod of {_who(setup, probe)} was deleted meanwhile.")
        return
    status = pod.get("status") or {}
    reason, detail = _waiting(pod)
    if reason in _NO_IMAGE:
        yield _no_image(probe, detail or reason)
    elif reason in _CANNOT_START:
        fix = f"kubectl edit finetuneprofile {probe.profile}, whose pod.env names it"
        yield Finding(CHECK, State.MISSING, f"A pod of {_who(setup, probe)} cannot start: {detail}", fix)
    elif (end := _terminated(pod)) is not None:
        yield from _of_program(setup, probe, end)
    elif (unscheduled := _unscheduled(pod)) is not None:
        yield Finding(
            CHECK,
            State.MISSING,
            f"No node took a pod of {_who(setup, probe)} in {DEADLINE_SECONDS // 60} minutes: {unscheduled}",
            "gcloud container node-pools list --cluster CLUSTER --location LOCATION; the cpuPool of profile "
            f"{probe.profile} selects the nodes",
        )
    else:
        said = status.get("message") or f"it is {status.get('phase', 'unknown')}"
        yield Finding(
            CHECK,
            State.UNKNOWN,
            f"The pod of {_who(setup, probe)} did not end in {DEADLINE_SECONDS // 60} minutes: {said}",
            _IDENTITY_OF_NODES,
        )


_IDENTITY_OF_NODES = (
    "gcloud container node-pools update POOL --cluster CLUSTER --location LOCATION --workload-metadata=GKE_METADATA, "
    "if its metadata server does not respond"
)


def _of_program(setup: Setup, probe: Probe, end: Mapping[str, Any]) -> Iterator[Finding]:
    faults = _faults(str(end.get("message") or ""))
    if faults is None:
        fix = f"kubectl edit finetuneprofile {probe.profile}, and name an image of the operator's release"
        said = (
            f"Image {probe.image} has no command `finetune-stage access` (exit code {end.get('exitCode')})."
        )
        yield Finding("images", State.MISSING, said, fix)
        return
    yield Finding("images", State.OK, f"{probe.image} was pulled.")
    for fault in faults:
        yield _of_fault(setup, probe, fault)
    if not faults:
        folders = f"{len(probe.read)} folders and writes {len(probe.write)}"
        yield Finding(
            CHECK, State.OK, f"{_who(setup, probe)} reads {folders}, as profile {probe.profile} needs."
        )


def _faults(message: str) -> list[Mapping[str, str]] | None:
    """The program's result. None for anything else, which a foreign or older image may leave."""
    try:
        listed = json.loads(message)["faults"]
        return [{key: str(each[key]) for key in ("right", "uri", "reason", "detail")} for each in listed]
    except (ValueError, LookupError, TypeError):
        return None


def _of_fault(setup: Setup, probe: Probe, fault: Mapping[str, str]) -> Finding:
    right, uri, reason = fault["right"], fault["uri"], fault["reason"]
    bucket, _, inside = uri.removeprefix("gs://").partition("/")
    who, detail = _who(setup, probe), fault["detail"]
    if reason == "InputMissing":
        fix = f"gcloud storage buckets create gs://{bucket} --location LOCATION --uniform-bucket-level-access"
        return Finding(CHECK, State.MISSING, f"Bucket gs://{bucket} does not exist.", fix)
    if reason != "StoragePermissionDenied":
        message = f"{who} could not {_verb(right)} {uri}: {detail}"
        return Finding(CHECK, State.UNKNOWN, message, _IDENTITY_OF_NODES)
    if "credentials" in detail.lower():
        return Finding(CHECK, State.MISSING, f"{who} has no Google identity: {detail}", _IDENTITY_OF_NODES)
    role, place = (
        "projects/PROJECT/roles/finetuneBucketReader",
        f"buckets add-iam-policy-binding gs://{bucket}",
    )
    if right != "bucket":
        role = "roles/storage.objectUser" if right == "write" else "roles/storage.objectViewer"
        if top := inside.partition("/")[0]:
            place = f"managed-folders add-iam-policy-binding gs://{bucket}/{top}/"
    fix = f"gcloud storage {place} --member {_member(setup, probe.account)} --role {role}"
    return Finding(CHECK, State.MISSING, f"{who} may not {_verb(right)} {uri}: {detail}", fix)


def _verb(right: str) -> str:
    return "read the metadata of" if right == "bucket" else f"{right} in"


def _member(setup: Setup, account: str) -> str:
    """The account as IAM writes it."""
    own = next((each for each in setup.accounts or () if each["metadata"]["name"] == account), None)
    google = ((own or {}).get("metadata", {}).get("annotations") or {}).get(_GOOGLE_ACCOUNT)
    if google:
        return f"serviceAccount:{google}"
    return (
        "principal://iam.googleapis.com/projects/PROJECT_NUMBER/locations/global/workloadIdentityPools/"
        f"PROJECT.svc.id.goog/subject/ns/{setup.namespace}/sa/{account}"
    )


def _no_image(probe: Probe, detail: str) -> Finding:
    fix = (
        "gcloud artifacts repositories add-iam-policy-binding REPOSITORY --location LOCATION "
        "--member serviceAccount:ACCOUNT_OF_THE_NODES --role roles/artifactregistry.reader"
    )
    if re.search(r"not found|manifest unknown|InvalidImageName|invalid reference", detail):
        fix = f"kubectl edit finetuneprofile {probe.profile}, and correct images"
    return Finding("images", State.MISSING, f"{probe.image} cannot be pulled: {detail}", fix)


def _who(setup: Setup, probe: Probe) -> str:
    return f"{setup.namespace}/{probe.account}"


def _waiting(pod: Object) -> tuple[str, str]:
    """Reason and message of a container that does not start."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if waiting := (each.get("state") or {}).get("waiting"):
            return waiting.get("reason", ""), waiting.get("message", "")
    return "", ""


def _terminated(pod: Object) -> Mapping[str, Any] | None:
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        if end := (each.get("state") or {}).get("terminated"):
            return None if (pod["status"].get("reason") == "DeadlineExceeded") else dict(end)
    return None


def _unscheduled(pod: Object) -> str | None:
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return str(each.get("message", ""))
    return None
