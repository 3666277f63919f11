"""The set-up script's removal, and the withdrawal of the rights of teams and of people."""

import os
import re
import socket
from pathlib import Path

import pytest
import yaml

from tests import setup_script
from tests.setup_script import (
    OTHER_RELEASE,
    VARIABLES,
    World,
    commands,
    everything,
    grants,
    plan,
    removal,
)


def test_a_removal_withdraws_every_role_that_was_granted() -> None:
    assert sorted(grants(removal(), "remove")) == sorted(grants(everything()))
    given = re.findall(r"gcloud projects add-(iam-policy-binding .*)", everything())
    assert any("user:root@example.com --role roles/container.clusterViewer" in each for each in given)
    assert set(given) <= set(
        re.findall(r"gcloud projects remove-(iam-policy-binding .*?) \|\| true", removal())
    )


def test_a_removal_deletes_only_what_the_script_has_created(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.run("--remove", "--yes", "--change", POOLS="v6e-4").returncode == 0
    deleted = [each for each in world.calls if " delete " in each or "storage rm" in each]
    assert not any("clusters delete" in each for each in deleted)
    assert [each.split()[4] for each in deleted if "node-pools delete" in each] == ["v6e-4"]
    namespaces = [each.partition("delete namespace ")[2] for each in deleted if "delete namespace" in each]
    assert namespaces == ["--selector finetune_setup=true", "finetune-system --ignore-not-found"]

    world.run("--remove", "--yes", "--change", OURS="true", POOLS="v6e-4")
    assert any("clusters delete finetune " in each for each in world.calls)
    assert not any("node-pools delete" in each for each in world.calls)


def test_a_removal_deletes_data_only_if_it_is_asked_and_only_buckets_of_its_own(tmp_path: Path) -> None:
    assert "gcloud storage rm" not in plan("--remove")
    world = World(tmp_path)
    world.run("--remove", "--yes", "--change", DELETE_DATA="true", LABELLED="my-project-finetune-cache")
    assert [each for each in world.calls if "storage rm" in each] == [
        "gcloud storage rm --recursive gs://my-project-finetune-cache"
    ]


def test_what_another_cluster_of_the_project_uses_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run(
        "--remove",
        "--yes",
        "--change",
        OURS="true",
        OTHERS="production",
        DELETE_DATA="true",
        LABELLED="my-project-models",
    )
    assert done.returncode == 0
    assert "cluster production of my-project uses them" in done.stderr
    shared = ("remove-iam-policy-binding", "repositories delete", "service-accounts delete", "storage rm")
    assert [each for each in world.calls if any(word in each for word in shared)] == []


def test_an_existing_cluster_that_was_set_up_counts_by_its_node_pools() -> None:
    (asked,) = (words for words in commands(removal()) if words[1:4] == ["container", "clusters", "list"])
    assert asked[asked.index("--filter") + 1] == (
        "(resourceLabels.finetune_setup=true OR nodePools.config.labels.finetune_setup=true"
        " OR nodePools.config.serviceAccount=finetune-nodes@my-project.iam.gserviceaccount.com)"
        " AND NOT (name=finetune AND location=europe-west4)"
    )


def test_a_repository_and_an_account_that_existed_before_stay(tmp_path: Path) -> None:
    text = everything()
    assert re.search(r"repositories create finetune .* --labels finetune_setup=true\n", text)
    assert re.search(r"service-accounts create finetune-nodes .* --description finetune_setup ", text)
    world = World(tmp_path)
    done = world.run("--remove", "--yes", "--change", OURS="true", REPOSITORIES=" ", ACCOUNTS=" ")
    assert done.returncode == 0, done.stderr
    kept = re.compile("repositories delete|service-accounts delete|defaultNodeServiceAccount")
    assert [each for each in world.calls if kept.search(each)] == []
    lists = [each for each in world.calls if re.search("(repositories|service-accounts) list ", each)]
    assert [each.partition("--filter ")[2].partition(" --")[0] for each in lists] == [
        "labels.finetune_setup=true",
        "email=finetune-nodes@my-project.iam.gserviceaccount.com AND description=finetune_setup",
    ]


def test_a_cluster_of_the_same_name_in_another_region_is_another_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("--remove", "--yes", "--change", DELETE_DATA="true")
    asked, clusters, *_, buckets = [each for each in world.calls if re.search("clusters |buckets list", each)]
    assert "clusters describe finetune --location europe-west4 " in asked
    assert "NOT (name=finetune AND location=europe-west4)" in clusters
    assert "labels.finetune_setup=europe-west4_finetune" in buckets


@pytest.mark.parametrize(
    "fault",
    [
        {"FAIL": "clusters list"},
        {"FAIL": "clusters describe", "ERROR": "ResponseError: code=503, message=Try again"},
        {"FAIL": "clusters describe", "ERROR": "ResponseError: code=404, message=Not found: projects/my-project."},
        {"WARNING": "WARNING: The following zones did not respond: us-east5. List results may be incomplete."},
    ],
    ids=str,
)  # fmt: skip
def test_a_removal_that_does_not_know_all_clusters_removes_nothing(
    fault: dict[str, str], tmp_path: Path
) -> None:
    world = World(tmp_path)
    done = world.run("--remove", "--yes", "--change", DELETE_DATA="true", **fault)
    assert done.returncode == 1
    assert [each for each in world.calls if not re.search(r"clusters (list|describe) ", each)] == []
    assert fault.get("ERROR", fault.get("WARNING", "")) in done.stderr
    assert "Fix:   Nothing was removed." in done.stderr


def test_a_removal_needs_no_stderr_that_can_be_opened_by_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        world.stderr = theirs.fileno()
        done = world.run("--remove", "--yes", "--change")
        theirs.close()
        printed = b"".join(iter(lambda: ours.recv(65536), b"")).decode()
    assert done.returncode == 0, printed


def test_a_removal_without_the_variables_of_the_last_run_removes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    for arguments in (["--remove", "--yes"], ["withdraw", "team-a"]):
        done = world.run(*arguments)
        assert done.returncode == 1
        assert world.calls == []
        assert "the folder FILES of the installation" in done.stderr


def test_deployments_in_a_teams_namespace_are_no_other_release(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(
        "--remove", "--yes", "--change", RELEASES="finetune-operator-0.2.0 team-a/stay\n", POOLS="v6e-4"
    )
    assert any("delete crd" in each for each in world.calls)
    assert any("node-pools delete v6e-4" in each for each in world.calls)


def test_a_removal_leaves_what_another_release_of_the_cluster_needs(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("--remove", "--yes", "--change", **OTHER_RELEASE)
    assert done.returncode == 0, done.stderr
    deleted = [each for each in world.calls if " delete " in each or "uninstall" in each]
    assert [re.sub(r"--(kube-)?context \S+ ", "", each) for each in deleted] == [
        "kubectl delete finetunejobs --all --namespace team-a --timeout 10m",
        "kubectl delete finetuneprofiles gke-team-a --ignore-not-found",
        "helm uninstall finetune-operator --namespace finetune-system --wait --ignore-not-found",
        "kubectl delete namespace team-a --ignore-not-found",
        "kubectl delete clusterrolebinding finetune-profiles-team-a --ignore-not-found",
        "kubectl delete clusterrolebinding finetune-admins finetune-admins-jobs --ignore-not-found",
    ]
    assert "CRDs and all other jobs stay, for finetune-b/finetune-b\n" in done.stderr
    assert "Pool finetune-cpu stays" in done.stderr
    assert any("managed-folders remove-iam-policy-binding" in each for each in world.calls)


def test_a_removal_that_cannot_ask_for_other_releases_removes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("--remove", "--yes", "--change", FAIL="get deployments")
    assert done.returncode == 1
    assert "could not be asked for other releases" in done.stderr
    assert not any(" delete " in each or "remove-" in each or "uninstall" in each for each in world.calls)


GONE = {
    "delete finetunejobs": 'error: the server doesn\'t have a resource type "finetunejobs"',
    "iam-policy-binding": "ERROR: Policy binding with the specified principal, role, and condition not found!",
    "repositories delete": "ERROR: (gcloud.artifacts.repositories.delete) NOT_FOUND: Requested entity was not found.",
    "managed-folders": "ERROR: HTTPError 404: The specified managed folder does not exist.",
    "service-accounts delete": "ERROR: NOT_FOUND: Unknown service account",
    "clusters delete": "ResponseError: code=404, message=Not found: projects/my-project/zones/z/clusters/finetune.",
}
FAILS = {
    "delete finetunejobs": 'error: context "gke_my-project_europe-west4_finetune" does not exist',
    "delete crd": "getting credentials: exec: executable gke-gcloud-auth-plugin not found",
    "uninstall": "Error: failed to delete release: finetune-operator",
    "clusters delete": "ERROR: Operation operation-1 is currently upgrading the cluster.",
    "clusters delete finetune": "The resource projects/host/regions/r/subnetworks/finetune was not found.",
    "repositories delete": "ERROR: PERMISSION_DENIED: Permission denied on resource (or it may not exist).",
}


@pytest.mark.parametrize(("call", "error"), GONE.items())
def test_a_removal_takes_what_is_not_found_for_gone(call: str, error: str, tmp_path: Path) -> None:
    done = World(tmp_path).run("--remove", "--yes", "--change", OURS="true", FAIL=call, ERROR=error)
    assert error in done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("call", "error"), FAILS.items())
def test_a_removal_continues_after_an_error_and_ends_with_the_commands_that_failed(
    call: str, error: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    done = world.run("--remove", "--yes", "--change", OURS="true", FAIL=call, ERROR=error)
    assert done.returncode == 1
    assert error in done.stderr
    listed = done.stderr.partition("Error: What these commands remove may be left")[2]
    failed = [each for each in world.calls if call in each and not re.search(r" (get|list) ", each)]
    assert failed
    assert [each for each in failed if f"  {each}\n" not in listed] == []
    assert "Fix:   Repeat the run" in listed
    assert any("service-accounts delete" in each for each in world.calls)


def test_a_removal_can_be_repeated_when_the_cluster_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("--remove", "--yes", "--change", GONE="yes", FAIL="kubectl")
    assert done.returncode == 0
    assert not any(each.startswith(("kubectl", "helm")) for each in world.calls)
    assert any("iam service-accounts delete" in each for each in world.calls)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, ["has created in cluster finetune", "repository finetune", "clusterViewer"]),
        ({"OURS": "true", "DELETE_DATA": "true"}, ["cluster finetune with everything in it", "buckets", "ledger"]),
        ({"OTHERS": "production"}, ["ends ALL jobs"]),
        (OTHER_RELEASE, ["the jobs of team-a", "namespaces of TEAMS"]),
        ({**OTHER_RELEASE, "OURS": "true"}, ["everything in it, also what belongs to finetune-b/finetune-b"]),
    ],
)  # fmt: skip
def test_a_removal_without_confirmation_removes_nothing(
    variables: dict[str, str], named: list[str], tmp_path: Path
) -> None:
    world = World(tmp_path)
    done = world.run("--remove", "--change", **variables)
    assert done.returncode == 1
    assert [each for each in world.calls if not re.search(r" (describe|list|get) ", each)] == []
    assert "Nothing was removed" in done.stderr
    assert [word for word in named if word not in done.stderr] == []


