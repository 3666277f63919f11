"""The pods of ``finetune doctor --probe``: one for each account of a profile. Pure.

A pod runs ``finetune-stage access`` with the account, the image and the environment of the profile's stages, always on
the nodes of stages without TPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from finetune_operator.api import parse_merged
from finetune_operator.api.profile import PodSettings
from finetune_operator.cli.doctor.setup import Setup
from finetune_operator.objects import Object
from finetune_operator.planning.stored_plan import cache_root
from finetune_operator.rendering.pod import CONTAINER, SCRATCH, restricted, unprivileged, with_choices

#: Of the pods of this command.
LABEL = "tpu-finetune.dev/doctor"
#: Nodes that are created for the pod take minutes.
DEADLINE_SECONDS = 600
NAME_PREFIX = "finetune-doctor-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One pod: an account, an image, and the folders that stages with that account use."""

    profile: str
    account: str
    image: str
    read: Sequence["Folder"]
    write: Sequence["Folder"]
    pod: Object
    """Its manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder in a bucket, or a whole bucket, that an account uses."""

    uri: str
    own: bool = True
    """Whether the account may use all of it. False: only some names in it, which no role can be granted for."""

    @property
    def bucket(self) -> str:
        return "/".join(self.uri.split("/")[:3])


def probes(setup: Setup) -> list[Probe]:
    """Returns the pods that the profiles serving the namespace need."""
    return [_probe(setup, profile, stages) for profile in setup.serving for stages in ("cpu", "tpu")]


def _probe(setup: Setup, profile: Object, stages: Literal["cpu", "tpu"]) -> Probe:
    name, spec, namespace = profile["metadata"]["name"], profile["spec"], setup.namespace
    storage, images, settings = spec["storage"], spec["images"], spec.get("pod") or {}
    artifacts = Folder(uri=f"{storage['artifacts'].rstrip('/')}/{namespace}")
    cache = Folder(uri=cache_root(spec, namespace))
    readable = ((spec.get("constraints") or {}).get("uris") or {}).get("read") or ()
    inputs = [folder for each in readable if (folder := _folder(each))]
    read = [*inputs, *([cache] if stages == "tpu" else [])]
    write = [artifacts, *([cache] if stages == "cpu" else [])]
    account = (spec.get("serviceAccounts") or {}).get(stages, "default")
    added = parse_merged(PodSettings, settings)
    image = images.get("cpu", images["trainer"]) if stages == "cpu" else images["trainer"]
    options = [*(("--read", each.uri) for each in read), *(("--write", each.uri) for each in write)]
    command = ["finetune-stage", "access", *chain(*options)]
    return Probe(
        profile=name,
        account=account,
        image=image,
        read=read,
        write=write,
        pod={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{NAME_PREFIX}{stages}-",
                "namespace": namespace,
                "labels": {**(settings.get("labels") or {}), LABEL: "access"},
                "annotations": dict(settings.get("annotations") or {}),
            },
            "spec": with_choices(added, _pod_spec(spec, account, image, command)),
        },
    )


def _folder(pattern: str) -> Folder | None:
    """The folder in which everything that matches lies; None if it is not in one bucket."""
    if not pattern.startswith("gs://"):
        return None
    fixed = pattern.partition("*")[0]
    folder = fixed.rpartition("/")[0]
    if folder in ("gs:/", "gs:"):
        return None if "*" in pattern else Folder(uri=pattern)
    return Folder(uri=folder, own=pattern == f"{folder}/*")


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
