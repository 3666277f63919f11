"""The series of single jobs: what kube-state-metrics reads exists in the schema and in real statuses."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import Stage
from finetune_operator.api import Phase, WaitingReason
from tests.unit.lifecycle.states import STATES, reach

ROOT = Path(__file__).parents[2]
(CONFIG,) = yaml.safe_load((ROOT / "deploy/kube-state-metrics/custom-resource-state.yaml").read_text())[
    "spec"
]["resources"]
COLLECTED = yaml.safe_load((ROOT / "deploy/kube-state-metrics/cluster-pod-monitoring.yaml").read_text())
CRD = yaml.safe_load((ROOT / "crds/finetunejobs.tpu-finetune.dev.yaml").read_text())
(VERSION,) = (
    each for each in CRD["spec"]["versions"] if each["name"] == CONFIG["groupVersionKind"]["version"]
)
METRICS: Mapping[str, Mapping[str, Any]] = {each["name"]: each for each in CONFIG["metrics"]}
METADATA = frozenset({"name", "namespace", "creationTimestamp"})
#: What no simulated job of these states has; the schema knows it.
UNREPORTED = {
    "created_time_seconds", "tokens_per_second", "mfu_percent", "cost", "budget_remaining", "compilation_seconds",
    "compilations", *(name for name in METRICS if name.startswith("goodput_")),
}  # fmt: skip
#: Labels that Google's managed Prometheus sets on every target; relabelings may not change them.
GOOGLES = {
    "project_id",
    "location",
    "cluster",
    "job",
    "instance",
    "top_level_controller",
    "top_level_controller_type",
}
SETS = {"phase": Phase, "stage": Stage, "waiting": WaitingReason}


def in_schema(path: Sequence[str], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema at a path. Raises KeyError with what is missing."""
    for part in path:
        if part.startswith("["):
            in_schema([part[1:-1].split("=")[0]], schema["items"])
            schema = schema["items"]
        else:
            schema = schema["properties"][part]
    return schema


def in_job(path: Sequence[str], found: Any) -> Any:
    """The value at a path, as kube-state-metrics finds it; None if there is none."""
    for part in path:
        if part.startswith("[") and isinstance(found, list):
            key, _, value = part[1:-1].partition("=")
            found = next((each for each in found if each.get(key) == value), None)
        elif isinstance(found, Mapping):
            found = found.get(part)
        else:
            return None
    return found


def number(value: Any) -> float:
    """The number that kube-state-metrics makes of a value. Raises ValueError."""
    if isinstance(value, str) and value.lower() in ("true", "false", "unknown"):
        return float(value == "True")
    try:
        return float(value)
    except ValueError:
        return datetime.fromisoformat(value).timestamp()