def test_rights_of_one_team_are_withdrawn_and_nothing_else() -> None:
    teams = "team-a=user:anna@example.com,user:both@example.com team-b=user:both@example.com"
    text = plan("withdraw", "team-a", TEAMS=teams, LEDGER="true", ADMINS="user:root@example.com")
    assert sorted(grants(text, "remove")) == sorted(
        each for each in grants(plan("teams", TEAMS=teams)) if "team-a" in str(each) or "anna" in str(each)
        if "team-b" not in str(each) and "finetune-operator" not in str(each)
    )  # fmt: skip
    assert "remove-iam-policy-binding" in text
    called = "\n".join(" ".join(words) for words in commands(text))
    for word in (
        "nodes@",
        "ledger",
        "team-b",
        "finetune-operator",
        "delete namespace",
        "delete finetune",
        "both@example.com --role roles/container",
    ):
        assert word not in called
    deleted = re.findall(r"^kubectl --context \S+ delete (.*) --ignore-not-found$", called, re.MULTILINE)
    assert deleted == [
        "rolebinding finetune finetune-view --namespace team-a",
        "clusterrolebinding finetune-profiles-team-a",
    ]


def test_a_team_that_is_not_named_cannot_be_withdrawn() -> None:
    done = setup_script.run(
        "withdraw", "team-x", "--dry-run", environment={"PATH": os.environ["PATH"], **VARIABLES}
    )
    assert done.returncode == 1
    assert 'There is no team "team-x" in TEAMS' in done.stderr


