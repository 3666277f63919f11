"""MaxText's templates in JSON: the Jinja that they become, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.api import Reason
from finetune_operator.planning import Refused, admit
from finetune_operator.planning.admission import check_job
from finetune_operator.planning.sections.json_template import InvalidTemplate, as_jinja
from tests.unit.lifecycle.world import job, profile

#: Published by MaxText, and variants, with what each becomes. tests/trainer/test_json_templates.py renders these files.
FILES = sorted((Path(__file__).parents[2] / "maxtext_templates").rglob("*.json"))
PROMPT = {"PROMPT_TEMPLATE": "Q: {question}"}
COMPLETION = {**PROMPT, "COMPLETION_TEMPLATE": "<a>{answer}</a>"}
JINJA = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_template_of_maxtext_becomes_jinja(path: Path) -> None:
    jinja = path.with_suffix(".jinja").read_bytes().decode()
    assert as_jinja(path.read_text(encoding="utf-8")) == jinja


@pytest.mark.parametrize(
    "text",
    [
        JINJA,
        "\n {{ bos_token }}",
        "{#- a note #}{{ x }}",
        "[INST] {{ x }} [/INST]",
        "plain",
        '"{{ x }}" he said',
        "",
    ],
)
def test_jinja_stays_as_it_is(text: str) -> None:
    assert as_jinja(text) == text


@pytest.mark.parametrize("before", ["", "\n  ", "\ufeff", "\ufeff\r\n"])
def test_white_space_and_a_byte_order_mark_before_the_json_do_not_matter(before: str) -> None:
    assert as_jinja(before + json.dumps({"chat_template": JINJA})) == JINJA


INVALID: list[tuple[Any, str]] = [
    ("{", "is not valid JSON, line 1 column 2"),
    ('{"chat_template": "a\nb"}', "line 1 column 21: Invalid control character"),
    ("{'chat_template': 'x'}", "is not valid JSON, line 1 column 2"),
    ('{"chat_template": "x"} trailing', "is not valid JSON, line 1 column 24"),
    ("[" * 100_000 + "]" * 100_000, "is JSON that is nested too deeply"),
    ('{"chat_template": ' + "[" * 100_000, "is JSON that is nested too deeply"),
    ('{"chat_template": ' + "1" * 5_000 + "}", "has too long a number"),
    ('{"chat_template": "x", "chat_template": "y"}', "has chat_template twice"),
    ('{"chat_template": "\\ud800"}', "surrogate"),
    ([{"name": "default", "template": "x"}], "is a list in JSON"),
    ("text", "is a text in JSON"),
    ({}, "has no key"),
    ({"template": "x"}, "has 'template'; expected chat_template or PROMPT_TEMPLATE"),
    ({"chat_template": [{"name": "default", "template": "x"}]}, "has a list in chat_template"),
    ({"chat_template": ""}, "has an empty text in chat_template"),
    ({"chat_template": None}, "has null in chat_template"),
    ({"chat_template": 7}, "has a number in chat_template"),
    ({"chat_template": "x", "eos_token": "</s>"}, "has 'eos_token' beside chat_template"),
    ({**PROMPT, "SYSTEM_PROMPT": "x"}, "has 'SYSTEM_PROMPT' beside PROMPT_TEMPLATE"),
    ({**PROMPT, "prompt": "x"}, "has 'prompt' beside PROMPT_TEMPLATE"),
    ({"PROMPT_TEMPLATE": "no placeholder"}, "has no {question} in PROMPT_TEMPLATE"),
    ({"PROMPT_TEMPLATE": "{{question}}"}, "has no {question} in PROMPT_TEMPLATE"),
    ({"PROMPT_TEMPLATE": "{question} {context}"}, "has {context} in PROMPT_TEMPLATE; expected {question}"),
    ({"PROMPT_TEMPLATE": "{question!r:>9}"}, "has {question!r:>9} in PROMPT_TEMPLATE"),
    ({"PROMPT_TEMPLATE": "{question.__class__}"}, "has {question.__class__} in PROMPT_TEMPLATE"),
    ({"PROMPT_TEMPLATE": "{}"}, "has {} in PROMPT_TEMPLATE"),
    ({"PROMPT_TEMPLATE": "{question} }"}, "in PROMPT_TEMPLATE; write a brace of the text twice"),
    ({**PROMPT, "COMPLETION_TEMPLATE": "{reasoning}{answer}"}, "has {reasoning} in COMPLETION_TEMPLATE"),
    ({**COMPLETION, "REASONING_ANSWER_SEPARATOR": "#"}, "has no {reasoning} in COMPLETION_TEMPLATE"),
    ({**COMPLETION, "REASONING_ANSWER_SEPARATOR": ""}, "has an empty text in REASONING_ANSWER_SEPARATOR"),
    ({**PROMPT, "REASONING_ANSWER_SEPARATOR": "#"}, "without COMPLETION_TEMPLATE"),
    ({"REASONING_ANSWER_SEPARATOR": "#"}, "has 'REASONING_ANSWER_SEPARATOR'; expected"),
    ({"TEMPLATE": "{system_prompt} {question}"}, "has {system_prompt} in TEMPLATE; expected {question}"),
    ({"TEMPLATE": "{question}", "SYSTEM_PROMPT": "x"}, "has no {system_prompt} in TEMPLATE"),
    ({"TEMPLATE": "{system_prompt}{question}", "SYSTEM_PROMPT": "{x}"}, "has {x} in SYSTEM_PROMPT"),
]  # fmt: skip


def text_of(content: Any) -> str:
    raw = isinstance(content, str) and content.startswith(("{", "["))
    return content if raw else json.dumps(content)


@pytest.mark.parametrize(("content", "expected"), INVALID, ids=[expected for _, expected in INVALID])
def test_json_that_is_no_template_is_refused_by_name(content: Any, expected: str) -> None:
    text = text_of(content)
    with pytest.raises(InvalidTemplate) as caught:
        as_jinja(text)
    assert expected in str(caught.value)


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_any_text_around_a_placeholder_is_kept_on_one_line(before: str, after: str) -> None:
    braced = [text.replace("{", "{{").replace("}", "}}") for text in (before, after)]
    made = as_jinja(json.dumps({"PROMPT_TEMPLATE": f"{braced[0]}{{question}}{braced[1]}"}))
    lines = as_jinja(json.dumps({"PROMPT_TEMPLATE": "{question}"})).count("\n")
    assert (made.count("\n"), made.count("\r")) == (lines, 0)


def test_the_trainer_gets_jinja_and_the_plan_keeps_it() -> None:
    datasets = {"train": [{"uri": "gs://data/a.jsonl"}], "chatTemplate": {"inline": json.dumps(PROMPT)}}
    admission = admit(job(datasets=datasets), [profile()])
    assert admission.plan.data.chat_template == as_jinja(json.dumps(PROMPT))
    assert admission.stored.spec["datasets"]["chatTemplate"]["inline"] == admission.plan.data.chat_template


REFERENCE = {"configMapRef": {"name": "templates", "key": "a.json"}}
PLACES: list[tuple[dict[str, Any], Any, Reason, str]] = [
    ({"inline": "{"}, None, Reason.INVALID_SPEC, "spec.datasets.chatTemplate.inline begins like JSON"),
    (
        REFERENCE,
        {"metadata": {"name": "templates"}, "data": {"a.json": "{}"}},
        Reason.CHAT_TEMPLATE_NOT_FOUND,
        'spec.datasets.chatTemplate.configMapRef: key "a.json" of ConfigMap "templates" has no key; expected',
    ),
]


@pytest.mark.parametrize(
    ("template", "config_map", "reason", "expected"), PLACES, ids=["inline", "ConfigMap"]
)
def test_a_refusal_names_the_place(template: Any, config_map: Any, reason: Reason, expected: str) -> None:
    datasets = {"train": [{"uri": "gs://data/a.jsonl"}], "chatTemplate": template}
    with pytest.raises(Refused) as caught:
        admit(job(datasets=datasets), [profile()], config_map)
    assert caught.value.reason is reason
    assert caught.value.message.startswith(expected)


def test_a_job_is_checked_without_a_profile() -> None:
    datasets = {"train": [{"uri": "gs://data/a.jsonl"}], "chatTemplate": {"inline": "{"}}
    with pytest.raises(Refused, match="inline begins like JSON"):
        check_job(job(datasets=datasets))
    check_job(job(datasets={**datasets, "chatTemplate": REFERENCE}))
