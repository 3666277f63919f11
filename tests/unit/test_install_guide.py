"""docs/install-gke.md and the set-up script that it is about: what it plans, and what it runs."""

import csv
import os
import re
import shutil
import subprocess
from itertools import zip_longest
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from finetune_contract import Stage
from finetune_contract.tpu import TpuShape
from finetune_operator.catalog.tpu import shape_by_name
from finetune_operator.cli.manifests.checks import check_files
from tests import bucket_grants, setup_script
from tests.bucket_grants import ARTIFACTS, CACHE, DATA, MODELS
from tests.documents import blocks
from tests.doubles.bucket_iam import ROLES, Grant
from tests.plan_pages import plan_page
from tests.setup_script import EVERYTHING, TABLE, VARIABLES, World, commands, files, plan
from tests.unit.rendering.golden_jobsets import plan_offline

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "install-gke.md").read_text()
#: The guide's buckets -> those of the local cluster.
BUCKETS = {
    "my-project-finetune-artifacts": ARTIFACTS,
    "my-project-finetune-cache": CACHE,
    "my-project-models": MODELS,
    "my-project-data": DATA,
}
GKE = "cloud.google.com"
TWO_ZONES = "europe-west4-a,europe-west4-b"
#: Capacity -> the variables with which a run asks for it.
CAPACITIES = {
    "OnDemand": {},
    "Spot": {"CAPACITY": "Spot"},
    "Reservation": {"CAPACITY": "Reservation", "RESERVATION": "spring"},
    "FlexStart": {"CAPACITY": "FlexStart"},
}
WORKFORCE = "iam.googleapis.com/locations/global/workforcePools/acme"
DIGESTS = {
    "sha256:DIGEST_OF_THE_TRAINER": f"sha256:{'1' * 64}",
    "sha256:DIGEST_OF_THE_OPERATOR": f"sha256:{'2' * 64}",
}


def written(text: str, name: str) -> list[dict[str, Any]]:
    content = files(text)[name]
    for stand_in, digest in DIGESTS.items():
        content = content.replace(stand_in, digest)
    return [each for each in yaml.safe_load_all(content) if each]


# The commands


def in_table(words: list[str], known: dict[tuple[str, str], str]) -> tuple[str, list[str]]:
    """The command's name in the table, the longest that it begins with, and its flags that the table lacks."""
    names = sorted({name for name, _ in known}, key=len, reverse=True)
    positional = " ".join([words[0], *(each for each in words[1:] if not each.startswith("-"))])
    plain = re.sub(r"^(\S+) gke_\S+ ", r"\1 ", positional)
    name = next((each for each in names if f"{plain} ".startswith(f"{each} ")), "")
    flags = [each.partition("=")[0] for each in words if re.match(r"--?[a-z]", each)]
    return name, [flag for flag in flags if (name, flag) not in known]


def table() -> dict[tuple[str, str], str]:
    with TABLE.open() as file:
        return {(row["command"], row["flag"]): row["source"] for row in csv.DictReader(file)}


def unknown(text: str, programs: tuple[str, ...]) -> list[str]:
    known, found = table(), []
    for words in commands(text):
        if words[0] in programs:
            name, flags = in_table(words, known)
            found += [f"{name or ' '.join(words[:5])}: {each}" for each in flags or ([] if name else ["?"])]
    return found


def documented() -> str:
    """The shell blocks of all documents."""
    return "\n".join(block.text for block in blocks("bash"))


