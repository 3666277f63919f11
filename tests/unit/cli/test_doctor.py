"""``finetune doctor``: each check, broken alone in an installation that lacks nothing."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from devcluster.layout import ROOT
from finetune_operator.cli.doctor.checks import CHECKS, findings
from finetune_operator.cli.doctor.examine import closing, line
from finetune_operator.cli.doctor.setup import Finding, Right, Setup, State
from finetune_operator.cluster.port import JOBS, JOBSETS, LOCAL_QUEUES, PROFILES
from finetune_operator.cluster.releases import SERVES

EDIT = Right("create", "finetunejobs", "kubectl apply")
SEE = Right("list", "finetuneprofiles", "finetune profiles")
LOG = Right("get", "pods/log", "finetune logs")
JOB_COUNT = "count/finetunejobs.tpu-finetune.dev"


def named(name: str, **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **fields}


def profile() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "examples/profiles/gke-v6e-queued.yaml").read_text())
    loaded["spec"]["images"]["trainer"] += f"@sha256:{'1' * 64}"
    return loaded


def node(name: str, **labels: str) -> dict[str, Any]:
    own = {key.replace("_", "-"): value for key, value in labels.items()}
    prefixed = {f"cloud.google.com/gke-{key}": value for key, value in own.items()}
    return {
        "metadata": {
            "name": name,
            "labels": {
                "iam.gke.io/gke-metadata-server-enabled": "true",
                "node.kubernetes.io/instance-type": "ct6e-standard-4t",
                **prefixed,
            },
        },
        "spec": {"providerID": f"gce://my-project/europe-west4-a/{name}"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def one_host(name: str = "one", **labels: str) -> dict[str, Any]:
    return node(name, tpu_accelerator="tpu-v6e-slice", tpu_topology="2x2", **labels)


def two_hosts(pool: str) -> list[dict[str, Any]]:
    """A slice of the flavor two-hosts."""
    labels = {"tpu_accelerator": "tpu-v6e-slice", "tpu_topology": "2x4", "nodepool": pool}
    return [node(f"{pool}-{host}", **labels) for host in range(2)]


def unready(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}


def queue(active: str, message: str = "") -> dict[str, Any]:
    condition = {"type": "Active", "status": active, "message": message}
    return named("team-tpu", status={"conditions": [condition]})


def healthy() -> Setup:
    return Setup(
        namespace="team-a",
        operator_namespace="finetune-system",
        served=dict.fromkeys((JOBS, PROFILES, JOBSETS, LOCAL_QUEUES), True),
        operators=[named("finetune-operator", status={"availableReplicas": 2})],
        operator_roles=[serving("team-a,team-b")],
        profiles=[profile()],
        accounts=[named("ft-train"), named("ft-cpu"), named("default")],
        queues=[queue("True")],
        **quota({JOB_COUNT: "20", "requests.google.com/tpu": "32"}, {JOB_COUNT: "3"}),
        nodes=[
            one_host(),
            *two_hosts("p"),
            node("cpu", nodepool="finetune-cpu"),
        ],
        rights={SEE: True, EDIT: True, LOG: True},
    )  # fmt: skip


def serving(namespaces: str) -> dict[str, Any]:
    """The ClusterRole of a release that serves the namespaces."""
    return {"metadata": {"name": "finetune-operator", "annotations": {SERVES: namespaces}}}


def lost(*namespaces: str) -> dict[str, Any]:
    """The profile while the operator may not watch those namespaces."""
    return {"profiles": [{**profile(), "status": {"lostNamespaces": list(namespaces)}}]}


def without(*kinds: Any) -> dict[str, Any]:
    return {"served": {kind: kind not in kinds for kind in healthy().served}}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The profile after a change of its spec."""
    own = profile()
    change(own["spec"])
    return {"profiles": [own]}


def profile_named(name: str, default: str) -> dict[str, Any]:
    annotations = {"tpu-finetune.dev/is-default-profile": default}
    return {**profile(), "metadata": {"name": name, "annotations": annotations}}


def annotated(value: str) -> dict[str, Any]:
    account = {"metadata": {"name": "ft-cpu", "annotations": {"iam.gke.io/gcp-service-account": value}}}
    return {"accounts": [named("ft-train"), account]}


def quota(hard: dict[str, str], used: dict[str, str]) -> dict[str, Any]:
    return {"quotas": [named("jobs", spec={"hard": hard}, status={"used": used})]}


