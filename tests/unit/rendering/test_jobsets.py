"""JobSets, whole, against golden files (:mod:`.golden_jobsets`)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import Stage, StageRequest
from finetune_contract.tpu import chips_of_topology
from finetune_operator.catalog import TpuShape, all_shapes, shape_by_name
from finetune_operator.planning import Findings, Refused, admit
from finetune_operator.rendering import render_jobset
from tests.unit.lifecycle.world import job, profile
from tests.unit.rendering.golden_jobsets import check_jobset, check_request, plan_offline

ONE_HOST = job()
TWO_HOSTS_LORA = job(resources={"tpu": "v6e-8"}, method={"type": "SFT", "lora": {"rank": 8}})
HUB = job(
    model={"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}},
    huggingFaceTokenSecretRef={"name": "hub", "key": "token"},
    resources={"tpu": "v6e-4"},
)
CASES = [
    ("one-host-full", ONE_HOST, list(Stage)),
    ("two-hosts-lora", TWO_HOSTS_LORA, [Stage.TRAIN, Stage.EVALUATE]),
    ("hub-token", HUB, [Stage.CONVERT]),
]


def rendered(wanted: Any) -> dict[Stage, dict[str, Any]]:
    return dict(plan_offline(wanted, profile()))


def pod(jobset: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return spec


def env(jobset: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in pod(jobset)["containers"][0]["env"]}


@pytest.mark.parametrize(
    ("case", "wanted", "stage"), [(case, wanted, stage) for case, wanted, stages in CASES for stage in stages]
)
def test_the_jobset_is_the_golden_one(case: str, wanted: Any, stage: Stage) -> None:
    check_jobset(f"{case}-{stage.short}", rendered(wanted)[stage])


def test_the_request_is_the_golden_one() -> None:
    check_request(rendered(ONE_HOST)[Stage.TRAIN])


QUEUED = profile(queue={"localQueue": "team-tpu", "priorityClass": "research"})


@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN])
def test_a_jobset_in_a_queue_is_the_golden_one(stage: Stage) -> None:
    jobset = dict(plan_offline(ONE_HOST, QUEUED))[stage]
    check_jobset(f"queued-{stage.short}", jobset)


def test_stages_on_cpu_wait_in_a_queue_of_their_own() -> None:
    within = profile(queue={"localQueue": "team-tpu", "cpuLocalQueue": "team-cpu"})
    queues = {
        stage: jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
        for stage, jobset in plan_offline(ONE_HOST, within)
    }
    assert queues == {
        Stage.PREFLIGHT: "team-cpu",
        Stage.CONVERT: "team-cpu",
        Stage.TRAIN: "team-tpu",
        Stage.EVALUATE: "team-tpu",
        Stage.EXPORT: "team-cpu",
    }


def test_only_the_jobset_carries_queue_labels() -> None:
    """Kueue may be configured to manage Jobs and pods, too, and would queue each once more."""
    jobset = dict(plan_offline(ONE_HOST, QUEUED))[Stage.TRAIN]
    assert "kueue" not in json.dumps(jobset["spec"])


@pytest.mark.parametrize("stage", Stage)
def test_pods_are_restricted(stage: Stage) -> None:
    spec = pod(rendered(HUB)[stage])
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


GRANTED = profile(pod={"hostNetwork": True, "privileged": True}, serviceAccounts={"cpu": "ft-cpu"})


def test_what_a_profile_grants_of_the_node_is_the_golden_one() -> None:
    jobset = dict(plan_offline(TWO_HOSTS_LORA, GRANTED))[Stage.TRAIN]
    check_jobset("host-access-train", jobset)


def test_only_pods_that_hold_chips_get_anything_of_their_node() -> None:
    plain = dict(plan_offline(ONE_HOST, profile(serviceAccounts={"cpu": "ft-cpu"})))
    granted = dict(plan_offline(ONE_HOST, GRANTED))
    assert [stage for stage in Stage if pod(plain[stage]) != pod(granted[stage])] == [
        Stage.TRAIN,
        Stage.EVALUATE,
    ]


@pytest.mark.parametrize(
    ("pod_settings", "network", "privileged"),
    [({"hostNetwork": True}, True, False), ({"privileged": True}, False, True), ({}, False, False)],
)
def test_network_and_privileges_are_granted_apart(
    pod_settings: dict[str, Any], network: bool, privileged: bool
) -> None:
    within = profile(pod=pod_settings, serviceAccounts={"cpu": "ft-cpu"})
    spec = pod(dict(plan_offline(ONE_HOST, within))[Stage.TRAIN])
    assert spec.get("hostNetwork", False) is network
    assert (spec["containers"][0]["securityContext"].get("privileged", False)) is privileged
    assert spec["securityContext"]["runAsNonRoot"] is not privileged


SETTINGS = {
    "labels": {
        "acme.com/cost-center": "42",
        "app.kubernetes.io/name": "other",
        "kueue.x-k8s.io/queue-name": "pods-only",
    },
    "annotations": {"acme.com/owner": "nlp", "jobset.sigs.k8s.io/exclusive-topology": "pods-only"},
    "jobLabels": ["team"],
    "priorityClassName": "batch",
    "schedulerName": "gang",
    "runtimeClassName": "gvisor",
    "cpuLimits": True,
}


@pytest.mark.parametrize("controller", ["McJAX", "Pathways"])
def test_settings_of_a_profile_reach_every_object(controller: str) -> None:
    wanted = job(resources={"controller": controller, "tpu": "v6e-8"})
    wanted["metadata"]["labels"] = {"team": "nlp", "other": "x"}
    hosts = profile(pod=SETTINGS)["spec"]["flavors"][0] | {"hostResources": {"cpu": "100", "memory": "9Gi"}}
    stages = dict(plan_offline(wanted, profile(pod=SETTINGS, flavors=[hosts])))
    for jobset in stages.values():
        jobs = [each["template"] for each in jobset["spec"]["replicatedJobs"]]
        templates = [each["spec"]["template"] for each in jobs]
        for metadata in (each["metadata"] for each in (jobset, *jobs, *templates)):
            labels = metadata["labels"]
            assert (labels["acme.com/cost-center"], labels["team"]) == ("42", "nlp")
            assert labels["app.kubernetes.io/name"] == "finetune"
            assert "other" not in labels
            assert metadata["annotations"]["acme.com/owner"] == "nlp"
        for metadata in (each["metadata"] for each in (jobset, *jobs)):
            assert "kueue.x-k8s.io/queue-name" not in metadata["labels"]
            assert "pods-only" not in metadata["annotations"].values()
        for spec in (each["spec"] for each in templates):
            assert (spec["priorityClassName"], spec["schedulerName"]) == ("batch", "gang")
            assert spec["runtimeClassName"] == "gvisor"
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                resources = container["resources"]
                assert resources["limits"]["cpu"] == resources["requests"]["cpu"]
    check_jobset(f"pod-settings-{controller.lower()}", stages[Stage.TRAIN])


def test_a_container_that_requests_no_cpu_gets_no_limit_of_it() -> None:
    bare = profile(pod={"cpuLimits": True})["spec"]["flavors"][0] | {"hostResources": {}}
    stages = dict(plan_offline(ONE_HOST, profile(pod={"cpuLimits": True}, flavors=[bare])))
    assert "cpu" not in pod(stages[Stage.TRAIN])["containers"][0]["resources"]["limits"]
    assert "cpu" in pod(stages[Stage.CONVERT])["containers"][0]["resources"]["limits"]


CACHE = "JAX_COMPILATION_CACHE_DIR"


def test_stages_on_a_slice_keep_compiled_programs_in_their_own_namespace() -> None:
    shared = profile(storage={"artifacts": "gs://art/runs", "cache": "gs://cache", "cacheScope": "Profile"})
    for within, folder in (
        (profile(), "gs://artifacts/team-a/programs"),
        (shared, "gs://art/runs/team-a/programs"),
    ):
        kept = {
            stage: env(jobset).get(CACHE, {}).get("value") for stage, jobset in plan_offline(ONE_HOST, within)
        }
        assert kept == dict.fromkeys(Stage) | {Stage.TRAIN: folder, Stage.EVALUATE: folder}


def test_a_profile_may_keep_compiled_programs_elsewhere() -> None:
    within = profile(pod={"env": [{"name": CACHE, "value": "gs://elsewhere/programs"}]})
    jobset = dict(plan_offline(ONE_HOST, within))[Stage.TRAIN]
    entries = [each for each in pod(jobset)["containers"][0]["env"] if each["name"] == CACHE]
    assert entries == [{"name": CACHE, "value": "gs://elsewhere/programs"}]


def test_stages_log_as_cloud_logging_reads_unless_the_profile_wants_text() -> None:
    text = profile(pod={"env": [{"name": "FINETUNE_LOG_FORMAT", "value": "text"}]})
    for within, form in ((profile(), "json"), (text, "text")):
        for _, jobset in plan_offline(ONE_HOST, within):
            entries = [
                each for each in pod(jobset)["containers"][0]["env"] if each["name"] == "FINETUNE_LOG_FORMAT"
            ]
            assert entries == [{"name": "FINETUNE_LOG_FORMAT", "value": form}]


PROGRAMS = "FINETUNE_SLICE_PROGRAMS"


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({}, "gs://artifacts/team-a/programs"),
        ({"env": [{"name": CACHE, "value": "gs://other/p"}]}, "gs://other/p"),
    ],
    ids=["default", "of the profile"],
)
def test_preflight_keeps_programs_where_training_looks_for_them(settings: Any, folder: str) -> None:
    stages = dict(plan_offline(ONE_HOST, profile(pod=settings)))
    kept = {stage: env(jobset).get(PROGRAMS, {}).get("value") for stage, jobset in stages.items()}
    assert kept == dict.fromkeys(Stage) | {Stage.PREFLIGHT: folder}
    assert env(stages[Stage.TRAIN])[CACHE]["value"] == folder


def test_preflight_keeps_no_programs_for_pathways() -> None:
    stages = dict(plan_offline(job(resources={"controller": "Pathways"}), profile()))
    assert PROGRAMS not in env(stages[Stage.PREFLIGHT])


def test_convert_and_export_run_the_image_for_cpu_where_the_profile_names_one() -> None:
    trainer = profile()["spec"]["images"]["trainer"]
    small = "registry.example/finetune-trainer@sha256:" + "2" * 64
    for images, others in (({"trainer": trainer}, trainer), ({"trainer": trainer, "cpu": small}, small)):
        stages = plan_offline(ONE_HOST, profile(images=images))
        run = {stage: pod(jobset)["containers"][0]["image"] for stage, jobset in stages}
        assert run == dict.fromkeys(Stage, trainer) | {Stage.CONVERT: others, Stage.EXPORT: others}


FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def flags_of(within: Any, **wanted: Any) -> tuple[dict[str, str], dict[str, str]]:
    """What the compiler gets in Train, and what Preflight gets of it."""
    stages = dict(plan_offline(job(**wanted), within))
    train, preflight = env(stages[Stage.TRAIN]), env(stages[Stage.PREFLIGHT])
    assert not any(name in env(stages[stage]) for stage in (Stage.CONVERT, Stage.EXPORT) for name in FLAGS)
    told = {
        name: preflight[f"FINETUNE_SLICE_{name}"]["value"]
        for name in FLAGS
        if f"FINETUNE_SLICE_{name}" in preflight
    }
    return {name: train[name]["value"] for name in FLAGS if name in train}, told


def with_flavor(**flags: Any) -> dict[str, Any]:
    (first, *_) = profile()["spec"]["flavors"]
    return profile(flavors=[{**first, **flags}])


def test_the_compiler_gets_what_maxtext_sets_for_the_family() -> None:
    train, preflight = flags_of(profile())
    assert train == preflight
    assert "--xla_tpu_scoped_vmem_limit_kib=98304" in train["LIBTPU_INIT_ARGS"].split()
    assert "XLA_FLAGS" not in train


def test_the_flavors_flags_replace_the_defaults_and_preflight_compiles_with_the_same_bytes() -> None:
    given = {"libtpuInitArgs": ["--xla_tpu_a=1", "--xla_b"], "xlaFlags": ["--xla_c=x,y"]}
    expected = {"LIBTPU_INIT_ARGS": "--xla_tpu_a=1 --xla_b", "XLA_FLAGS": "--xla_c=x,y"}
    assert flags_of(with_flavor(**given)) == (expected, expected)
    assert flags_of(with_flavor(libtpuInitArgs=[])) == ({}, {})


def test_flags_of_the_profiles_pods_win_in_preflight_as_on_the_slice() -> None:
    named = {"name": "LIBTPU_INIT_ARGS", "value": "--xla_tpu_mine=1"}
    (first, *_) = profile()["spec"]["flavors"]
    stages = dict(plan_offline(job(), profile(pod={"env": [named]}, flavors=[first])))
    assert env(stages[Stage.TRAIN])["LIBTPU_INIT_ARGS"] == named
    assert env(stages[Stage.PREFLIGHT])["FINETUNE_SLICE_LIBTPU_INIT_ARGS"]["value"] == named["value"]


def test_pathways_servers_have_flags_of_their_own() -> None:
    assert flags_of(profile(), resources={"controller": "Pathways"}) == ({}, {})


def test_secrets_are_references_and_go_only_where_the_hub_is_read() -> None:
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert all(env(jobset)["HF_TOKEN"]["valueFrom"] == reference for jobset in rendered(HUB).values())
    local = {name: value for name, value in HUB.items() if name != "spec"} | {
        "spec": HUB["spec"] | {"model": {"uri": "gs://models/tiny"}}
    }
    assert [stage for stage, jobset in rendered(local).items() if "HF_TOKEN" in env(jobset)] == [
        Stage.PREFLIGHT
    ]


def test_only_train_and_evaluate_ask_for_chips() -> None:
    asking = [stage for stage, jobset in rendered(ONE_HOST).items() if "google.com/tpu" in json.dumps(jobset)]
    assert asking == [Stage.TRAIN, Stage.EVALUATE]


def test_only_slices_of_several_hosts_take_a_pool_for_themselves() -> None:
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    assert key not in rendered(ONE_HOST)[Stage.TRAIN]["metadata"]["annotations"]
    assert (
        rendered(TWO_HOSTS_LORA)[Stage.TRAIN]["metadata"]["annotations"][key]
        == "cloud.google.com/gke-nodepool"
    )


@pytest.mark.slow
@given(prompt=st.text(min_size=1, max_size=40).filter(lambda text: text.isprintable()))
def test_the_request_survives_the_expansion_of_environment_values(prompt: str) -> None:
    value = env(rendered(job(evaluation={"prompts": [f"$(HOME) ${prompt}"]}))[Stage.TRAIN])[
        "FINETUNE_REQUEST"
    ]["value"]
    assert "$" not in value.replace("$$", "")
    request = StageRequest.model_validate_json(value.replace("$$", "$"))
    assert request.evaluation.prompts == [f"$(HOME) ${prompt}"]


def test_the_longest_names_fit() -> None:
    wanted = job()
    wanted["metadata"] = wanted["metadata"] | {"name": "a" * 28}
    for stage, jobset in plan_offline(wanted, profile()):
        group = jobset["spec"]["replicatedJobs"][0]["name"]
        last = jobset["metadata"]["name"].replace(f"{stage.short}-1", f"{stage.short}-999")
        assert len(f"{last}-{group}-0-63-xxxxx") <= 63


def on(shape: TpuShape, capacity: str = "OnDemand", slices: int = 1, **profile_spec: Any) -> dict[str, Any]:
    """The training's JobSet on slices of that shape."""
    flavor = {
        "name": "only",
        "capacity": capacity,
        "accelerator": shape.accelerator,
        "topologies": [shape.topology],
        "chipsPerHost": shape.chips_per_host,
        "maxSlices": slices,
    }
    if capacity == "Reservation":
        flavor["reservation"] = "projects/shared/reservations/spring"
    resources: dict[str, Any] = {
        "accelerator": shape.accelerator,
        "topology": shape.topology,
        "slices": slices,
    }
    if shape.devices_per_chip is None:
        resources["parallelism"] = {"data": slices, "fsdp": shape.chips, "tensor": 1}
    admitted = admit(job(resources=resources), [profile(flavors=[flavor], **profile_spec)])
    return render_jobset(admitted.plan, Stage.TRAIN, 1, Findings())


