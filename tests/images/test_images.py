"""The images themselves: what a node downloads and stores, and what a container may do."""

import json
from typing import Any

import pytest

from tests.e2e.user_client import UserClient
from tests.images import images
from tests.unit.cli.bad_input.runs import run

MB = 10**6
#: Image -> most compressed bytes.
AIMS = {images.OPERATOR: 120 * MB, images.CPU_TRAINER: 2000 * MB, images.TRAINER: 2000 * MB}


@pytest.mark.parametrize("image", AIMS, ids=lambda image: image.rpartition("/")[2])
def test_an_image_is_no_larger_than_its_aim(pushed: None, image: str, report: list[str]) -> None:
    size = images.size(image)
    report.append(
        f"{image}: {size.compressed / MB:.0f} MB compressed, {size.unpacked / MB:.0f} MB unpacked; "
        f"{size.last_layer / MB:.1f} MB after a change of code"
    )
    assert size.compressed <= AIMS[image]
    assert size.last_layer <= 5 * MB


@pytest.mark.parametrize(
    ("image", "module"),
    [(images.OPERATOR, "finetune_operator.__main__"), (images.CPU_TRAINER, "finetune_trainer.commands.main")],
    ids=["operator", "trainer"],
)
def test_no_module_is_compiled_when_a_container_starts(bench: UserClient, image: str, module: str) -> None:
    """Python says so for each module whose byte code is missing or older than its source."""
    name = f"byte-code-{module.partition('.')[0].replace('_', '-')}"
    said = f"python -P -v -c 'import {module}' 2>&1 | grep -c 'could not create'"
    bench.apply(restricted_pod(name, image, ["sh", "-c", f"{said}; true"]))
    bench.wait(name, lambda it: it["status"].get("phase") == "Succeeded", kind="pod")
    assert bench.kubectl("logs", name).split() == ["0"]


def test_a_container_is_not_root_and_can_write_to_its_volumes_only(bench: UserClient) -> None:
    program = (
        "import os, pathlib\n"
        "print('user', os.getuid(), 'process', os.getpid())\n"
        "for place in ('/x', '/opt/finetune/x', '/scratch/x'):\n"
        "    try: pathlib.Path(place).write_text('x'); print(place, 'written')\n"
        "    except OSError as error: print(place, error.strerror)\n"
        "raise SystemExit(7)\n"
    )
    bench.apply(restricted_pod("writes", images.CPU_TRAINER, ["python", "-c", program]))
    pod = bench.wait("writes", lambda it: it["status"].get("phase") == "Failed", kind="pod")

    (state,) = (each["state"]["terminated"] for each in pod["status"]["containerStatuses"])
    assert (state["exitCode"], state["reason"]) == (7, "Error")
    assert bench.kubectl("logs", "writes").splitlines() == [
        "user 65532 process 1",
        "/x Read-only file system",
        "/opt/finetune/x Read-only file system",
        "/scratch/x written",
    ]


def test_the_restricted_level_refuses_a_container_that_is_less_strict(bench: UserClient) -> None:
    pod = restricted_pod("root", images.CPU_TRAINER, ["true"])
    pod["spec"]["securityContext"]["runAsNonRoot"] = False
    said = bench.kubectl("apply", "-f", "-", stdin=json.dumps(pod), check=False)
    assert "violates PodSecurity" in said


def test_doctor_pulls_the_images_of_profiles_and_tries_their_buckets(bench: UserClient) -> None:
    bench.apply_profile("unpullable", images={"trainer": f"{images.TRAINER}-none"})
    try:
        options = ("-n", bench.namespace, "--kubeconfig", str(bench.kubeconfig))
        found = json.loads(run(["doctor", "--probe", "-o", "json", *options]).stdout)["findings"]
    finally:
        bench.kubectl("delete", "finetuneprofile", "unpullable")
    of_pods = [each for each in found if each["check"] in {"images", "storage"}]
    missing = {each["message"].partition(":dev-none")[0] for each in of_pods if each["state"] == "missing"}
    assert missing == {images.TRAINER.removesuffix(":dev")}
    assert [each["check"] for each in of_pods if each["state"] == "ok"].count("storage") == 2
    pods = json.loads(bench.kubectl("get", "pods", "-l", "tpu-finetune.dev/doctor", "-o", "json"))["items"]
    assert all("deletionTimestamp" in pod["metadata"] for pod in pods)


def restricted_pod(name: str, image: str, command: list[str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": command,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "readOnlyRootFilesystem": True,
                    },
                    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                }
            ],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    }
