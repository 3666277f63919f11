"""What the stages on CPU request of a node's ephemeral storage."""

import re
from math import floor
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import ModelIdentity, Stage
from finetune_operator.rendering.memory import CpuPoolTooSmall
from finetune_operator.rendering.scratch import require_scratch, scratch_gib, scratch_limit_gib
from tests.unit.rendering.models import MODELS, model, planned

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "install-gke.md").read_text()
B8 = MODELS["Llama-3.1-8B"]
FIXED = 8
#: 8 B in bfloat16, GiB.
WEIGHTS = B8.parameters * 2 / 2**30


def scratch(plan: Any, stage: Stage, found: ModelIdentity | None = B8) -> int:
    return scratch_gib(plan, stage, found)


def near(gib: float) -> Any:
    return pytest.approx(FIXED + gib, abs=1.25)


def test_a_conversion_holds_the_sources_weights_and_a_block_of_layers() -> None:
    assert scratch(planned(), Stage.CONVERT) == near(WEIGHTS + 4 * 218_112_000 / 2**30)
    assert scratch(planned(uri="gs://m/a"), Stage.CONVERT) == scratch(planned(), Stage.CONVERT)


def test_weights_that_the_pod_can_read_where_they_lie_are_not_copied() -> None:
    assert scratch(planned(uri="file:///models/a"), Stage.CONVERT) == near(1)
    assert scratch(planned(16, uri="file:///models/a"), Stage.EXPORT) == near(WEIGHTS)


def test_the_export_of_a_merged_adapter_holds_source_and_result() -> None:
    assert scratch(planned(16), Stage.EXPORT) == near(2 * WEIGHTS)


def test_the_export_of_a_whole_model_fetches_no_weights_and_holds_one_stacked_array() -> None:
    assert scratch(planned(), Stage.EXPORT) == near(WEIGHTS + 4 * 1_879_048_192 / 2**30)


def test_the_dtype_and_maxtexts_format_add_to_an_export() -> None:
    assert scratch(planned(16, dtype="FP32"), Stage.EXPORT) == near(3 * WEIGHTS)
    assert scratch(planned(16, orbax=True), Stage.EXPORT) == near(3 * WEIGHTS)
    assert scratch(planned(16, dtype="FP32", orbax=True), Stage.EXPORT) == near(5 * WEIGHTS)


def test_the_export_of_an_adapter_alone_fetches_no_weights() -> None:
    assert scratch(planned(16, "Adapter"), Stage.EXPORT) == near(0)
    assert scratch(planned(256, "Both"), Stage.EXPORT) == near(2 * WEIGHTS + 2 * 256 * 2_621_440 / 2**30)


def test_a_vision_part_is_exported_as_it_came() -> None:
    text, vision = 4 * 10**9, 2**30
    found = model(text, 10**8, weights=2 * text + vision)
    assert scratch(planned(16), Stage.EXPORT, found) == near((4 * text + 2 * vision) / 2**30)
    whole = (2 * text + vision + 4 * found.sizes.largest_stack) / 2**30
    assert scratch(planned(uri="gs://m/a"), Stage.EXPORT, found) == near(whole + vision / 2**30)
    # The hub gives whole files.
    assert scratch(planned(), Stage.EXPORT, found) == near(whole + (2 * text + vision) / 2**30)


def test_a_checkpoint_of_the_users_is_read_in_place_but_for_what_an_adapter_is_merged_into() -> None:
    found = model(B8.parameters, 1, 1_879_048_192, weights=0)
    stacked = 4 * 1_879_048_192 / 2**30
    assert scratch(planned(source="gs://m/0/items"), Stage.EXPORT, found) == near(WEIGHTS + stacked)
    assert scratch(planned(16, source="gs://m/0/items"), Stage.EXPORT, found) == near(3 * WEIGHTS + stacked)


def test_weights_of_unknown_size_are_taken_for_float32() -> None:
    found = model(10**9, 10**9, block=10**9, weights=0)
    assert scratch(planned(), Stage.CONVERT, found) == near(8 * 10**9 / 2**30)


def test_only_an_export_has_a_limit_for_the_other_stages_fetch_data_of_any_size() -> None:
    limits = {stage: scratch_limit_gib(stage, 38) for stage in (Stage.PREFLIGHT, Stage.CONVERT, Stage.EXPORT)}
    assert limits == {Stage.PREFLIGHT: None, Stage.CONVERT: None, Stage.EXPORT: 54}