def paths(metric: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """All paths of a metric from the root of the object."""
    yield from metric.get("labelsFromPath", {}).values()
    (details,) = (value for key, value in metric["each"].items() if key != "type")
    base = details.get("path", [])
    if base:
        yield base
    items = ["[]"] if "valueFrom" in details else []
    for each in (*details.get("labelsFromPath", {}).values(), *([details["valueFrom"]] if items else [])):
        yield [*base, *items, *each]


def series(metric: Mapping[str, Any], job: Any) -> list[float]:
    """The values of the series of a gauge."""
    gauge = metric["each"]["gauge"]
    found = in_job(gauge["path"], job)
    values = [in_job(gauge["valueFrom"], each) for each in found or ()] if "valueFrom" in gauge else [found]
    return [number(each) for each in values if each is not None]


@pytest.mark.parametrize("name", METRICS)
def test_each_path_is_a_field_of_the_jobs_schema(name: str) -> None:
    schema = VERSION["schema"]["openAPIV3Schema"]
    for path in (*CONFIG["labelsFromPath"].values(), *paths(METRICS[name])):
        if path[0] == "metadata":
            assert path[1] in METADATA
            continue
        at = schema
        for part in path:
            at = at["items"] if part == "[]" else in_schema([part], at)


def test_a_path_that_does_not_exist_is_found() -> None:
    with pytest.raises(KeyError, match="progres"):
        in_schema(["status", "progres", "step"], VERSION["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("name", SETS)
def test_a_set_of_states_has_the_states_of_the_api(name: str) -> None:
    assert METRICS[name]["each"]["stateSet"]["list"] == [str(each) for each in SETS[name]]


def test_no_name_is_used_twice_and_none_is_one_of_the_operators() -> None:
    assert len(METRICS) == len(CONFIG["metrics"])
    assert CONFIG["metricNamePrefix"] == "finetune_job"
    reference = (ROOT / "docs/reference/metrics.md").read_text()
    assert not [name for name in METRICS if f"`finetune_job_{name}`" in reference]


def test_every_value_of_real_statuses_is_a_number() -> None:
    jobs = [reach(state) for state in STATES]
    gauges = {name: metric for name, metric in METRICS.items() if metric["each"]["type"] == "Gauge"}
    found = {
        name: [value for job in jobs for value in series(metric, job)] for name, metric in gauges.items()
    }
    shown = {name for name, values in found.items() if values}
    assert gauges.keys() - shown == UNREPORTED
    succeeded = reach("succeeded")
    assert in_job(METRICS["phase"]["each"]["stateSet"]["path"], succeeded) == "Succeeded"
    assert len(series(METRICS["condition"], succeeded)) == 14
    assert len(series(METRICS["stage_completion_time_seconds"], succeeded)) == len(Stage)


def label_paths(metric: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """The paths of a metric's labels; those in an item are relative to it."""
    (details,) = (value for key, value in metric["each"].items() if key != "type")
    yield from metric.get("labelsFromPath", {}).values()
    yield from details.get("labelsFromPath", {}).values()


def labels(metric: Mapping[str, Any]) -> set[str]:
    """The names of a metric's labels."""
    (details,) = (value for key, value in metric["each"].items() if key != "type")
    named = [details["labelName"]] if "labelName" in details else []
    return {
        *CONFIG["labelsFromPath"],
        *metric.get("labelsFromPath", {}),
        *details.get("labelsFromPath", {}),
        *named,
    }


def test_googles_managed_prometheus_keeps_every_series_with_its_own_labels() -> None:
    assert (COLLECTED["apiVersion"], COLLECTED["kind"]) == (
        "monitoring.googleapis.com/v1",
        "ClusterPodMonitoring",
    )
    # Without the list, and with null, the operator sets the label namespace.
    assert COLLECTED["spec"]["targetLabels"] == {"metadata": []}
    (endpoint,) = COLLECTED["spec"]["endpoints"]
    (kept,) = endpoint["metricRelabeling"]
    assert (kept["action"], kept["sourceLabels"]) == ("keep", ["__name__"])
    names = {f"{CONFIG['metricNamePrefix']}_{name}" for name in METRICS}
    assert {name for name in names if re.fullmatch(kept["regex"], name)} == names
    assert not re.fullmatch(kept["regex"], "kube_pod_info")
    assert {name: clash for name, metric in METRICS.items() if (clash := labels(metric) & GOOGLES)} == {}


def test_a_tenants_trainer_words_no_label() -> None:
    """A label with a reason would make a series for each word that it reports."""
    found = {tuple(path) for metric in METRICS.values() for path in label_paths(metric)}
    assert found == {
        ("type",), ("name",), ("status", "cost", "currency"),
        *(("status", "resolved", *path) for path in (
            ("profile", "name"), ("model", "source"), ("resources", "tpu"), ("resources", "capacity"),
        )),
    }  # fmt: skip


def test_the_deployment_runs_the_tested_release_with_the_shipped_file() -> None:
    folder = ROOT / "deploy/kube-state-metrics"
    *_, deployment = yaml.safe_load_all((folder / "kube-state-metrics.yaml").read_text())
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    tested = re.search(
        r"kube-state-metrics/v2 (v\S+)", (ROOT / "tests/kube_state_metrics/go.mod").read_text()
    )
    assert tested is not None
    assert container["image"].endswith(f":{tested.group(1)}")
    (mount,), (volume,) = container["volumeMounts"], pod["spec"]["volumes"]
    file = f"{mount['mountPath']}/custom-resource-state.yaml"
    assert f"--custom-resource-state-config-file={file}" in container["args"]
    command = f"kubectl create configmap {volume['configMap']['name']} -n monitoring "
    assert command in (ROOT / "docs/observability.md").read_text()
    selected = COLLECTED["spec"]["selector"]["matchLabels"]
    assert selected.items() <= pod["metadata"]["labels"].items()
    assert COLLECTED["spec"]["endpoints"][0]["port"] == container["ports"][0]["containerPort"]
