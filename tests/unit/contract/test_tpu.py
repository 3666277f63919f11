"""The catalogue of TPUs that operator and trainer share."""

import csv
from importlib.resources import files

import pytest

from finetune_contract.tpu import TpuFamily, all_shapes, families, machines


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_every_generation_has_slices_under_its_name(family: TpuFamily) -> None:
    own = [shape for shape in all_shapes() if shape.family == family.name]
    assert any(shape.name.startswith(f"{family.type_prefix}-") for shape in own)
    assert any(shape.multi_host for shape in own)


def test_every_slice_is_of_a_generation_of_the_catalogue() -> None:
    assert {shape.family for shape in all_shapes()} == families().keys()


def test_slices_made_of_cubes_have_three_sides_and_the_others_two() -> None:
    for shape in all_shapes():
        if (family := families()[shape.family]).chip is not None:
            assert shape.topology.count("x") == (1 if family.cube_pod_chips is None else 2)


def test_a_program_may_use_most_of_a_devices_memory() -> None:
    for family in families().values():
        if chip := family.chip:
            assert 0.97 < chip.usable_gib * chip.devices / chip.hbm_gib < 1.01


def test_every_generation_names_its_sources() -> None:
    text = files("finetune_contract").joinpath("tpu_families.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        if row["refused"]:
            assert "announcement: https://" in row["source"]
            continue
        assert "slices: " in row["source"]
        assert "rates: " in row["source"]


def test_every_machine_type_has_a_row_with_its_source_where_it_has_figures() -> None:
    text = files("finetune_contract").joinpath("tpu_machines.csv").read_text(encoding="utf-8")
    rows = {row["machine_type"]: row for row in csv.DictReader(text.splitlines())}
    assert rows.keys() == {shape.machine_type for shape in all_shapes()}
    assert machines().keys() == {name for name, row in rows.items() if row["source"]}
    assert all(bool(row["vcpus"]) == bool(row["memory_gb"]) == bool(row["source"]) for row in rows.values())
