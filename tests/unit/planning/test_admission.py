"""What is admitted, what is refused, and with which message."""

from dataclasses import replace
from typing import Any

import pytest

from finetune_contract import DpoMethod, LoraSpec, OrpoMethod
from finetune_operator.api import Reason
from finetune_operator.planning import Refused, admit, read_stored_plan, render_stored_plan, replan
from finetune_operator.planning.defaults import BUILT_IN
from finetune_operator.planning.merge import merge
from tests.unit.lifecycle.world import job, profile

SOURCE = {"uri": "gs://data/chat.jsonl"}


def refusal(wanted: Any, *profiles: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(wanted, profiles or [profile()])
    return caught.value


def test_an_unimplemented_field_is_refused_by_name() -> None:
    refused = refusal(job(), profile(storage={"artifacts": "gs://a/b", "optimizerStateTTLSeconds": 1}))
    assert refused.reason == Reason.NOT_YET_SUPPORTED
    assert "spec.storage.optimizerStateTTLSeconds = 1 (remove it)" in refused.message


def test_explicit_default_values_are_accepted() -> None:
    admit(
        job(
            preflight={"memory": "Off", "dataset": "Full"},
            export={"checkpoint": "Last"},
            resources={"tpu": "v6e-4", "slices": 1, "capacity": ["OnDemand"]},
        ),
        [profile()],
    )


CHOICES: list[tuple[dict[str, Any], list[Any], Reason]] = [
    ({"profileRef": {"name": "late"}}, [profile()], Reason.PROFILE_NOT_FOUND),
    ({}, [profile("a", default=False), profile("b", default=False)], Reason.NO_DEFAULT_PROFILE),
    ({}, [profile(namespaces=["team-b"])], Reason.NO_DEFAULT_PROFILE),
    ({}, [profile("a"), profile("b")], Reason.AMBIGUOUS_DEFAULT_PROFILE),
    ({"profileRef": {"name": "local"}}, [profile(namespaces=["team-b"])], Reason.PROFILE_NOT_ALLOWED),
    ({}, [profile(constraints={"locked": ["resources.contoller"]})], Reason.PROFILE_INVALID),
    ({"budget": {"onExhausted": "Fail"}}, [profile()], Reason.INVALID_SPEC),
    ({"budget": {"maxCost": 1}}, [profile()], Reason.INVALID_SPEC),
    ({}, [profile(models={"allow": ["gs://approved/*"]})], Reason.POLICY_VIOLATION),
    ({}, [profile(constraints={"uris": {"read": ["gs://approved/*"]}})], Reason.POLICY_VIOLATION),
    (
        {"evaluation": {"benchmarks": [{"name": "mine", "uri": "gs://elsewhere/tasks"}]}},
        [profile(constraints={"uris": {"read": ["gs://data/*", "gs://models/*"]}})],
        Reason.POLICY_VIOLATION,
    ),
    (
        {"hyperparameters": {"epochs": 9}},
        [profile(constraints={"limits": [{"path": "hyperparameters.epochs", "max": 5}]})],
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
    ({"resources": {"tpu": "v5e-16"}}, [profile()], Reason.NO_FLAVOR_FITS),
    ({"resources": {"tpu": "v6e-4", "capacity": ["Spot"]}}, [profile()], Reason.NO_FLAVOR_FITS),
    ({"resources": {"tpu": "v6e-8", "slices": 2}}, [profile()], Reason.NO_FLAVOR_FITS),
    ({"resources": {"tpu": "v6e-4", "slices": 2}}, [profile()], Reason.INVALID_SPEC),
    ({"resources": {"tpu": "v6e-4", "parallelism": {"fsdp": 3}}}, [profile()], Reason.PARALLELISM_MISMATCH),
    ({"hyperparameters": {"globalBatchSize": 6}}, [profile()], Reason.BATCH_MISMATCH),
    ({"export": {"content": "Adapter"}}, [profile()], Reason.INVALID_SPEC),
    (
        {"hyperparameters": {"optimizer": "SGD", "weightDecay": 0.1}},
        [profile()],
        Reason.INVALID_SPEC,
    ),
    (
        {"hyperparameters": {"optimizer": "SGD"}, "engineOverrides": {"adam_b1": "0.8"}},
        [profile()],
        Reason.INVALID_SPEC,
    ),
    (
        {"method": {"type": "DPO"}, "engineOverrides": {"num_vocab_tiling": "8"}},
        [profile()],
        Reason.INVALID_SPEC,
    ),
    (
        {"method": {"type": "DPO"}, "datasets": {"train": [SOURCE], "packing": True}},
        [profile()],
        Reason.INVALID_SPEC,
    ),
    (
        {"method": {"type": "ORPO", "orpo": {"maxPromptLength": 1024}}},
        [profile()],
        Reason.INVALID_SPEC,
    ),
    ({"method": {"type": "DPO", "dpo": {"labelSmoothing": 0.5}}}, [profile()], Reason.INVALID_SPEC),
]


@pytest.mark.parametrize(("spec", "profiles", "reason"), CHOICES)
def test_each_kind_of_refusal_has_its_reason(
    spec: dict[str, Any], profiles: list[Any], reason: Reason
) -> None:
    assert refusal(job(**spec), *profiles).reason == reason


def test_a_refusal_of_policy_names_profile_rule_and_contact() -> None:
    refused = refusal(job(), profile(models={"allow": ["gs://approved/*"]}))
    for part in ('"local"', "models.allow", "gs://models/tiny", "#ml-help"):
        assert part in refused.message


def test_an_ambiguous_shape_is_resolved_by_the_flavor_or_refused() -> None:
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
    ("tpu", "expected"),
    [("v6e-2x2", "spec.resources requests v6e-2x2"), ("v6e-4", "spec.resources requests v6e-4")],
)
def test_both_shorthands_give_the_same_slice(tpu: str, expected: str) -> None:
    placement = admit(job(resources={"tpu": tpu}), [profile()]).plan.placement
    assert (placement.shape.name, placement.shape.topology) == ("v6e-4", "2x2")
    assert expected in placement.why


@pytest.mark.parametrize(
    ("flavor", "expected"),
    [
        (
            {"topologies": ["2x2", "2x3"]},
            'spec.flavors[0]: tpu-v6e-slice has no topology "2x3". Similar: 2x2',
        ),
        ({"accelerator": "tpu-v6"}, 'there is no TPU accelerator "tpu-v6". Expected one of tpu-v4'),
        ({"topologies": ["1x1"], "chipsPerHost": 4}, "tpu-v6e-slice 1x1 has 1 (1 x ct6e-standard-1t)"),
    ],
)
def test_a_flavor_that_does_not_exist_is_refused(flavor: dict[str, Any], expected: str) -> None:
    known = {"name": "a", "capacity": "OnDemand", "accelerator": "tpu-v6e-slice", "topologies": ["2x2"]}
    refused = refusal(job(), profile(flavors=[known | flavor]))
    assert refused.reason == Reason.PROFILE_INVALID
    assert expected in refused.message


def flavors(*capacities: str, **more: Any) -> list[dict[str, Any]]:
    """A flavor of v6e slices, one host or two, for each capacity."""
    return [
        {
            "name": capacity.lower(),
            "capacity": capacity,
            "accelerator": "tpu-v6e-slice",
            "topologies": ["2x2", "2x4"],
            "chipsPerHost": 4,
            **more,
        }
        for capacity in capacities
    ]


PREFERENCES: list[tuple[dict[str, Any], list[dict[str, Any]], str]] = [
    ({"tpu": "v6e-4"}, flavors("OnDemand", "Spot"), "OnDemand"),
    ({"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}, flavors("OnDemand", "Spot"), "Spot"),
    ({"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]}, flavors("OnDemand"), "OnDemand"),
    ({"capacity": ["FlexStart", "Spot"]}, flavors("Spot", "FlexStart"), "FlexStart"),
    ({}, [*flavors("OnDemand", chipHourPrice=2), *flavors("Spot", chipHourPrice=1)], "Spot"),
    ({}, [*flavors("Spot"), *flavors("OnDemand", chipHourPrice=2)], "OnDemand"),
    ({"tpu": "v6e-4"}, [*flavors("Spot")], "Spot"),
]


@pytest.mark.parametrize(("resources", "offered", "chosen"), PREFERENCES)
def test_the_jobs_order_of_capacities_precedes_the_profiles(
    resources: dict[str, Any], offered: list[dict[str, Any]], chosen: str
) -> None:
    plan = admit(job(resources=resources), [profile(flavors=offered, currency="USD")]).plan
    assert plan.placement.capacity == chosen


def test_multislice_splits_the_data_axis_and_needs_several_hosts_per_slice() -> None:
    offered = flavors("OnDemand", maxSlices=4)
    plan = admit(
        job(resources={"tpu": "v6e-8", "slices": 4, "parallelism": {"tensor": 2}}),
        [profile(flavors=offered)],
    ).plan
    assert (plan.mesh.data, plan.mesh.fsdp, plan.mesh.tensor, plan.chips) == (4, 4, 2, 32)
    assert admit(job(resources={"slices": 2}), [profile(flavors=offered)]).plan.placement.shape.hosts == 2
    for resources, expected in (
        ({"tpu": "v6e-4", "slices": 2}, "2 slices of v6e-4 (2x2) cannot be connected"),
        ({"tpu": "v6e-8", "slices": 5}, "5 slices of tpu-v6e-slice 2x4 (2 x 4 chips) is not offered"),
        ({"tpu": "v6e-8", "slices": 4, "parallelism": {"data": 2}}, "no multiple of the 4 slices"),
    ):
        assert expected in refusal(job(resources=resources), profile(flavors=offered)).message


@pytest.mark.parametrize(
    ("resources", "offered", "expected"),
    [
        (
            {"capacity": ["Spot"]},
            flavors("OnDemand"),
            "capacity Spot is not offered; the profile offers OnDemand.",
        ),
        (
            {"tpu": "v6e-8", "capacity": ["Spot"]},
            flavors("OnDemand", "FlexStart"),
            "capacity Spot is not offered for tpu-v6e-slice 2x4; the profile offers OnDemand, FlexStart.",
        ),
        (
            {"tpu": "v6e-16", "capacity": ["Spot"]},
            flavors("OnDemand"),
            "capacity Spot is not offered; the profile offers OnDemand.",
        ),
        (
            {"slices": 5},
            flavors("OnDemand", maxSlices=4),
            "maxSlices of the flavors ondemand allows: use at most 4.",
        ),
        (
            {"tpu": "v6e-8", "slices": 2, "capacity": ["Spot"]},
            [*flavors("OnDemand", maxSlices=4), *flavors("Spot")],
            "2 slices are more than maxSlices of the flavors spot allows: use at most 1.",
        ),
        (
            {"slices": 2},
            flavors("OnDemand", topologies=["2x2"], maxSlices=4),
            "no flavor for 2 slices of several hosts each",
        ),
    ],
)
def test_a_refused_slice_names_the_request_that_no_flavor_meets(
    resources: dict[str, Any], offered: list[dict[str, Any]], expected: str
) -> None:
    refused = refusal(job(resources=resources), profile(flavors=offered))
    assert refused.reason == Reason.NO_FLAVOR_FITS
    assert expected in refused.message
    assert "set spec.resources.tpu" not in refused.message


def test_a_reservation_is_named_exactly_if_the_flavor_has_one() -> None:
    assert "reservation" in refusal(job(), profile(flavors=flavors("Reservation"))).message
    wrong = flavors("OnDemand", reservation="spring")
    assert refusal(job(), profile(flavors=wrong)).reason == Reason.PROFILE_INVALID


def test_chips_of_an_unpublished_kind_need_an_explicit_mesh() -> None:
    seven = {
        "name": "seven",
        "capacity": "OnDemand",
        "accelerator": "tpu7",
        "topologies": ["2x2x2"],
    }
    offered = profile(flavors=[seven])
    assert "how many JAX devices" in refusal(job(resources={"tpu": "tpu7-16"}), offered).message
    mesh = {"data": 1, "fsdp": 16, "tensor": 1}
    assert admit(job(resources={"tpu": "tpu7-16", "parallelism": mesh}), [offered]).plan.mesh.devices == 16


@pytest.mark.parametrize(
    ("constraints", "expected"),
    [
        (
            {"limits": [{"path": "hyperparameters.epoch", "max": 5}]},
            (
                "spec.constraints.limits[0].path: hyperparameters.epoch is no number of a job's spec: "
                "did you mean hyperparameters.epochs?"
            ),
        ),
        (
            {"limits": [{"path": "resources.tpu", "max": 16}]},
            "resources.tpu is no number of a job's spec: known are resources.chipsPerHost, resources.parallelism.data,",
        ),
        (
            {"limits": [{"path": "datasets.train.maxExamples", "max": 5}]},
            "spec.constraints.limits[0].path: datasets.train.maxExamples is no number",
        ),
        ({"limits": [{"path": "spec.hyperparameters.epochs", "max": 5}]}, "mean hyperparameters.epochs?"),
        (
            {"locked": ["resources.controller", "resources.contoller"]},
            (
                "spec.constraints.locked[1]: resources.contoller is no field that defaults can set: "
                "did you mean resources.controller?"
            ),
        ),
        (
            {"locked": ["x"]},
            "x is no field that defaults can set: known are checkpointing, evaluation, export, hangPolicy, ",
        ),
        (
            {"engineOverrides": {"allow": ["remat_policy", "remat_polcy"]}},
            (
                "spec.constraints.engineOverrides.allow[1]: remat_polcy: MaxText has no such setting. "
                "Did you mean remat_policy?"
            ),
        ),
        (
            {"engineOverrides": {"allow": ["no_such_thing_at_all"]}},
            "no_such_thing_at_all: MaxText has no such setting",
        ),
    ],
)
def test_a_constraint_without_effect_is_refused_with_valid_ones(
    constraints: dict[str, Any], expected: str
) -> None:
    refused = refusal(job(), profile(constraints=constraints))
    assert refused.reason == Reason.PROFILE_INVALID
    assert expected in refused.message


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"constraints": {"uris": {"read": ["gs://b/x/"]}}}, "uris.read[0]: gs://b/x/ covers nothing"),
        ({"constraints": {"uris": {"write": ["file:///*"]}}}, "uris.write[0]: file:///* covers nothing"),
        ({"constraints": {"uris": {"write": ["gs://b/*", "gs://b/x/"]}}}, "use gs://b/x/*."),
        ({"constraints": {"uris": {"read": ["hf://models/acme/"]}}}, "use hf://models/acme/*."),
        ({"constraints": {"uris": {"write": ["hf://models/acme/*"]}}}, "use hf://acme/*."),
        ({"constraints": {"uris": {"write": ["hf://datasets/acme"]}}}, "use hf://acme/*."),
        ({"constraints": {"uris": {"write": ["hf://models/*"]}}}, "use hf://*."),
        ({"constraints": {"uris": {"write": ["hf://acme/a/b"]}}}, "use hf://acme/*."),
        ({"constraints": {"uris": {"write": ["hf://acme/"]}}}, "use hf://acme/*."),
        ({"models": {"allow": ["hf://models/Qwen/*"]}}, "models.allow[0]: hf://models/Qwen/* covers nothing"),
        ({"models": {"allow": ["Qwen/*", "hf://Qwen/*"]}}, "use Qwen/*."),
        ({"models": {"allow": ["gs://models/tiny/"]}}, "use gs://models/tiny/*."),
    ],
)
def test_an_entry_that_covers_nothing_is_refused_with_a_fix(spec: dict[str, Any], expected: str) -> None:
    refused = refusal(job(), profile(**spec))
    assert refused.reason == Reason.PROFILE_INVALID
    assert expected in refused.message


def test_entries_that_cover_something_are_accepted() -> None:
    uris = {"read": ["gs://*", "hf://models/*"], "write": ["hf://*", "hf://acme/*", "hf://acme/m"]}
    assert admit(job(), [profile(constraints={"uris": uris}, models={"allow": ["*"]})]).plan


def test_a_lock_applies_to_the_other_member_of_a_union() -> None:
    locked = profile(
        defaults={"hyperparameters": {"epochs": 1}}, constraints={"locked": ["hyperparameters.epochs"]}
    )
    refused = refusal(job(hyperparameters={"steps": 10**6}), locked)
    assert refused.reason == Reason.POLICY_VIOLATION
    assert "spec.hyperparameters.epochs is left out, it must be the profile's 1" in refused.message
    assert admit(job(hyperparameters={"epochs": 1}), [locked]).plan


def test_a_job_without_a_slice_gets_the_cheapest_and_the_reason() -> None:
    plan = admit(job(resources={}), [profile()]).plan
    assert plan.placement.shape.topology == "2x2"
    assert "cheapest" in plan.placement.why


def test_the_job_overrides_the_profile_which_overrides_built_in_defaults() -> None:
    defaults = {
        "hyperparameters": {"epochs": 3, "seed": 7, "warmupSteps": 5},
        "checkpointing": {"everySteps": 50},
    }
    plan = admit(job(hyperparameters={"steps": 20, "warmupRatio": 0.1}), [profile(defaults=defaults)]).plan
    assert (plan.hyperparameters.steps, plan.hyperparameters.epochs) == (20, None)
    assert (plan.hyperparameters.warmup_ratio, plan.hyperparameters.warmup_steps) == (0.1, None)
    assert plan.hyperparameters.seed == 7
    assert plan.checkpointing.every_steps == 50
    assert plan.checkpointing.keep_last == 2


def test_merging_does_not_change_its_layers_and_is_idempotent() -> None:
    before = repr(BUILT_IN)
    once = merge(BUILT_IN, {"export": {"dtype": "FP32"}})
    assert merge(once, once) == once
    assert repr(BUILT_IN) == before


@pytest.mark.parametrize(
    ("method", "rate", "weights"),
    [({"type": "SFT"}, 2e-5, "FP32"), ({"type": "SFT", "lora": {}}, 2e-4, "BF16")],
)
def test_defaults_depend_on_the_method(method: dict[str, Any], rate: float, weights: str) -> None:
    plan = admit(job(method=method), [profile()]).plan
    assert plan.hyperparameters.learning_rate == rate
    assert plan.hyperparameters.weight_precision == weights
    if plan.method.lora:
        assert (plan.method.lora.rank, plan.method.lora.alpha) == (16, 32.0)


def test_the_stored_plan_keeps_the_decisions() -> None:
    wanted = job()
    admission = admit(wanted, [profile()])
    config_map = render_stored_plan(admission.stored)
    assert config_map["immutable"] is True
    # No owner reference crosses namespaces.
    assert "ownerReferences" not in config_map["metadata"]
    assert wanted["metadata"]["uid"] in config_map["metadata"]["name"]
    stored = read_stored_plan(config_map)
    assert stored == admission.stored
    assert replan(wanted, stored) == admission.plan


def test_a_stored_plan_of_another_format_is_refused() -> None:
    wanted = job()
    config_map = render_stored_plan(admit(wanted, [profile()]).stored)
    config_map["data"]["format"] = "9"
    with pytest.raises(Refused, match="finetune-plan-"):
        read_stored_plan(config_map)


BATCHES: list[tuple[dict[str, Any], int]] = [
    ({}, 8),
    ({"gradientAccumulationSteps": 4}, 16),  # the least above 8 that 4 passes over 4 devices can share
    ({"perDeviceBatchSize": 2, "gradientAccumulationSteps": 3}, 24),
    ({"globalBatchSize": 24, "gradientAccumulationSteps": 3}, 24),
]


@pytest.mark.parametrize(("numbers", "rows"), BATCHES)
def test_the_batch_size_is_per_update_for_any_number_of_forward_passes(
    numbers: dict[str, Any], rows: int
) -> None:
    found = admit(job(hyperparameters=numbers, resources={"tpu": "v6e-4"}), [profile()]).plan.hyperparameters
    assert (found.global_batch_size, found.gradient_accumulation_steps) == (
        rows,
        numbers.get("gradientAccumulationSteps", 1),
    )


def test_an_indivisible_batch_is_refused_with_divisible_ones() -> None:
    numbers = {"globalBatchSize": 12, "gradientAccumulationSteps": 2}
    assert "in 2 forward passes. Use 8 or 16." in refusal(job(hyperparameters=numbers)).message


def test_preference_methods_have_their_options_and_no_packing() -> None:
    dpo = admit(job(method={"type": "DPO", "dpo": {"beta": 0.3}}), [profile()]).plan
    assert dpo.method == DpoMethod(beta=0.3, label_smoothing=0.0, max_prompt_length=512)
    assert (dpo.data.packing, dpo.hyperparameters.learning_rate) == (False, 5e-7)
    orpo = admit(job(method={"type": "ORPO", "orpo": {"lambda": 0.2}, "lora": {}}), [profile()]).plan
    assert orpo.method == OrpoMethod(weight=0.2, max_prompt_length=512, lora=LoraSpec(rank=16, alpha=32.0))
    assert orpo.hyperparameters.learning_rate == 8e-5
    assert admit(job(), [profile()]).plan.data.packing


def test_a_quantized_base_is_requested_by_name() -> None:
    for given, found in (("NF4", "NF4"), ("INT8", "INT8"), ("None", None)):
        plan = admit(job(method={"type": "SFT", "lora": {"quantization": given}}), [profile()]).plan
        assert plan.method.lora is not None
        assert plan.method.lora.quantization == found


def test_an_empty_range_makes_a_profile_invalid() -> None:
    empty = {"limits": [{"path": "method.lora.rank", "min": 128, "max": 64}]}
    refused = refusal(job(), profile(constraints=empty))
    assert refused.reason == Reason.PROFILE_INVALID
    assert (
        "spec.constraints.limits[0]: no value of method.lora.rank is at least 128 and at most 64"
        in refused.message
    )
    admit(job(), [profile(constraints={"limits": [{"path": "resources.slices", "min": 1.0, "max": 1}]})])


#: Refused by the profile's limits, by its rules, and because no slice fits.
AT_ONCE: Any = {
    "method": {"type": "SFT", "lora": {"rank": 128}},
    "model": {"huggingFace": {"repo": "evil/model"}},
    "resources": {"tpu": "v6e-32"},
}


def test_an_unavailable_slice_does_not_hide_other_violations() -> None:
    narrow = profile(
        models={"allow": ["Qwen/*"]},
        constraints={"limits": [{"path": "method.lora.rank", "max": 64}]},
    )
    refused = refusal(job(**AT_ONCE), narrow)
    assert refused.reason == Reason.POLICY_VIOLATION
    for expected in (
        "does not cover spec.model evil/model",
        "method.lora.rank is 128",
        "4x8 (8 x 4 chips) is not offered",
    ):
        assert expected in refused.message
    assert refused.message.count("Ask #ml-help.") == 1
    stored = admit(job(method=AT_ONCE["method"]), [profile()]).stored
    stored = replace(stored, profile=merge(stored.profile, {"constraints": narrow["spec"]["constraints"]}))
    with pytest.raises(Refused, match=r"rank is 128.*is not offered"):
        replan(job(method=AT_ONCE["method"], resources=AT_ONCE["resources"]), stored)
    assert refusal(job(resources=AT_ONCE["resources"])).reason == Reason.NO_FLAVOR_FITS


#: There is no single profile with a contact.
NO_ONE = (Reason.PROFILE_NOT_FOUND, Reason.NO_DEFAULT_PROFILE, Reason.AMBIGUOUS_DEFAULT_PROFILE)


@pytest.mark.parametrize(("spec", "profiles", "reason"), [each for each in CHOICES if each[2] not in NO_ONE])
def test_a_refusal_by_a_profile_ends_with_its_contact(
    spec: dict[str, Any], profiles: list[Any], reason: Reason
) -> None:
    message = refusal(job(**spec), *profiles).message
    assert message.endswith(" Ask #ml-help."), reason
    assert message.count("Ask #ml-help.") == 1


@pytest.mark.parametrize(
    ("owner", "requested"),
    [({"contact": "#x", "team": "y"}, "#x"), ({"team": "y"}, "y"), ({}, "the owner of the profile")],
)
def test_refused_slices_and_overrides_also_name_the_contact(owner: Any, requested: str) -> None:
    wrong: list[dict[str, Any]] = [
        {"resources": {"tpu": "v6e-16"}},
        {"hyperparameters": {"globalBatchSize": 6}},
        {"engineOverrides": {"learning_rate": "1"}},
    ]
    for spec in wrong:
        assert refusal(job(**spec), profile(owner=owner)).message.endswith(f" Ask {requested}.")
    later = profile(owner=owner, storage={"artifacts": "gs://a/b", "optimizerStateTTLSeconds": 1})
    assert refusal(job(), later).message.endswith(f" Ask {requested}.")
    broken = profile(owner=owner, flavors=[])
    assert refusal(job(), broken).message.endswith(f" Ask {requested}.")