def _subjects(text: str) -> dict[str, list[str]]:
    """The names that each binding of a file has."""
    return {
        each["metadata"]["name"]: [subject["name"] for subject in each["subjects"]]
        for each in yaml.safe_load_all(text)
        if each and each["kind"].endswith("Binding")
    }


PEOPLE = {
    "TEAMS": "team-a=user:anna@example.com,user:ben@example.com team-b=user:ben@example.com",
    "ADMINS": "user:root@example.com,user:anna@example.com",
}


def _withdrawn(world: World) -> list[tuple[str, str]]:
    """Member and role of each binding that was removed, in order."""
    found = (
        re.search(r"remove-iam-policy-binding .* --member (\S+) --role (\S+)", each) for each in world.calls
    )
    return [(each[1], each[2]) for each in found if each]


def test_a_person_who_leaves_a_team_loses_what_no_other_team_gives(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("teams", **PEOPLE)
    done = world.run("--change", "teams", TEAMS="team-a team-b=user:ben@example.com")
    assert done.returncode == 0, done.stderr
    assert sorted(grants("\n".join(world.calls), "remove")) == sorted(
        (f"my-project-{bucket}/team-a/", f"user:{name}@example.com", f"roles/storage.{role}")
        for bucket, role in (
            ("finetune-artifacts", "objectViewer"),
            ("models", "objectUser"),
            ("data", "objectUser"),
        )
        for name in ("anna", "ben")
    )
    assert list(_subjects((world.files / "team-a.yaml").read_text()).values()) == [[], [], []]
    # Anna is still an administrator, and Ben is in team-b.
    assert "projects remove-iam-policy-binding" not in "\n".join(world.calls)
    assert world.run("teams", TEAMS="").returncode == 0
    assert _withdrawn(world) == []


def test_a_run_in_which_everyone_stays_withdraws_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("apis", **PEOPLE)
    more = {
        "TEAMS": f"{PEOPLE['TEAMS']},user:carl@example.com team-c",
        "ADMINS": f"{PEOPLE['ADMINS']},user:carl@example.com",
    }
    done = world.run("--change", "apis", **more)
    assert done.returncode == 0, done.stderr
    assert "no longer named" not in done.stderr
    assert len(world.calls) == 1


def test_a_person_who_leaves_everything_no_longer_sees_the_cluster(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("teams", "operator", **PEOPLE)
    everyone_else = {"TEAMS": "team-a=user:ben@example.com team-b", "ADMINS": "user:root@example.com"}
    assert world.run("--change", "teams", "operator", **everyone_else).returncode == 0
    assert {each for each in _withdrawn(world) if "storage" not in each[1]} == {
        ("user:anna@example.com", "roles/container.clusterViewer")
    }
    bound = _subjects((world.files / "admins.yaml").read_text())
    assert set(map(tuple, bound.values())) == {("root@example.com",)}


def test_the_last_administrator_who_leaves_is_no_subject_any_more(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("operator", ADMINS="user:root@example.com")
    done = world.run("--change", "operator", ADMINS=" ")
    assert done.returncode == 0, done.stderr
    assert ("user:root@example.com", "roles/container.clusterViewer") in _withdrawn(world)
    assert any(each.endswith("admins.yaml") for each in world.calls)
    assert not any(_subjects((world.files / "admins.yaml").read_text()).values())


def test_a_run_that_ends_while_it_withdraws_still_knows_from_whom(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("teams", **PEOPLE)
    known = (world.files / "settings.env").read_text()
    changed = {**PEOPLE, "TEAMS": "team-a=user:ben@example.com team-b=user:ben@example.com"}
    world.run("--change", "teams", FAIL="remove-iam-policy-binding", **changed)
    assert (world.files / "settings.env").read_text() == known
    world.run("--change", "teams", **changed)
    assert len(_withdrawn(world)) == 3


@pytest.mark.parametrize(
    ("change", "steps", "named"),
    [
        ({"TEAMS": "team-a=user:ben@example.com team-b=user:ben@example.com"}, ["operator"], "anna@example.com"),
        ({"ADMINS": "user:root@example.com"}, ["teams"], "step operator"),
        ({"TEAMS": "team-a=user:anna@example.com,user:ben@example.com"}, ["teams", "operator"], "withdraw team-b"),
    ],
)  # fmt: skip
def test_a_run_that_would_leave_rights_behind_is_refused_before_anything_is_called(
    change: dict[str, str], steps: list[str], named: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.run("teams", **PEOPLE)
    known = (world.files / "settings.env").read_text()
    done = world.run("--change", *steps, **{**PEOPLE, **change})
    assert done.returncode == 1
    assert named in done.stderr
    assert world.calls == []
    assert (world.files / "settings.env").read_text() == known
    assert (
        "A run that is not --dry-run stops here"
        in world.run("--dry-run", *steps, **{**PEOPLE, **change}).stdout
    )


@pytest.mark.parametrize(("error", "kept"), [("Policy binding not found!", False), ("try later", True)])
def test_a_role_that_cannot_be_withdrawn_ends_the_run_while_the_names_are_known(
    error: str, kept: bool, tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.run("operator", **PEOPLE)
    known = (world.files / "settings.env").read_text()
    change = {**PEOPLE, "ADMINS": "user:anna@example.com"}
    done = world.run("--change", "operator", FAIL="remove-iam-policy-binding", ERROR=error, **change)
    assert (done.returncode, error in done.stderr) == (int(kept), True)
    assert ((world.files / "settings.env").read_text() == known) == kept
    assert any(" apply " in each for each in world.calls) != kept


def test_a_removal_follows_the_withdrawal_of_the_last_team(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("teams")
    assert world.run("withdraw", "team-a").returncode == 0
    done = world.run("--remove", "--yes", TEAMS="")
    assert done.returncode == 0, done.stderr
    assert any("service-accounts delete" in each for each in world.calls)
    assert world.run("teams", TEAMS="").returncode == 1


def test_a_role_that_was_not_found_is_said(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("teams")
    done = world.run("withdraw", "team-a", FAIL="-models/team-a", ERROR="Policy binding not found!")
    assert done.returncode == 0, done.stderr
    said = done.stderr.partition("# Roles that were not found.")[2].splitlines()[1:]
    listed = [each.removeprefix("#   ") for each in said if each.startswith("#   ")]
    assert listed == [each for each in world.calls if "-models/team-a" in each]
    assert "Roles that were not found" not in world.run("withdraw", "team-a").stderr


def test_a_team_whose_rights_in_the_cluster_stay_is_not_forgotten(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("teams", **PEOPLE)
    known = (world.files / "settings.env").read_text()
    assert world.run("withdraw", "team-b", FAIL="delete rolebinding", **PEOPLE).returncode == 1
    assert (world.files / "settings.env").read_text() == known


def test_a_team_that_was_withdrawn_can_be_left_out_and_gets_nothing_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("teams", LEDGER="true", **PEOPLE)
    assert world.run("withdraw", "team-b", **PEOPLE).returncode == 0
    done = world.run("teams", TEAMS="", SECURITY_GROUP="")
    assert done.returncode == 0, done.stderr
    assert not any("team-b" in each for each in world.calls)
    assert world.run("teams", **{**PEOPLE, "TEAMS": PEOPLE["TEAMS"].split(" ")[0]}).returncode == 0
    assert world.run("teams", **PEOPLE).returncode == 1