def unlabelled() -> dict[str, Any]:
    bare = node("cpu", nodepool="finetune-cpu")
    del bare["metadata"]["labels"]["iam.gke.io/gke-metadata-server-enabled"]
    return {"nodes": [bare, *(healthy().nodes or ())]}


#: What is broken -> the check that finds it, words of the message, and of the command that mends it.
BROKEN: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "no jobs": (without(JOBS), "crds", "serve finetunejobs", "helm upgrade --install"),
    "no profiles' kind": (without(PROFILES), "crds", "serve finetuneprofiles", "helm upgrade --install"),
    "no operator": ({"operators": []}, "operator", "has no operator", "helm upgrade --install"),
    "no ready operator": ({"operators": [named("o", status={})]}, "operator", "No pod of", "kubectl describe pods"),
    "an operator for others": (
        {"operator_roles": [serving("team-b")]}, "operator", "No operator serves team-a; served: team-b", "TEAMS",
    ),
    "an operator that may not watch": (
        lost("team-b", "team-a"), "operator", "may not watch team-a", "Role and RoleBinding",
    ),
    "no JobSet": (without(JOBSETS), "jobset", "jobsets.jobset.x-k8s.io/v1alpha2", "kubectl apply --server-side"),
    "no profile": ({"profiles": []}, "profiles", "No profile serves namespace team-a", "kubectl edit finetuneprofile"),
    "a profile of others": (
        changed(lambda spec: spec.update(namespaces=["team-x"])), "profiles", "No profile serves", "spec.namespaces",
    ),
    "a profile that is not valid": (
        changed(lambda spec: spec["flavors"][0].update(topologies=["9x9"])),
        "profiles", "9x9", "kubectl edit finetuneprofile gke-v6e-queued",
    ),
    "two defaults": (
        {"profiles": [profile_named("a", "true"), profile_named("b", "true")]},
        "profiles", "2 FineTuneProfiles that serve namespace team-a are marked as default: a, b", "is-default-profile-",
    ),
    "an account": (
        {"accounts": [named("ft-cpu")]}, "accounts", "ft-train",
        "kubectl create serviceaccount ft-train --namespace team-a",
    ),
    "an annotation": (annotated("ft-cpu"), "accounts", "'ft-cpu'", "kubectl annotate serviceaccount ft-cpu"),
    "no Kueue": (without(LOCAL_QUEUES), "queues", "localqueues", "kueue/releases"),
    "a queue": ({"queues": []}, "queues", "team-tpu", "kubectl apply -f queue.yaml"),
    "a queue that is off": (
        {"queues": [queue("False", "gone")]},
        "queues", "not active: gone", "kubectl describe localqueue",
    ),
    "a node without identity": (unlabelled(), "nodes", "cpu", "node-pools update finetune-cpu"),
    "too few chips": (
        quota({"requests.google.com/tpu": "3"}, {}), "quotas",
        "allows 3 of requests.google.com/tpu, and v6e-4 needs 4", "kubectl edit resourcequota",
    ),
    "no pods": (quota({"pods": "0"}, {}), "quotas", "0 of pods, and v6e-4 needs 1", "kubectl edit resourcequota"),
    "no Jobs": (quota({"count/jobs.batch": "0"}, {}), "quotas", "0 of count/jobs.batch", "kubectl edit resourcequota"),
    "no JobSets": (
        quota({"count/jobsets.jobset.x-k8s.io": "0"}, {}), "quotas", "0 of count/jobsets", "kubectl edit resourcequota",
    ),
    "a quota of zero": (
        quota({"requests.google.com/tpu": "0"}, {}), "quotas", "allows 0 of requests", "kubectl edit resourcequota",
    ),
    "no more jobs": (quota({JOB_COUNT: "2"}, {JOB_COUNT: "2"}), "quotas", "2 FineTuneJobs", "kubectl delete"),
    "jobs that are not counted yet": (quota({JOB_COUNT: "2"}, {}), "quotas", "has not counted", "--watch"),
    "a right on jobs": ({"rights": {EDIT: False}}, "rights", "create finetunejobs", "finetune-operator-edit"),
    "a right on profiles": ({"rights": {SEE: False}}, "rights", "finetuneprofiles", "clusterrolebinding"),
    "a right on logs": ({"rights": {LOG: False}}, "rights", "get pods/log", "--clusterrole view"),
}  # fmt: skip


