"""The chart grants what the operator uses, and nothing else."""

import re
from pathlib import Path

import pytest
import yaml

from tests.rbac import (
    CLUSTER_RULES,
    JOB_RULES,
    OWN_RULES,
    RECORD_RULES,
    PolicyRule,
)

RULES = Path(__file__).parents[3] / "charts" / "finetune-operator" / "templates" / "_rules.tpl"


def granted(template: str) -> set[PolicyRule]:
    """Returns the rules of one named template of the chart, flattened."""
    text = re.search(
        rf'define "finetune-operator\.{template}" -}}}}\n(.*?)\n{{{{- end', RULES.read_text(), re.DOTALL
    )
    assert text, template
    return {
        PolicyRule(group, resource, frozenset(rule["verbs"]))
        for rule in yaml.safe_load(re.sub(r"{{.*?}}", "x", text[1]))
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


@pytest.mark.parametrize(
    ("template", "rules"),
    [
        ("jobRules", JOB_RULES),
        ("clusterRules", CLUSTER_RULES),
        ("ownRules", OWN_RULES),
        ("recordRules", RECORD_RULES),
    ],
)
def test_the_charts_role_is_what_the_operator_uses(template: str, rules: tuple[PolicyRule, ...]) -> None:
    assert granted(template) == set(rules)


def test_no_secret_is_readable() -> None:
    assert not any(rule.resource == "secrets" for rule in (*JOB_RULES, *CLUSTER_RULES, *OWN_RULES))
