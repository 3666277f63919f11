"""The commands of docs/install-gke.md that set up a team, run by bash with stand-ins for the programs."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.bucket_iam import ROLES, Grant
from tests import bucket_grants
from tests.bucket_grants import ARTIFACTS, CACHE, DATA, MODELS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "install-gke.md").read_text()
#: The guide's buckets -> those of the local cluster.
BUCKETS = {
    "my-project-finetune-artifacts": ARTIFACTS,
    "my-project-finetune-cache": CACHE,
    "my-project-models": MODELS,
    "my-project-data": DATA,
}
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$COMMANDS"
case "$*" in
*projectNumber*) echo 123456;;
"apply -f -") cat >> "$APPLIED"; echo --- >> "$APPLIED";;
*"-f -") cat > /dev/null;;
esac
"""


def _run(folder: Path, step: int, team: str = "team-a") -> list[str]:
    """What a step runs for a team, one command a line. The objects that it applies are in ``applied``."""
    for name in ("gcloud", "kubectl"):
        program = folder / name
        program.write_text(STAND_IN)
        program.chmod(0o755)
    text = GUIDE.partition(f"\n## {step}. ")[2].partition("\n## ")[0].partition("\n### ")[0]
    script = "\n".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL))
    assert script.count("TEAM=team-a\n") == 1
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "COMMANDS": str(folder / "commands"),
        "APPLIED": str(folder / "applied"),
    }
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace("TEAM=team-a\n", f"TEAM={team}\n")],
        env=environment,
        cwd=ROOT,
        check=True,
    )
    return (folder / "commands").read_text().splitlines()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of step 3."""
    return _run(tmp_path_factory.mktemp("guide"), 3)


def _grants(commands: list[str]) -> list[Grant]:
    found = []
    for command in commands:
        match = re.fullmatch(
            r"gcloud storage (?:buckets|managed-folders) add-iam-policy-binding gs://([^/ ]+)/?(\S*) --member "
            r"principal://iam\.googleapis\.com/projects/123456/locations/global/workloadIdentityPools/"
            r"my-project\.svc\.id\.goog/subject/ns/([^/ ]+)/sa/(\S+) "
            r"--role (?:projects/my-project/roles/)?(\S+)",
            command,
        )
        if match:
            bucket, folder, namespace, account, role = match.groups()
            found.append(
                Grant(account=f"{namespace}/{account}", role=role, bucket=BUCKETS[bucket], folder=folder)
            )
    return found


def test_the_commands_give_what_the_table_says(commands: list[str]) -> None:
    given = _grants(commands)
    assert len(given) == sum("add-iam-policy-binding" in command for command in commands)
    assert sorted(given, key=str) == sorted(bucket_grants.of_team("team-a"), key=str)


@pytest.mark.parametrize("step", [3, 8])
def test_the_commands_for_one_team_name_no_other(step: int, tmp_path: Path) -> None:
    ran = _run(tmp_path, step, "team-x")
    applied = tmp_path / "applied"
    assert not [each for each in ran if "team-a" in each or "team-b" in each]
    assert not applied.exists() or "team-a" not in applied.read_text()


@pytest.mark.parametrize("team", ["team-a", "team-x"])
def test_a_team_gets_pod_security_a_policy_and_a_quota(team: str, tmp_path: Path) -> None:
    ran = _run(tmp_path, 8, team)
    applied: list[dict[str, Any]] = [
        each for each in yaml.safe_load_all((tmp_path / "applied").read_text()) if each
    ]
    assert f"kubectl label namespace {team} pod-security.kubernetes.io/enforce=restricted" in ran[0]
    policies = [each["metadata"] for each in applied if each["kind"] == "NetworkPolicy"]
    assert policies == [{"name": "finetune-stages", "namespace": team}]
    assert any(each.startswith(f"kubectl create quota jobs -n {team} ") for each in ran)


def test_the_policy_is_tested_from_within_and_from_another_namespace(tmp_path: Path) -> None:
    ran = _run(tmp_path, 8, "team-x")
    applied = [each for each in yaml.safe_load_all((tmp_path / "applied").read_text()) if each]
    pods = {
        (each["metadata"]["namespace"], each["metadata"]["name"]) for each in applied if each["kind"] == "Pod"
    }
    asked = [re.match(r"kubectl exec -n (\S+) (\S+) -- /agnhost connect (\S+) ", each) for each in ran]
    found = [match.groups() for match in asked if match]
    assert [target for _, _, target in found] == ["policy-listener.team-x:8482"] * 2
    assert [namespace for namespace, _, _ in found] == ["team-x", "default"]
    assert {(namespace, pod) for namespace, pod, _ in found} < pods


def test_no_account_has_a_role_on_objects_of_a_whole_bucket_of_ours(commands: list[str]) -> None:
    for grant in _grants(commands):
        if not grant.folder:
            assert ROLES[grant.role] == {"storage.buckets.get"}


def test_the_custom_role_has_one_permission(commands: list[str]) -> None:
    (command,) = (each for each in commands if "iam roles create" in each)
    assert re.search(
        r"create finetuneBucketReader --project my-project .*--permissions storage\.buckets\.get$", command
    )


def test_every_managed_folder_is_made_in_a_bucket_that_can_have_some(commands: list[str]) -> None:
    (made,) = (each for each in commands if "storage buckets create" in each)
    assert "--uniform-bucket-level-access" in made
    for place in re.findall(r"managed-folders create gs://([^/ ]+)/", "\n".join(commands)):
        assert f"gs://{place}" in made
