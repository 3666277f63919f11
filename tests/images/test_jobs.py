"""Whole jobs in containers under the Pod Security level *restricted*, and what happens to containers on real nodes."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devcluster.kube import WatchEvent
from devcluster.layout import CHART
from devcluster.operator_process import NAMESPACE, RELEASE
from finetune_contract import ExitCode, Outcome, Stage
from tests.e2e.user_client import Object, UserClient, finetune_job, folder_of, stage_of
from tests.images import images
from tests.images.conftest import helm
from tests.images.node import NAME, REGISTRY, Node
from tests.images.processes import cpu_seconds, first_process, first_processes, until_gone
from tests.images.test_images import restricted_pod

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
#: Of a job: images are pulled, and each of its stages imports everything anew.
PATIENCE = 600.0
LONG: dict[str, Any] = {
    "resources": {"accelerator": "tpu-v6e-slice", "topology": "1x1"},
    "hyperparameters": {
        "steps": 400,
        "globalBatchSize": 8,
        "learningRate": 1e-3,
        "computePrecision": "FP32",
    },
    "checkpointing": {"everySteps": 50},
}
pytestmark = pytest.mark.timeout(900)


def test_the_quickstart_succeeds_in_containers(bench: UserClient) -> None:
    bench.kubectl("apply", "-f", str(QUICKSTART))
    job = bench.succeed("quickstart", PATIENCE)

    evaluation = job["status"]["evaluation"]
    assert evaluation["result"]["loss"] < evaluation["baseline"]["loss"]
    pods = {
        pod["metadata"]["labels"]["tpu-finetune.dev/stage"]: pod
        for pod in bench.list("pods", job="quickstart")
    }
    assert set(pods) == set(Stage)
    for stage, pod in pods.items():
        (state,) = (each["state"]["terminated"] for each in pod["status"]["containerStatuses"])
        assert state["exitCode"] == 0, stage
        assert bench.kubectl("logs", pod["metadata"]["name"]).strip(), stage
    level = json.loads(bench.kubectl("get", "namespace", bench.namespace, "-o", "json"))
    assert level["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_stage_writes_its_first_line_within_eight_seconds_of_cpu(
    node: Node, bench: UserClient, report: list[str]
) -> None:
    bench.apply(finetune_job("first-line", planOnly=True, **LONG))
    process = first_process("finetune-stage", "/first-line-")
    used = _cpu_at_first_line(node, bench.namespace, process)
    report.append(f"stage: {used:.1f} s of CPU from the container's start to its first line")
    assert used <= 8
    assert bench.finish("first-line", PATIENCE)["status"]["phase"] == "Planned"


def test_the_operator_writes_its_first_line_within_eight_seconds_of_cpu(
    node: Node, report: list[str]
) -> None:
    before = frozenset(first_processes("finetune_operator", "FINETUNE_LEASE_NAME"))
    node.cluster.kubectl("rollout", "restart", "-n", NAMESPACE, f"deployment/{RELEASE}")
    process = first_process("finetune_operator", "FINETUNE_LEASE_NAME", without=before)
    used = _cpu_at_first_line(node, NAMESPACE, process)
    report.append(f"operator: {used:.1f} s of CPU from the container's start to its first line")
    assert used <= 8
    node.cluster.kubectl("rollout", "status", "-n", NAMESPACE, f"deployment/{RELEASE}", "--timeout=120s")


def test_sigterm_in_the_first_second_ends_process_1_and_the_stage_is_repeated(
    node: Node, bench: UserClient
) -> None:
    with _exit_codes(node, bench, "first-second") as codes:
        bench.apply(finetune_job("first-second", planOnly=True, **LONG))
        process = first_process("finetune-stage", "/first-second-")
        # Python itself takes a tenth of a second to run the program's first line.
        time.sleep(0.3)
        os.kill(process, signal.SIGTERM)
        assert until_gone(process, seconds=5) < 2
        job = bench.finish("first-second", PATIENCE)
    assert codes() == [128 + signal.SIGTERM, 0]
    assert job["status"]["phase"] == "Planned", job["status"]
    assert job["status"]["attempts"]["preemption"] == 1


def test_a_pod_that_is_deleted_while_it_saves_completes_the_save_and_resumes(
    node: Node, bench: UserClient
) -> None:
    job = _training(bench, "saving")
    _until_saving(bench, job)
    (pod,) = bench.list("pods", job="saving", stage="Train")
    bench.kubectl("delete", "pod", pod["metadata"]["name"], "--wait=false")
    _assert_resumed(bench, bench.succeed("saving", PATIENCE))


def test_a_drained_node_stops_a_training_that_resumes_when_it_returns(node: Node, bench: UserClient) -> None:
    _training(bench, "drained")
    label = "tpu-finetune.dev/job=drained"
    bench.kubectl(
        "drain", NAME, "--force", "--delete-emptydir-data", f"--pod-selector={label}", "--timeout=120s"
    )
    try:
        bench.wait("drained", lambda job: job["status"]["attempts"].get("preemption") == 1)
        (pending,) = (
            pod
            for pod in bench.list("pods", job="drained", stage="Train")
            if pod["status"]["phase"] == "Pending"
        )
        assert "nodeName" not in pending["spec"]
    finally:
        bench.kubectl("uncordon", NAME)
    _assert_resumed(bench, bench.succeed("drained", PATIENCE))


def test_the_operator_is_upgraded_and_rolled_back_in_the_middle_of_training(
    node: Node, bench: UserClient
) -> None:
    _training(bench, "upgraded")
    helm(
        node,
        *("upgrade", RELEASE, str(CHART)),
        *("--reuse-values", "--set", f"image.tag={images.NEXT_OPERATOR.rpartition(':')[2]}"),
        *("--wait", "--timeout", "3m"),
    )
    assert _operator_images(node) == {images.NEXT_OPERATOR}
    helm(node, "rollback", RELEASE, "--wait", "--timeout", "3m")
    assert _operator_images(node) == {images.OPERATOR}

    job = bench.succeed("upgraded", PATIENCE)
    train = stage_of(job, Stage.TRAIN)
    assert (train["attempt"], train.get("restart", 0)) == (1, 0)
    attempts = job["status"]["attempts"]
    assert [attempts.get(cause, 0) for cause in ("preemption", "infrastructure", "user")] == [0, 0, 0]


def test_the_kernels_out_of_memory_kill_is_reported_as_such(node: Node, bench: UserClient) -> None:
    (flavor,) = bench.get("finetuneprofile", "local")["spec"]["flavors"]
    bench.apply_profile("small", flavors=[flavor | {"hostResources": {"memory": "256Mi"}}])
    recovery = {"maxInfrastructureRetries": 0, "maxUserRetries": 0}
    with _exit_codes(node, bench, "oom") as codes:
        bench.apply(finetune_job("oom", **LONG, profileRef={"name": "small"}, recovery=recovery))
        failure = bench.finish("oom", PATIENCE)["status"]["failure"]
    assert failure["reason"] == "HostOutOfMemory", failure
    assert codes()[-1] == 128 + signal.SIGKILL


def test_a_missing_input_ends_the_container_with_the_exit_code_of_the_contract(
    node: Node, bench: UserClient
) -> None:
    data = {"train": [{"uri": "gs://ft-data.invalid/none.jsonl"}], "maxSeqLength": 64}
    with _exit_codes(node, bench, "no-data") as codes:
        bench.apply(finetune_job("no-data", **LONG, datasets=data))
        _until(lambda: bool(codes()), "preflight ends")
        bench.delete("finetunejob", "no-data")
    assert codes()[0] == ExitCode.INPUT_MISSING


def test_an_image_that_cannot_be_pulled_is_named_and_the_job_starts_once_it_can(bench: UserClient) -> None:
    image = f"{REGISTRY}/finetune-trainer:late-{bench.namespace}"
    bench.apply_profile("late", images={"trainer": image})
    bench.apply(finetune_job("late", planOnly=True, **LONG | {"profileRef": {"name": "late"}}))
    told = bench.wait("late", lambda job: "ImagePull" in json.dumps(job.get("status", {})))
    assert image in json.dumps(told["status"])

    images.buildah("push", "--quiet", "--tls-verify=false", images.TRAINER, f"docker://{image}")
    assert bench.finish("late", PATIENCE)["status"]["phase"] == "Planned"


def test_two_hosts_find_each_other_by_name_and_train(node: Node, bench: UserClient) -> None:
    """Both hosts of the slice are pods of this node, with a network namespace and a cluster DNS name each.

    The operator takes every failure of such a slice for a preemption: it has fewer nodes than hosts.
    """
    bench.kubectl("apply", "-f", str(Path(__file__).with_name("tpu_workers.yaml")))
    local = bench.get("finetuneprofile", "local")["spec"]
    flavor = {**local["flavors"][0], "topologies": ["2x4"], "chipsPerHost": 4}
    chips = {"name": "XLA_FLAGS", "value": "--xla_force_host_platform_device_count=4"}
    bench.apply_profile("two-hosts", flavors=[flavor], pod={"env": [*local["pod"]["env"], chips]})
    resources = {"accelerator": "tpu-v6e-slice", "topology": "2x4", "chipsPerHost": 4}
    node.offer("2x4", chips=8, of_host=4)
    try:
        bench.apply(
            finetune_job(
                "two-hosts",
                **LONG
                | {
                    "hyperparameters": {**LONG["hyperparameters"], "steps": 40},
                    "resources": resources,
                    "profileRef": {"name": "two-hosts"},
                },
            )
        )
        job = bench.succeed("two-hosts", PATIENCE)
    finally:
        node.offer("1x1", chips=1, of_host=1)
    pods = bench.list("pods", job="two-hosts", stage="Train")
    assert len({pod["status"]["podIP"] for pod in pods}) == 2
    losses = [float(loss) for _, loss in sorted(bench.losses(job).items())]
    assert len(losses) == 40
    assert losses[-1] < losses[0]


def test_a_stage_that_fills_its_scratch_space_is_evicted_and_the_job_says_so(
    node: Node, bench: UserClient
) -> None:
    namespace = node.cluster.namespace("disk")
    disk = replace(bench, namespace=namespace)
    limit = {"type": "Container", "default": {"ephemeral-storage": "1Gi"}}
    disk.apply(
        {
            "apiVersion": "v1",
            "kind": "LimitRange",
            "metadata": {"name": "disk"},
            "spec": {"limits": [limit]},
        }
    )
    disk.apply_profile("disk", cpuPool={"maxMemory": "8Gi", "maxEphemeralStorage": "1Gi"})
    disk.apply(finetune_job("disk", planOnly=True, **LONG | {"profileRef": {"name": "disk"}}))
    # The kubelet measures volumes once a minute; the stage waits for that.
    os.kill(first_process("finetune-stage", "/disk-"), signal.SIGSTOP)
    (pod,) = disk.list("pods", job="disk", stage="Preflight")
    fill = ("dd", "if=/dev/zero", "of=/scratch/fill", "bs=1M", "count=1200")
    disk.kubectl("exec", pod["metadata"]["name"], "--", *fill)
    job = disk.wait("disk", lambda job: "DiskPressure" in json.dumps(job["status"]), patience=PATIENCE)
    assert "exceed" in json.dumps(job["status"])
    disk.delete("finetunejob", "disk")


def test_names_of_services_resolve_in_a_pod(bench: UserClient) -> None:
    program = (
        "import socket, urllib.request\n"
        "print(socket.gethostbyname('kubernetes.default.svc'))\n"
        f"print(urllib.request.urlopen('http://finetune-operator-metrics.{NAMESPACE}:9090/metrics').status)\n"
    )
    bench.apply(restricted_pod("names", images.CPU_TRAINER, ["python", "-c", program]))
    bench.wait("names", lambda it: it["status"].get("phase") == "Succeeded", kind="pod")
    assert bench.kubectl("logs", "names").split() == ["10.96.0.1", "200"]


def _training(bench: UserClient, name: str) -> Object:
    """Starts a job and waits until its training is well under way."""
    bench.apply(finetune_job(name, **LONG))
    job = bench.wait(name, lambda job: job.get("status", {}).get("stage") == "Train", patience=PATIENCE)
    assert bench.wait_for_step(job, 60, PATIENCE).step < LONG["hyperparameters"]["steps"]
    return job


def _assert_resumed(bench: UserClient, job: Object) -> None:
    first = bench.result(job, Stage.TRAIN)
    assert (first.outcome, first.exit_code) == (Outcome.STOPPED, ExitCode.STOPPED)
    assert first.details is not None
    assert first.details.kind == "Train"
    assert first.details.step > 0
    assert job["status"]["attempts"]["preemption"] == 1
    assert len(bench.losses(job)) == LONG["hyperparameters"]["steps"]


def _until_saving(bench: UserClient, job: Object) -> None:
    """Returns while a checkpoint has files but not yet its seal."""
    run = folder_of(job)
    bucket, _, folder = run.train.removeprefix("gs://").partition("/")
    store = bench.store().bucket(bucket)

    def saving() -> bool:
        names = [blob.name for blob in store.list_blobs(prefix=f"{folder}/")]
        parts = [name.removeprefix(f"{folder}/").split("/") for name in names]
        begun = {part[1] for part in parts if part[0] == "checkpoints" and len(part) > 2}
        return bool({step for step in begun if step.isdigit()} - _sealed(parts))

    _until(saving, "a checkpoint is being written", pause=0.01)


def _sealed(parts: Iterable[list[str]]) -> set[str]:
    return {part[1].removesuffix(".json") for part in parts if part[0] == "seals"}


@contextmanager
def _exit_codes(node: Node, bench: UserClient, job: str) -> Iterator[Callable[[], list[int]]]:
    """Exit codes of the job's containers inside the block, in order, also of pods that are deleted."""
    pods = f"/api/v1/namespaces/{bench.namespace}/pods"
    with node.cluster.recorded(pods, labelSelector=f"tpu-finetune.dev/job={job}") as events:
        yield lambda: list(_terminated(events).values())


