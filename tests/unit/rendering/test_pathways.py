"""JobSets under Pathways: whole against golden files, and what must hold of every slice."""

import dataclasses
import json
import re
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import Stage, StageRequest
from finetune_operator.catalog import TpuShape, all_shapes, shape_by_name
from finetune_operator.planning import Findings
from finetune_operator.rendering import render_jobset
from tests.pathways_plans import SHAPES, plan, train
from tests.unit.lifecycle.world import Object
from tests.unit.rendering.golden_jobsets import check_jobset

KNOWN = [shape for shape in all_shapes() if shape.pathways_instance_type]
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def group(jobset: Object, name: str) -> Object:
    (found,) = (each for each in jobset["spec"]["replicatedJobs"] if each["name"] == name)
    return dict(found)


def pod(jobset: Object, name: str) -> Object:
    return dict(group(jobset, name)["template"]["spec"]["template"]["spec"])


def containers(jobset: Object) -> Iterator[tuple[str, Object]]:
    """(replicated job, container) of all, sidecars included."""
    for each in jobset["spec"]["replicatedJobs"]:
        spec = each["template"]["spec"]["template"]["spec"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            yield each["name"], container


def container(jobset: Object, name: str) -> Object:
    (found,) = (each for _, each in containers(jobset) if each["name"] == name)
    return found


def env(found: Object) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in found["env"]}


@pytest.mark.parametrize(("name", "shape", "slices"), SHAPES, ids=[name for name, _, _ in SHAPES])
def test_the_jobset_is_the_golden_one(name: str, shape: TpuShape, slices: int) -> None:
    check_jobset(f"{name}-train", train(plan(shape, slices)))


@pytest.mark.slow
def test_workers_are_the_slices_and_the_manager_gets_the_same_for_every_row_of_the_catalogue() -> None:
    assert len(KNOWN) > 1600
    for shape, slices in zip(KNOWN, cycle((1, 2, 3)), strict=False):
        jobset = train(plan(shape, slices))
        workers, job = group(jobset, "worker"), group(jobset, "worker")["template"]["spec"]
        chips = container(jobset, "pathways-worker")["resources"]
        assert workers["replicas"] == slices
        assert job["completions"] == job["parallelism"] == shape.hosts
        assert job["backoffLimit"] == 4 * shape.hosts
        for kind in ("requests", "limits"):
            assert chips[kind]["google.com/tpu"] == str(shape.chips_per_host)
            assert set(chips[kind]) <= {"google.com/tpu", "cpu", "memory"}
        assert job["completions"] * shape.chips_per_host == shape.chips
        selector = pod(jobset, "worker")["nodeSelector"]
        assert selector["cloud.google.com/gke-tpu-accelerator"] == shape.accelerator
        assert selector["cloud.google.com/gke-tpu-topology"] == shape.topology
        told = container(jobset, "pathways-rm")["args"]
        assert f"--instance_count={slices}" in told
        assert f"--instance_type={shape.pathways_instance_type}" in told
        assert str(shape.pathways_instance_type).endswith(f":{shape.topology}")
        # On the JobSet or the head it would put the head on the slices' pools; one host would lock a shared pool.
        placed = workers["template"]["metadata"].get("annotations", {})
        assert placed == ({EXCLUSIVE: "cloud.google.com/gke-nodepool"} if shape.multi_host else {})
        assert EXCLUSIVE not in json.dumps([jobset["metadata"], group(jobset, "pathways-head")])


@pytest.fixture
def jobset() -> Object:
    return train(plan(shape_by_name("v6e-16")))


def test_only_workers_ask_for_chips(jobset: Object) -> None:
    asking = [
        each["name"] for _, each in containers(jobset) if "google.com/tpu" in json.dumps(each["resources"])
    ]
    assert asking == ["pathways-worker"]
    assert (
        "tolerations" not in pod(jobset, "pathways-head") or pod(jobset, "pathways-head")["tolerations"] == []
    )


def test_the_servers_of_the_head_are_sidecars(jobset: Object) -> None:
    head = pod(jobset, "pathways-head")
    assert {each["name"]: each["restartPolicy"] for each in head["initContainers"]} == {
        "pathways-rm": "Always",
        "pathways-proxy": "Always",
    }
    assert [each["name"] for each in head["containers"]] == ["trainer"]
    assert head["restartPolicy"] == "Never"
    assert pod(jobset, "worker")["restartPolicy"] == "OnFailure"


def test_the_end_of_the_trainer_is_the_end_of_the_jobset(jobset: Object) -> None:
    spec = jobset["spec"]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["pathways-head"]}
    assert spec["startupPolicy"] == {"startupPolicyOrder": "InOrder"}
    assert [each["name"] for each in spec["replicatedJobs"]] == ["pathways-head", "worker"]
    assert (spec["failurePolicy"]["maxRestarts"], spec["failurePolicy"]["restartStrategy"]) == (
        0,
        "BlockingRecreate",
    )
    head, worker = (group(jobset, name)["template"]["spec"] for name in ("pathways-head", "worker"))
    assert head["backoffLimit"] == 0
    # Kubernetes refuses one for pods that the kubelet starts again.
    assert "podFailurePolicy" in head
    assert "podFailurePolicy" not in worker