@pytest.mark.slow
@pytest.mark.parametrize("accelerator", sorted({shape.accelerator for shape in all_shapes()}))
def test_pods_times_chips_is_the_slice_for_every_shape(accelerator: str) -> None:
    for shape in all_shapes():
        if shape.accelerator == accelerator:
            _assert_whole(shape, slices=3 if shape.multi_host else 1)


def _assert_whole(shape: TpuShape, slices: int) -> None:
    jobset = on(shape, slices=slices)
    (group,) = jobset["spec"]["replicatedJobs"]
    hosts = group["template"]["spec"]["completions"]
    chips = int(pod(jobset)["containers"][0]["resources"]["limits"]["google.com/tpu"])
    assert group["replicas"] == slices, shape
    assert group["template"]["spec"]["parallelism"] == hosts == shape.hosts, shape
    assert hosts * chips == shape.hosts * shape.chips_per_host == chips_of_topology(shape.topology), shape
    selector = pod(jobset)["nodeSelector"]
    assert selector["cloud.google.com/gke-tpu-accelerator"] == shape.accelerator
    assert selector["cloud.google.com/gke-tpu-topology"] == shape.topology
    request = StageRequest.model_validate_json(env(jobset)["FINETUNE_REQUEST"]["value"].replace("$$", "$"))
    assert request.mesh.devices == slices * shape.chips * (shape.devices_per_chip or 1), shape
    assert request.mesh.data % slices == 0, shape


