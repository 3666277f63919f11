"""The alerts: judged by promtool, each with a runbook, on metrics that exist."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
FILE = ROOT / "charts" / "finetune-operator" / "alerts.yaml"
TESTS = Path(__file__).parent / "alerts_test.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]


def test_promtool_accepts_the_rules_and_each_fires_when_it_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("the alerts are not tested: promtool is missing (apt-get install prometheus)")
    for command in (["check", "rules", str(FILE)], ["test", "rules", str(TESTS)]):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_is_asked_about_every_alert_both_ways() -> None:
    well, *_, wrong = yaml.safe_load(TESTS.read_text())["tests"]
    assert [each["alertname"] for each in well["alert_rule_test"]] == NAMES
    fired = [sample["labels"] for sample in wrong["promql_expr_test"][0]["exp_samples"]]
    assert fired == [f'{{alertname="{name}"}}' for name in NAMES]


def test_every_alert_has_a_runbook() -> None:
    text = (ROOT / "docs" / "observability.md").read_text()
    headings = re.findall(r"^### (Finetune\w+)$", text, re.MULTILINE)
    assert headings == NAMES
    assert [rule["annotations"]["runbook_url"] for rule in RULES] == [
        f"docs/observability.md#{name.lower()}" for name in NAMES
    ]


def test_alerts_name_metrics_and_labels_that_exist() -> None:
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    labels = dict(re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", reference, re.MULTILINE))
    for rule in RULES:
        names = set(re.findall(r"finetune_\w+", rule["expr"]))
        assert names
        assert names <= labels.keys(), rule["alert"]
        known = {label for name in names for label in re.findall(r"\w+", labels[name])}
        # Labels of the target.
        known |= {"namespace", "exported_namespace", "job"}
        grouped = {
            label for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in group.split(", ")
        }
        assert grouped | set(re.findall(r"(\w+)!?=", rule["expr"])) <= known, rule["alert"]
