"""What spec.datasets becomes: mixtures, rows held back, the chat template, and how much preflight reads."""

from typing import Any

import pytest

from finetune_contract import SplitSpec
from finetune_operator.api import Reason
from finetune_operator.planning import Plan, Refused, admit, read_snapshot, render_snapshot, replan
from tests.unit.lifecycle.world import job, profile

SOURCE = {"uri": "gs://data/chat.jsonl"}
REF = {"configMapRef": {"name": "templates", "key": "chat.jinja"}}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def plan(**spec: Any) -> Plan:
    return admit(job(**spec), [profile()]).plan


def config_map(**data: str) -> dict[str, Any]:
    return {"metadata": {"name": "templates"}, "data": data}


def refusal(template: Any = None, **spec: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        admit(job(**spec), [profile()], template)
    return caught.value


def test_sources_keep_their_order_their_weights_and_their_names() -> None:
    train = [
        {**SOURCE, "weight": "0.5"},
        {**SOURCE, "name": "faq", "weight": "2", "format": "QuestionAnswer"},
    ]
    data = plan(datasets={"train": train, "validation": [SOURCE, SOURCE]}).data
    assert [(source.name, source.weight, source.format) for source in data.train] == [
        ("train-0", 0.5, "Auto"), ("faq", 2.0, "QuestionAnswer"),
    ]  # fmt: skip
    assert [source.name for source in data.validation] == ["validation-0", "validation-1"]


def test_weights_are_for_all_sources_or_for_none() -> None:
    refused = refusal(datasets={"train": [SOURCE, {**SOURCE, "weight": "1"}]})
    assert refused.reason == Reason.INVALID_SPEC
    assert "give every training source a weight, or none" in refused.message


@pytest.mark.parametrize(("split", "seed"), [({"fraction": "0.25"}, 7), ({"fraction": "0.25", "seed": 3}, 3)])
def test_rows_are_held_back_by_a_seed_of_their_own_or_the_jobs(split: dict[str, Any], seed: int) -> None:
    made = plan(
        datasets={"train": [SOURCE], "splitFromTrain": split}, hyperparameters={"steps": 5, "seed": 7},
        evaluation={"everySteps": 2},
    )  # fmt: skip
    assert made.data.split_from_train == SplitSpec(fraction=0.25, seed=seed, max_examples=500)


@pytest.mark.parametrize("check", ["Sample", "Off"])
def test_steps_must_be_named_where_rows_are_not_counted(check: str) -> None:
    datasets = {"train": [SOURCE]}
    assert plan(datasets=datasets, preflight={"dataset": check}).data.check == check
    refused = refusal(datasets=datasets, preflight={"dataset": check}, hyperparameters={"epochs": 2})
    assert refused.reason == Reason.INVALID_SPEC
    assert "set spec.hyperparameters.steps, or use Full" in refused.message


def test_an_inline_template_reaches_the_trainer() -> None:
    made = plan(datasets={"train": [SOURCE], "chatTemplate": {"inline": TEMPLATE}})
    assert made.data.chat_template == TEMPLATE


def test_a_template_of_a_config_map_is_read_once_and_kept_in_the_plan() -> None:
    wanted = job(datasets={"train": [SOURCE], "chatTemplate": REF})
    admission = admit(wanted, [profile()], config_map(**{"chat.jinja": TEMPLATE}))
    assert admission.plan.data.chat_template == TEMPLATE
    kept = read_snapshot(render_snapshot(admission.snapshot))
    # The ConfigMap may be changed or deleted from now on.
    assert replan(wanted, kept).data.chat_template == TEMPLATE


MISSING: list[tuple[Any, str]] = [
    (None, 'there is no ConfigMap "templates"'),
    (config_map(other="x", more="y"), 'has no key "chat.jinja"; it has more, other'),
    ({"metadata": {"name": "templates"}}, "it has none"),
    (config_map(**{"chat.jinja": ""}), "has 0 characters"),
    (config_map(**{"chat.jinja": "x" * 32769}), "has 32769 characters, 1 to 32768 fit"),
]


@pytest.mark.parametrize(("found", "told"), MISSING, ids=[told for _, told in MISSING])
def test_a_template_that_is_not_there_is_waited_for(found: Any, told: str) -> None:
    refused = refusal(found, datasets={"train": [SOURCE], "chatTemplate": REF})
    assert refused.reason == Reason.CHAT_TEMPLATE_NOT_FOUND
    assert told in refused.message
    assert refused.message.startswith("spec.datasets.chatTemplate.configMapRef: ")