def test_an_image_without_a_digest_is_remarked() -> None:
    tag = changed(
        lambda spec: spec.update(images={"trainer": "registry/trainer:latest", "cpu": "registry/cpu"})
    )
    found = [each for each in findings(dataclasses.replace(healthy(), **tag)) if each.state is not State.OK]
    assert [(each.check, each.state, each.message.split(",")[0]) for each in found] == [
        (
            "profiles",
            State.UNKNOWN,
            "Profile gke-v6e-queued: spec.images.trainer: registry/trainer:latest names no digest",
        ),
        ("profiles", State.UNKNOWN, "Profile gke-v6e-queued: spec.images.cpu: registry/cpu names no digest"),
    ]
    assert found[0].fix == "kubectl edit finetuneprofile gke-v6e-queued"


def head(cores: str, memory: str, pool: str = "head") -> dict[str, Any]:
    found = node("head", nodepool=pool)
    found["status"]["allocatable"] = {"cpu": cores, "memory": memory}
    return found


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ([], State.UNKNOWN),
        ([head("47910m", "232Gi")], State.UNKNOWN),
        ([head("63770m", "200Gi")], State.UNKNOWN),
        ([head("63770m", "240Gi", "other")], State.UNKNOWN),
        ([node("head", nodepool="head")], State.UNKNOWN),
        ([head("63770m", "240Gi")], State.OK),
    ],
)
@pytest.mark.parametrize("named_by", ["nodes", "defaults"])
def test_nodes_for_the_head_of_pathways_are_expected(
    given: list[dict[str, Any]], state: State, named_by: str
) -> None:
    def change(spec: dict[str, Any]) -> None:
        if named_by == "nodes":
            spec["pathways"] = {"headNodeSelector": {"cloud.google.com/gke-nodepool": "head"}}
        else:
            spec["defaults"] = {"resources": {"controller": "Pathways"}}

    if named_by == "defaults":
        given = [
            each for each in given if each["metadata"]["labels"]["cloud.google.com/gke-nodepool"] != "other"
        ]
        state = State.OK if any("240Gi" in str(each) for each in given) else State.UNKNOWN
    whole = healthy()
    setup = dataclasses.replace(whole, nodes=[*(whole.nodes or ()), *given], **changed(change))
    (found,) = [each for each in findings(setup) if "head of Pathways" in each.message]
    assert found.state is state
    assert "(48 cores, 232 GB)" in found.message


def test_no_node_for_a_head_is_expected_where_nothing_names_pathways() -> None:
    assert not [each for each in findings(healthy()) if "Pathways" in each.message]


def of(setup: Setup, state: State) -> list[Finding]:
    return [each for each in findings(setup) if each.state is state]


def test_an_installation_that_lacks_nothing_passes_every_check() -> None:
    found = findings(healthy())
    assert {each.state for each in found} == {State.OK}
    names = {"crds", "operator", "jobset", "profiles", "accounts", "queues", "nodes", "quotas", "rights"}
    assert {each.check for each in found} == names
    assert len(CHECKS) == len(names)


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_missing_is_one_line_with_the_command_that_mends_it(name: str) -> None:
    broken, check, message, fix = BROKEN[name]
    (found,) = of(dataclasses.replace(healthy(), **broken), State.MISSING)
    assert found.check == check
    assert message in found.message
    assert fix in found.fix
    assert "\n" not in line(found)


def test_every_check_is_broken_by_a_row() -> None:
    assert {check for _, check, _, _ in BROKEN.values()} == {each.check for each in findings(healthy())}


@pytest.mark.parametrize(
    "field", ["operators", "operator_roles", "profiles", "accounts", "queues", "quotas", "nodes"]
)
def test_what_the_caller_may_not_read_is_unknown_and_not_missing(field: str) -> None:
    setup = dataclasses.replace(healthy(), **{field: None})
    assert of(setup, State.MISSING) == []
    assert ["You may not read" in each.message for each in of(setup, State.UNKNOWN)] == [True]


@pytest.mark.parametrize(("hard", "used"), [("1M", "3"), ("2k", "1999"), ("1500", "1k")])
def test_quotas_of_many_jobs_are_read_as_the_api_server_writes_them(hard: str, used: str) -> None:
    setup = dataclasses.replace(healthy(), **quota({JOB_COUNT: hard}, {JOB_COUNT: used}))
    assert of(setup, State.MISSING) == []