#: Cases that differ in kind, each capacity, and a shape of every family.
SLICES: list[tuple[str, str, int | None, int, str]] = [
    ("v6e-256", "v6e-256", None, 1, "OnDemand"),
    ("v5e-16-twice", "v5litepod-16", None, 2, "OnDemand"),
    ("v5p-128-spot", "v5p-128", None, 1, "Spot"),
    ("v6e-8-one-host", "v6e-8", 8, 1, "OnDemand"),
    ("v6e-8-two-hosts", "v6e-8", 4, 1, "Reservation"),
    ("v4-16", "v4-16", None, 1, "OnDemand"),
    ("tpu7x-32", "tpu7x-2x2x4", None, 1, "FlexStart"),
    ("tpu7-16", "tpu7-16", None, 1, "OnDemand"),
]


@pytest.mark.parametrize(("case", "name", "chips_per_host", "slices", "capacity"), SLICES)
def test_slices_of_every_kind_are_the_golden_ones(
    case: str, name: str, chips_per_host: int | None, slices: int, capacity: str
) -> None:
    jobset = on(shape_by_name(name, chips_per_host=chips_per_host), capacity, slices)
    check_jobset(f"slices/{case}", jobset)


def test_a_request_larger_than_an_environment_is_refused() -> None:
    datasets = {**job()["spec"]["datasets"], "chatTemplate": {"inline": "é" * 32 * 1024}}
    prompts = [f"{number} {'é' * 2000}" for number in range(16)]
    with pytest.raises(Refused, match=r"RequestTooLarge|98304"):
        plan_offline(job(datasets=datasets, evaluation={"prompts": prompts}), profile())