def _terminated(events: Iterable[WatchEvent]) -> dict[str, int]:
    codes: dict[str, int] = {}
    for event in tuple(events):
        for pod in event.objects:
            for each in pod["status"].get("containerStatuses", ()):
                if ended := each["state"].get("terminated"):
                    codes[pod["metadata"]["uid"]] = ended["exitCode"]
    return codes


def _cpu_at_first_line(node: Node, namespace: str, process: int) -> float:
    """CPU that the process has used when its container's log gets its first line."""
    logs = node.folder / "pod-logs"
    hostname = Path(f"/proc/{process}/environ").read_bytes().split(b"HOSTNAME=")[1].split(b"\0")[0].decode()
    _until(
        lambda: any(file.stat().st_size for file in logs.glob(f"{namespace}_{hostname}*/*/0.log")),
        f"{hostname} writes a line",
        pause=0.01,
    )
    return cpu_seconds(process)


def _operator_pods(node: Node) -> list[Object]:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pods = node.cluster.list(path, labelSelector="app.kubernetes.io/name=finetune-operator")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _operator_images(node: Node) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in _operator_pods(node)}


def _until(holds: Callable[[], bool], what: str, *, seconds: float = 120, pause: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not seen in {seconds:.0f} s: {what}"
        time.sleep(pause)