@pytest.mark.parametrize(
    ("resource", "limit", "most", "message"),
    [
        ("requests.google.com/tpu", "4", 1, "4 of requests.google.com/tpu, and v6e-8 needs 8"),
        ("pods", "1", 1, "1 of pods, and v6e-8 needs 2"),
        ("count/pods", "1", 1, "1 of count/pods, and v6e-8 needs 2"),
        ("requests.google.com/tpu", "16", 3, "16 of requests.google.com/tpu, and 3 x v6e-8 needs 24"),
        ("pods", "5", 3, "5 of pods, and 3 x v6e-8 needs 6"),
        ("count/jobs.batch", "2", 3, "2 of count/jobs.batch, and 3 x v6e-8 needs 3"),
    ],
)
def test_a_quota_below_the_largest_slice_is_unknown_and_names_both(
    resource: str, limit: str, most: int, message: str
) -> None:
    slices = changed(lambda spec: spec["flavors"][1].update(maxSlices=most))
    setup = dataclasses.replace(healthy(), **slices, **quota({resource: limit}, {}))
    assert of(setup, State.MISSING) == []
    (found,) = of(setup, State.UNKNOWN)
    assert found.message == f"ResourceQuota jobs allows {message}; smaller slices have room."
    assert found.fix == "kubectl edit resourcequota jobs --namespace team-a"


def test_the_head_of_pathways_is_a_pod_and_a_job_of_the_quota() -> None:
    heads = changed(lambda spec: spec.update(defaults={"resources": {"controller": "Pathways"}}))
    for resource in ("pods", "count/jobs.batch"):
        setup = dataclasses.replace(healthy(), **heads, **quota({resource: "1"}, {}))
        (found,) = of(setup, State.MISSING)
        assert f"allows 1 of {resource}, and v6e-4 needs 2" in found.message


def test_the_loss_of_another_namespace_is_none_of_this_one() -> None:
    assert of(dataclasses.replace(healthy(), **lost("team-b", "team-a-2")), State.MISSING) == []


@pytest.mark.parametrize("served", ["*", "team-a", "team-b,team-a"])
def test_a_release_that_serves_the_namespace_is_enough(served: str) -> None:
    setup = dataclasses.replace(
        healthy(), operator_roles=[serving("team-x"), serving(served), named("other")]
    )
    assert of(setup, State.MISSING) == []


def test_a_google_account_that_people_of_the_namespace_can_change_is_unknown() -> None:
    google = "collector@another-project.iam.gserviceaccount.com"
    setup = dataclasses.replace(healthy(), **annotated(google))
    assert of(setup, State.MISSING) == []
    (found,) = of(setup, State.UNKNOWN)
    assert found.message == f"ft-cpu acts as {google}, which people of team-a can change."
    removed = "kubectl annotate serviceaccount ft-cpu --namespace team-a iam.gke.io/gcp-service-account-, "
    assert found.fix.startswith(removed)
    assert google not in found.fix


def test_a_pool_without_nodes_is_unknown_with_the_command_that_shows_it() -> None:
    setup = dataclasses.replace(healthy(), nodes=[])
    assert of(setup, State.MISSING) == []
    assert [each.fix.startswith("gcloud container node-pools list") for each in of(setup, State.UNKNOWN)] == [
        True
    ] * 3


