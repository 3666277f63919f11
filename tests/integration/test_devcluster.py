"""The local cluster behaves as a GKE cluster does, as far as the operator and its stages can tell."""

import base64
import json
import subprocess
from pathlib import Path

import pytest

from devcluster.identity import ProcessIdentity
from finetune_operator.cluster.port import ClusterError
from tests.doubles.local_cluster import LocalCluster
from tests.integration import pods
from tests.integration.jobs import await_file
from tests.integration.pods import exit_code, over, running, shell, waiting_reason


@pytest.fixture(autouse=True)
def machine_image(cluster: LocalCluster) -> None:
    cluster.add_image(pods.IMAGE, Path("/usr/bin"))


def path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def test_nodes_look_like_gke_tpu_nodes(cluster: LocalCluster) -> None:
    nodes = {node["metadata"]["name"]: node for node in cluster.list("/api/v1/nodes")}
    shapes = {
        name: (
            node["metadata"]["labels"].get("cloud.google.com/gke-tpu-topology"),
            node["metadata"]["labels"]["cloud.google.com/gke-nodepool"],
            node["status"]["allocatable"].get("google.com/tpu"),
        )
        for name, node in nodes.items()
    }
    assert shapes == {
        "cpu-0": (None, "cpu", None),
        "v6e-2x2-a-0": ("2x2", "v6e-2x2-a", "4"),
        "v6e-2x2-b-0": ("2x2", "v6e-2x2-b", "4"),
        "v6e-2x4-0": ("2x4", "v6e-2x4", "4"),
        "v6e-2x4-1": ("2x4", "v6e-2x4", "4"),
    }
    assert all(
        condition["status"] == "True"
        for node in nodes.values()
        for condition in node["status"]["conditions"]
        if condition["type"] == "Ready"
    )


def test_a_jobset_with_a_two_host_slice_is_placed_and_its_hosts_find_each_other(
    cluster: LocalCluster, namespace: str
) -> None:
    script = "echo $TPU_WORKER_ID $TPU_WORKER_HOSTNAMES $JAX_COORDINATOR_ADDRESS $XLA_FLAGS; sleep 1"
    cluster.apply(
        pods.jobset(
            namespace,
            "two",
            pods.replicated_job("slice", pods.slice_spec(script, "2x4"), hosts=2),
            pods.replicated_job("cpu", pods.spec("sh", "-c", "echo $XLA_FLAGS $TPU_WORKER_ID")),
            exclusive=True,
        )
    )
    cluster.wait(
        f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets/two",
        lambda found: found.get("status", {}).get("terminalState") == "Completed",
    )
    there = cluster.list(f"/api/v1/namespaces/{namespace}/pods")
    placed = {pod["metadata"]["name"].rpartition("-")[0]: pod for pod in there}
    assert placed["two-cpu-0-0"]["spec"]["nodeName"] == "cpu-0"
    hosts = [placed["two-slice-0-0"], placed["two-slice-0-1"]]
    assert {pod["spec"]["nodeName"] for pod in hosts} == {"v6e-2x4-0", "v6e-2x4-1"}
    told = [cluster.kubectl("logs", "-n", namespace, pod["metadata"]["name"]).split() for pod in hosts]
    assert [words[0] for words in told] == ["0", "1"]
    assert {words[1] for words in told} == {"two-slice-0-0.two,two-slice-0-1.two"}
    assert len({words[2] for words in told}) == 1
    assert told[0][2].startswith("127.")
    assert told[0][3] == "--xla_force_host_platform_device_count=4"
    on_cpu = cluster.kubectl("logs", "-n", namespace, placed["two-cpu-0-0"]["metadata"]["name"])
    assert on_cpu.split() == ["--xla_force_host_platform_device_count=1"]


