"""What spec.datasets becomes: mixtures, rows held back, the chat template, and how much preflight reads."""

from datetime import date
from typing import Any

import pytest

from finetune_contract import SplitSpec, Stage
from finetune_operator.api import Reason
from finetune_operator.planning import (
    Findings,
    Plan,
    Refused,
    admit,
    read_stored_plan,
    render_stored_plan,
    replan,
    stage_request,
)
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
        {**SOURCE, "weight": 0.5},
        {**SOURCE, "name": "faq", "weight": 2, "format": "QuestionAnswer"},
    ]
    data = plan(datasets={"train": train, "validation": [SOURCE, SOURCE]}).data
    assert [(source.name, source.weight, source.format) for source in data.train] == [
        ("train-0", 0.5, "Auto"), ("faq", 2.0, "QuestionAnswer"),
    ]  # fmt: skip
    assert [source.name for source in data.validation] == ["validation-0", "validation-1"]


@pytest.mark.parametrize(
    ("method", "format_", "expected"),
    [
        ("SFT", "Preference", "set spec.method.type to DPO or ORPO"),
        ("DPO", "Messages", "DPO learns from pairs of answers"),
        ("ORPO", "Text", "ORPO learns from pairs of answers"),
    ],
)
@pytest.mark.parametrize("kind", ["train", "validation"])
def test_a_format_that_the_method_does_not_learn_from_is_refused(
    method: str, format_: str, expected: str, kind: str
) -> None:
    datasets = {"train": [SOURCE], kind: [{**SOURCE, "format": format_}]}
    refused = refusal(method={"type": method}, datasets=datasets)
    assert refused.reason == Reason.INVALID_SPEC
    assert refused.message.startswith(f"spec.datasets.{kind}[0].format is {format_}")
    assert expected in refused.message


def test_weights_are_set_for_all_sources_or_none() -> None:
    refused = refusal(datasets={"train": [SOURCE, {**SOURCE, "weight": 1}]})
    assert refused.reason == Reason.INVALID_SPEC
    assert "give every training source a weight, or none" in refused.message


@pytest.mark.parametrize(("split", "seed"), [({"fraction": 0.25}, 7), ({"fraction": 0.25, "seed": 3}, 3)])
def test_rows_are_held_back_by_their_own_seed_or_the_jobs(split: dict[str, Any], seed: int) -> None:
    made = plan(
        datasets={"train": [SOURCE], "splitFromTrain": split}, hyperparameters={"steps": 5, "seed": 7},
        evaluation={"everySteps": 2},
    )  # fmt: skip
    assert made.data.split_from_train == SplitSpec(fraction=0.25, seed=seed, max_examples=500)


@pytest.mark.parametrize("check", ["Sample", "Off"])
def test_steps_are_required_if_rows_are_not_counted(check: str) -> None:
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
    kept = read_stored_plan(render_stored_plan(admission.stored))
    # From now on the ConfigMap can be changed or deleted.
    assert replan(wanted, kept).data.chat_template == TEMPLATE


MISSING: list[tuple[Any, str]] = [
    (None, 'there is no ConfigMap "templates"'),
    (config_map(other="x", more="y"), 'has no key "chat.jinja"; it has more, other'),
    ({"metadata": {"name": "templates"}}, "it has none"),
    (config_map(**{"chat.jinja": ""}), "has 0 characters"),
    (config_map(**{"chat.jinja": "x" * 32769}), "has 32769 characters, 1 to 32768 fit"),
]


@pytest.mark.parametrize(("found", "expected"), MISSING, ids=[expected for _, expected in MISSING])
def test_a_missing_template_is_waited_for(found: Any, expected: str) -> None:
    refused = refusal(found, datasets={"train": [SOURCE], "chatTemplate": REF})
    assert refused.reason == Reason.CHAT_TEMPLATE_NOT_FOUND
    assert expected in refused.message
    assert refused.message.startswith("spec.datasets.chatTemplate.configMapRef: ")


def test_arguments_of_the_template_reach_the_trainer_as_values() -> None:
    written = {
        "enable_thinking": "false",
        "depth": "3",
        "share": "0.5",
        "date_string": "26 Jul 2024",
        "odd": "NaN",
    }
    made = plan(datasets={"train": [SOURCE], "chatTemplate": {"arguments": written}})
    assert made.data.chat_template is None
    assert made.data.chat_template_arguments == {
        "enable_thinking": False, "depth": 3, "share": 0.5, "date_string": "26 Jul 2024", "odd": "NaN",
    }  # fmt: skip


def test_arguments_can_accompany_a_template_of_a_config_map() -> None:
    arguments = {"enable_thinking": "true"}
    wanted = job(datasets={"train": [SOURCE], "chatTemplate": {**REF, "arguments": arguments}})
    made = admit(wanted, [profile()], config_map(**{"chat.jinja": TEMPLATE})).plan.data
    assert (made.chat_template, made.chat_template_arguments) == (TEMPLATE, {"enable_thinking": True})


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "strftime_now", "not a name"])
def test_an_argument_that_a_job_may_not_set_is_refused(name: str) -> None:
    refused = refusal(datasets={"train": [SOURCE], "chatTemplate": {"arguments": {name: "x"}}})
    assert refused.message.startswith(f"spec.datasets.chatTemplate.arguments.{name} is no variable")


def test_templates_print_the_creation_date_of_the_job_in_every_stage() -> None:
    wanted = job(datasets={"train": [SOURCE]})
    wanted["metadata"]["creationTimestamp"] = "2026-03-31T23:59:59Z"
    admission = admit(wanted, [profile()])
    assert admission.plan.data.chat_template_date == date(2026, 3, 31)
    kept = read_stored_plan(render_stored_plan(admission.stored))
    assert replan(wanted, kept).data.chat_template_date == date(2026, 3, 31)
    for stage in (Stage.PREFLIGHT, Stage.TRAIN, Stage.EVALUATE):
        assert stage_request(admission.plan, stage, 1, Findings()).data.chat_template_date == date(
            2026, 3, 31
        )


def test_a_job_planned_before_its_creation_has_no_date() -> None:
    wanted = job(datasets={"train": [SOURCE]})
    wanted["metadata"].pop("creationTimestamp", None)
    assert admit(wanted, [profile()]).plan.data.chat_template_date is None


def test_columns_left_out_and_rows_used_once_reach_the_stages() -> None:
    train = [{**SOURCE, "columns": {"system": "persona", "ignore": ["images"]}, "separator": "\n\n"}]
    data = plan(datasets={"train": train, "dedupe": "Exact"}).data
    (source,) = data.train
    assert (source.columns, source.ignore, source.separator) == ({"system": "persona"}, ["images"], "\n\n")
    assert data.dedupe == "Exact"
    assert plan(datasets={"train": [SOURCE]}).data.dedupe == "Off"


def test_a_column_that_is_mapped_and_ignored_is_refused() -> None:
    train = [SOURCE, {**SOURCE, "columns": {"input": "context", "ignore": ["id", "context"]}}]
    refused = refusal(datasets={"train": train})
    assert refused.reason is Reason.INVALID_SPEC
    assert "spec.datasets.train[1].columns maps context and lists it under ignore" in str(refused)
