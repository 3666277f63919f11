"""The slice of a job that names none, before and after preflight."""

from typing import Any

import pytest

from finetune_contract import MemoryCheckSpec, MemoryOutcome, SliceShape
from finetune_contract.result import UnfitSlice
from finetune_operator.api import Reason
from finetune_operator.planning import Plan, Refused, admit, replan
from finetune_operator.planning.slices.choice import MOST_CANDIDATES
from tests.unit.lifecycle.world import job, profile

type Object = dict[str, Any]


def flavor(capacity: str, price: float | None, *topologies: str, name: str = "", **more: Any) -> Object:
    return {
        "name": name or capacity.lower(),
        "capacity": capacity,
        "accelerator": "tpu-v6e-slice",
        "topologies": list(topologies),
        "chipsPerHost": 4,
        **({"chipHourPrice": price} if price else {}),
        **more,
    }


ON_DEMAND = flavor("OnDemand", 2.70, "4x4", "2x2", "2x4")
SPOT = flavor("Spot", 1.10, "2x2", "4x4")


def admitted(
    *flavors: Object, constraints: Object | None = None, pod: Object | None = None, **spec: Any
) -> Any:
    more = {"pod": pod} if pod else {}
    offering = profile(flavors=list(flavors), currency="USD", constraints=constraints or {}, **more)
    wanted = job(**{"resources": {}, **spec})
    return wanted, admit(wanted, [offering])


def planned(*flavors: Object, **spec: Any) -> Plan:
    plan: Plan = admitted(*flavors, **spec)[1].plan
    return plan


def check_of(plan: Plan) -> MemoryCheckSpec:
    assert plan.memory is not None
    return plan.memory


def order(plan: Plan) -> list[str]:
    """Returns the first slice, then those that preflight may continue with."""
    return [plan.placement.shape.name, *(each.slice.name for each in check_of(plan).candidates)]


def found(name: str, *unfit: str, plan: Plan, **more: Any) -> MemoryOutcome:
    """Returns preflight's record for the candidates of ``plan``."""
    check = check_of(plan)
    known = {each.name: each for each in (check.slice, *(each.slice for each in check.candidates))}
    return MemoryOutcome(
        source="Compile",
        slice=name,
        chosen=known[name].model_copy(update={"flags": None}),
        unfit=[UnfitSlice(slice=known[each], why="does not fit, 40.00 GiB of 31.24 GiB") for each in unfit],
        **more,
    )


# --- at admission


