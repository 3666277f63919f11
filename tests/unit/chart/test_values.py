"""The chart's values, its schema and what the operator reads belong together."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from finetune_operator.runtime.settings import Settings
from tools import chart_reference

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "finetune-operator"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = yaml.safe_load((CHART / "values.schema.json").read_text())
DEPLOYMENT = (CHART / "templates" / "deployment.yaml").read_text()
CHECK = jsonschema.Draft7Validator(SCHEMA)


#: Variables that operator.env must not set, because the chart does.
RESERVED: list[str] = SCHEMA["properties"]["operator"]["properties"]["env"]["items"]["properties"]["name"][
    "not"
]["enum"]


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in schema:
        yield path, schema
        for name, inner in schema["properties"].items():
            yield from objects(inner, f"{path}.{name}")


def test_the_defaults_follow_the_schema() -> None:
    CHECK.validate(VALUES)


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    for path, schema in objects(SCHEMA):
        value: Any = VALUES
        for name in path.split(".")[1:]:
            value = value.get(name) if isinstance(value, dict) else None
        # an empty one is a part of Kubernetes' own API
        if isinstance(value, dict) and value:
            of_parents = set() if path else {"enabled", "global"}
            assert set(value) == set(schema["properties"]) - of_parents, path


def test_every_value_is_a_row_of_the_readme_with_a_comment() -> None:
    found = {value.path: value for value in chart_reference.values((CHART / "values.yaml").read_text())}
    assert {path for path, value in found.items() if not value.comment} == set()
    assert found["resources"].default == VALUES["resources"]
    assert found["metrics.tls.clientAuth"].default is False
    (escaped,) = chart_reference.values("# a | stays in its cell, <x> is text\na: 1\n")
    assert escaped.comment == r"a \| stays in its cell, &lt;x> is text"


def test_a_parent_chart_may_make_the_operator_optional_and_set_global_values() -> None:
    CHECK.validate({**VALUES, "enabled": True, "global": {"imageRegistry": "registry.example"}})


@pytest.mark.parametrize("image", ["operator", "registry.example:5000/ml/operator", "r.example/operator"])
def test_an_image_may_have_a_registry_with_a_port(image: str) -> None:
    CHECK.validate({**VALUES, "image": {"repository": image}})


def test_more_volumes_cannot_have_a_name_of_the_charts_own() -> None:
    mounted = set(re.findall(r"\{name: ([\w-]+), mountPath:", DEPLOYMENT))
    volume = SCHEMA["properties"]["extraVolumes"]["items"]["properties"]["name"]
    assert mounted == set(volume["not"]["enum"])


def test_every_object_of_the_schema_is_closed() -> None:
    assert [path for path, schema in objects(SCHEMA) if schema.get("additionalProperties") is not False] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": {"repository": "r", "digets": "x"}},
        {"image": {"repository": ""}},
        {"image": {"repository": "registry.example/operator:0.2.0"}},
        {"image": {"repository": "operator@sha256:0"}},
        {"image": {"repository": "r", "digest": "sha256:12"}},
        {"namespaces": "team-a"},
        {"namespaces": ["Team"]},
        {"operator": {"logLevel": "loud"}},
        {"paused": "yes"},
        {"metrics": VALUES["metrics"] | {"alerts": {"kind": "Alerts", "repository": ""}}},
        {"metrics": VALUES["metrics"] | {"alerts": {"kind": "Rules", "repository": "docs"}}},
        {"operator": {"env": [{"name": "A", "valueFrom": {}}]}},
        {"operator": {"env": [{"name": "A"}]}},
        {"operator": {"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}},
        *({"operator": {"env": [{"name": name, "value": "x"}]}} for name in RESERVED),
        {"operator": {"envFrom": [{"prefix": "X_"}]}},
        {"notifications": {"url": "https://notices.example", "keySecret": ""}},
        {"notifications": {"url": "https://me:secret@notices.example", "keySecret": "webhook"}},
        {"notifications": {"url": "file:///etc", "keySecret": "webhook"}},
        {"nameOverride": "Tuning"},
        {"fullnameOverride": "x" * 56},
        {"fullnameOverride": "2024-q4"},
        {"commonLabels": {"rbac.authorization.k8s.io/aggregate-to-view": "false"}},
        {"commonLabels": {"app.kubernetes.io/name": "other"}},
        {"caBundle": {"configMap": "ca", "key": "ca.crt", "secret": "ca"}},
        # values of an earlier release, as `helm upgrade --reuse-values` gives them
        {"metrics": {name: value for name, value in VALUES["metrics"].items() if name != "tls"}},
        {"metrics": {name: value for name, value in VALUES["metrics"].items() if name != "alerts"}},
        {"rbac": {name: value for name, value in VALUES["rbac"].items() if name != "protect"}},
        {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]},
        {"extraVolumes": [{"name": "no-source"}]},
        {"extraVolumeMounts": [{"name": "x", "mountPath": "/tmp/"}]},
        {"extraVolumeMounts": [{"name": "x", "mountPath": "/etc/finetune/ca-bundle"}]},
        {"extraVolumeMounts": [{"name": "x", "mountPath": "/etc/finetune"}]},
        {"extraVolumeMounts": [{"name": "x", "mountPath": "relative"}]},
        {"livenessProbe": {"httpGet": {"path": "/x"}}},
        {"readinessProbe": {"periodSeconds": 0}},
        {"revisionHistoryLimit": -1},
        {"topologySpreadConstraints": [{"maxSkew": 1}]},
        {"dnsPolicy": "Cluster"},
        {"dnsConfig": {"servers": ["10.0.0.10"]}},
        {"metrics": {**VALUES["metrics"], "tls": {"secret": "", "clientAuth": True}}},
        {"metrics": {**VALUES["metrics"], "serviceMonitor": {"enabled": True, "scheme": "https"}}},
        {"test": {"timeout": "forever"}},
        {"replicas": 0},
        {"podLabels": {"a": 1}},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    assert not CHECK.is_valid({**VALUES, **wrong})


def test_chart_operator_and_contract_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    versions = {
        tomllib.loads(path.read_text())["project"]["version"]
        for path in (
            ROOT / "pyproject.toml",
            *(ROOT / name / "pyproject.toml" for name in ("contract", "storage")),
        )
    }
    assert versions == {chart["version"]} == {chart["appVersion"]}


def test_the_pod_sets_only_what_the_operator_reads() -> None:
    set_by_pod = set(re.findall(r"name: FINETUNE_(\w+)", DEPLOYMENT))
    assert set_by_pod
    assert set_by_pod <= {name.upper() for name in Settings.model_fields}


def test_ports_and_grace_period_fit_the_operators_defaults() -> None:
    settings = Settings()
    assert f"name: health, containerPort: {settings.health_port}" in DEPLOYMENT
    assert f"name: metrics, containerPort: {settings.metrics_port}" in DEPLOYMENT
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", DEPLOYMENT)
    assert grace
    assert int(grace[1]) > settings.drain_seconds
