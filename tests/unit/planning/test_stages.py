"""The operator's table of stages."""

from finetune_contract import Stage
from finetune_operator.planning.stages import STAGES


def test_every_stage_has_a_row_in_order() -> None:
    assert list(STAGES) == list(Stage)


def test_a_stage_requests_cpu_resources_unless_it_runs_on_tpu() -> None:
    assert {stage for stage, info in STAGES.items() if info.cpu is None} == {s for s in Stage if s.on_tpu}


def test_memory_and_disk_of_a_stage_are_both_fixed_or_both_computed() -> None:
    for info in STAGES.values():
        if info.cpu is not None:
            assert (info.cpu.memory_gib is None) == (info.cpu.scratch_gib is None)


def test_stages_that_compute_on_tpu_have_libtpu() -> None:
    assert all(info.needs_libtpu for stage, info in STAGES.items() if stage.on_tpu)
