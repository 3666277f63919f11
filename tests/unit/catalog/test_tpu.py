"""The catalogue of slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.catalog import CatalogError, TpuShape, all_shapes, shape_by_name, shape_by_topology
from finetune_operator.catalog.tpu import chips_of_topology


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
        ("v5p-8", "2x2x1", 1),
    ],
)
def test_names_as_people_write_them(name: str, topology: str, hosts: int) -> None:
    shape = shape_by_name(name)
    assert (shape.topology, shape.hosts) == (topology, hosts)


@pytest.mark.parametrize("name", ["v6e-8", "v6e-2x4", "v5e-8"])
def test_a_name_of_two_machines_is_not_guessed(name: str) -> None:
    with pytest.raises(CatalogError, match="more than one machine") as caught:
        shape_by_name(name)
    assert caught.value.ambiguous
    assert shape_by_name(name, chips_per_host=4).hosts == 2
    assert shape_by_name(name, chips_per_host=8).hosts == 1


@pytest.mark.parametrize("name", ["v9-1", "v6e-3", "v6e", "nonsense"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(CatalogError, match=name):
        shape_by_name(name)
