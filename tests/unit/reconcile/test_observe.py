import copy
import json
from datetime import timedelta
from typing import Any

import pytest

from finetune_contract import Failure, RunFolder, Stage
from finetune_operator.cluster.port import (
    CONFIG_MAPS,
    JOBS,
    JOBSETS,
    NODES,
    PODS,
    PROFILES,
    WORKLOADS,
    NotFound,
    Rejected,
)
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.node import SliceNode
from finetune_operator.lifecycle.observation import Observation, TakeoverRecord
from finetune_operator.planning import StoredPlan, render_stored_plan
from finetune_operator.reconcile.keys import JobKey
from finetune_operator.reconcile.observe import Observer
from finetune_operator.reconcile.plans import Plans
from finetune_operator.reconcile.run_folder import RunFolderReader
from finetune_operator.reconcile.served_namespaces import ServedNamespaces
from finetune_operator.reconcile.watch_cache import WatchCache
from tests.unit.lifecycle import world
from tests.unit.reconcile.fakes import FOLDERS, NOW, OWN, FakeCluster, FakeStore, child, job, plan, workload
from tests.unit.reconcile.records import result
from tests.unit.reconcile.watched import Watched, at

KEY = JobKey("team", "demo")


def observer(cluster: FakeCluster, store: FakeStore, namespaces: tuple[str, ...] = ()) -> Observer:
    return Observer(
        cluster,
        Plans(cluster, OWN),
        RunFolderReader(store),
        WatchCache(),
        utc_now=lambda: NOW,
        live_jobs=lambda: 3,
        served=ServedNamespaces(namespaces, utc_now=lambda: NOW),
    )


async def look(
    cluster: FakeCluster, store: FakeStore | None = None, namespaces: tuple[str, ...] = ()
) -> Observation | None:
    looks = observer(cluster, store or FakeStore(), namespaces)
    return await looks.observe(KEY)


async def test_a_job_that_is_gone_is_nothing() -> None:
    assert await look(FakeCluster()) is None


async def test_children_are_those_of_this_uid_alone() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    cluster.put(JOBSETS, child("JobSet", "demo-prep-1"))
    cluster.put(PODS, child("Pod", "demo-prep-1-cpu-0-0-abcde"))
    cluster.put(JOBSETS, child("JobSet", "other-prep-1", owner="other"))
    observation = await look(cluster)
    assert observation is not None
    assert [each.name for each in observation.jobsets] == ["demo-prep-1"]
    assert [each.name for each in observation.pods] == ["demo-prep-1-cpu-0-0-abcde"]
    assert observation.now == NOW


async def test_of_a_child_only_what_decisions_read_is_held() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    for number in range(2):
        pod = child("Pod", f"demo-prep-1-cpu-0-0-abcd{number}")
        pod["metadata"] |= {"annotations": {"much": "x"}, "managedFields": [{"fieldsV1": {}}]}
        container = {"name": "trainer", "resources": {"limits": {"memory": "1Gi"}}}
        pod["spec"] = {"nodeName": "host", "containers": [{**container, "env": [{"name": "MUCH"}]}]}
        cluster.put(PODS, pod)
    del cluster.of(PODS)[1]["metadata"]["ownerReferences"]
    observation = await look(cluster)
    assert observation is not None
    (found,) = observation.pods
    assert (found.name, found.node_name) == ("demo-prep-1-cpu-0-0-abcd0", "host")


async def test_a_listing_of_children_whose_history_has_gone_begins_again_once() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    cluster.put(PODS, child("Pod", "demo-prep-1-cpu-0-0-abcde"))
    faults = iter([Rejected("too old", status=410)])
    cluster.fault = lambda moment, call: (
        next(faults, None) if (moment, call) == ("before", "list pods") else None
    )
    observation = await look(cluster)
    assert observation is not None
    assert len(observation.pods) == 1
    assert cluster.calls.count("list pods") == 2


async def test_profiles_are_read_only_until_admission() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    profile = cluster.put(PROFILES, {"metadata": {"name": "local"}})
    observation = await look(cluster)
    assert observation is not None
    assert observation.profiles == (profile,)
    cluster.put(CONFIG_MAPS, plan())
    observation = await look(cluster)
    assert observation is not None
    assert observation.profiles == ()