def test_a_third_single_host_slice_waits_for_a_node(cluster: LocalCluster, namespace: str) -> None:
    for name in ("one", "two", "three"):
        job = pods.replicated_job("slice", pods.slice_spec("sleep 600", "2x2"))
        cluster.apply(pods.jobset(namespace, name, job))

    def phases() -> list[str]:
        there = cluster.list(f"/api/v1/namespaces/{namespace}/pods")
        return sorted(pod["status"]["phase"] for pod in there)

    jobsets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
    for name in ("one", "two", "three"):
        cluster.wait(
            f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}-slice-0",
            lambda job: job.get("status", {}).get("active") == 1,
        )
    cluster.wait(f"{jobsets}/three", lambda found: "status" in found)
    pending = [
        pod for pod in cluster.list(f"/api/v1/namespaces/{namespace}/pods") if not pod["spec"].get("nodeName")
    ]
    assert len(pending) == 1, phases()
    waiting = pending[0]["metadata"]["name"]
    seen = cluster.wait(path(namespace, waiting), lambda pod: bool(pod["status"].get("conditions")))
    assert seen["status"]["conditions"][0]["reason"] == "Unschedulable"
    occupant = next(name for name in ("one", "two", "three") if not waiting.startswith(name))
    cluster.delete(f"{jobsets}/{occupant}")
    cluster.wait(path(namespace, waiting), running)
    for name in ("one", "two", "three"):
        cluster.delete(f"{jobsets}/{name}")


