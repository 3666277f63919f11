"""What the ends of the pods of ``finetune doctor --probe`` mean. Pure.

Who may exec into a pod, or create pods, decides what it leaves: a finding repeats only what its probe was to try, and a
fix is a command that an administrator can copy.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from finetune_operator.api.conditions import stored_condition
from finetune_operator.cli.doctor.checks import google_account, own_identity
from finetune_operator.cli.doctor.probe import DEADLINE_SECONDS, NAME_PREFIX, Folder, Probe
from finetune_operator.cli.doctor.setup import Check, Finding, Setup
from finetune_operator.cli.text import one_line
from finetune_operator.objects import Object

_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
_CANNOT_START = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
#: Role that a right needs.
_ROLES = {
    "bucket": "projects/PROJECT/roles/finetuneBucketReader",
    "read": "roles/storage.objectViewer",
    "write": "roles/storage.objectUser",
}


def left_over(pod: Object) -> bool:
    """Whether a command that was killed has left the pod."""
    metadata = pod["metadata"]
    ours = metadata["name"].startswith(NAME_PREFIX) and not metadata.get("ownerReferences")
    return ours and ended(pod)


def ended(pod: Object) -> bool:
    """Whether no more is to be learned from the pod."""
    reason = _waiting(pod)[0]
    # The kubelet's first error of a pull may pass.
    stuck = reason in (*_NO_IMAGE, *_CANNOT_START) and reason != "ErrImagePull"
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or stuck


def not_tested(setup: Setup) -> Finding:
    """What the report says without ``--probe``."""
    return Check.STORAGE.unknown(
        "Buckets and images were not tried.",
        f"finetune doctor --probe --namespace {setup.namespace}, which runs two pods for each profile",
    )


def refused(setup: Setup, probe: Probe, status: int | None, message: str) -> Finding:
    """The finding for a pod that the API server does not take."""
    if status == HTTPStatus.FORBIDDEN and re.search(r"cannot create resource \"?pods", message):
        fix = f"kubectl create rolebinding finetune-probe --namespace {setup.namespace} --clusterrole edit --user YOU"
        return Check.STORAGE.unknown(f"You may not create pods in {setup.namespace}.", fix)
    fix = f"kubectl edit resourcequota --namespace {setup.namespace}"
    if "PodSecurity" in message:
        fix = f"kubectl edit finetuneprofile {probe.profile}, or the namespace's Pod Security level"
    elif "serviceaccount" in message.lower():
        fix = f"kubectl create serviceaccount {probe.account} --namespace {setup.namespace}"
    return Check.STORAGE.missing(f"A pod of {_who(setup, probe)} is not admitted: {message}", fix)


def judged(setup: Setup, probe: Probe, pod: Object | None) -> Iterator[Finding]:
    """Yields the findings of a pod as it was last seen; None if it is gone."""
    if pod is None:
        yield Check.STORAGE.unknown(f"The pod of {_who(setup, probe)} was deleted meanwhile.")
        return
    status = pod.get("status") or {}
    reason, detail = _waiting(pod)
    if reason in _NO_IMAGE:
        yield _no_image(probe, detail or reason)
    elif reason in _CANNOT_START:
        fix = f"kubectl edit finetuneprofile {probe.profile}, whose pod.env names it"
        yield Check.STORAGE.missing(f"A pod of {_who(setup, probe)} cannot start: {detail}", fix)
    elif (end := _terminated(pod)) is not None:
        yield from _of_program(setup, probe, end)
    elif (unscheduled := _unscheduled(pod)) is not None:
        yield Check.STORAGE.missing(
            f"No node took a pod of {_who(setup, probe)} in {DEADLINE_SECONDS // 60} minutes: {unscheduled}",
            "gcloud container node-pools list --cluster CLUSTER --location LOCATION; the cpuPool of profile "
            f"{probe.profile} selects the nodes",
        )
    else:
        said = status.get("message") or f"it is {status.get('phase', 'unknown')}"
        yield Check.STORAGE.unknown(
            f"The pod of {_who(setup, probe)} did not end in {DEADLINE_SECONDS // 60} minutes: {said}",
            _IDENTITY_OF_NODES,
        )


#: Characters.
_LONGEST_DETAIL = 300
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
        yield Check.IMAGES.missing(said, fix)
        return
    yield Check.IMAGES.ok(f"{probe.image} was pulled.")
    for fault in faults:
        yield _of_fault(setup, probe, fault)
    if not faults:
        folders = f"{len(probe.read)} folders and writes {len(probe.write)}"
        yield Check.STORAGE.ok(f"{_who(setup, probe)} reads {folders}, as profile {probe.profile} needs.")


def _faults(message: str) -> list[Mapping[str, str]] | None:
    """The program's result. None for anything else, which a foreign or older image may leave."""
    try:
        listed = json.loads(message)["faults"]
        return [{key: str(each[key]) for key in ("right", "uri", "reason", "detail")} for each in listed]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def _of_fault(setup: Setup, probe: Probe, fault: Mapping[str, str]) -> Finding:
    """The finding of one fault. Who may exec into the pod may write anything there: only folders of the probe count."""
    right, reason, detail = fault["right"], fault["reason"], _reported(fault["detail"])
    folders = (
        probe.write if right == "write" else probe.read if right == "read" else [*probe.read, *probe.write]
    )
    wanted = {(each.bucket if right == "bucket" else each.uri): each for each in folders}
    folder, who = wanted.get(fault["uri"]), _who(setup, probe)
    if folder is None or right not in _ROLES:
        message = f"The pod of {who} reports a fault of something that it was not to try."
        return Check.STORAGE.unknown(message, f"kubectl auth can-i --list --namespace {setup.namespace}")
    uri = folder.bucket if right == "bucket" else folder.uri
    if reason == "InputMissing":
        options = "--location LOCATION --uniform-bucket-level-access"
        fix = f"gcloud storage buckets create {_quoted(folder.bucket)} {options}"
        return Check.STORAGE.missing(f"Bucket {folder.bucket} does not exist.", fix)
    if reason != "StoragePermissionDenied":
        return Check.STORAGE.unknown(f"{who} could not {_verb(right)} {uri}: {detail}", _IDENTITY_OF_NODES)
    if "credentials" in detail.lower():
        return Check.STORAGE.missing(f"{who} has no Google identity: {detail}", _IDENTITY_OF_NODES)
    return Check.STORAGE.missing(
        f"{who} may not {_verb(right)} {uri}: {detail}", _grant(setup, probe, folder, right)
    )


