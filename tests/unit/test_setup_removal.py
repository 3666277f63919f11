"""The set-up script's removal, and the withdrawal of one team's rights."""

import os
import re
from pathlib import Path

import pytest

from tests import setup_script
from tests.setup_script import OTHER_RELEASE, VARIABLES, World, everything, grants, plan, removal


def test_a_removal_withdraws_every_role_that_was_granted() -> None:
    assert sorted(grants(removal(), "remove")) == sorted(grants(everything()))
    given = re.findall(r"gcloud projects add-(iam-policy-binding .*)", everything())
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
    assert namespaces == ["--selector finetune_setup=true", "finetune-system"]

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


def test_a_cluster_of_the_same_name_in_another_region_is_another_one(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("--remove", "--yes", "--change", DELETE_DATA="true")
    lists = [each for each in world.calls if "clusters list" in each or "buckets list" in each]
    assert ["name=finetune AND location=europe-west4" in each for each in lists] == [True, True, False]
    assert "NOT (name=finetune AND location=europe-west4)" in lists[1]
    assert "labels.finetune_setup=europe-west4_finetune" in lists[2]


def test_a_removal_that_cannot_list_clusters_removes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.run("--remove", "--yes", "--change", FAIL="clusters list").returncode != 0
    assert [each for each in world.calls if "clusters list" not in each] == []


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
        "kubectl delete finetuneprofiles gke-team-a",
        "helm uninstall finetune-operator --namespace finetune-system --wait",
        "kubectl delete namespace team-a",
        "kubectl delete clusterrolebinding finetune-profiles-team-a",
        "kubectl delete clusterrolebinding finetune-admins finetune-admins-jobs",
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


def test_a_removal_can_be_repeated_when_the_cluster_is_gone(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("--remove", "--yes", "--change", GONE="yes", FAIL="kubectl")
    assert done.returncode == 0
    assert not any(each.startswith(("kubectl", "helm")) for each in world.calls)
    assert any("iam service-accounts delete" in each for each in world.calls)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, ["that this script has created in cluster finetune", "images"]),
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
    for word in (
        "nodes@",
        "ledger",
        "team-b",
        "finetune-operator",
        " delete ",
        "both@example.com --role roles/container",
    ):
        assert word not in text


def test_a_team_that_is_not_named_cannot_be_withdrawn() -> None:
    done = setup_script.run(
        "withdraw", "team-x", "--dry-run", environment={"PATH": os.environ["PATH"], **VARIABLES}
    )
    assert done.returncode == 1
    assert 'There is no team "team-x" in TEAMS' in done.stderr