CPU = node("cpu", nodepool="finetune-cpu")
#: Nodes of which the stage cannot use those that it needs -> words of the finding, and of the command that shows them.
UNUSABLE: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str, str]] = {
    "not ready": (
        [unready(one_host()), *two_hosts("p"), CPU], {}, "None of 1 nodes for flavor one-host", "kubectl get nodes",
    ),
    "cordoned": (
        [{**one_host(), "spec": {"unschedulable": True}}, *two_hosts("p"), CPU],
        {}, "None of 1 nodes for flavor one-host", "kubectl get nodes --selector cloud.google.com/gke-tpu-accelerator=",
    ),
    "Spot for an on-demand flavor": (
        [one_host(spot="true"), *two_hosts("p"), CPU], {}, "No node for flavor one-host", "node-pools list",
    ),
    "on demand for a Spot flavor": (
        [one_host(), *two_hosts("p"), CPU], {"capacity": "Spot"}, "gke-spot=true", "node-pools list",
    ),
    "outside of the reservation": (
        [one_host(), *two_hosts("p"), CPU],
        {"capacity": "Reservation", "reservation": "mine"}, "reservation-name=mine", "node-pools list",
    ),
    "without the flavor's own label": (
        [one_host(), *two_hosts("p"), CPU],
        {"nodeSelector": {"cloud.google.com/compute-class": "tpu"}}, "compute-class=tpu", "node-pools list",
    ),
    "a host of two": (
        [one_host(), *two_hosts("p")[:1], CPU], {}, "all 2 hosts ready for flavor two-hosts of", "--label-columns",
    ),
    "two hosts of two pools": (
        [one_host(), two_hosts("p")[0], two_hosts("q")[1], CPU], {}, "the fullest has 1", "--label-columns",
    ),
    "a host of two that is not ready": (
        [one_host(), two_hosts("p")[0], unready(two_hosts("p")[1]), CPU], {}, "the fullest has 1", "--label-columns",
    ),
    "half of an eight-chip host": (
        [one_host(), *(
            {**each, "metadata": {**each["metadata"], "labels": {
                **each["metadata"]["labels"], "node.kubernetes.io/instance-type": "ct6e-standard-8t",
            }}} for each in two_hosts("p")
        ), CPU],
        {}, "No node for flavor two-hosts of gke-v6e-queued (ct6e-standard-4t, 2x4)", "node-pools list",
    ),
    "CPU that is not ready": (
        [one_host(), *two_hosts("p"), unready(CPU)], {}, "None of 1 nodes for stages of gke-v6e", "kubectl",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSABLE)
def test_nodes_that_no_stage_can_use_are_not_ok(name: str) -> None:
    nodes, flavor, message, fix = UNUSABLE[name]
    own = changed(lambda spec: spec["flavors"][0].update(flavor))
    setup = dataclasses.replace(healthy(), nodes=nodes, **own)
    assert of(setup, State.MISSING) == []
    (found,) = of(setup, State.UNKNOWN)
    assert message in found.message
    assert fix in found.fix


def test_slices_of_several_hosts_are_counted_by_their_pools() -> None:
    nodes = [one_host(), *two_hosts("p"), *two_hosts("q"), *two_hosts("r")[:1], CPU]
    found = findings(dataclasses.replace(healthy(), nodes=nodes))
    assert (
        "2 node pools with all 2 hosts ready for flavor two-hosts of gke-v6e-queued (ct6e-standard-4t, 2x4)."
        in [each.message for each in found]
    )


def test_a_reservation_and_its_own_labels_are_found() -> None:
    reserved = one_host(spot="false")
    reserved["metadata"]["labels"] |= {"cloud.google.com/reservation-name": "mine"}
    own = changed(lambda spec: spec["flavors"][0].update(capacity="Reservation", reservation="mine"))
    setup = dataclasses.replace(healthy(), nodes=[reserved, *two_hosts("p"), CPU], **own)
    assert {each.state for each in findings(setup)} == {State.OK}


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([profile_named("a", "false")], "Jobs that name no profile run under a."),
        ([profile_named("a", "false"), profile_named("b", "true")], "Jobs that name no profile run under b."),
        ([profile_named("a", ""), profile_named("b", "")], "Jobs name their profile: several serve team-a"),
    ],
)
def test_the_profile_of_jobs_that_name_none_is_said(profiles: list[Any], message: str) -> None:
    found = findings(dataclasses.replace(healthy(), profiles=profiles))
    assert any(each.message.startswith(message) for each in found)
    assert not [each for each in found if each.state is State.MISSING]


def test_a_profile_without_queues_needs_no_kueue() -> None:
    setup = dataclasses.replace(healthy(), **changed(lambda spec: spec.pop("queue")), **without(LOCAL_QUEUES))
    assert of(setup, State.MISSING) == []


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ("o", "Nothing is missing."),
        ("ouu", "Nothing is missing; unknown: 2 of 3."),
        ("om", "1 of 2 checks failed."),
        ("omu", "1 of 3 checks failed; unknown: 1 of 3."),
    ],
)
def test_the_last_line_counts_what_is_unknown_apart(states: str, said: str) -> None:
    by_letter = {each.value[0]: each for each in State}
    assert closing([Finding("nodes", by_letter[letter], "") for letter in states]) == said


def test_a_text_of_the_cluster_begins_no_line_of_its_own() -> None:
    hostile = Finding("profiles", State.MISSING, "a\x1b[2J\nok       crds", "b\r\nc")
    assert "\n" not in line(hostile)
    assert "\x1b" not in line(hostile)