def _reported(text: str) -> str:
    """A text of the pod in quotes, so that nothing in it passes for the command that mends the fault."""
    return json.dumps(one_line(text)[:_LONGEST_DETAIL], ensure_ascii=False)


def _grant(setup: Setup, probe: Probe, folder: Folder, right: str) -> str:
    """The command that grants the role to the account, on nothing but the folder."""
    if google_account(setup, probe.account) is not None:
        return own_identity(setup, probe.account)
    if right == "bucket" or (folder.own and folder.uri == folder.bucket):
        place = f"buckets add-iam-policy-binding {_quoted(folder.bucket)}"
    elif folder.own:
        place = f"managed-folders add-iam-policy-binding {_quoted(f'{folder.uri}/')}"
    else:
        return (
            f"move what the account may read into a folder of its own: {folder.uri} also holds what it may not, and a "
            f"role there would grant both. kubectl edit finetuneprofile {probe.profile}"
        )
    member = _quoted(_member(setup, probe.account))
    return f"gcloud storage {place} --member {member} --role {_ROLES[right]}"


def _quoted(value: str) -> str:
    """For the shell into which the command is copied."""
    return shlex.quote(one_line(value))


def _verb(right: str) -> str:
    return "read the metadata of" if right == "bucket" else f"{right} in"


def _member(setup: Setup, account: str) -> str:
    """The Kubernetes account as IAM writes it."""
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
    return Check.IMAGES.missing(f"{probe.image} cannot be pulled: {detail}", fix)


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
    scheduled = stored_condition(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else None