async def test_the_config_map_of_a_chat_template_is_read_only_until_admission() -> None:
    cluster = FakeCluster()
    wanted = job()
    wanted["spec"] = {"datasets": {"chatTemplate": {"configMapRef": {"name": "templates", "key": "chat"}}}}
    cluster.put(JOBS, wanted)
    observation = await look(cluster)
    assert observation is not None
    assert observation.template is None
    template = cluster.put(CONFIG_MAPS, child("ConfigMap", "templates"))
    observation = await look(cluster)
    assert observation is not None
    assert observation.template == template
    cluster.put(CONFIG_MAPS, plan())
    observation = await look(cluster)
    assert observation is not None
    assert observation.template is None


def queued(name: str) -> dict[str, Any]:
    made = child("JobSet", name)
    made["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": "team-tpu"}
    return made


async def test_workloads_are_those_of_the_jobsets_in_a_queue_by_one_request() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    uids = [cluster.put(JOBSETS, queued(name))["metadata"]["uid"] for name in ("demo-train-1", "demo-eval-1")]
    mine = [cluster.put(WORKLOADS, workload("demo-train-1", uid)) for uid in (*uids, "another")][:2]
    observation = await look(cluster)
    assert observation is not None
    told = [each.name for each in observation.workloads or ()]
    assert told == [each["metadata"]["name"] for each in mine]
    assert cluster.calls.count("list workloads") == 1


async def test_where_nothing_is_queued_no_workloads_are_listed() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    cluster.put(JOBSETS, child("JobSet", "demo-prep-1"))
    observation = await look(cluster)
    assert observation is not None
    assert observation.workloads == ()
    assert "list workloads" not in cluster.calls


async def test_a_cluster_without_kueue_is_distinguished_from_one_that_has_seen_nothing() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    cluster.put(JOBSETS, queued("demo-train-1"))
    missing = NotFound("the server could not find the requested resource", status=404)
    cluster.fault = lambda moment, call: missing if (moment, call) == ("before", "list workloads") else None
    observation = await look(cluster)
    assert observation is not None
    assert observation.workloads is None


async def test_a_plan_in_the_jobs_own_namespace_is_not_read() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    for name in ("demo-plan", plan()["metadata"]["name"]):
        forged = plan()
        forged["metadata"] |= {"namespace": "team", "name": name}
        cluster.put(CONFIG_MAPS, forged)
    observation = await look(cluster)
    assert observation is not None
    assert observation.stored is None


async def test_a_stage_that_is_seen_to_have_ended_is_seen_with_its_record() -> None:
    cluster, store = FakeCluster(), FakeStore()
    cluster.put(JOBS, job())
    cluster.put(CONFIG_MAPS, plan())

    def end_while_being_listed(moment: str, call: str) -> None:
        # Between two reads of the observer, the trainer writes its record and then its JobSet ends.
        if (moment, call) == ("before", "list jobsets"):
            store.files[FOLDERS.run.result("prep", 1)] = result(Stage.PREFLIGHT).to_json().encode()
            cluster.put(JOBSETS, child("JobSet", "demo-prep-1"))

    cluster.fault = end_while_being_listed
    observation = await look(cluster, store)
    assert observation is not None
    assert len(observation.jobsets) == 1
    assert AttemptKey(Stage.PREFLIGHT, 1) in observation.folder.attempts