def test_before_preflight_nothing_stands_for_the_model() -> None:
    assert scratch(planned(), Stage.PREFLIGHT, None) == 16
    assert scratch(planned(), Stage.EXPORT, None) == FIXED


def test_what_needs_more_than_the_profile_allows_is_named_with_what_is_enough() -> None:
    small = planned(16, max_ephemeral_storage="20G")
    with pytest.raises(CpuPoolTooSmall) as refused:
        require_scratch(small, (Stage.CONVERT, Stage.TRAIN, Stage.EXPORT), B8)
    assert str(refused.value) == (
        "Convert needs 24 GiB and Export needs 38 GiB of scratch space, and the profile's "
        "cpuPool.maxEphemeralStorage is 20G."
    )
    assert (refused.value.stage, "maxEphemeralStorage 38Gi" in refused.value.fix) == (Stage.CONVERT, True)
    require_scratch(planned(16, max_ephemeral_storage="38Gi"), (Stage.CONVERT, Stage.EXPORT), B8)


def test_a_preflight_requests_no_more_than_a_pod_may_have() -> None:
    assert scratch(planned(max_ephemeral_storage="12Gi"), Stage.PREFLIGHT, None) == 12


@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.EXPORT])
def test_a_pod_that_no_node_could_hold_is_not_rendered(stage: Stage) -> None:
    with pytest.raises(CpuPoolTooSmall, match=stage.value):
        scratch(planned(max_ephemeral_storage="9Gi"), stage)


def left_of(disk: int) -> int:
    """GiB that GKE leaves to pods of a boot disk of so many GB, as the guide has it."""
    gib = disk * 10**9 / 2**30
    return floor(max(0.55 * gib - 6, 0.9 * gib - 100))


def table_of_disks() -> list[list[str]]:
    """Model, convert, merged LoRA, all weights, ``--disk-size``; the guide writes some names with spaces."""
    table = GUIDE.partition("| model, exported in BF16 |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()[2:]]


@pytest.mark.parametrize("row", table_of_disks(), ids=lambda row: row[0])
def test_the_guides_table_has_what_the_stages_request_and_disks_that_hold_it(row: list[str]) -> None:
    name, *numbers, disks = row
    found = next(found for key, found in MODELS.items() if key.lower() == name.replace(" ", "-").lower())
    stages = ((planned(), Stage.CONVERT), (planned(16), Stage.EXPORT), (planned(), Stage.EXPORT))
    requests = [scratch(plan, stage, found) for plan, stage in stages]
    assert [int(re.match(r"\d+", each)[0]) for each in numbers] == requests  # type: ignore[index]
    disk, *smaller = (int(size) for size in re.findall(r"\d+", disks))
    assert max(requests) <= left_of(disk)
    assert all(max(requests[0], requests[2]) <= left_of(size) for size in smaller)


@pytest.mark.parametrize("name", ["gke-v6e", "gke-v6e-queued"])
def test_the_examples_allow_what_the_guides_disk_leaves(name: str) -> None:
    profile = yaml.safe_load((ROOT / "examples" / "profiles" / f"{name}.yaml").read_text())
    (disk,) = re.findall(r"^\| `CPU_DISK_GB` \| `(\d+)` \|", GUIDE, re.MULTILINE)
    limit = profile["spec"]["cpuPool"]["maxEphemeralStorage"]
    assert limit == f"{left_of(int(disk))}Gi"
    assert f"what a node leaves: {limit} for a disk of {disk} GB" in GUIDE


def test_the_example_says_which_models_its_disk_holds() -> None:
    text = (ROOT / "examples" / "profiles" / "gke-v6e.yaml").read_text()
    limit = yaml.safe_load(text)["spec"]["cpuPool"]["maxEphemeralStorage"]
    small = planned(16, max_ephemeral_storage=limit)
    require_scratch(small, (Stage.CONVERT, Stage.EXPORT), MODELS["gemma-3-27b"])
    with pytest.raises(CpuPoolTooSmall) as refused:
        require_scratch(small, (Stage.CONVERT, Stage.EXPORT), MODELS["Llama-3.1-70B"])
    needed, disk = re.findall(r"Gemma 3 27B\. Llama 3\.1 70B needs (\d+Gi), which a disk of (\d+) GB", text)[
        0
    ]
    assert f"maxEphemeralStorage {needed}." in refused.value.fix
    assert left_of(int(disk)) >= int(needed.removesuffix("Gi"))