@pytest.fixture(scope="module")
def every_command(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script can print: plans, a removal beside another release, and a first run in an existing cluster."""
    world = World(tmp_path_factory.mktemp("beside"))
    beside = world.run("--remove", "--yes", "--change", **setup_script.OTHER_RELEASE)
    return (
        setup_script.everything()
        + setup_script.removal()
        + plan(CAPACITY="Spot")
        + plan(CAPACITY="FlexStart", ZONE=TWO_ZONES)
        + plan("cluster", CLUSTER_FLAGS="--enable-dns-access")
        + plan("--remove")
        + plan("withdraw", "team-a")
        + beside.stderr
        + World(tmp_path_factory.mktemp("existing")).run(EXIST="yes").stderr
    )


def test_every_command_of_the_script_and_every_flag_is_in_the_table_of_published_ones(
    every_command: str,
) -> None:
    text = every_command
    assert len(list(commands(text))) > 100
    assert unknown(text, setup_script.PROGRAMS) == []


def test_every_gcloud_command_of_a_document_is_in_the_table() -> None:
    assert sum(words[0] == "gcloud" for words in commands(documented())) > 5
    assert unknown(documented(), ("gcloud",)) == []


def test_a_flag_that_is_not_published_is_found() -> None:
    invented = (
        "gcloud container clusters create finetune --with-tpus --location europe-west4\ngcloud tpus make x"
    )
    assert unknown(invented, ("gcloud",)) == [
        "gcloud container clusters create: --with-tpus",
        "gcloud tpus make x: ?",
    ]


def test_every_row_of_the_table_is_used_and_names_where_and_when_it_was_read(every_command: str) -> None:
    known, used = table(), set()
    script = "\n".join(source.read_text() for source in setup_script.SOURCES)
    script = script.replace("${IN_CLUSTER[*]}", "--cluster --location --project")
    script = script.replace("$of", "--location --project")
    fixes = "\n".join(re.findall(r"(?:\"|: )(gcloud [^\"\n]*)", script))
    for words in commands(every_command + documented() + "\n" + fixes):
        name, _ = in_table(words, known)
        used |= {(name, ""), *((name, each.partition("=")[0]) for each in words if each.startswith("-"))}
    assert sorted(set(known) - used) == []
    with TABLE.open() as file:
        for row in csv.DictReader(file):
            assert row["source"].startswith("https://")
            assert row["release"]
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", row["date"])


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="shellcheck is not installed (apt-get install shellcheck)"
)
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        ["shellcheck", "--external-sources", "--check-sourced", str(setup_script.SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""


def test_the_plan_is_a_script_that_a_shell_can_read(tmp_path: Path) -> None:
    for text in (setup_script.everything(), setup_script.removal()):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


# What it does on a machine


def test_a_dry_run_calls_no_program(tmp_path: Path) -> None:
    world = World(tmp_path)
    for arguments in (["--dry-run"], ["--dry-run", "--remove"], ["--dry-run", "first-job"]):
        assert world.run(*arguments, **EVERYTHING).returncode == 0
        assert world.calls == []
    assert not world.files.exists()


def test_a_first_run_creates_what_the_plan_says(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run(**EVERYTHING)
    assert done.returncode == 0, done.stderr
    planned = {" ".join(words) for words in commands(plan(FILES=str(world.files), **EVERYTHING))}
    digest = f"sha256:{'7'.zfill(64)}"
    stand_ins = {"PROJECT_NUMBER": "123456", "sha256:DIGEST_OF_THE_OPERATOR": digest}
    for stand_in, found in stand_ins.items():
        planned = {each.replace(stand_in, found) for each in planned}
    assert (
        sorted(each for each in planned - set(world.calls) if each.split()[0] in setup_script.PROGRAMS) == []
    )
    assert {each.name for each in world.files.iterdir()} == {
        *(
            f"{kind}{team}.yaml"
            for kind in ("", "namespace-", "quota-", "profile-")
            for team in ("team-a", "team-b")
        ),
        *("queues.yaml", "values.yaml", "admins.yaml", "settings.env"),
    }


def test_a_second_run_creates_nothing_and_keeps_an_edited_profile(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run(**EVERYTHING)
    profile = world.files / "profile-team-a.yaml"
    profile.write_text(profile.read_text() + "  displayName: edited\n")
    done = world.run(EXIST="yes", **EVERYTHING)
    assert done.returncode == 0, done.stderr
    assert [each for each in world.calls if " create " in each or each.startswith("docker")] == []
    assert profile.read_text().endswith("displayName: edited\n")
    assert any(each.endswith(f"apply -f {profile}") for each in world.calls)


@pytest.mark.parametrize(
    ("found", "message", "fix"),
    [
        (
            {"FOUND": "1.29.0-gke.1,my-project.svc.id.goog,ADVANCED_DATAPATH,"},
            "GKE 1.29.0",
            "clusters upgrade",
        ),
        ({"FOUND": "1.34.1-gke.1,,ADVANCED_DATAPATH,"}, "no Workload Identity", "--workload-pool=my-project"),
        ({"FOUND": "1.34.1-gke.1,my-project.svc.id.goog,,"}, "NetworkPolicies", "--enable-network-policy"),
        (
            {"GROUPS_OF": "none"},
            "knows no groups of gke-security-groups@example.com",
            "--security-group=gke-security-groups@example.com",
        ),
        ({"MODES": "old,GCE_METADATA"}, "Node pool old has no GKE_METADATA", "node-pools update old"),
        (
            {"AUTOPILOT": "True"},
            "an Autopilot cluster, which this script does not support",
            "another CLUSTER",
        ),
    ],
)
def test_an_existing_cluster_that_lacks_something_is_left_alone(
    found: dict[str, str], message: str, fix: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    done = world.run(EXIST="yes", **found)
    assert done.returncode == 1
    assert message in done.stderr
    assert fix in done.stderr.partition("Fix:")[2]
    assert not any(" apply " in each or each.startswith("helm") for each in world.calls)


def test_node_auto_provisioning_of_an_existing_cluster_is_said_to_be_untried(tmp_path: Path) -> None:
    done = World(tmp_path).run("cluster", EXIST="yes", PROVISIONING="True")
    assert done.returncode == 0, done.stderr
    assert "has node auto-provisioning, which has not been tried" in done.stderr
    assert "auto-provisioning" not in World(tmp_path).run("cluster", EXIST="yes").stderr


@pytest.mark.parametrize(
    "command", ["services enable", "clusters create", "node-pools create", "wait deployments"]
)
def test_a_command_that_fails_ends_the_run(command: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run(FAIL=command)
    assert done.returncode != 0
    assert command in world.calls[-1]


def test_v6e_needs_a_newer_cluster_than_v5e(tmp_path: Path) -> None:
    between = {"EXIST": "yes", "FOUND": "1.30.5-gke.1,my-project.svc.id.goog,ADVANCED_DATAPATH,"}
    assert World(tmp_path).run("cluster", SLICES="v5litepod-4", **between).returncode == 0
    done = World(tmp_path).run("--change", "cluster", SLICES="v5litepod-4 v6e-4", **between)
    assert "need 1.31.2-gke.1115000" in done.stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PROJECT": ""}, "PROJECT is not set"),
        ({"PROJECT": "My_Project"}, 'PROJECT is "My_Project"'),
        ({"LOCATION": "europe-west4-a"}, "expected a region"),
        ({"ZONE": "us-central1-a"}, "expected a zone of europe-west4"),
        ({"ZONE": "europe-west4-ai1a"}, "an AI zone"),
        ({"ZONE": "europe-west4-ai1a,europe-west4-b"}, "an AI zone"),
        ({"ZONE": "europe-west4-a,us-central1-a"}, "expected a zone of europe-west4"),
        ({"ZONE": "europe-west4-a, europe-west4-b"}, "several with commas"),
        ({"ZONE": "europe-west4-b,europe-west4-a,europe-west4-b"}, "europe-west4-b twice"),
        ({"TEAMS": ""}, "TEAMS is not set"),
        ({"TEAMS": "team-a=user:Anna@example.com"}, "Write user:anna@example.com"),
        ({"ADMINS": "user:a@b.de,group:All@Example.com"}, '"group:All@Example.com"'),
        ({"TEAMS": "no"}, "YAML may read"),
        ({"TEAMS": "team-a 0x1f"}, "YAML may read"),
        ({"TEAMS": "kube-system"}, "a namespace of the platform"),
        ({"TEAMS": "team-a=anna"}, "NAMESPACE=user:EMAIL"),
        ({"TEAMS": 'team-a=user:"}@example.com'}, "NAMESPACE=user:EMAIL"),
        ({"TEAMS": "team-a=serviceAccount:ci@example.com"}, "serviceAccount:EMAIL"),
        ({"TEAMS": f"team-a=principal://{WORKFORCE}/attribute.department/x"}, "users and groups"),
        ({"TEAMS": f"team-a=principalSet://{WORKFORCE}/*"}, "users and groups"),
        ({"TEAMS": f'team-a=principal://{WORKFORCE}/subject/"}}'}, "users and groups"),
        (
            {
                "ADMINS": "principal://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/x/subject/y"
            },
            "a workload identity pool",
        ),
        ({"TEAMS": "team-a team-a"}, "team-a twice"),
        ({"TEAMS": "team-a;reboot"}, "expected namespaces"),
        ({"SLICES": "v6e-5"}, 'SLICES has "v6e-5"'),
        ({"SLICES": "v6e-4*0"}, 'SLICES has "v6e-4*0"'),
        ({"SLICES": "v6e-4 v6e-4"}, "v6e-4 twice"),
        ({"SLICES": "v5litepod-16 v5e-4x4"}, "v5litepod-16 twice"),
        ({"SLICES": "tpu7x-16"}, "needs a workload policy"),
        ({"CAPACITY": "Cheap"}, "OnDemand, Spot, Reservation or FlexStart"),
        ({"ZONE": TWO_ZONES, "CAPACITY": "Reservation", "RESERVATION": "spring"}, "a reservation is in one"),
        (
            {"CLUSTER_FLAGS": "--network=x --enable-autoprovisioning"},
            "node auto-provisioning has not been tried",
        ),
        (
            {"CLUSTER_FLAGS": "--autoprovisioning-config-file=x.yaml"},
            "node auto-provisioning has not been tried",
        ),
        ({"CAPACITY": "Reservation"}, "RESERVATION is not set"),
        ({"RESERVATION": "o'brien"}, "RESERVATION is"),
        ({"SECURITY_GROUP": ""}, "SECURITY_GROUP is not set"),
        ({"SECURITY_GROUP": "x'y", "TEAMS": "team-a"}, "SECURITY_GROUP is"),
        ({"ADMINS": "root"}, "ADMINS is"),
        ({"VERSION": "a b"}, "a tag of the images"),
        ({"BUILDER": "make"}, "docker, podman or buildah"),
        ({"BASE_IMAGE": "-x"}, "an image with Python"),
        ({"CPU_MACHINE": "e2-micro"}, "n2-highmem-4"),
        ({"CPU_DISK_GB": "50"}, "from 100"),
        ({"CPU_NODES": "0"}, "from 1"),
        ({"TEAM_JOBS": "many"}, "from 1"),
        ({"KUEUE": "yes"}, "true or false"),
        ({"CLUSTER": "-x"}, "the name of a cluster"),
    ],
    ids=str,
)
def test_a_wrong_variable_is_named_with_what_is_expected_and_nothing_runs(
    variables: dict[str, str], message: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    done = world.run(**{**VARIABLES, **variables})
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert message in done.stderr
    assert "\nFix:   " in done.stderr
    assert world.calls == []


def test_every_variable_of_the_script_is_described_and_every_described_one_exists() -> None:
    script = setup_script.SCRIPT.read_text()
    named = set(
        re.findall(r"[A-Z][A-Z_]{3,}", script.partition("# Variables")[2].partition("\n# Without")[0])
    )
    described = set(re.findall(r"^\| `([A-Z_]+)` \|", GUIDE, re.MULTILINE))
    assert named == described
    sources = "".join(source.read_text() for source in setup_script.SOURCES)
    assert all(re.search(rf"\$\{{?{name}\b", sources) for name in named)


# Roles


def _of_accounts(text: str) -> list[Grant]:
    found = []
    for place, member, role in setup_script.grants(text):
        match = re.fullmatch(
            r"principal://iam\.googleapis\.com/projects/PROJECT_NUMBER/locations/global/workloadIdentityPools/"
            r"my-project\.svc\.id\.goog/subject/ns/([^/ ]+)/sa/(\S+)",
            member,
        )
        if match:
            bucket, _, folder = place.partition("/")
            name = f"{match[1]}/{match[2]}"
            found.append(
                Grant(
                    account=name,
                    role=role.removeprefix("projects/my-project/roles/"),
                    bucket=BUCKETS[bucket],
                    folder=folder,
                )
            )
    return found


def test_the_script_grants_accounts_what_the_guides_table_says() -> None:
    assert sorted(_of_accounts(plan()), key=str) == sorted(bucket_grants.of_team("team-a"), key=str)


def test_no_account_has_a_role_on_objects_of_a_whole_bucket_of_ours() -> None:
    for grant in _of_accounts(plan()):
        if not grant.folder:
            assert ROLES[grant.role] == {"storage.buckets.get"}


def test_people_read_results_write_their_own_models_and_data_and_no_run_folder() -> None:
    people = {
        (place, role)
        for place, member, role in setup_script.grants(plan())
        if member == "group:team-a@example.com"
    }
    assert people == {
        ("my-project-finetune-artifacts/team-a/", "roles/storage.objectViewer"),
        ("my-project-models/team-a/", "roles/storage.objectUser"),
        ("my-project-data/team-a/", "roles/storage.objectUser"),
    }


def test_a_bucket_with_managed_folders_has_uniform_access_and_is_never_public() -> None:
    made = re.findall(r"gcloud storage buckets create gs://(\S+) (.*)", setup_script.everything())
    assert all("--uniform-bucket-level-access --public-access-prevention" in flags for _, flags in made)
    places = {
        each.partition("/")[0]
        for each in re.findall(r"managed-folders create gs://(\S+)", setup_script.everything())
    }
    assert places < {name for name, _ in made}


def test_the_custom_role_has_one_permission() -> None:
    (command,) = re.findall(r"gcloud iam roles create .*", plan())
    assert command.endswith("--permissions storage.buckets.get")


def test_a_pool_that_is_no_longer_named_stays_with_the_command_that_deletes_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("pools", SLICES="v6e-16", POOLS="finetune-cpu v6e-16-1 v6e-16-2")
    assert done.returncode == 0, done.stderr
    left = re.findall(
        r"# Pool (\S+) is not in SLICES and ZONE and stays: (gcloud container node-pools delete \S+)",
        done.stderr,
    )
    assert left == [("v6e-16-2", "gcloud container node-pools delete v6e-16-2")]
    assert not any("delete" in each for each in world.calls)


def test_a_pool_whose_creation_has_failed_ends_the_run(tmp_path: Path) -> None:
    """The creation leaves it behind, so a repeated run finds it."""
    world = World(tmp_path)
    done = world.run(
        "pools", "controllers", SLICES="v6e-16", POOLS="v6e-16-1", STATUS="ERROR", EXIST="yes", MOST="4"
    )
    assert done.returncode == 1
    assert "Node pool v6e-16-1 has the status ERROR" in done.stderr
    assert "gcloud container node-pools delete v6e-16-1 " in done.stderr.partition("Fix:")[2]
    assert "webhook" not in "".join(world.calls)


@pytest.mark.parametrize(
    ("missing", "called"),
    [(setup_script.PLUGIN, r"nothing"), ("buildah", r"services enable|auth configure|artifacts|clusters describe")],
)  # fmt: skip
def test_a_program_that_is_needed_later_is_missed_before_the_cluster_is_created(
    missing: str, called: str, tmp_path: Path
) -> None:
    world = World(tmp_path)
    (tmp_path / missing).unlink(missing_ok=True)
    system = tmp_path / "bin"
    system.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name != missing:
            (system / program.name).symlink_to(program)
    done = world.run(PATH=f"{tmp_path}:{system}", BUILDER="buildah")
    assert done.returncode == 1
    assert f"{missing} is not on PATH" in done.stderr
    assert [each for each in world.calls if not re.search(called, each)] == []


def test_the_plugin_may_be_in_the_folder_of_gcloud(tmp_path: Path) -> None:
    world = World(tmp_path)
    (tmp_path / "sdk").mkdir()
    for name in ("gcloud", setup_script.PLUGIN):
        (tmp_path / name).rename(tmp_path / "sdk" / name)
    (tmp_path / "gcloud").symlink_to(tmp_path / "sdk" / "gcloud")
    assert world.run("apis").returncode == 0


def test_a_pool_with_another_maximum_keeps_it_with_the_command_that_changes_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("pools", EXIST="yes", MOST="2", SLICES="v6e-4*4 v5p-16", CPU_NODES="2")
    assert done.returncode == 0, done.stderr
    command = (
        "gcloud container node-pools update v6e-4 --cluster finetune --location europe-west4 --project my-project "
        "--enable-autoscaling --min-nodes 0 --max-nodes 4"
    )
    kept = re.findall(r"# Pool (\S+) keeps its most of 2 nodes. For 4: (.*)", done.stderr)
    assert kept == [("v6e-4", command)]
    assert not any("node-pools update" in each for each in world.calls)
    done = world.run("--change", "pools", EXIST="yes", MOST="4", SLICES="v6e-4*4 v6e-16", CPU_NODES="4")
    assert "keeps its most" not in done.stderr


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"MOST": ""}, "has a fixed size: its nodes are billed while nothing runs"),
        (
            {"MOST": "4", "AT": "europe-west4-c"},
            "is in europe-west4-c, and stays there instead of europe-west4-a",
        ),
    ],
    ids=["fixed", "elsewhere"],
)
def test_a_pool_that_costs_or_lies_otherwise_is_named_with_the_command_that_replaces_it(
    found: dict[str, str], message: str, tmp_path: Path
) -> None:
    """A pool that someone made by hand may have a fixed number of nodes."""
    world = World(tmp_path)
    done = world.run("pools", EXIST="yes", SLICES="v6e-16", **found)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"# Pool v6e-16-1 {message}.* node-pools delete v6e-16-1 .*repeat the run", done.stderr)
    assert not any("delete" in each for each in world.calls)
    done = world.run("pools", EXIST="yes", MOST="4", AT="europe-west4-a")
    assert "# Pool" not in done.stderr


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_no_pool_has_nodes_before_a_job_needs_them_and_a_slice_gets_all_of_its_hosts(capacity: str) -> None:
    text = plan("pools", SLICES="v6e-4*3 v6e-16*2 v5p-32", **CAPACITIES[capacity])
    made = re.findall(r"\|\| gcloud container node-pools create (\S+) (.*)", text)
    assert {name: re.findall(r"--max-nodes (\d+)", flags) for name, flags in made} == {
        "finetune-cpu": ["4"],
        "v6e-4": ["3"],
        "v6e-16-1": ["4"],
        "v6e-16-2": ["4"],
        "v5p-32-1": ["4"],
    }
    for _, flags in made:
        assert "--num-nodes 0 --enable-autoscaling --min-nodes 0 " in flags


def test_each_zone_has_the_slices_and_the_first_one_the_names_of_an_installation_with_one() -> None:
    slices = "v6e-4*3 v6e-16*2 v6e-8/1host"

    def made(zones: str) -> dict[str, str]:
        text = plan("pools", SLICES=slices, ZONE=zones)
        return dict(re.findall(r"node-pools create (\S+) .*--node-locations (\S+)", text))

    one, both = made("europe-west4-a"), made(TWO_ZONES)
    assert {name: zone for name, zone in both.items() if zone == "europe-west4-a"} == one
    assert set(both) - set(one) == {"v6e-4-b", "v6e-16-b-1", "v6e-16-b-2", "v6e-8-1host-b"}
    assert set(both.values()) == {"europe-west4-a", "europe-west4-b"}
    # The number in SLICES is that of slices at a time: neither profile, quota nor queue depends on the zones.
    for name in ("profile-team-a.yaml", "quota-team-a.yaml", "queues.yaml"):
        first, second = (
            files(plan(SLICES=slices, ZONE=zones, KUEUE="true"))[name]
            for zones in ("europe-west4-a", TWO_ZONES)
        )
        assert first == second


@pytest.mark.parametrize("queue", ["false", "true"])
@pytest.mark.parametrize("capacity", CAPACITIES)
def test_pods_select_the_nodes_of_the_pools_that_the_script_makes(
    capacity: str, queue: str, tmp_path: Path
) -> None:
    """GKE labels nodes by the flags of their pool."""
    given = {"SLICES": "v6e-16", "KUEUE": queue, **CAPACITIES[capacity]}
    (flags,) = re.findall(r"node-pools create v6e-16-1 (.*)", plan("pools", **given))
    labels = {
        "cloud.google.com/gke-spot": "--spot" in flags and "true",
        "cloud.google.com/gke-flex-start": "--flex-start" in flags and "true",
        "cloud.google.com/reservation-name": "--reservation-affinity specific" in flags and "spring",
    }
    (profile,) = written(plan("profiles", **given), "profile-team-a.yaml")
    job = yaml.safe_load(files(plan("first-job", **given))["first-job.yaml"])
    jobset = dict(plan_offline(job, profile))[Stage.TRAIN]
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    own = {key: value for key, value in pod["nodeSelector"].items() if not key.startswith(f"{GKE}/gke-tpu-")}
    assert own == {key: value for key, value in labels.items() if value}
    assert all(each["key"] != f"{GKE}/gke-queued" for each in pod["tolerations"])


def test_the_guide_says_for_every_capacity_what_is_billed_while_nothing_runs() -> None:
    section = GUIDE.partition("### What is billed")[2].partition("\n### ")[0]
    rows = dict(re.findall(r"^\| `CAPACITY=(\w+)` \| (.*?) \|", section, re.MULTILINE))
    assert set(rows) == set(CAPACITIES)
    accepted = re.search(r"check CAPACITY '(.*?)'", (setup_script.SCRIPT.parent / "variables.sh").read_text())
    assert accepted is not None
    assert set(accepted[1].split("|")) == set(rows)


def test_the_slices_that_a_kept_profile_lacks_are_printed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("profiles", SLICES="v6e-4")
    kept = world.files / "profile-team-a.yaml"
    kept.write_text(kept.read_text().replace("{name: v6e-4,", '{name: "v6e-4",'))
    done = world.run("--change", "profiles", SLICES="v6e-4*2 v6e-8/1host v6e-4x4")
    assert done.returncode == 0, done.stderr
    lines = re.findall(
        r"^# \S+profile-team-a.yaml has no flavor for (\S+) of SLICES:  (.*)", done.stderr, re.MULTILINE
    )
    assert [name for name, _ in lines] == ["v6e-8/1host", "v6e-16"]
    kept.write_text(
        kept.read_text().replace("  cpuPool:", "".join(f"  {line}\n" for _, line in lines) + "  cpuPool:")
    )
    assert "has no flavor" not in world.run("profiles", SLICES="").stderr
    assert len(yaml.safe_load(kept.read_text())["spec"]["flavors"]) == 3


def test_an_upgrade_as_the_guide_orders_it_prints_the_image_that_profiles_lack(tmp_path: Path) -> None:
    section = GUIDE.partition("\n## Upgrade\n")[2].partition("\n## ")[0]
    operator, look, again = re.findall(r"^deploy/gke/setup.sh (.*)", section, re.MULTILINE)
    world = World(tmp_path)
    assert world.run(VERSION="0.1.0").returncode == 0
    release = {"EXIST": "yes", "DIGEST": "8"}
    done = world.run(*operator.split(), **release)
    assert done.returncode == 0, done.stderr
    assert f"digest: sha256:{'8'.zfill(64)}" in (world.files / "values.yaml").read_text()
    # Then what is confirmed needs no confirmation.
    done = world.run(*look.split(), **release)
    assert done.returncode == 0, done.stderr
    (image,) = re.findall(
        r"^# \S+/profile-team-a.yaml names another trainer image than \S+, which is (\S+)$",
        done.stderr,
        re.MULTILINE,
    )
    assert "names another trainer image than" in section
    assert image.endswith(f"/finetune-trainer@sha256:{'8'.zfill(64)}")
    profile = world.files / "profile-team-a.yaml"
    profile.write_text(re.sub(r"trainer: .*", f"trainer: {image}", profile.read_text()))
    assert "names another trainer image" not in world.run(*again.split(), **release).stderr


def test_a_controller_that_exists_keeps_its_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("controllers", KUEUE="true", EXIST="yes")
    assert not any("manifests.yaml" in each for each in world.calls)
    world.run("controllers", KUEUE="true")
    assert len([each for each in world.calls if "manifests.yaml" in each]) == 2


@pytest.mark.parametrize("probe", ["get namespace team-a", "get validatingwebhookconfigurations"])
def test_what_cannot_be_asked_for_is_neither_created_nor_changed(probe: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    done = world.run("controllers", "teams", FAIL=probe, ERROR="net/http: TLS handshake timeout")
    assert done.returncode == 1
    assert "TLS handshake timeout" in done.stderr
    assert probe in world.calls[-1]


def test_a_namespace_that_exists_is_not_labelled(tmp_path: Path) -> None:
    world = World(tmp_path)
    for exist, verbs in (("yes", []), ("", ["create"])):
        world.run("teams", EXIST=exist)
        calls = [each for each in world.calls if each.endswith("namespace-team-a.yaml")]
        assert [each.split()[3] for each in calls] == verbs


def test_a_controller_is_found_by_the_label_that_its_manifests_and_its_chart_have(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("controllers", KUEUE="true", EXIST="yes")
    found = re.findall(r" (get|wait) (\S+) .*--selector app.kubernetes.io/name=(\S+)", "\n".join(world.calls))
    assert found == [
        (verb, kind, name)
        for name in ("jobset", "kueue")
        for verb, kind in (("get", "validatingwebhookconfigurations"), ("wait", "deployments"))
    ]


def test_heads_of_pathways_fit_the_queue() -> None:
    """Kueue admits no Workload with a resource that its ClusterQueue does not cover."""
    queue, flavors = None, set()
    for each in written(plan(KUEUE="true", PATHWAYS="true"), "queues.yaml"):
        if each["kind"] == "ClusterQueue":
            queue = each
        else:
            flavors.add(each["metadata"]["name"])
    assert queue is not None
    groups = queue["spec"]["resourceGroups"]
    assert [group["coveredResources"] for group in groups] == [["google.com/tpu"], ["cpu", "memory"]]
    assert {flavor["name"] for group in groups for flavor in group["flavors"]} == flavors


def _made_pools(slices: str) -> set[tuple[str, ...]]:
    """Machine type of each pool of slices; topology and nodes of those that are one slice."""
    found = set()
    for command in re.findall(r"\|\| gcloud container node-pools create (.*)", plan("pools", SLICES=slices)):
        if not command.startswith("finetune-"):
            flags = dict(re.findall(r"--(machine-type|tpu-topology|max-nodes) (\S+)", command))
            several = "tpu-topology" in flags
            found.add(
                (flags["machine-type"], *((flags["tpu-topology"], flags["max-nodes"]) if several else ()))
            )
    return found


def test_every_name_of_a_slice_that_the_documents_list_is_taken_as_jobs_take_it() -> None:
    page = (ROOT / "docs" / "tpu-slices.md").read_text().partition("## Names")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:tpu: )?((?:v\d\w*|tpu7x)-\d[\dx]*)`", page))
    assert {"v5e-4", "v5litepod-16", "v6e-4x4", "v5p-128"} <= named
    by_shape: dict[TpuShape, list[str]] = {}
    for name in sorted(named | {"v5e-2x2", "v6e-2x4", "v5litepod-4x4", "v4-4x4x16"}):
        ambiguous = name in ("v5e-8", "v6e-8", "v6e-2x4")
        shape = shape_by_name(name, chips_per_host=4 if ambiguous else None)
        if not shape.requires_placement_policy:
            by_shape.setdefault(shape, []).append(name)
    for names in zip_longest(*by_shape.values()):
        asked = {shape: name for shape, name in zip(by_shape, names, strict=True) if name}
        assert _made_pools(" ".join(asked.values())) == {
            (each.machine_type, *((each.topology, str(each.hosts)) if each.multi_host else ()))
            for each in asked
        }


def test_one_host_of_eight_chips_is_named_by_either_prefix() -> None:
    assert _made_pools("v5e-8/1host v6e-8/1host") == {("ct5lp-hightpu-8t",), ("ct6e-standard-8t",)}


def test_further_flags_of_the_cluster_are_words_and_nothing_else() -> None:
    text = plan("cluster", CLUSTER_FLAGS="--enable-private-nodes --network=shared")
    assert re.search(r"clusters create finetune .* --enable-private-nodes --network=shared ", text)
    bad = {"PATH": os.environ["PATH"], **VARIABLES, "CLUSTER_FLAGS": "--network=$(id); rm"}
    done = setup_script.run("--dry-run", "cluster", environment=bad)
    assert done.returncode == 1
    assert "CLUSTER_FLAGS" in done.stderr


def test_a_cluster_with_a_dns_endpoint_is_reached_by_it() -> None:
    (command,) = re.findall(
        r"^gcloud container clusters get-credentials .*",
        plan("cluster", CLUSTER_FLAGS="--enable-private-nodes --enable-dns-access"),
        re.MULTILINE,
    )
    assert command.endswith(" --dns-endpoint")
    assert "--dns-endpoint" not in plan("cluster")


def test_a_build_of_another_release_says_which_code_it_has() -> None:
    assert "what is built as 9.9.9 is its code" in plan("images", VERSION="9.9.9")
    assert "is its code" not in plan("images")


def test_administrators_may_stop_all_jobs() -> None:
    objects = written(plan("operator", ADMINS="user:root@example.com"), "admins.yaml")
    assert {
        (each["kind"], each["roleRef"]["name"], each["metadata"].get("namespace")) for each in objects
    } == {
        ("ClusterRoleBinding", "finetune-operator-profile-admin", None),
        ("ClusterRoleBinding", "finetune-operator-edit", None),
        ("RoleBinding", "view", "finetune-system"),
    }


def test_a_bucket_of_another_project_with_the_same_name_is_not_used(tmp_path: Path) -> None:
    """Its creation fails, since names are global."""
    world = World(tmp_path)
    done = world.run("buckets", FAIL="buckets create")
    assert done.returncode == 1
    assert not any("iam-policy-binding" in each for each in world.calls)


@pytest.mark.parametrize(
    "variables",
    [{"TRY": "env"}, {"CHANGE": "remove"}, {"PROJECT_NUMBER": "9"}, {"OPERATOR_DIGEST": "sha256:0"}],
    ids=str,
)
def test_internal_variables_do_not_come_from_the_environment(variables: dict[str, str]) -> None:
    assert plan(**variables) == plan()


# What it writes


@pytest.mark.parametrize("team", ["team-a", "team-x"])
def test_a_team_has_accounts_pod_security_a_policy_and_a_quota(team: str) -> None:
    objects = written(plan("teams", TEAMS=team), f"{team}.yaml")
    found = {(each["kind"], each["metadata"]["name"]) for each in objects if "subjects" not in each}
    assert found == {
        ("ServiceAccount", "ft-cpu"),
        ("ServiceAccount", "ft-train"),
        ("NetworkPolicy", "finetune-stages"),
    }
    (namespace,) = written(plan("teams", TEAMS=team), f"namespace-{team}.yaml")
    assert namespace["metadata"]["name"] == team
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    (quota,) = written(plan("profiles", TEAMS=team), f"quota-{team}.yaml")
    cluster_wide = [each for each in objects if each["kind"] == "ClusterRoleBinding"]
    assert [each["metadata"]["name"] for each in cluster_wide] == [f"finetune-profiles-{team}"]
    of_namespace = [each for each in (*objects, quota) if each not in cluster_wide]
    assert {each["metadata"].get("namespace") for each in of_namespace} == {team}


def test_a_quota_on_jobs_comes_after_their_kind() -> None:
    """Else the API server refuses all jobs for minutes after the kind exists."""
    text = setup_script.everything()
    assert text.index("helm upgrade") < text.index("quota-team-a.yaml")


def test_a_team_of_another_name_gets_nothing_of_team_a() -> None:
    text = plan(TEAMS="team-x=user:x@example.com")
    assert "team-a" not in text.replace("docs/", "")
    assert "team-a" not in plan("first-job", TEAMS="team-x=user:x@example.com")


def test_people_get_the_charts_roles_in_their_namespace() -> None:
    objects = written(plan("teams"), "team-a.yaml")
    bound = {(each["kind"], each["roleRef"]["name"]) for each in objects if each["kind"].endswith("Binding")}
    assert bound == {
        ("RoleBinding", "finetune-operator-edit"),
        ("RoleBinding", "view"),
        ("ClusterRoleBinding", "finetune-operator-profile-view"),
    }
    (first, *_) = (each for each in objects if each["kind"] == "RoleBinding")
    assert [(each["kind"], each["name"]) for each in first["subjects"]] == [
        ("Group", "team-a@example.com"),
        ("User", "anna@example.com"),
    ]


@pytest.mark.parametrize(
    ("member", "kind", "name"),
    [
        ("user:anna@example.com", "User", "anna@example.com"),
        ("group:team-a@example.com", "Group", "team-a@example.com"),
        (
            "serviceAccount:ci@my-project.iam.gserviceaccount.com",
            "User",
            "ci@my-project.iam.gserviceaccount.com",
        ),
        (
            f"principal://{WORKFORCE}/subject/anna@example.com",
            "User",
            f"principal://{WORKFORCE}/subject/anna@example.com",
        ),
        (
            f"principalSet://{WORKFORCE}/group/1b2c-3d4e",
            "Group",
            f"principalSet://{WORKFORCE}/group/1b2c-3d4e",
        ),
    ],
)
def test_people_are_named_as_iam_names_them_and_bound_by_the_name_that_the_cluster_knows(
    member: str, kind: str, name: str
) -> None:
    text = plan("teams", "operator", TEAMS=f"team-a={member}", ADMINS=member)
    assert {
        person for _, person, _ in setup_script.grants(text) if "workloadIdentityPools" not in person
    } == {member}
    bindings = [each for file in ("team-a.yaml", "admins.yaml") for each in written(text, file)]
    found = [each["subjects"] for each in bindings if each["kind"].endswith("Binding")]
    assert found == [[{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}]] * 6


@pytest.mark.parametrize(
    "variables",
    [
        {},
        EVERYTHING,
        {"CAPACITY": "Spot", "SLICES": "v5p-8 v5litepod-16"},
        {"CAPACITY": "FlexStart", "SLICES": "v6e-16 v6e-4", "KUEUE": "true", "PATHWAYS": "true"},
        {"CAPACITY": "FlexStart", "ZONE": TWO_ZONES},
        *({"SLICES": each} for each in ("v6e-256", "v5p-384", "v4-128", "tpu7x-8", "v5e-1", "v6e-8/1host")),
    ],
    ids=str,
)
def test_the_profile_is_valid_and_the_first_job_is_admitted_under_it(
    variables: dict[str, str], tmp_path: Path
) -> None:
    profile, job = tmp_path / "profile.yaml", tmp_path / "job.yaml"
    text = plan(**variables)
    profile.write_text(yaml.safe_dump_all(written(text, "profile-team-a.yaml")))
    job.write_text(files(plan("first-job", **variables))["first-job.yaml"])
    report = check_files([profile, job])
    assert not any(report.problems.values())
    assert "Train" in plan_page(job, profile)


@pytest.mark.parametrize(
    ("variable", "named"), [("DIGEST_FORMAT", "The digest of"), ("NUMBER", "The number of project")]
)
def test_an_answer_that_is_none_ends_the_run_before_it_is_written(
    variable: str, named: str, tmp_path: Path
) -> None:
    world = setup_script.World(tmp_path)
    done = world.run(**{variable: "WARNING: not ready"})
    assert done.returncode == 1
    assert f"{named} " in done.stderr
    assert "WARNING: not ready" in done.stderr
    assert not any((world.files / name).exists() for name in ("values.yaml", "profile-team-a.yaml"))


def test_a_search_path_of_cd_changes_nothing() -> None:
    environment = {"PATH": os.environ["PATH"], "CDPATH": f".:{ROOT}", **VARIABLES}
    done = subprocess.run(
        ["deploy/gke/setup.sh", "--dry-run"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("variables", [{}, EVERYTHING], ids=["least", "most"])
def test_the_chart_accepts_the_values(variables: dict[str, str]) -> None:
    (values,) = written(plan(**variables), "values.yaml")
    chart = ROOT / "charts" / "finetune-operator"
    merged = yaml.safe_load((chart / "values.yaml").read_text())
    for key, value in values.items():
        merged[key] = {**merged[key], **value} if isinstance(value, dict) else value
    jsonschema.validate(merged, yaml.safe_load((chart / "values.schema.json").read_text()))
    assert values["namespaces"] == (["team-a", "team-b"] if variables else ["team-a"])


def test_the_quota_and_the_queue_are_all_chips_of_the_pools() -> None:
    chips = 4 * 4 + 2 * 16 + 8
    (quota,) = written(setup_script.everything(), "quota-team-a.yaml")
    assert quota["spec"]["hard"]["requests.google.com/tpu"] == str(chips)
    (queue,) = (
        each for each in written(setup_script.everything(), "queues.yaml") if each["kind"] == "ClusterQueue"
    )
    (flavor,) = queue["spec"]["resourceGroups"][0]["flavors"]
    assert flavor["resources"] == [{"name": "google.com/tpu", "nominalQuota": chips}]


# Step 8: the network


def test_the_policy_is_tested_from_within_and_from_another_namespace() -> None:
    text = GUIDE.partition("### Several teams")[2].partition("\n### ")[0]
    asked = re.findall(r"kubectl exec -n (\S+) (\S+) -- /agnhost connect (\S+) ", text)
    assert [target for _, _, target in asked] == ["policy-listener.team-a:8482"] * 2
    assert [namespace for namespace, _, _ in asked] == ["team-a", "default"]
    objects = yaml.safe_load_all((ROOT / "examples/cluster/networkpolicy-test.yaml").read_text())
    pods = {
        (each["metadata"]["namespace"], each["metadata"]["name"]) for each in objects if each["kind"] == "Pod"
    }
    assert {(namespace, pod) for namespace, pod, _ in asked} < pods