def test_a_program_that_expands_a_variable_has_it_before(jobset: Object) -> None:
    """Kubernetes keeps an unknown reference as text: a server would resolve a host called $(PATHWAYS_HEAD)."""
    for _, each in containers(jobset):
        names: list[str] = []
        for variable in each["env"]:
            value = variable.get("value", "").replace("$$", "")
            assert set(re.findall(r"\$\((\w+)\)", value)) <= set(names), each["name"]
            names.append(variable["name"])
        wanted = {name for argument in each.get("args", ()) for name in re.findall(r"\$\((\w+)\)", argument)}
        assert wanted <= set(names), each["name"]


def test_the_trainer_speaks_to_the_proxy(jobset: Object) -> None:
    told = env(container(jobset, "trainer"))
    assert told["JAX_PLATFORMS"] == "proxy"
    assert "JAX_COMPILATION_CACHE_DIR" not in told  # pathwaysutils switches that cache off
    assert told["JAX_BACKEND_TARGET"] == "grpc://$(PATHWAYS_HEAD):29000"
    assert told["ENABLE_PATHWAYS_PERSISTENCE"] == "1"
    assert "--server_port=29000" in container(jobset, "pathways-proxy")["args"]
    request = StageRequest.model_validate_json(told["FINETUNE_REQUEST"].replace("$$", "$"))
    assert request.mesh.controller == "Pathways"


@pytest.mark.parametrize("name", ["pathways-rm", "pathways-proxy", "pathways-worker"])
def test_every_server_keeps_its_files_in_the_scratch_folder(jobset: Object, name: str) -> None:
    assert "--gcs_scratch_location=gs://artifacts/team-a/pathways" in container(jobset, name)["args"]


def test_pods_are_restricted(jobset: Object) -> None:
    for name in ("pathways-head", "worker"):
        spec = pod(jobset, name)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert "hostNetwork" not in spec
        assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])
    for _, each in containers(jobset):
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_workers_alone_get_what_the_profile_grants_of_the_node() -> None:
    made = plan(shape_by_name("v6e-16"))
    granted = train(
        dataclasses.replace(made, pod=made.pod.model_copy(update={"host_network": True, "privileged": True}))
    )
    worker = pod(granted, "worker")
    assert (worker["hostNetwork"], worker["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert worker["containers"][0]["securityContext"] == {"privileged": True}
    assert all(port["hostPort"] == port["containerPort"] for port in worker["containers"][0]["ports"])
    assert pod(granted, "pathways-head") == pod(train(made), "pathways-head")


def test_the_head_stays_where_the_profile_wants_it(jobset: Object) -> None:
    assert pod(jobset, "pathways-head")["nodeSelector"] == {"cloud.google.com/gke-nodepool": "pathways-head"}
    annotations = group(jobset, "pathways-head")["template"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}


def test_evaluate_runs_like_training_and_stages_on_cpu_as_ever() -> None:
    made = plan(shape_by_name("v6e-16"))
    names = {
        stage: [each["name"] for each in render_jobset(made, stage, 1, Findings())["spec"]["replicatedJobs"]]
        for stage in Stage
    }
    both = ["pathways-head", "worker"]
    assert names == {stage: both if stage in (Stage.TRAIN, Stage.EVALUATE) else ["cpu"] for stage in Stage}


@given(name=st.from_regex(r"[a-z][a-z0-9]{0,27}", fullmatch=True), attempt=st.integers(1, 999))
def test_the_heads_address_fits_a_label(name: str, attempt: int) -> None:
    """JobSet refuses a coordinator whose address is no label's value: at most 63 characters."""
    jobset = train(plan(shape_by_name("v6e-16"), name=name), attempt)
    subdomain = jobset["spec"]["network"]["subdomain"]
    assert len(f"{jobset['metadata']['name']}-pathways-head-0-0.{subdomain}") <= 63
    assert re.fullmatch(r"[a-z][a-z0-9]{5,15}", subdomain)


def test_no_two_jobsets_share_a_subdomain() -> None:
    shape, long = shape_by_name("v6e-16"), "a" * 28
    made = [
        train(plan(shape, name=name), attempt) for name in ("one", "two", long) for attempt in range(1, 6)
    ]
    assert len({jobset["spec"]["network"]["subdomain"] for jobset in made}) == len(made)


def test_the_longest_names_of_pods_fit() -> None:
    jobset = train(plan(shape_by_name("v5p-4096"), 256, name="a" * 28), 999)
    for each in jobset["spec"]["replicatedJobs"]:
        last = f"{each['replicas'] - 1}-{each['template']['spec']['completions'] - 1}"
        assert len(f"{jobset['metadata']['name']}-{each['name']}-{last}-xxxxx") <= 63
