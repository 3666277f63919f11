"""``finetune doctor`` and the objects of the set-up script on the real control plane: healthy, and broken."""

import json

import yaml

from tests.doubles.local_cluster import LocalCluster
from tests.setup_script import files, plan
from tests.unit.cli.bad_input.runs import run

#: Of the local cluster's installation.
OPERATOR = "finetune-system"


def missing(cluster: LocalCluster, *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the message of what is missing by check."""
    done = run(["doctor", "-o", "json", *arguments, "--kubeconfig", str(cluster.kubeconfig)])
    report = json.loads(done.stdout)
    found = {each["check"]: each["message"] for each in report["findings"] if each["state"] == "missing"}
    assert report["missing"] == len([each for each in report["findings"] if each["state"] == "missing"])
    return done.code, found


def test_what_the_script_sets_up_for_a_team_lacks_nothing_until_something_is_taken_away(
    operator: LocalCluster, namespace: str
) -> None:
    """The team's objects and profile are applied as the script writes them. The operator is not a Deployment here."""
    text = plan(TEAMS=f"{namespace}=user:anna@example.com", SECURITY_GROUP="")
    for name in (f"{namespace}.yaml", f"quota-{namespace}.yaml"):
        operator.kubectl("apply", "-f", "-", stdin=files(text)[name])
    profile = files(text)[f"profile-{namespace}.yaml"].replace("DIGEST_OF_THE_TRAINER", "1" * 64)
    operator.kubectl("apply", "-f", "-", stdin=profile)
    operator.kubectl(
        "wait", "--for", "condition=Valid", f"finetuneprofile/gke-{namespace}", "--timeout", "60s"
    )
    counted = r"jsonpath={.status.used.count/finetunejobs\.tpu-finetune\.dev}=0"
    operator.kubectl(
        "wait", f"--for={counted}", "resourcequota/finetune", "-n", namespace, "--timeout", "60s"
    )
    try:
        assert missing(operator, "-n", namespace) == (
            1,
            {"operator": f"Namespace {OPERATOR} has no operator."},
        )
        code, found = missing(operator, "-n", namespace, "--as", "anna@example.com")
        assert (code, found) == (0, {}), "what she may not read is unknown"

        operator.kubectl("delete", "serviceaccount", "ft-train", "-n", namespace)
        operator.kubectl("delete", "rolebinding", "finetune", "-n", namespace)
        quota = {"spec": {"hard": {"requests.google.com/tpu": "1"}}}
        operator.kubectl(
            "patch", "resourcequota", "finetune", "-n", namespace, "--type", "merge", "-p", json.dumps(quota)
        )
        code, found = missing(operator, "-n", namespace)
        assert code == 1
        assert set(found) == {"operator", "accounts", "quotas"}
        code, found = missing(operator, "-n", namespace, "--as", "anna@example.com")
        assert code == 1
        assert "rights" in found
    finally:
        operator.kubectl("delete", "finetuneprofile", f"gke-{namespace}")


def test_the_api_server_takes_every_object_that_the_script_writes(cluster: LocalCluster) -> None:
    """Queues apart: Kueue does not run here."""
    texts = files(plan(ADMINS="user:root@example.com", PATHWAYS="true") + plan("first-job"))
    objects = [
        each
        for name, text in texts.items()
        if name.endswith(".yaml") and name != "values.yaml"
        for each in yaml.safe_load_all(text.replace("DIGEST_OF_THE_TRAINER", "1" * 64))
        if each
    ]
    existing = {each["metadata"]["name"] for each in cluster.list("/api/v1/namespaces")}
    if "team-a" not in existing:
        cluster.kubectl("create", "namespace", "team-a")
    applied = cluster.kubectl(
        *("apply", "--dry-run=server", "--server-side", "--force-conflicts", "-f", "-"),
        stdin=yaml.safe_dump_all(objects),
    )
    assert len(applied.splitlines()) == len(objects)
