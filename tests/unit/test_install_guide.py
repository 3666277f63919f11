"""The commands of docs/install-gke.md that give access to storage, run by bash with stand-ins for the programs."""

import re
import subprocess
from pathlib import Path

import pytest

from devcluster.bucketrights import ROLES, Grant
from tests import bucket_grants
from tests.bucket_grants import ARTIFACTS, CACHE, DATA, MODELS

GUIDE = (Path(__file__).parents[2] / "docs" / "install-gke.md").read_text()
#: The guide's buckets -> those of the local cluster.
BUCKETS = {
    "my-project-finetune-artifacts": ARTIFACTS,
    "my-project-finetune-cache": CACHE,
    "my-project-models": MODELS,
    "my-project-data": DATA,
}
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$COMMANDS"
case "$*" in *projectNumber*) echo 123456;; esac
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What step 3 runs, one command a line."""
    folder = tmp_path_factory.mktemp("guide")
    for name in ("gcloud", "kubectl"):
        program = folder / name
        program.write_text(STAND_IN)
        program.chmod(0o755)
    step = GUIDE.partition("## 3. ")[2].partition("\n## ")[0]
    script = "\n".join(re.findall(r"```bash\n(.*?)```", step, flags=re.DOTALL))
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "COMMANDS": str(folder / "commands")}
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=environment, check=True)
    return (folder / "commands").read_text().splitlines()


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


def test_no_account_has_a_role_on_objects_of_a_whole_bucket_of_ours(commands: list[str]) -> None:
    for grant in _grants(commands):
        if grant.bucket in (ARTIFACTS, CACHE) and not grant.folder:
            assert ROLES[grant.role] == {"storage.buckets.get"}


def test_the_custom_role_has_one_permission(commands: list[str]) -> None:
    (command,) = (each for each in commands if "iam roles create" in each)
    assert re.search(
        r"create finetuneBucketReader --project my-project .*--permissions storage\.buckets\.get$", command
    )


def test_every_managed_folder_is_made_in_a_bucket_that_can_have_some(commands: list[str]) -> None:
    (made,) = (each for each in commands if "buckets create" in each)
    assert "--uniform-bucket-level-access" in made
    for place in re.findall(r"managed-folders create gs://([^/ ]+)/", "\n".join(commands)):
        assert f"gs://{place}" in made
