"""The catalogue of slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract.tpu import chips_of_topology
from finetune_operator.api import InvalidObject, parse_job
from finetune_operator.catalog import (
    CatalogError,
    TpuShape,
    all_shapes,
    shape_by_name,
    shape_by_topology,
    shares_labels,
)
from tests.unit.api.documents import job as document


@given(st.sampled_from(all_shapes()))
def test_every_row_adds_up_and_is_found_by_its_labels(shape: TpuShape) -> None:
    assert shape.hosts * shape.chips_per_host == shape.chips == chips_of_topology(shape.topology)
    found = shape_by_topology(shape.accelerator, shape.topology, chips_per_host=shape.chips_per_host)
    assert found.topology == shape.topology
    assert found.chips == shape.chips


@pytest.mark.parametrize(
    ("name", "topology", "hosts"),
    [
        ("v6e-4", "2x2", 1),
        ("v6e-2x2", "2x2", 1),
        ("v6e-16", "4x4", 4),
        ("v5e-16", "4x4", 4),
        ("v6e-4x4", "4x4", 4),
        ("v5litepod-4x4", "4x4", 4),
        ("v5p-8", "2x2x1", 1),
        ("v5p-2x2x4", "2x2x4", 4),
        ("v4-2x2x2", "2x2x2", 2),
        ("tpu7x-4x4x8", "4x4x8", 32),
    ],
)
def test_names_as_people_write_them(name: str, topology: str, hosts: int) -> None:
    shape = shape_by_name(name)
    assert (shape.topology, shape.hosts) == (topology, hosts)


@pytest.mark.parametrize("name", ["v6e-8", "v6e-2x4", "v5e-8"])
def test_a_name_of_two_machines_is_not_guessed(name: str) -> None:
    with pytest.raises(CatalogError, match="several machine types") as caught:
        shape_by_name(name)
    assert caught.value.ambiguous
    assert shape_by_name(name, chips_per_host=4).hosts == 2
    assert shape_by_name(name, chips_per_host=8).hosts == 1


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("v9-1", "Expected one of tpu7, tpu7x, v4, v5e, v5p, v6e"),
        ("nonsense", "Expected one of "),
        ("v6e", '"v6e"'),
        ("v6e-3", "v6e-1, v6e-4, v6e-8, v6e-16"),
        ("v6e-100000", "v6e-256"),
        ("v5e-2", "v5litepod-1, v5litepod-4"),
        ("v5p-4", "v5p-8"),
        ("v6e-4x2", "2x4"),
        ("v6e-2x2x1", "2x2"),
        ("v5p-2x2", "2x2x1"),
        ("v6e-0x0", "1x1"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_legal_ones(name: str, near: str) -> None:
    with pytest.raises(CatalogError) as caught:
        shape_by_name(name)
    assert near in str(caught.value)
    assert not caught.value.ambiguous


@pytest.mark.parametrize("name", ["tpu8t-16", "tpu8t-2x2x4", "v8t-16", "tpu8i-8"])
def test_a_generation_that_is_not_supported_is_refused_with_the_reason(name: str) -> None:
    parse_job(_as_a_user_writes(name))
    with pytest.raises(
        CatalogError, match=r"tpu8[ti] .* is not supported: .*hosts are Arm.*Expected one of tpu7"
    ):
        shape_by_name(name)


@pytest.mark.parametrize("label", ["tpu8t", "tpu-v8t-slice", "tpu-8t"])
def test_its_label_is_refused_too_whatever_it_will_be(label: str) -> None:
    with pytest.raises(CatalogError, match="hosts are Arm"):
        shape_by_topology(label, "4x4")


@pytest.mark.parametrize("name", ["v8-16", "tpu8-16", "tpu88t-16", "v8tx-16"])
def test_another_unknown_generation_is_not_taken_for_it(name: str) -> None:
    with pytest.raises(CatalogError, match="there is no TPU family"):
        shape_by_name(name)


def _as_a_user_writes(name: str) -> dict[str, object]:
    job = document()
    job["spec"]["resources"] = {"tpu": name}
    return job


@given(st.sampled_from(all_shapes()))
def test_every_shape_can_be_asked_for_by_its_family_and_topology(shape: TpuShape) -> None:
    name = f"{shape.family}-{shape.topology}"
    if "device" not in shape.accelerator:
        assert shape_by_name(name, chips_per_host=shape.chips_per_host) == shape_by_topology(
            shape.accelerator, shape.topology, chips_per_host=shape.chips_per_host
        )
    parse_job(_as_a_user_writes(name))


@pytest.mark.parametrize("name", ["v6e", "v6e-", "v6e-2x", "v6e-2x2x2x2", "v6e-x2", "V6E-4", "v6e_4"])
def test_what_is_no_shorthand_is_refused_by_the_schema(name: str) -> None:
    with pytest.raises(InvalidObject, match=r"spec\.resources\.tpu"):
        parse_job(_as_a_user_writes(name))


def test_machines_of_the_same_labels_are_known() -> None:
    shared = {(shape.name, shape.machine_type) for shape in all_shapes() if shares_labels(shape)}
    assert shared == {
        ("v6e-8", "ct6e-standard-4t"),
        ("v6e-8", "ct6e-standard-8t"),
        ("v5litepod-8", "ct5lp-hightpu-4t"),
        ("v5litepod-8", "ct5lp-hightpu-8t"),
    }