@pytest.mark.parametrize(
    ("script", "phase", "code", "reason", "message"),
    [
        ("exit 0", "Succeeded", 0, "Completed", None),
        ("echo out of luck >$TERMINATION_MESSAGE_PATH; exit 7", "Failed", 7, "Error", "out of luck\n"),
        ("kill -KILL $$$$", "Failed", 137, "Error", None),
        ("sleep 600 & exit 3", "Failed", 3, "Error", None),
    ],
)
def test_a_pod_ends_as_its_process_does(
    cluster: LocalCluster,
    namespace: str,
    script: str,
    phase: str,
    code: int,
    reason: str,
    message: str | None,
) -> None:
    cluster.apply(shell(namespace, "p", script))
    pod = cluster.wait(path(namespace, "p"), over)
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (pod["status"]["phase"], ended["exitCode"], ended["reason"], ended.get("message")) == (
        phase,
        code,
        reason,
        message,
    )
    ready = next(c for c in pod["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "False"


def test_a_missing_program_is_a_start_error(cluster: LocalCluster, namespace: str) -> None:
    pod = shell(namespace, "p", "")
    pod["spec"]["containers"][0]["command"] = ["no-such-program"]
    cluster.apply(pod)
    ended = cluster.wait(path(namespace, "p"), over)["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["reason"] == "StartError"
    assert ended["exitCode"] == 128
    assert 'exec: "no-such-program": executable file not found in $PATH' in ended["message"]


def test_a_deleted_pod_gets_sigterm_and_its_last_status_is_seen(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    script = f"trap 'echo saved; exit 75' TERM; touch {tmp_path}/trapped; while :; do sleep 0.05; done"
    cluster.apply(shell(namespace, "p", script, meta={"finalizers": ["test.dev/look"]}))
    await_file(f"file://{tmp_path}/trapped")
    cluster.delete(path(namespace, "p"))
    pod = cluster.wait(path(namespace, "p"), over)
    assert pod["status"]["phase"] == "Failed"
    assert exit_code(pod) == 75
    cluster.patch(path(namespace, "p"), {"metadata": {"finalizers": None}})
    cluster.wait_gone(path(namespace, "p"))


def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace_period(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    script = f"trap '' TERM; touch {tmp_path}/trapped; while :; do sleep 0.05; done"
    meta = {"finalizers": ["test.dev/look"]}
    cluster.apply(shell(namespace, "p", script, meta=meta, terminationGracePeriodSeconds=1))
    await_file(f"file://{tmp_path}/trapped")
    cluster.delete(path(namespace, "p"))
    assert exit_code(cluster.wait(path(namespace, "p"), over)) == 137
    cluster.patch(path(namespace, "p"), {"metadata": {"finalizers": None}})
    cluster.wait_gone(path(namespace, "p"))


def test_a_pod_of_the_same_name_can_follow_at_once(cluster: LocalCluster, namespace: str) -> None:
    cluster.apply(shell(namespace, "p", "sleep 600", terminationGracePeriodSeconds=1))
    first = cluster.wait(path(namespace, "p"), running)
    cluster.delete(path(namespace, "p"))
    cluster.wait_gone(path(namespace, "p"))
    cluster.apply(shell(namespace, "p", "exit 4"))
    second = cluster.wait(path(namespace, "p"), over)
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert exit_code(second) == 4


def test_a_missing_secret_shows_as_a_config_error_and_the_pod_recovers(
    cluster: LocalCluster, namespace: str
) -> None:
    env = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}]
    cluster.apply(shell(namespace, "p", 'test "$TOKEN" = s3cret', main={"env": env}))
    pod = cluster.wait(path(namespace, "p"), lambda pod: waiting_reason(pod) == "CreateContainerConfigError")
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] == 'secret "hf" not found'
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf", "namespace": namespace}}
    cluster.apply({**secret, "data": {"other": "eA=="}})
    cluster.wait(
        path(namespace, "p"),
        lambda pod: (
            f"couldn't find key token in Secret {namespace}/hf"
            == (pod["status"]["containerStatuses"][0]["state"].get("waiting") or {}).get("message")
        ),
    )
    cluster.apply({**secret, "data": {"token": base64.b64encode(b"s3cret").decode()}})
    assert cluster.wait(path(namespace, "p"), over)["status"]["phase"] == "Succeeded"


def test_an_unknown_image_backs_off_until_nodes_have_it(cluster: LocalCluster, namespace: str) -> None:
    image = f"localhost/{namespace}:1"
    cluster.apply(shell(namespace, "p", "exit 0", main={"image": image}))
    cluster.wait(path(namespace, "p"), lambda pod: waiting_reason(pod) == "ImagePullBackOff")
    cluster.add_image(image, Path("/usr/bin"))
    cluster.wait(path(namespace, "p"), lambda pod: pod["status"]["phase"] == "Succeeded")


def test_scratch_is_a_folder_of_the_pod_that_goes_with_it(cluster: LocalCluster, namespace: str) -> None:
    main = {
        "env": [{"name": "TMPDIR", "value": "/scratch"}, {"name": "DATA", "value": "/scratch/data"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    script = "echo x >$TMPDIR/file; echo $DATA"
    cluster.apply(shell(namespace, "p", script, main=main, volumes=[{"name": "scratch", "emptyDir": {}}]))
    cluster.wait(path(namespace, "p"), over)
    folder = Path(cluster.kubectl("logs", "-n", namespace, "p").strip()).parent
    assert folder.is_relative_to(cluster.state.pods)
    assert (folder / "file").read_text() == "x\n"
    cluster.delete(path(namespace, "p"))
    cluster.wait_gone(path(namespace, "p"))
    cluster.apply(shell(namespace, "next", f"while test -e {folder}; do sleep 0.05; done"))
    assert cluster.wait(path(namespace, "next"), over)["status"]["phase"] == "Succeeded"


def test_kubectl_reads_and_follows_logs(cluster: LocalCluster, namespace: str) -> None:
    script = "echo one; echo two; read line <$TMPDIR/go; echo $line"
    main = {"env": [{"name": "TMPDIR", "value": "/t"}], "volumeMounts": [{"name": "t", "mountPath": "/t"}]}
    pod = shell(
        namespace, "p", f"mkfifo $TMPDIR/go; {script}", main=main, volumes=[{"name": "t", "emptyDir": {}}]
    )
    cluster.apply(pod)
    uid = cluster.wait(path(namespace, "p"), running)["metadata"]["uid"]
    command = [
        str(cluster.kubectl_program),
        f"--kubeconfig={cluster.kubeconfig}",
        "-n",
        namespace,
        "logs",
        "-f",
        "p",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert [following.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
        assert cluster.kubectl("logs", "-n", namespace, "p", "--tail=1") == "two\n"
        (cluster.state.pods / f"{namespace}_p_{uid}" / "volumes" / "t" / "go").write_text("three\n")
        assert following.stdout.readline() == "three\n"
        assert following.wait(timeout=30) == 0
    with pytest.raises(AssertionError, match="no option timestamps"):
        cluster.kubectl("logs", "-n", namespace, "p", "--timestamps")


def test_on_failure_containers_are_started_again(cluster: LocalCluster, namespace: str) -> None:
    main = {"env": [{"name": "TMPDIR", "value": "/t"}], "volumeMounts": [{"name": "t", "mountPath": "/t"}]}
    script = "test -e $TMPDIR/second && exit 0; touch $TMPDIR/second; exit 9"
    volumes = [{"name": "t", "emptyDir": {}}]
    cluster.apply(shell(namespace, "p", script, main=main, volumes=volumes, restartPolicy="OnFailure"))
    status = cluster.wait(path(namespace, "p"), over)["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    assert status["state"]["terminated"]["exitCode"] == 0
    assert status["lastState"]["terminated"]["exitCode"] == 9


def test_a_pod_fails_at_its_deadline(cluster: LocalCluster, namespace: str) -> None:
    cluster.apply(shell(namespace, "p", "sleep 600", activeDeadlineSeconds=1))
    status = cluster.wait(path(namespace, "p"), over)["status"]
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")


@pytest.mark.parametrize(
    ("more", "main", "words"),
    [
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, {}, "hostPath"),
        ({}, {"livenessProbe": {"exec": {"command": ["true"]}}}, "livenessProbe"),
    ],
)
def test_what_local_nodes_can_not_do_is_refused_aloud(
    cluster: LocalCluster, more: dict[str, object], main: dict[str, object], words: str
) -> None:
    # without the restricted standard, with which the API server would refuse a pod with a host path
    name = cluster.namespace("open")
    cluster.patch(
        f"/api/v1/namespaces/{name}", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": None}}}
    )
    cluster.apply(shell(name, "p", "true", main=main, **more))
    pod = cluster.wait(path(name, "p"), over)
    assert pod["status"]["reason"] == "UnsupportedPod"
    assert words in pod["status"]["message"]


def test_pods_below_the_restricted_standard_are_refused(cluster: LocalCluster, namespace: str) -> None:
    pod = shell(namespace, "p", "true", main={"securityContext": {}})
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        cluster.apply(pod)


def test_buckets_outlive_the_store(cluster: LocalCluster, namespace: str) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    client = storage.Client(
        project="local",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
        client_options={"api_endpoint": cluster.gcs},
    )
    try:
        blob = client.bucket("ft-artifacts").blob(f"{namespace}/a")
        blob.upload_from_string(b"kept", if_generation_match=0)
        cluster.stop("gcs")
        assert cluster.status()["gcs"]["state"] == "stopped"
        cluster.start("gcs")
        assert blob.download_as_bytes() == b"kept"
    finally:
        client.close()


def test_pods_of_a_killed_node_agent_are_lost_and_their_processes_end(
    cluster: LocalCluster, namespace: str
) -> None:
    cluster.apply(shell(namespace, "p", "sleep 600"))
    uid = cluster.wait(path(namespace, "p"), running)["metadata"]["uid"]
    record = cluster.state.pods / f"{namespace}_p_{uid}" / "main.process"
    pid = json.loads(record.read_text())["pid"]
    cluster.kill("node-agent")
    cluster.await_ready("node-agent")
    pod = cluster.wait(path(namespace, "p"), over)
    assert pod["status"]["reason"] == "NodeAgentRestarted"
    assert ProcessIdentity.of(pid) is None
    assert not record.exists()
    cluster.apply(shell(namespace, "next", "exit 0"))
    cluster.wait(path(namespace, "next"), over)