ORDERS: dict[str, tuple[list[Object], Object, list[str]]] = {
    "by the price of all chips": ([ON_DEMAND], {}, ["v6e-4", "v6e-8", "v6e-16"]),
    "each slice once, where it is cheapest": ([ON_DEMAND, SPOT], {}, ["v6e-4", "v6e-16", "v6e-8"]),
    "of the capacities in the job's order": (
        [ON_DEMAND, SPOT],
        {"resources": {"capacity": ["OnDemand", "Spot"]}},
        ["v6e-4", "v6e-8", "v6e-16"],
    ),
    "of the one capacity that the job accepts": (
        [ON_DEMAND, SPOT],
        {"resources": {"capacity": ["Spot"]}},
        ["v6e-4", "v6e-16"],
    ),
    "those that can be connected": (
        [flavor("OnDemand", 1, "2x2", "2x4", "4x4", maxSlices=2)],
        {"resources": {"slices": 2}},
        ["v6e-8", "v6e-16"],
    ),
    "those whose devices the parallelism is for": (
        [ON_DEMAND],
        {"resources": {"parallelism": {"fsdp": 4, "tensor": 2}}},
        ["v6e-8"],
    ),
    "those of hosts as large as requested": (
        [ON_DEMAND, flavor("OnDemand", 3, "2x4", name="whole", chipsPerHost=8)],
        {"resources": {"chipsPerHost": 8}},
        ["v6e-8"],
    ),
    "those that money can be counted on": (
        [flavor("OnDemand", 2.70, "4x4"), flavor("Spot", None, "2x2", "2x4")],
        {"budget": {"maxCost": 100}},
        ["v6e-16"],
    ),
    "no more than preflight has time for": (
        [flavor("OnDemand", 1, "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")],
        {"hyperparameters": {"steps": 1, "globalBatchSize": 256}},
        ["v6e-4", "v6e-8", "v6e-16", "v6e-32", "v6e-64", "v6e-128", "v6e-256"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS, ids=str)
def test_admission_names_the_slices_that_preflight_may_choose(case: str) -> None:
    flavors, spec, names = ORDERS[case]
    plan = planned(*flavors, **spec)
    assert order(plan) == names
    assert len(names) <= 1 + MOST_CANDIDATES


def test_later_candidates_are_named_with_the_number_of_slices() -> None:
    plan = planned(flavor("OnDemand", 1, "2x4", "4x4", maxSlices=2), resources={"slices": 2})
    assert "preflight tries 2 x v6e-16" in plan.placement.why


def test_a_host_size_that_no_flavor_has_is_refused() -> None:
    with pytest.raises(Refused, match="no slice with 8 chips per host to choose from") as caught:
        planned(ON_DEMAND, resources={"chipsPerHost": 8})
    assert caught.value.reason == Reason.NO_FLAVOR_FITS


def test_the_plan_names_the_first_slice_and_the_following_ones() -> None:
    assert planned(ON_DEMAND).placement.why == (
        "the cheapest slice of the profile, since spec.resources names none; where the training does not fit it, "
        "preflight tries v6e-8, v6e-16; flavor ondemand"
    )


@pytest.mark.parametrize("spec", [{"resources": {"tpu": "v6e-4"}}, {"preflight": {"memory": "Off"}}])
def test_a_named_or_unchecked_slice_has_no_candidates(spec: Object) -> None:
    plan = planned(ON_DEMAND, **spec)
    assert plan.placement.shape.name == "v6e-4"
    assert plan.memory is None or plan.memory.candidates == []


@pytest.mark.parametrize(
    ("path", "limit", "names"),
    [
        ("resources.parallelism.fsdp", {"max": 8}, ["v6e-4", "v6e-8"]),
        ("resources.parallelism.fsdp", {"min": 8}, ["v6e-8", "v6e-16"]),
        ("hyperparameters.perDeviceBatchSize", {"max": 2}, ["v6e-8", "v6e-16"]),
    ],
)
def test_a_slice_beyond_the_profiles_limits_is_not_a_candidate(
    path: str, limit: Object, names: list[str]
) -> None:
    _, admission = admitted(
        ON_DEMAND,
        constraints={"limits": [{"path": path, **limit}]},
        hyperparameters={"steps": 1, "globalBatchSize": 16},
    )
    assert order(admission.plan) == names
    if names[0] != "v6e-4":
        assert "v6e-4 is not within the profile's limits" in admission.plan.placement.why


def test_a_limit_that_every_slice_breaks_refuses_the_job() -> None:
    limits = {"limits": [{"path": "hyperparameters.perDeviceBatchSize", "max": 0.1}]}
    with pytest.raises(Refused) as caught:
        admitted(ON_DEMAND, constraints=limits)
    assert caught.value.reason == Reason.POLICY_VIOLATION


@pytest.mark.parametrize(
    ("batch", "parts", "meshes"),
    [
        (16, 1, [(4, 1), (8, 1), (16, 1)]),
        (8, 1, [(4, 1), (8, 1), (8, 2)]),
        (4, 1, [(4, 1), (4, 2), (4, 4)]),
        (8, 2, [(4, 1), (4, 2), (4, 4)]),
        (2, 1, [(2, 2), (2, 4), (2, 8)]),
        (1, 1, [(1, 4), (1, 8)]),
    ],
)
def test_devices_share_rows_if_there_are_more_devices_than_rows(
    batch: int, parts: int, meshes: list[tuple[int, int]]
) -> None:
    numbers = {"steps": 1, "globalBatchSize": batch, "gradientAccumulationSteps": parts}
    plan = planned(ON_DEMAND, hyperparameters=numbers)
    candidates = [each.mesh for each in check_of(plan).candidates]
    assert [(each.fsdp, each.tensor) for each in (plan.mesh, *candidates)] == meshes
    assert plan.hyperparameters.global_batch_size == batch


def test_the_default_batch_is_that_of_the_first_slice_on_any_slice() -> None:
    """More devices than eight share rows instead of taking more of them."""
    plan = planned(ON_DEMAND)
    assert plan.hyperparameters.global_batch_size == 8
    assert [each.mesh.tensor for each in check_of(plan).candidates] == [1, 2]


def test_a_slice_has_the_flags_of_its_flavor() -> None:
    pod = {"env": [{"name": "XLA_FLAGS", "value": "--for_all"}]}
    dear = flavor(
        "Reservation", 9, "2x2x1", name="v5p", accelerator="tpu-v5p-slice", libtpuInitArgs=["--a", "--b"]
    )
    dear |= {"reservation": "r"}
    _, admission = admitted(flavor("OnDemand", 1, "2x2", libtpuInitArgs=["--c"]), dear, pod=pod)
    (candidate,) = check_of(admission.plan).candidates
    assert candidate.slice.flags == {"LIBTPU_INIT_ARGS": "--a --b", "XLA_FLAGS": "--for_all"}
    assert [each.flags for each in check_of(admission.plan).larger] == [candidate.slice.flags]


# --- once preflight has chosen


def test_the_slice_chosen_by_preflight_is_planned_with_flavor_and_price() -> None:
    wanted, admission = admitted(ON_DEMAND, SPOT)
    plan = replan(wanted, admission.stored, found=found("v6e-16", "v6e-4", plan=admission.plan))
    assert (plan.placement.shape.name, plan.placement.flavor, plan.chips) == ("v6e-16", "spot", 16)
    assert plan.placement.chip_hour_price == 1.1
    assert plan.mesh.devices == 16
    assert plan.placement.why == (
        "the cheapest slice of the profile that fits: v6e-4 does not fit, 40.00 GiB of 31.24 GiB; flavor spot"
    )
    assert check_of(plan).slice.name == "v6e-16"
    assert plan.digest == admission.plan.digest


def test_the_first_slice_is_kept_if_it_fits() -> None:
    wanted, admission = admitted(ON_DEMAND)
    plan = replan(wanted, admission.stored, found=found("v6e-4", plan=admission.plan))
    assert plan.placement.shape.name == "v6e-4"
    assert plan.placement.why.startswith("the cheapest slice of the profile that fits; ")


def test_a_slice_without_a_result_is_reported_as_unknown() -> None:
    wanted, admission = admitted(ON_DEMAND)
    record = found("v6e-8", "v6e-4", plan=admission.plan, unknown="Not compiled in time.")
    plan = replan(wanted, admission.stored, found=record)
    assert plan.placement.shape.name == "v6e-8"
    assert "not known to be too small: v6e-4 does not fit" in plan.placement.why


def shape(topology: str = "2x4", **changes: Any) -> SliceShape:
    known = {"family": "v6e", "hosts": 2, "chips": 8, "devices": 8, "hbm_gib": 32, "name": "v6e-8"}
    return SliceShape.model_validate({**known, "topology": topology, **changes})


FORGED: dict[str, Object] = {
    "a slice that the profile does not offer": {
        "slice": "v6e-64",
        "chosen": shape("8x8", name="v6e-64", hosts=16),
    },
    "another machine of the same name": {"chosen": shape(hosts=1)},
    "another family": {"slice": "v5p-8", "chosen": shape("2x2x1", family="v5p", name="v5p-8")},
    "several slices": {"slice": "4 x v6e-8"},
    "another slice than was compiled for": {"slice": "v6e-16"},
    "a slice that does not fit": {"unfit": [UnfitSlice(slice=shape(), why="no")]},
}


@pytest.mark.parametrize("case", FORGED, ids=str)
def test_a_record_that_names_no_candidate_is_ignored(case: str) -> None:
    wanted, admission = admitted(ON_DEMAND)
    record = MemoryOutcome.model_validate(
        {"source": "Compile", "slice": "v6e-8", "chosen": shape(), **FORGED[case]}
    )
    plan = replan(wanted, admission.stored, found=record)
    assert (plan.placement.shape, plan.mesh) == (admission.plan.placement.shape, admission.plan.mesh)
    assert "preflight has not compiled for it" in plan.placement.why


def test_a_record_cannot_choose_a_slice_beyond_limits_or_without_a_price() -> None:
    limits = {"limits": [{"path": "resources.parallelism.fsdp", "max": 4}]}
    for spec, constraints in (({}, limits), ({"budget": {"maxCost": 10}}, {})):
        wanted, admission = admitted(
            flavor("OnDemand", 1, "2x2"), flavor("Spot", None, "2x4"), constraints=constraints, **spec
        )
        record = MemoryOutcome(source="Compile", slice="v6e-8", chosen=shape())
        assert replan(wanted, admission.stored, found=record).placement.shape.name == "v6e-4"


def test_a_slice_that_does_not_fit_is_not_used_on_other_capacity() -> None:
    """If Spot has no nodes: the same slice on demand, although the smaller one is cheaper there."""
    wanted, admission = admitted(ON_DEMAND, SPOT)
    record = found("v6e-16", "v6e-4", plan=admission.plan)
    passed = replan(wanted, admission.stored, {"spot": 1}, record)
    assert (passed.placement.capacity, passed.placement.shape.name) == ("OnDemand", "v6e-16")
    assert passed.placement.flavors == ("ondemand", "spot")


def test_an_unproven_slice_is_used_if_other_capacity_has_no_other() -> None:
    wanted, admission = admitted(flavor("Spot", 1, "2x2", "2x4"), flavor("OnDemand", 3, "2x2", "4x4"))
    record = found("v6e-8", "v6e-4", plan=admission.plan)
    passed = replan(wanted, admission.stored, {"spot": 1}, record)
    assert (passed.placement.capacity, passed.placement.shape.name) == ("OnDemand", "v6e-16")
    assert "in place of the one that preflight chose: v6e-4 does not fit" in passed.placement.why


def test_capacity_with_only_slices_that_do_not_fit_is_skipped() -> None:
    wanted, admission = admitted(flavor("Spot", 1, "2x2", "2x4"), flavor("OnDemand", 3, "2x2"))
    assert set(admission.plan.placement.flavors) == {"spot", "ondemand"}
    record = found("v6e-8", "v6e-4", plan=admission.plan)
    assert replan(wanted, admission.stored, found=record).placement.flavors == ("spot",)


def test_an_edit_of_capacity_does_not_select_a_slice_known_as_too_small() -> None:
    wanted, admission = admitted(flavor("Spot", 1, "2x2", "2x4"), flavor("OnDemand", 3, "2x2", "4x4"))
    record = found("v6e-8", "v6e-4", plan=admission.plan)
    edited = {**wanted, "spec": {**wanted["spec"], "resources": {"capacity": ["OnDemand"]}}}
    plan = replan(edited, admission.stored, found=record)
    assert (plan.placement.capacity, plan.placement.shape.name) == ("OnDemand", "v6e-16")
    assert "v6e-4 does not fit" in plan.placement.why


def test_an_edit_of_the_number_of_slices_invalidates_the_record() -> None:
    wanted, admission = admitted(flavor("OnDemand", 1, "2x2", "2x4", "4x4", maxSlices=2))
    record = found("v6e-16", "v6e-4", "v6e-8", plan=admission.plan)
    edited = {**wanted, "spec": {**wanted["spec"], "resources": {"slices": 2}}}
    assert replan(edited, admission.stored, found=record).placement.shape.name == "v6e-8"


def test_an_edit_that_removes_the_slice_keeps_the_compiled_one() -> None:
    numbers = {"steps": 1, "globalBatchSize": 16}
    wanted, admission = admitted(ON_DEMAND, resources={"tpu": "v6e-16"}, hyperparameters=numbers)
    record = MemoryOutcome(source="Compile", slice="v6e-16", peak_bytes=30 << 30, limit_bytes=31 << 30)
    unnamed = {**wanted, "spec": {**wanted["spec"], "resources": {}}}
    plan = replan(unnamed, admission.stored, found=record)
    assert plan.placement.shape.name == "v6e-16"
    assert plan.placement.why.startswith(
        "the slice that preflight has compiled for, since spec.resources names none"
    )
    nothing = record.model_copy(update={"unknown": "no compiler"})
    plan = replan(unnamed, admission.stored, found=nothing)
    assert plan.placement.shape.name == "v6e-4"
    assert "preflight tries" not in plan.placement.why
    assert "a retry from Preflight" in plan.placement.why


def test_an_edit_that_disables_the_check_keeps_its_result() -> None:
    wanted, admission = admitted(ON_DEMAND)
    record = found("v6e-8", "v6e-4", plan=admission.plan, tuning={"remat_policy": "full"})
    off = {**wanted, "spec": {**wanted["spec"], "preflight": {"memory": "Off"}}}
    plan = replan(off, admission.stored, found=record)
    assert plan.placement.shape.name == "v6e-8"
    assert check_of(plan).source == "Compile"
    assert replan(off, admission.stored).memory is None, "the next preflight follows the job"


def test_an_edit_that_names_a_slice_overrides_the_choice() -> None:
    wanted, admission = admitted(ON_DEMAND, hyperparameters={"steps": 1, "globalBatchSize": 16})
    record = found("v6e-8", "v6e-4", plan=admission.plan)
    named = {**wanted, "spec": {**wanted["spec"], "resources": {"tpu": "v6e-16"}}}
    plan = replan(named, admission.stored, found=record)
    assert (plan.placement.shape.name, plan.placement.why.partition(";")[0]) == (
        "v6e-16",
        "spec.resources requests v6e-16",
    )
