"""Kubernetes manifests that serve the exported model with vLLM on GKE. Pure.

There is one Deployment with its Service for TPU and one for GPU. Each uses the smallest machine that holds the weights
and the KV cache of several requests of full length. If the model is too large for every machine of a kind, there is no
manifest of that kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from finetune_contract.tpu import all_shapes, families
from finetune_trainer.checkpoints.folder import DTYPES
from finetune_trainer.families import ModelPlan

type Object = dict[str, Any]

#: Number of requests of full length whose KV cache must fit beside the weights.
_REQUESTS = 4
#: Upper bound on ``--max-model-len`` in the manifests, in tokens. Users can raise it; longer requests need more cache.
_LONGEST = 8192
#: Fraction of the memory for weights and cache. vLLM uses 0.9 by default, which includes memory for computation.
_SHARE = 0.8
_GIB = 1024**3
_PORT, _MOUNT = 8000, "/model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The accelerators of one host."""

    chips: int
    memory_gib: int
    """Memory of each chip in GiB that is usable by frameworks."""
    selector: Mapping[str, str]
    """Node labels that GKE sets on such machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorKind:
    """A Kubernetes accelerator resource with the vLLM image and the machines for it."""

    resource: str
    image: str
    machines: Sequence[Machine]
    """Machines in ascending order of size."""


def _hosts(family: str) -> Sequence[Machine]:
    """Returns a family's machines for single-host slices, in ascending order of size."""
    chip = families()[family].chip
    assert chip is not None, "a family whose memory is known"
    whole = sorted(
        (shape for shape in all_shapes() if shape.family == family and not shape.multi_host),
        key=lambda shape: shape.chips,
    )
    return [
        Machine(
            chips=shape.chips,
            memory_gib=int(chip.usable_gib),
            selector={
                "cloud.google.com/gke-tpu-accelerator": shape.accelerator,
                "cloud.google.com/gke-tpu-topology": shape.topology,
            },
        )
        for shape in whole
    ]


def _gpu(name: str, chips: int, memory_gib: int) -> Machine:
    return Machine(chips=chips, memory_gib=memory_gib, selector={"cloud.google.com/gke-accelerator": name})


#: Kinds of accelerators by name of the manifest file.
KINDS: Mapping[str, AcceleratorKind] = {
    "tpu": AcceleratorKind(
        resource="google.com/tpu",
        image="vllm/vllm-tpu:v0.32.0",  # the release of vllm-tpu, whose images have its version as tag; not tested
        machines=_hosts("v6e"),
    ),
    "gpu": AcceleratorKind(
        resource="nvidia.com/gpu",
        image="vllm/vllm-openai:v0.32.0",  # the release whose CPU build serves exports in the tests
        machines=(
            *(_gpu("nvidia-l4", chips, 22) for chips in (1, 2, 4, 8)),
            _gpu("nvidia-h100-80gb", 8, 79),
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model to serve."""

    name: str
    """Name of the job, which is also the model's name in requests."""
    namespace: str
    uri: str
    """URI of the exported folder: ``gs://``, or ``file://`` on the nodes of a local cluster."""
    service_account: str
    """Kubernetes ServiceAccount with read access to the bucket."""
    dtype: str
    """BF16 or FP32."""
    plan: ModelPlan

    @property
    def max_length(self) -> int:
        return min(self.plan.context_length, _LONGEST)

    @property
    def bytes_needed(self) -> int:
        """Bytes of weights and KV cache."""
        width = DTYPES[self.dtype][0].itemsize
        cached = 2 * self.plan.layers * self.plan.kv_heads * self.plan.head_dim
        return width * (self.plan.parameters + _REQUESTS * self.max_length * cached)


def write(folder: Path, served: ServedModel) -> None:
    """Writes ``folder/serving/tpu.yaml`` and ``gpu.yaml``, each only if a machine of that kind holds the model."""
    for name, kind in KINDS.items():
        machine = choose(kind, served)
        if machine is not None:
            path = folder / "serving" / f"{name}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(render(kind, machine, served), encoding="utf-8")


def choose(kind: AcceleratorKind, served: ServedModel) -> Machine | None:
    """Returns the smallest machine that holds the model and divides its attention heads evenly; None if none does."""
    for machine in kind.machines:
        room = machine.chips * machine.memory_gib * _GIB * _SHARE
        if served.bytes_needed <= room and served.plan.heads % machine.chips == 0:
            return machine
    return None


def render(kind: AcceleratorKind, machine: Machine, served: ServedModel) -> str:
    """Returns Deployment and Service as YAML."""
    documents = [_deployment(kind, machine, served), _service(served)]
    head = (
        f"# Serves {served.uri}\n# with vLLM's OpenAI-compatible API: kubectl apply -f THIS FILE\n"
        f"# --max-model-len may be raised to the model's {served.plan.context_length} tokens where memory allows.\n"
    )
    text: str = yaml.safe_dump_all(documents, sort_keys=False, width=110)
    return head + text


def arguments(machine: Machine, served: ServedModel) -> list[str]:
    """Returns the arguments of vLLM's server."""
    return [
        f"--model={_MOUNT}",
        f"--served-model-name={served.name}",
        f"--dtype={DTYPES[served.dtype][1]}",
        f"--max-model-len={served.max_length}",
        f"--tensor-parallel-size={machine.chips}",
        f"--port={_PORT}",
    ]


def _labels(served: ServedModel) -> Object:
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": served.name}


def _deployment(kind: AcceleratorKind, machine: Machine, served: ServedModel) -> Object:
    chips = {kind.resource: str(machine.chips)}
    volume, annotations = _model_volume(served.uri)
    container = {
        "name": "vllm",
        "image": kind.image,
        "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
        "args": arguments(machine, served),
        "ports": [{"name": "http", "containerPort": _PORT}],
        "resources": {"limits": chips},
        # loading and compiling a large model takes many minutes
        "startupProbe": {**_health(), "periodSeconds": 10, "failureThreshold": 180},
        "readinessProbe": _health(),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "model", "mountPath": _MOUNT, "readOnly": True},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108  shared by the server's processes
        ],
    }
    template: Object = {
        "metadata": {"labels": _labels(served), **({"annotations": annotations} if annotations else {})},
        "spec": {
            "serviceAccountName": served.service_account,
            "nodeSelector": dict(machine.selector),
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [volume, {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": served.name, "namespace": served.namespace, "labels": _labels(served)},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # a second machine for a rolling update may not be available
            "selector": {"matchLabels": _labels(served)},
            "template": template,
        },
    }


def _health() -> Object:
    return {"httpGet": {"path": "/health", "port": "http"}}


def _model_volume(uri: str) -> tuple[Object, Object]:
    """Returns the volume and the annotations that its pod needs. GKE mounts buckets through Cloud Storage FUSE."""
    at = urlsplit(uri)
    if at.scheme == "file":
        return {"name": "model", "hostPath": {"path": at.path, "type": "Directory"}}, {}
    attributes = {
        "bucketName": at.netloc,
        "mountOptions": f"implicit-dirs,only-dir={at.path.strip('/')}",
    }
    driver = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": attributes}
    return {"name": "model", "csi": driver}, {"gke-gcsfuse/volumes": "true"}


def _service(served: ServedModel) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": served.name, "namespace": served.namespace, "labels": _labels(served)},
        "spec": {
            "selector": _labels(served),
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }
