"""Pods with several containers start, run and end on a local node as with a kubelet."""

from pathlib import Path
from typing import Any

import pytest

from tests.doubles.local_cluster import LocalCluster
from tests.integration import pods
from tests.integration.pods import exit_code, over, running, shell

#: The file to which all containers append their events; a sidecar also appends that it is being terminated.
TOLD = "$TMPDIR/told"
SERVE = f"trap 'echo end-$0 >>{TOLD}; exit 3' TERM; echo $0 >>{TOLD}; while :; do sleep 0.05; done"
AWAIT = f"until grep -qs $0 {TOLD}; do sleep 0.05; done"
SHARED = {
    "env": [{"name": "TMPDIR", "value": "/t"}],
    "volumeMounts": [{"name": "t", "mountPath": "/t"}],
}

type Object = dict[str, Any]


@pytest.fixture(autouse=True)
def machine_image(cluster: LocalCluster) -> None:
    cluster.add_image(pods.IMAGE, Path("/usr/bin"))


def path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def init(name: str, script: str, **more: Any) -> Object:
    return {**pods.container("sh", "-c", script, name), **SHARED, "name": name, **more}


def sidecar(name: str, script: str = SERVE) -> Object:
    return init(name, script, restartPolicy="Always")


def pod(namespace: str, script: str, *inits: Object, **more: Any) -> Object:
    volumes = [{"name": "t", "emptyDir": {}}]
    return shell(namespace, "p", script, main=SHARED, initContainers=list(inits), volumes=volumes, **more)


def told(cluster: LocalCluster, found: Object) -> list[str]:
    meta = found["metadata"]
    folder = cluster.state.pods / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / "volumes" / "t"
    return (folder / "told").read_text().split()


def states(found: Object) -> dict[str, Object]:
    return {each["name"]: each for each in found["status"]["initContainerStatuses"]}


def code(status: Object) -> int:
    return int(status["state"]["terminated"]["exitCode"])


def test_sidecars_begin_in_order_and_end_in_reverse_after_the_work(
    cluster: LocalCluster, namespace: str
) -> None:
    first = init("first", f"echo first >>{TOLD}")
    one, two = sidecar("one"), sidecar("two", f"{AWAIT.replace('$0', 'one')}; {SERVE}")
    work = f"{AWAIT.replace('$0', 'two')}; echo work >>{TOLD}"
    cluster.apply(pod(namespace, work, first, one, two))
    found = cluster.wait(path(namespace, "p"), over)
    assert told(cluster, found) == ["first", "one", "two", "work", "end-two", "end-one"]
    # the sidecars' exit codes do not matter
    assert found["status"]["phase"] == "Succeeded"
    assert {name: code(status) for name, status in states(found).items()} == {"first": 0, "one": 3, "two": 3}
    assert cluster.kubectl("logs", "-n", namespace, "p", "-c", "one") == ""


def test_a_sidecar_that_ends_is_started_again_whatever_the_pods_policy(
    cluster: LocalCluster, namespace: str
) -> None:
    once = f"test -e $TMPDIR/second && {{ {SERVE}; }}; touch $TMPDIR/second; exit 0"
    cluster.apply(pod(namespace, AWAIT.replace("$0", "again"), sidecar("again", once)))
    found = cluster.wait(path(namespace, "p"), over)
    assert found["status"]["phase"] == "Succeeded"
    assert states(found)["again"]["restartCount"] == 1
    assert code({"state": states(found)["again"]["lastState"]}) == 0


def test_the_work_of_a_deleted_pod_saves_while_its_sidecars_still_serve(
    cluster: LocalCluster, namespace: str
) -> None:
    save = f"sleep 0.3; echo saved >>{TOLD}; exit 75"
    work = f"trap '{save}' TERM; {AWAIT.replace('$0', 'one')}; while :; do sleep 0.05; done"
    meta = {"finalizers": ["test.dev/look"]}
    cluster.apply(pod(namespace, work, sidecar("one"), meta=meta))
    cluster.wait(path(namespace, "p"), running)
    cluster.delete(path(namespace, "p"))
    found = cluster.wait(path(namespace, "p"), over)
    assert (found["status"]["phase"], exit_code(found)) == ("Failed", 75)
    assert told(cluster, found)[-2:] == ["saved", "end-one"]
    cluster.patch(path(namespace, "p"), {"metadata": {"finalizers": None}})
    cluster.wait_gone(path(namespace, "p"))


def test_a_failed_init_container_ends_the_sidecars_before_it(cluster: LocalCluster, namespace: str) -> None:
    fails = init("fails", f"{AWAIT.replace('$0', 'one')}; exit 7")
    cluster.apply(pod(namespace, f"echo work >>{TOLD}", sidecar("one"), fails))
    found = cluster.wait(path(namespace, "p"), over)
    assert found["status"]["phase"] == "Failed"
    assert told(cluster, found) == ["one", "end-one"]
    assert {name: code(status) for name, status in states(found).items()} == {"one": 3, "fails": 7}


def test_a_pod_that_is_deleted_before_it_has_begun_is_gone_at_once(
    cluster: LocalCluster, namespace: str
) -> None:
    waiting = sidecar("waiting") | {"image": f"localhost/{namespace}:none"}
    cluster.apply(pod(namespace, "true", waiting))
    cluster.wait(path(namespace, "p"), lambda found: "initContainerStatuses" in found["status"])
    cluster.delete(path(namespace, "p"))
    cluster.wait_gone(path(namespace, "p"))


def test_a_container_that_has_ended_is_shown_while_another_one_runs(
    cluster: LocalCluster, namespace: str
) -> None:
    made = pod(namespace, "exit 7")
    made["spec"]["containers"].append(init("other", SERVE))
    cluster.apply(made)

    def ended(found: Object) -> bool:
        statuses = {each["name"]: each["state"] for each in found["status"].get("containerStatuses", ())}
        return (statuses.get("main", {}).get("terminated") or {}).get("exitCode") == 7

    found = cluster.wait(path(namespace, "p"), ended)
    assert found["status"]["phase"] == "Running"
    other = next(each for each in found["status"]["containerStatuses"] if each["name"] == "other")
    assert "running" in other["state"]
