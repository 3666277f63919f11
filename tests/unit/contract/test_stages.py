"""The table of stages in the contract."""

from typing import get_args

from finetune_contract import Details, Stage
from finetune_contract.layout import RunFolder


def test_every_stage_has_a_short_name_of_its_own_and_is_found_by_it() -> None:
    assert [Stage.from_short(stage.short) for stage in Stage] == list(Stage)
    assert len({stage.short for stage in Stage}) == len(Stage)
    folders = {RunFolder("gs://a/b").attempt(stage.short, 1) for stage in Stage}
    assert len(folders) == len(Stage)


def test_stages_are_counted_in_the_order_in_which_they_run() -> None:
    assert [stage.order for stage in Stage] == list(range(len(Stage)))


def test_training_and_evaluation_alone_run_on_tpu() -> None:
    assert [stage for stage in Stage if stage.on_tpu] == [Stage.TRAIN, Stage.EVALUATE]


def test_the_findings_of_every_stage_carry_its_name() -> None:
    kinds = [Stage(outcome.model_fields["kind"].default) for outcome in get_args(Details)]
    assert kinds == list(Stage)
