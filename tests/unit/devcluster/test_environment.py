"""A container's environment is what a kubelet, GKE and the machine would make of its spec."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devcluster.agent.environment import (
    ConfigError,
    EnvSources,
    expand,
    field_value,
    map_mount_path,
    platform,
    references,
    spec_environment,
    with_mounts,
    workers,
)

NOTHING = EnvSources(secrets={}, config_maps={})
POD: dict[str, Any] = {
    "metadata": {
        "name": "run-train-1-slice-0-1-abcde",
        "namespace": "team",
        "uid": "u",
        "labels": {
            "jobset.sigs.k8s.io/jobset-name": "run-train-1",
            "jobset.sigs.k8s.io/replicatedjob-name": "slice",
            "jobset.sigs.k8s.io/replicatedjob-replicas": "1",
            "jobset.sigs.k8s.io/job-index": "0",
            "batch.kubernetes.io/job-completion-index": "1",
        },
    },
    "spec": {"nodeName": "v6e-2x4-1", "subdomain": "run-train-1"},
}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(MISSING)", "$(MISSING)"),
        ("$A ${A} $( A", "$A ${A} $( A"),
        ("cost: 5$", "cost: 5$"),
    ],
)
def test_references_expand_as_on_a_kubelet(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}) == expanded


@given(st.text())
def test_doubled_dollars_carry_any_text_through(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"A": "1"}) == text


def test_variables_see_those_before_them() -> None:
    container = {
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}, {"name": "C", "value": "3"}]
    }
    assert spec_environment(container, POD, NOTHING) == {"A": "1", "B": "1$(C)", "C": "3"}


def test_secrets_and_config_maps_fill_variables() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "all"}, "prefix": "P_"}],
        "env": [
            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "O", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": True}}},
            {"name": "I", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
    }
    assert references(container) == ({"s", "none"}, {"all"})
    sources = EnvSources(secrets={"s": {"k": "v"}, "none": None}, config_maps={"all": {"x": "y"}})
    assert spec_environment(container, POD, sources) == {"P_x": "y", "T": "v", "I": "v6e-2x4-1"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"secretKeyRef": {"name": "s", "key": "k"}}, 'secret "s" not found'),
        ({"secretKeyRef": {"name": "there", "key": "k"}}, "couldn't find key k in Secret team/there"),
        ({"configMapKeyRef": {"name": "c", "key": "k"}}, 'configmap "c" not found'),
        ({"fieldRef": {"fieldPath": "status.startTime"}}, "fieldRef 'status.startTime' is not supported"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef is not supported"),
    ],
)
def test_what_is_missing_is_reported_in_a_kubelets_words(source: dict[str, Any], message: str) -> None:
    sources = EnvSources(secrets={"s": None, "there": {}}, config_maps={"c": None})
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        spec_environment({"env": [{"name": "A", "valueFrom": source}]}, POD, sources)


def test_labels_are_fields() -> None:
    assert field_value("metadata.labels['batch.kubernetes.io/job-completion-index']", POD) == "1"
    assert field_value("metadata.annotations['none']", POD) == ""


def test_a_host_of_a_two_host_slice_knows_its_place() -> None:
    assert workers(POD, hosts=2) == {
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "run-train-1-slice-0-0.run-train-1,run-train-1-slice-0-1.run-train-1",
    }


def test_a_single_host_is_alone() -> None:
    assert workers(POD, hosts=1) == {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}


def test_several_slices_know_each_others_address() -> None:
    labels = POD["metadata"]["labels"] | {
        "jobset.sigs.k8s.io/replicatedjob-replicas": "3",
        "jobset.sigs.k8s.io/job-index": "2",
    }
    told = workers({**POD, "metadata": {**POD["metadata"], "labels": labels}}, hosts=2)
    assert told["MEGASCALE_NUM_SLICES"] == "3"
    assert told["MEGASCALE_SLICE_ID"] == "2"
    assert told["MEGASCALE_COORDINATOR_ADDRESS"] == "run-train-1-slice-0-0.run-train-1"


def test_chips_become_jax_devices_and_cpu_pods_get_no_tpu_variables() -> None:
    chips = {"resources": {"limits": {"google.com/tpu": "4"}}}
    on_tpu = platform(chips, POD, hosts=2, coordinator="127.0.1.2:99")
    assert on_tpu["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert on_tpu["JAX_COORDINATOR_ADDRESS"] == "127.0.1.2:99"
    on_cpu = platform({}, POD, hosts=1, coordinator="127.0.1.2:99")
    assert on_cpu == {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}


@pytest.mark.parametrize(
    ("value", "local"),
    [
        ("/scratch", "/v/s"),
        ("/scratch/data/x", "/v/s/data/x"),
        ("/scratch/deep/x", "/v/d/x"),
        ("/scratchy", "/scratchy"),
        ("file:///scratch", "file:///scratch"),
        ("", ""),
    ],
)
def test_paths_below_a_mount_point_are_local_folders(value: str, local: str) -> None:
    mounts = {"/scratch": Path("/v/s"), "/scratch/deep": Path("/v/d")}
    assert map_mount_path(value, mounts) == local
    assert with_mounts({"A": value}, mounts) == {"A": local}
