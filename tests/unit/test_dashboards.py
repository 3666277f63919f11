"""The dashboards: written by their program, on metrics and labels that exist, with queries that Prometheus parses."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.grafana.dashboards import FOLDER, dashboards
from devcluster.layout import ROOT
from tests.dashboards import Query, documented_queries, panel_queries

VARIABLES = {
    "team_label": "exported_namespace", "team": ".*", "profile": ".*", "release": ".*",
    "namespace": "team-a", "job": "demo",
    "__rate_interval": "1m", "__range": "1d",
}  # fmt: skip
FLEET, JOB = (list(panel_queries(name, VARIABLES)) for name in ("fleet", "job"))
DOCUMENTED = list(documented_queries())
#: Labels that Prometheus adds.
TARGET = {"namespace", "exported_namespace"}


def operator_metrics() -> dict[str, set[str]]:
    """Name of each series of the operator -> its labels."""
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    known = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", reference, re.MULTILINE):
        found = {*re.findall(r"\w+", labels), *TARGET}
        if kind == "histogram":
            known |= {f"{name}_bucket": found | {"le"}, f"{name}_sum": found, f"{name}_count": found}
        else:
            known[name] = found
    return known


def job_metrics() -> dict[str, set[str]]:
    """The same for the series that kube-state-metrics makes of jobs."""
    text = (ROOT / "deploy" / "kube-state-metrics" / "custom-resource-state.yaml").read_text()
    (config,) = yaml.safe_load(text)["spec"]["resources"]
    known = {}
    for metric in config["metrics"]:
        each = metric["each"]
        (details,) = (value for key, value in each.items() if key != "type")
        labels = {
            *config["labelsFromPath"],
            *metric.get("labelsFromPath", {}),
            *details.get("labelsFromPath", {}),
        }
        if "labelName" in details:
            labels.add(details["labelName"])
        known[f"{config['metricNamePrefix']}_{metric['name']}"] = labels
    return known


def unknown(query: Query, known: dict[str, set[str]]) -> set[str]:
    """The names of metrics and labels in a query that do not exist."""
    names = set(re.findall(r"finetune_\w+", query.expr))
    assert names, query
    used = {label for group in re.findall(r"by \(([^)]*)\)", query.expr) for label in group.split(", ")}
    used |= set(re.findall(r"(\w+)(?:!=|=~|!~|=)\"", query.expr))
    labels = {label for name in names for label in known.get(name, ())}
    return (names - known.keys()) | (used - labels)


@pytest.mark.parametrize("query", [*FLEET, *DOCUMENTED], ids=lambda query: query.place)
def test_a_query_of_the_fleet_names_metrics_and_labels_of_the_operator(query: Query) -> None:
    assert unknown(query, operator_metrics()) == set()


@pytest.mark.parametrize("query", JOB, ids=lambda query: query.place)
def test_a_query_of_one_job_names_series_of_kube_state_metrics(query: Query) -> None:
    assert unknown(query, job_metrics()) == set()


def test_a_name_that_does_not_exist_is_found() -> None:
    wrong = Query(place="", expr='sum by (fase) (finetune_jobs{profil=~".*"}) / finetune_jbs')
    assert unknown(wrong, operator_metrics()) == {"fase", "profil", "finetune_jbs"}


def test_the_committed_dashboards_are_what_their_program_writes() -> None:
    assert {name: (FOLDER / name).read_text() for name in dashboards()} == dashboards(), "run make generate"


def test_the_committed_dashboards_have_what_grafana_needs_to_show_them() -> None:
    for content in dashboards().values():
        made = json.loads(content)
        panels = made["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for panel in panels:
            letters = [target["refId"] for target in panel.get("targets", ())]
            assert len(set(letters)) == len(letters)
            assert panel["type"] == "row" or (letters and all(letters) and panel["title"])
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
        assert len(set(places)) == len(places)
        variables = {variable["name"] for variable in made["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", content)) - {"__all", "__rate_interval", "__range"}
        assert used <= variables


def test_prometheus_parses_every_query(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("the queries are not parsed: promtool is missing (apt-get install prometheus)")
    rules = [
        {"record": f"query:{number}", "expr": query.expr}
        for number, query in enumerate([*FLEET, *JOB, *DOCUMENTED])
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
