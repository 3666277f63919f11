"""The ports that the documents and the example of a NetworkPolicy name are those that pods of stages listen on."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "docs" / "security.md").read_text()
POLICY: Mapping[str, Any] = yaml.safe_load(
    (ROOT / "examples" / "cluster" / "networkpolicy.yaml").read_text()
)["spec"]
GOLDEN = sorted((ROOT / "tests" / "unit" / "rendering" / "golden").rglob("*.yaml"))
#: The node's own agent reads the chips' metrics, and no policy shuts the node out.
FROM_THE_NODE = {8431}
#: Not in any container's list, since JAX alone decides it: tests/trainer/test_network.py reads it from the pinned one.
COORDINATOR = 8482


def pods(path: Path) -> Iterator[Mapping[str, Any]]:
    """Pod templates of the JobSets in a golden file."""
    for jobset in yaml.safe_load_all(path.read_text()):
        for job in jobset["spec"]["replicatedJobs"]:
            yield job["template"]["spec"]["template"]


def rendered_ports() -> set[int]:
    return {
        port["containerPort"]
        for path in GOLDEN
        for pod in pods(path)
        for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
        for port in container.get("ports", [])
    }


def opened(rules: list[Mapping[str, Any]]) -> set[int]:
    return {
        number
        for rule in rules
        for entry in rule["ports"]
        for number in range(entry["port"], entry.get("endPort", entry["port"]) + 1)
    }


def test_the_page_lists_every_port() -> None:
    table = SECURITY.split("| port | listens |")[1].split("\n\n")[0]
    listed = {
        int(number) for row in table.splitlines() for number in re.findall(r"\d{4,5}", row.split("|")[1])
    }
    assert rendered_ports() > {8471, 29000}
    assert listed == rendered_ports() | {COORDINATOR}


def test_the_policy_opens_what_stages_need_of_each_other_and_no_more_inwards() -> None:
    needed = rendered_ports() - FROM_THE_NODE | {COORDINATOR}
    assert needed <= opened(POLICY["ingress"])
    assert opened(POLICY["ingress"]) - needed <= {29003, 29004}
    between = [
        rule for rule in POLICY["egress"] if {"podSelector": POLICY["podSelector"]} in rule.get("to", [])
    ]
    assert opened(between) == opened(POLICY["ingress"])


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_the_policy_selects_every_pod_of_a_stage(path: Path) -> None:
    wanted = POLICY["podSelector"]["matchLabels"].items()
    assert all(wanted <= pod["metadata"]["labels"].items() for pod in pods(path))


def test_the_test_of_enforcement_asks_a_pod_like_a_stages_from_one_that_is_none() -> None:
    text = (ROOT / "examples" / "cluster" / "networkpolicy-test.yaml").read_text()
    found = {each["metadata"]["name"]: each for each in yaml.safe_load_all(text) if each["kind"] == "Pod"}
    selected = POLICY["podSelector"]["matchLabels"].items()
    inside = {name for name, pod in found.items() if selected <= pod["metadata"].get("labels", {}).items()}
    assert inside == {"policy-listener", "policy-inside"}
    assert {found[name]["metadata"]["namespace"] for name in inside} == {"team-a"}
    assert found["policy-outside"]["metadata"]["namespace"] != "team-a"
    assert f"--http-port={COORDINATOR}" in found["policy-listener"]["spec"]["containers"][0]["args"]


def test_only_pods_of_stages_come_in() -> None:
    assert [rule["from"] for rule in POLICY["ingress"]] == [[{"podSelector": POLICY["podSelector"]}]]
    assert POLICY["policyTypes"] == ["Ingress", "Egress"]
