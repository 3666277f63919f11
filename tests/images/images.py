"""The repository's images: built from its Dockerfiles, measured, and pushed to the node's registry."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.layout import ROOT
from tests.images.background import run
from tests.images.node import PAUSE, REGISTRY

BASE = "localhost/finetune-base:3.12"
#: In the registry.
OPERATOR = f"{REGISTRY}/finetune-operator:dev"
#: The same code under a tag of its own: what an upgrade changes.
NEXT_OPERATOR = f"{REGISTRY}/finetune-operator:next"
TRAINER = f"{REGISTRY}/finetune-trainer:dev"
CPU_TRAINER = f"{REGISTRY}/finetune-trainer:cpu"
#: Inside chroot's isolation a build needs no namespaces, which containers often forbid.
_ENVIRONMENT = {"BUILDAH_ISOLATION": "chroot"}
#: The machine's own settings of package installation, if any: they go into the build, never into an image.
_SETTINGS = (
    ("/etc/ssl/certs", "/etc/ssl/certs"),
    ("/etc/pip.conf", "/etc/pip.conf"),
    ("/etc/uv/uv.toml", "/etc/uv/uv.toml"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Bytes of an image: what a node downloads, what it then occupies, and the download after a change of code."""

    compressed: int
    unpacked: int
    last_layer: int


def build_all() -> None:
    """Builds what is missing or has changed; buildah keeps layers between calls."""
    if not _exists(BASE):
        run(ROOT / "tests" / "images" / "base.sh", Path(sys.base_prefix) / "bin" / "python3", BASE)
    _build(OPERATOR, "Dockerfile")
    _build(NEXT_OPERATOR, "Dockerfile", "--label", "version=next")
    _build(CPU_TRAINER, "trainer_image/Dockerfile", "--build-arg", "LIBTPU=false")
    _build(TRAINER, "trainer_image/Dockerfile")
    if not _exists(PAUSE):
        container = buildah("from", BASE).strip()
        buildah("config", "--entrypoint", '["sleep", "infinity"]', container)
        buildah("commit", "--quiet", "--rm", container, PAUSE)


def push_all() -> None:
    for image in (OPERATOR, NEXT_OPERATOR, CPU_TRAINER, TRAINER, PAUSE):
        buildah("push", "--quiet", "--tls-verify=false", image, f"docker://{image}")


def size(image: str) -> Size:
    """The size of a pushed image."""
    name, _, tag = image.removeprefix(f"{REGISTRY}/").partition(":")
    request = urllib.request.Request(
        f"http://{REGISTRY}/v2/{name}/manifests/{tag}",
        headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
    )
    with urllib.request.urlopen(request) as answer:
        layers = [int(layer["size"]) for layer in json.load(answer)["layers"]]
    container = buildah("from", "--pull-never", image).strip()
    try:
        folder = buildah("mount", container).strip()
        unpacked = int(run("du", "--summarize", "--block-size=1", folder).split()[0])
    finally:
        buildah("rm", container)
    return Size(compressed=sum(layers), unpacked=unpacked, last_layer=layers[-1])


def buildah(*arguments: str) -> str:
    return run("buildah", *arguments, environment=_ENVIRONMENT)


def _build(image: str, dockerfile: str, *options: str) -> None:
    mounts: Sequence[str] = [
        option
        for source, target in _SETTINGS
        if Path(source).exists()
        for option in ("--volume", f"{source}:{target}:ro")
    ]
    buildah(
        *(
            "bud",
            "--quiet",
            "--layers",
            "--network",
            "host",
            *mounts,
            "--build-arg",
            f"BASE={BASE}",
            *options,
        ),
        *("--tag", image, "--file", str(ROOT / dockerfile), str(ROOT)),
    )


def _exists(image: str) -> bool:
    return subprocess.run(["buildah", "inspect", image], capture_output=True, check=False).returncode == 0