async def test_nodes_are_asked_for_until_their_pods_failure_is_judged() -> None:
    cluster, store = FakeCluster(), FakeStore()
    cluster.put(JOBS, job())
    cluster.put(CONFIG_MAPS, plan())
    pod = child("Pod", "demo-train-1-slice-0-0-abcde")
    kind = {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice"}
    cluster.put(PODS, pod | {"spec": {"nodeSelector": kind}, "status": {"phase": "Failed"}})
    cluster.put(NODES, {"metadata": {"name": "host", "labels": kind}})
    for reason, asked in (("Crashed", 1), ("Preempted", 0)):
        record = Failure(code=1, reason=reason, message="It ended.")
        await store.write(FOLDERS.run.failure("train", 1), record.to_json().encode())
        cluster.calls.clear()
        observation = await look(cluster, store)
        assert observation is not None
        assert cluster.calls.count("list nodes") == asked, reason


async def test_of_a_node_only_what_shows_its_loss_is_held() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    cluster.put(CONFIG_MAPS, plan())
    kind = {"cloud.google.com/gke-tpu-topology": "2x4"}
    pod = child("Pod", "demo-train-1-slice-0-0-abcde")
    cluster.put(PODS, pod | {"spec": {"nodeSelector": kind}, "status": {"phase": "Failed"}})
    told = {
        "metadata": {"name": "host", "labels": {"cloud.google.com/gke-nodepool": "tpu"}},
        "spec": {"taints": [{"key": "node.kubernetes.io/unreachable"}]},
        "status": {"conditions": [{"type": "Ready", "status": "False"}]},
    }
    node = copy.deepcopy(told)
    node["metadata"]["labels"] |= kind
    node["status"]["images"] = [{"names": ["x" * 4096]}] * 50
    cluster.put(NODES, node)
    observation = await look(cluster)
    assert observation is not None
    assert observation.nodes == {"host": SliceNode.parse(told)}


async def test_failed_pods_of_many_kinds_cost_few_listings_of_nodes() -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    cluster.put(CONFIG_MAPS, plan())
    kind = {"cloud.google.com/gke-tpu-topology": "z"}
    group = {"template": {"spec": {"template": {"spec": {"nodeSelector": kind}}}}}
    cluster.put(JOBSETS, child("JobSet", "demo-train-1") | {"spec": {"replicatedJobs": [group]}})
    cluster.put(NODES, {"metadata": {"name": "host", "labels": kind}})
    for index, topology in enumerate([*map(str, range(50)), "z"]):
        pod = child("Pod", f"demo-train-1-slice-0-{index}-abcde")
        selector = {"cloud.google.com/gke-tpu-topology": topology}
        cluster.put(PODS, pod | {"spec": {"nodeSelector": selector}, "status": {"phase": "Failed"}})
    observation = await look(cluster)
    assert observation is not None
    assert set(observation.nodes or ()) == {"host"}
    assert cluster.calls.count("list nodes") == 4


@pytest.mark.parametrize(("seconds", "asked"), [(60, 1), (3600, 0)])
async def test_a_pod_that_never_started_is_no_fresh_failure_for_ever(seconds: int, asked: int) -> None:
    cluster = FakeCluster()
    cluster.put(JOBS, job())
    cluster.put(CONFIG_MAPS, plan())
    pod = child("Pod", "demo-train-1-slice-0-0-abcde")
    pod["metadata"]["creationTimestamp"] = (NOW - timedelta(seconds=seconds)).isoformat()
    kind = {"cloud.google.com/gke-tpu-topology": "2x4"}
    cluster.put(
        PODS,
        pod | {"spec": {"nodeSelector": kind}, "status": {"phase": "Failed", "reason": "NodeAffinity"}},
    )
    await look(cluster)
    assert cluster.calls.count("list nodes") == asked


LENT = "gs://artifacts/team-b/support-bot-0b5e3a52"


def of_world(name: str, namespace: str, uid: str, **spec: Any) -> dict[str, Any]:
    """Returns a job of the decision tests' world with this name, namespace and uid."""
    wanted = world.job(**spec)
    wanted["metadata"] |= {"name": name, "namespace": namespace, "uid": uid}
    return wanted


@pytest.mark.parametrize(("served", "seen"), [((), True), (("team", "team-b"), True), (("team",), False)])
async def test_who_uses_a_run_folder_is_searched_in_all_served_namespaces(
    served: tuple[str, ...], seen: bool
) -> None:
    cluster = FakeCluster()
    cluster.put(PROFILES, world.profile(constraints={"uris": {"write": ["gs://artifacts/team-b/*"]}}))
    cluster.put(JOBS, of_world("demo", "team", "uid-demo", resumeFrom={"runFolder": LENT}))
    owner = cluster.put(JOBS, of_world("support-bot", "team-b", world.UID))
    cluster.put(JOBS, of_world("bystander", "team-b", "0badcafe"))
    observation = await look(cluster, namespaces=served)
    assert observation is not None
    assert observation.neighbours == ((owner,) if seen else ())


@pytest.mark.parametrize("others", [0, 400])
async def test_a_look_costs_no_more_where_there_are_more_jobs(others: int) -> None:
    """Many jobs may wait for a takeover, and each of them is observed repeatedly."""
    cluster = FakeCluster()
    cluster.put(PROFILES, world.profile(constraints={"uris": {"write": ["gs://artifacts/team-b/*"]}}))
    for number in range(others):
        waiting = of_world(f"other-{number}", "team", f"{number:08}", resumeFrom={"runFolder": LENT})
        cluster.put(JOBS, waiting)
    cluster.put(JOBS, of_world("demo", "team", "uid-demo", resumeFrom={"runFolder": LENT}))
    observation = await look(cluster)
    assert observation is not None
    assert observation.neighbours == ()
    assert sorted(cluster.calls) == [
        "get configmaps", "get finetunejobs", "get finetunejobs", "list finetuneprofiles", "list jobsets", "list pods",
        "list resourcequotas",
    ]  # fmt: skip


async def test_jobs_that_were_delivered_before_a_list_of_profiles_share_it_and_later_ones_do_not() -> None:
    """A profile that was edited before a job was created decides about it, whatever its watch has delivered."""
    cluster, watched = FakeCluster(), Watched()
    watched.all_listed()
    looks = Observer(
        cluster,
        Plans(cluster, OWN),
        RunFolderReader(FakeStore()),
        watched.cache,
        utc_now=lambda: NOW,
        live_jobs=lambda: 3,
    )

    async def created(name: str) -> None:
        watched.event(JOBS, "ADDED", at(101, cluster.put(JOBS, {**job(name), "status": {}})))
        watched.now += 0.1

    async def seen(name: str) -> list[str]:
        observation = await looks.observe(JobKey("team", name))
        assert observation is not None
        assert observation.cached
        return [each["metadata"]["name"] for each in observation.profiles]

    await created("first")
    await created("second")
    assert (await seen("first"), await seen("second")) == ([], [])
    assert cluster.calls == ["list finetuneprofiles", "list resourcequotas"]
    cluster.put(PROFILES, {"metadata": {"name": "edited"}})
    watched.now += 0.1
    await created("third")
    assert await seen("third") == ["edited"]


@pytest.mark.parametrize(
    "folder",
    ["gs://artifacts/team-b/no job-0b5e3a52", "gs://artifacts/team-b/?-0b5e3a52", "gs://art/team-b/b"],
)
async def test_a_run_folder_that_names_no_job_asks_for_none(folder: str) -> None:
    cluster = FakeCluster()
    cluster.put(PROFILES, world.profile(constraints={"uris": {"write": ["gs://*"]}}))
    cluster.put(JOBS, of_world("demo", "team", "uid-demo", resumeFrom={"runFolder": folder}))
    await look(cluster)
    assert cluster.calls.count("get finetunejobs") == 1


async def test_a_job_of_the_owners_name_that_came_later_is_not_the_owner() -> None:
    cluster = FakeCluster()
    cluster.put(PROFILES, world.profile(constraints={"uris": {"write": ["gs://artifacts/team-b/*"]}}))
    cluster.put(JOBS, of_world("demo", "team", "uid-demo", resumeFrom={"runFolder": LENT}))
    cluster.put(JOBS, of_world("support-bot", "team-b", "0badcafe-1", resumeFrom={"runFolder": LENT}))
    observation = await look(cluster)
    assert observation is not None
    assert observation.neighbours == ()


async def test_a_folder_that_the_profile_does_not_open_costs_no_look_at_other_namespaces() -> None:
    cluster = FakeCluster()
    cluster.put(PROFILES, world.profile())
    cluster.put(JOBS, of_world("demo", "team", "uid-demo", resumeFrom={"runFolder": LENT}))
    await look(cluster)
    assert cluster.calls.count("get finetunejobs") == 1


async def test_the_owner_is_observed_until_the_folder_is_taken_over() -> None:
    """A user may retry the owner after this job was admitted."""
    cluster, store = FakeCluster(), FakeStore()
    resuming(cluster)
    owner = cluster.put(JOBS, of_world("support-bot", "team-b", world.UID))
    observation = await look(cluster, store)
    assert observation is not None
    assert observation.neighbours == (owner,)
    note(store, uid="uid-of-demo", job="demo", namespace="team")
    observation = await look(cluster, store)
    assert observation is not None
    assert observation.neighbours == ()


def resuming(cluster: FakeCluster) -> None:
    """Adds an admitted job that is about to take over a run folder of team-b."""
    mine = cluster.put(JOBS, of_world("demo", "team", "uid-of-demo", resumeFrom={"runFolder": LENT}))
    spec = {"resources": {"controller": "McJAX"}, "resumeFrom": {"runFolder": LENT}}
    stored = render_stored_plan(StoredPlan.make(mine, "local", "0", world.profile()["spec"], spec))
    stored["metadata"]["namespace"] = OWN
    cluster.put(CONFIG_MAPS, stored)


def note(store: FakeStore, **fields: Any) -> None:
    taken = TakeoverRecord(**{"uid": "0c1c1c1c-0", "job": "cee", "first": {Stage.TRAIN: 2}} | fields)
    store.files[RunFolder(LENT).taken_over(taken.uid)] = taken.model_dump_json().encode()


def third(cluster: FakeCluster, *, folder: str = LENT, ended: bool = False) -> Any:
    """Adds a job of a third namespace that has taken over that run folder."""
    other = of_world("cee", "team-c", "0c1c1c1c-0", resumeFrom={"runFolder": folder})
    finished = {"type": "Finished", "status": "True" if ended else "False"}
    return cluster.put(
        JOBS, other | {"status": {"resolved": {"runFolder": folder}, "conditions": [finished]}}
    )


@pytest.mark.parametrize("ended", [False, True])
async def test_the_job_that_used_the_folder_last_is_found_in_any_namespace(ended: bool) -> None:
    cluster, store = FakeCluster(), FakeStore()
    resuming(cluster)
    note(store, namespace="team-c")
    other = third(cluster, ended=ended)
    observation = await look(cluster, store)
    assert observation is not None
    assert observation.neighbours == (() if ended else (other,))
    assert observation.unserved_namespace is None


@pytest.mark.parametrize("case", ["another folder", "another uid", "gone"])
async def test_a_note_blocks_only_while_its_job_uses_the_folder(case: str) -> None:
    cluster, store = FakeCluster(), FakeStore()
    resuming(cluster)
    note(store, namespace="team-c")
    if case == "another folder":
        third(cluster, folder="gs://artifacts/team-c/elsewhere-01234567")
    elif case == "another uid":
        other = third(cluster)
        other["metadata"]["uid"] = "of-another-one"
    observation = await look(cluster, store)
    assert observation is not None
    assert observation.neighbours == ()


@pytest.mark.parametrize("noted", ["team-c", None])
async def test_a_namespace_that_is_not_served_is_named(noted: str | None) -> None:
    cluster, store = FakeCluster(), FakeStore()
    resuming(cluster)
    if noted:
        note(store, namespace=noted)
    observation = await look(cluster, store, ("team",))
    assert observation is not None
    assert observation.unserved_namespace == (noted or "team-b")


@pytest.mark.parametrize("job_name", ["../../../api/v1/namespaces/kube-system/secrets/x", "a/b", ""])
async def test_a_note_that_names_no_job_is_no_note(job_name: str) -> None:
    cluster, store = FakeCluster(), FakeStore()
    resuming(cluster)
    document = {"uid": "0c1c1c1c-0", "job": job_name, "namespace": "team-c", "first": {}}
    store.files[RunFolder(LENT).taken_over("0c1c1c1c-0")] = json.dumps(document).encode()
    observation = await look(cluster, store)
    assert observation is not None
    assert observation.folder.unreadable is not None
    assert cluster.calls.count("get finetunejobs") == 1
