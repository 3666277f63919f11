"""One container of a pod: how its spec becomes a program to start, and its results."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from devcluster.agent import environment
from devcluster.agent.environment import ConfigError, EnvSources
from devcluster.agent.process import Launch
from devcluster.agent.status import FALLBACK_BYTES, TERMINATION_MESSAGE_BYTES, ContainerStateWaiting
from devcluster.agent.unsupported import TOKEN_VOLUME
from finetune_operator.objects import Object

#: The program in an image's folder that containers without a command start.
ENTRY_POINT = "entrypoint"


def build_launch(
    pod: Object,
    container: Object,
    *,
    programs: Path,
    folder: Path,
    log: Path,
    sources: EnvSources,
    platform: Mapping[str, str],
) -> Launch:
    """Returns the program to start, and removes the termination message of an earlier run. Raises ConfigError.

    Paths below a mount point become paths of the local folder for that volume.

    Args:
        programs: folder with the programs of the container's image.
        folder: the pod's folder.
        log: file for the program's output.
        sources: Secrets and ConfigMaps that the container's environment refers to.
        platform: variables that the node and the platform add; those of the container's spec take precedence.
    """
    name = container["name"]
    command = container.get("command") or [_entry_point(programs, name)]
    mounts = _mounts(container, folder)
    variables = environment.spec_environment(container, pod, sources)
    message = folder / f"{name}.termination"
    message.unlink(missing_ok=True)
    base = {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        "LANG": "C.UTF-8",
        "TERMINATION_MESSAGE_PATH": str(message),
    }
    words = [environment.expand(word, variables) for word in (*command, *container.get("args", ()))]
    local = environment.with_mounts(variables, mounts) | environment.pathways_proxy_environment(
        variables, pod
    )
    working_dir = container.get("workingDir")
    return Launch(
        argv=[environment.map_mount_path(word, mounts) for word in words],
        env={**base, **platform, **local},
        cwd=Path(environment.map_mount_path(working_dir, mounts) if working_dir else base["HOME"]),
        log=log,
        image=container["image"],
    )


def _entry_point(programs: Path, name: str) -> str:
    """The image's default program, for a container without a command."""
    if not (programs / ENTRY_POINT).exists():
        raise ConfigError(f"container {name} has no command, and its local image has no {ENTRY_POINT}")
    return ENTRY_POINT


def image_pull_state(image: str, *, backing_off: bool) -> ContainerStateWaiting:
    """The state of a container whose image the nodes don't have, as a kubelet reports it."""
    if backing_off:
        return ContainerStateWaiting(reason="ImagePullBackOff", message=f'Back-off pulling image "{image}"')
    return ContainerStateWaiting(
        reason="ErrImagePull",
        message=f'failed to resolve reference "{image}": not found among the images of the local nodes',
    )


def termination_message(container: Object, launch: Launch, *, failed: bool) -> str:
    """The container's termination message; without one the end of its log, if its policy says so."""
    with contextlib.suppress(OSError):
        file = Path(launch.env["TERMINATION_MESSAGE_PATH"])
        if text := file.read_bytes()[-TERMINATION_MESSAGE_BYTES:].decode(errors="replace"):
            return text
    if failed and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        with contextlib.suppress(OSError):
            return launch.log.read_bytes()[-FALLBACK_BYTES:].decode(errors="replace")
    return ""


def _mounts(container: Object, folder: Path) -> dict[str, Path]:
    """Mount point -> local folder, which is created."""
    mounts = {}
    for mount in container.get("volumeMounts", ()):
        if not mount["name"].startswith(TOKEN_VOLUME):
            local = folder / "volumes" / mount["name"] / mount.get("subPath", "")
            local.mkdir(parents=True, exist_ok=True)
            mounts[mount["mountPath"]] = local
    return mounts
