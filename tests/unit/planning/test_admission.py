"""What is admitted, what is refused, and with which words."""

from typing import Any

import pytest

from finetune_operator.api import Reason
from finetune_operator.planning import Refused, admit, read_snapshot, render_snapshot, replan
from finetune_operator.planning.merge import BUILT_IN, merge
from tests.unit.lifecycle.world import job, profile

SOURCE = {"uri": "gs://data/chat.jsonl"}


def refusal(wanted: Any, *profiles: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(wanted, profiles or [profile()])
    return caught.value


LATER: list[tuple[dict[str, Any], str]] = [
    ({"retry": {"generation": 1}}, "spec.retry"),
    ({"budget": {"maxChipHours": "1"}}, "spec.budget"),
    ({"resources": {"tpu": "v6e-4", "slices": 2}}, "spec.resources.slices = 2"),
    ({"resources": {"tpu": "v6e-4", "controller": "Pathways"}}, "spec.resources.controller = Pathways"),
    ({"resources": {"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}}, "spec.resources.capacity[0] = Spot"),
    ({"checkpointing": {"everySeconds": 60}}, "spec.checkpointing.everySeconds"),
    ({"preflight": {"memory": "Compile"}}, "spec.preflight.memory = Compile"),
    ({"export": {"checkpoint": "Best"}}, "spec.export.checkpoint = Best"),
    ({"model": {"fromJob": {"name": "other"}}}, "spec.model.fromJob"),
    ({"method": {"type": "DPO"}}, "spec.method.type = DPO"),
    (
        {"hyperparameters": {"gradientAccumulationSteps": 4}},
        "spec.hyperparameters.gradientAccumulationSteps = 4",
    ),
    ({"datasets": {"train": [SOURCE, SOURCE]}}, "spec.datasets.train has 2 entries"),
    ({"datasets": {"train": [{**SOURCE, "format": "Text"}]}}, "spec.datasets.train[0].format = Text"),
    ({"datasets": {"train": [SOURCE], "chatTemplate": {"inline": "{{ x }}"}}}, "spec.datasets.chatTemplate"),
    (
        {"datasets": {"train": [SOURCE], "chatTemplate": {"configMapRef": {"name": "chat", "key": "jinja"}}}},
        "spec.datasets.chatTemplate",
    ),
]


@pytest.mark.parametrize(("spec", "named"), LATER)
def test_what_comes_later_is_refused_by_name(spec: dict[str, Any], named: str) -> None:
    refused = refusal(job(**spec))
    assert refused.reason == Reason.NOT_YET_SUPPORTED
    assert named in refused.message


def test_a_value_that_means_what_happens_anyway_is_accepted() -> None:
    admit(
        job(
            preflight={"memory": "Off", "dataset": "Full"},
            export={"checkpoint": "Last"},
            hyperparameters={"gradientAccumulationSteps": 1},
            resources={"tpu": "v6e-4", "slices": 1, "capacity": ["OnDemand"]},
        ),
        [profile()],
    )


CHOICES: list[tuple[dict[str, Any], list[Any], Reason]] = [
    ({"profileRef": {"name": "late"}}, [profile()], Reason.PROFILE_NOT_FOUND),
    ({}, [profile("a", default=False)], Reason.NO_DEFAULT_PROFILE),
    ({}, [profile("a"), profile("b")], Reason.AMBIGUOUS_DEFAULT_PROFILE),
    ({}, [profile(namespaces=["team-b"])], Reason.PROFILE_NOT_ALLOWED),
    ({}, [profile(constraints={"locked": ["resources.contoller"]})], Reason.PROFILE_INVALID),
    ({}, [profile(constraints={"maxChipHours": "1"})], Reason.NOT_YET_SUPPORTED),
    ({}, [profile(models={"allow": ["gs://approved/*"]})], Reason.POLICY_VIOLATION),
    ({}, [profile(constraints={"uris": {"read": ["gs://approved/*"]}})], Reason.POLICY_VIOLATION),
    (
        {"hyperparameters": {"epochs": 9}},
        [profile(constraints={"limits": [{"path": "hyperparameters.epochs", "max": "5"}]})],
        Reason.POLICY_VIOLATION,
    ),
    (
        {"checkpointing": {"everySteps": 7}},
        [profile(constraints={"locked": ["checkpointing.everySteps"]})],
        Reason.POLICY_VIOLATION,
    ),
    (
        {"engineOverrides": {"remat_policy": "full"}},
        [profile(constraints={"engineOverrides": {"allow": []}})],
        Reason.POLICY_VIOLATION,
    ),
    ({"resources": {"tpu": "v9-1"}}, [profile()], Reason.UNKNOWN_TPU),
    ({"resources": {"tpu": "v6e-16"}}, [profile()], Reason.NO_FLAVOR_FITS),
    ({"resources": {"tpu": "v5e-16"}}, [profile()], Reason.NOT_YET_SUPPORTED),
    ({"resources": {"tpu": "v6e-4", "parallelism": {"fsdp": 3}}}, [profile()], Reason.PARALLELISM_MISMATCH),
    ({"hyperparameters": {"globalBatchSize": 6}}, [profile()], Reason.BATCH_MISMATCH),
    ({"export": {"content": "Adapter"}}, [profile()], Reason.INVALID_SPEC),
]


@pytest.mark.parametrize(("spec", "profiles", "reason"), CHOICES)
def test_refusals_have_their_own_reason(spec: dict[str, Any], profiles: list[Any], reason: Reason) -> None:
    assert refusal(job(**spec), *profiles).reason == reason


def test_a_refusal_of_policy_names_profile_rule_and_contact() -> None:
    refused = refusal(job(), profile(models={"allow": ["gs://approved/*"]}))
    for part in ('"local"', "models.allow", "gs://models/tiny", "#ml-help"):
        assert part in refused.message


def test_an_ambiguous_shape_is_settled_by_the_flavor_or_asked_for() -> None:
    plan = admit(job(resources={"tpu": "v6e-8"}), [profile()]).plan
    assert plan.placement.shape.hosts == 2
    flavor = {
        "name": "any",
        "capacity": "OnDemand",
        "accelerator": "tpu-v6e-slice",
        "topologies": ["2x4"],
    }
    refused = refusal(job(resources={"tpu": "v6e-8"}), profile(flavors=[flavor]))
    assert refused.reason == Reason.AMBIGUOUS_TPU_SHAPE
    assert "chipsPerHost" in refused.message


@pytest.mark.parametrize(
    ("tpu", "said"),
    [("v6e-2x2", "spec.resources asks for v6e-2x2"), ("v6e-4", "spec.resources asks for v6e-4")],
)
def test_both_shorthands_give_the_same_slice(tpu: str, said: str) -> None:
    placement = admit(job(resources={"tpu": tpu}), [profile()]).plan.placement
    assert (placement.shape.name, placement.shape.topology) == ("v6e-4", "2x2")
    assert said in placement.why


@pytest.mark.parametrize(
    ("flavor", "said"),
    [
        ({"topologies": ["2x2", "2x3"]}, 'flavors[0]: tpu-v6e-slice has no topology "2x3". Near to it: 2x2'),
        ({"accelerator": "tpu-v6"}, 'no TPU accelerator is called "tpu-v6". Known: tpu-v4'),
        ({"topologies": ["1x1"], "chipsPerHost": 4}, "tpu-v6e-slice 1x1 has 1 (1 x ct6e-standard-1t)"),
    ],
)
def test_a_flavor_that_does_not_exist_is_refused(flavor: dict[str, Any], said: str) -> None:
    known = {"name": "a", "capacity": "OnDemand", "accelerator": "tpu-v6e-slice", "topologies": ["2x2"]}
    refused = refusal(job(), profile(flavors=[known | flavor]))
    assert refused.reason == Reason.PROFILE_INVALID
    assert said in refused.message


def test_no_wish_gets_the_cheapest_slice_and_says_so() -> None:
    plan = admit(job(resources={}), [profile()]).plan
    assert plan.placement.shape.topology == "2x2"
    assert "cheapest" in plan.placement.why


def test_the_job_wins_over_the_profile_and_the_profile_over_the_built_in() -> None:
    defaults = {
        "hyperparameters": {"epochs": 3, "seed": 7, "warmupSteps": 5},
        "checkpointing": {"everySteps": 50},
    }
    plan = admit(job(hyperparameters={"steps": 20, "warmupRatio": "0.1"}), [profile(defaults=defaults)]).plan
    assert (plan.hyperparameters.steps, plan.hyperparameters.epochs) == (20, None)
    assert (plan.hyperparameters.warmup_ratio, plan.hyperparameters.warmup_steps) == (0.1, None)
    assert plan.hyperparameters.seed == 7
    assert plan.checkpointing.every_steps == 50
    assert plan.checkpointing.keep_last == 2


def test_merging_changes_none_of_its_layers_and_is_repeatable() -> None:
    before = repr(BUILT_IN)
    once = merge(BUILT_IN, {"export": {"dtype": "FP32"}})
    assert merge(once, once) == once
    assert repr(BUILT_IN) == before


@pytest.mark.parametrize(
    ("method", "rate", "weights"),
    [({"type": "SFT"}, 2e-5, "FP32"), ({"type": "SFT", "lora": {}}, 2e-4, "BF16")],
)
def test_defaults_that_follow_the_method(method: dict[str, Any], rate: float, weights: str) -> None:
    plan = admit(job(method=method), [profile()]).plan
    assert plan.hyperparameters.learning_rate == rate
    assert plan.hyperparameters.weight_precision == weights
    if plan.method.lora:
        assert (plan.method.lora.rank, plan.method.lora.alpha) == (16, 32.0)


def test_the_snapshot_keeps_what_was_decided() -> None:
    wanted = job()
    admission = admit(wanted, [profile()])
    config_map = render_snapshot(wanted, admission.snapshot)
    assert config_map["immutable"] is True
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == wanted["metadata"]["uid"]
    snapshot = read_snapshot(config_map)
    assert snapshot == admission.snapshot
    assert replan(wanted, snapshot) == admission.plan


def test_a_snapshot_of_another_format_is_refused_not_guessed() -> None:
    wanted = job()
    config_map = render_snapshot(wanted, admit(wanted, [profile()]).snapshot)
    config_map["data"]["format"] = "9"
    with pytest.raises(Refused, match="support-bot-plan"):
        read_snapshot(config_map)
