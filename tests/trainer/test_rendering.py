"""Rows, questions and benchmarks are rendered the same way: date, template arguments, tools, weights and reasoning."""

import json
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from lm_eval.api.instance import Instance
from pyarrow import parquet

from devcluster.fixtures.chat_data import write_data
from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data import remarks
from finetune_trainer.data.pairs import PairSchema
from finetune_trainer.data.prepare import read_all
from finetune_trainer.data.schema import DatasetSchema
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.harness import HarnessModel
from finetune_trainer.evaluation.questions import question
from finetune_trainer.evaluation.scores import exact_match, without_reasoning
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.readers.row_location import Row, RowLocation
from finetune_trainer.stages import preflight
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.example import Conversation
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.published_templates import template, tokenizer
from tests.trainer.requests import request
from tests.trainer.test_template import CHATML, trained_text

PLACE = RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=7)
USER: dict[str, Any] = {"role": "user", "content": "2 + 2?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "Four."}
MARCH, APRIL = date(2025, 3, 31), date(2025, 4, 1)


def renderer(name: str, **options: Any) -> Renderer:
    return Renderer(tokenizer(template(name)), train_on_prompt=False, today=MARCH, **options)


def read(*messages: dict[str, Any], **columns: Any) -> Conversation:
    row = Row(place=PLACE, value={"messages": list(messages), **columns})
    made = DatasetSchema(DatasetSpec(path=PLACE.path, name="n", uri="file:///a.jsonl"), row).example(row)
    assert isinstance(made, Conversation)
    return made


def text(of: Renderer, tokens: TokenizedExample | list[int]) -> str:
    ids = tokens.ids if isinstance(tokens, TokenizedExample) else tokens
    whole: str = of.chat._tokenizer.decode(ids)
    return whole


# --- the date -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama3_2", "gptoss", "muse_glimmer"])
def test_a_template_that_prints_the_date_prints_the_given_one_everywhere(name: str) -> None:
    of = renderer(name)
    harness = HarnessModel.__new__(HarnessModel)
    harness._renderer = of
    asked = read(USER, ANSWER)
    for shown in (
        text(of, of.tokens(asked)),
        text(of, of.prompt("2 + 2?")),
        text(of, question(asked, of).prompt),  # type: ignore[union-attr]
        harness.apply_chat_template([USER]),
    ):
        assert "31 Mar 2025" in shown or "2025-03-31" in shown


@pytest.mark.parametrize(
    ("name", "prints"), [("llama3_2", True), ("gptoss", True), ("llama3", False), ("qwen3", False)]
)
def test_only_where_the_template_prints_the_date_other_days_are_other_tokens(name: str, prints: bool) -> None:
    of = tokenizer(template(name))
    march, april = (Renderer(of, train_on_prompt=False, today=day) for day in (MARCH, APRIL))
    assert (march.identity() != april.identity()) == prints
    assert (
        march.tokens(read(USER, ANSWER)).ids.tolist() != april.tokens(read(USER, ANSWER)).ids.tolist()
    ) == prints


# --- arguments ------------------------------------------------------------------------------------------------


def test_arguments_reach_rows_questions_prompts_and_benchmarks() -> None:
    of = renderer("qwen3", arguments={"enable_thinking": False})
    quiet = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert text(of, of.prompt("2 + 2?")).endswith(quiet)
    assert text(of, question(read(USER, ANSWER), of).prompt).endswith(quiet)  # type: ignore[union-attr]
    harness = HarnessModel.__new__(HarnessModel)
    harness._renderer = of
    assert harness.apply_chat_template([USER]).endswith(quiet)
    # The prompt now contains the empty thought, so the model does not write it.
    assert trained_text(of.tokens(read(USER, ANSWER)), of.chat._tokenizer) == ["Four.<|im_end|>"]


class Saying:
    """An engine that answers every prompt with ``text``."""

    def __init__(self, of: Any, text: str) -> None:
        self._ids = of(text, add_special_tokens=False)["input_ids"]

    def likelihoods(self, pairs: Any) -> Any:
        raise NotImplementedError

    def answers(self, prompts: Sequence[Sequence[int]], sampling: Any) -> list[list[int]]:
        return [list(self._ids) for _ in prompts]


@pytest.mark.parametrize(
    ("name", "said", "judged"),
    [
        ("deepseek_r1_distill", "First 3 * 4 = 12, or maybe 42", ""),
        ("deepseek_r1_distill", "3 * 4 is\n\n12.\n</think>\n\n12\n\nQ: more", "12"),
        ("qwen3", "<think>\nmaybe 42", ""),
        ("qwen3", "12", "12"),
    ],
)
def test_a_benchmark_judges_what_follows_the_reasoning_and_nothing_of_reasoning_that_does_not_end(
    name: str, said: str, judged: str
) -> None:
    of = tokenizer(template(name))
    harness = HarnessModel(
        Saying(of, said), of, Renderer(of, train_on_prompt=False, today=MARCH), context=4096, seed=0
    )
    prompt = harness.apply_chat_template([USER])
    options = {"until": ["\n\n"], "max_gen_toks": 20}
    asked = Instance(request_type="generate_until", doc={}, arguments=(prompt, options), idx=0)
    assert harness.generate_until([asked]) == [judged]


def test_arguments_are_part_of_what_decides_the_tokens() -> None:
    plain, quiet = (
        renderer("qwen3").identity(),
        renderer("qwen3", arguments={"enable_thinking": False}).identity(),
    )
    assert plain != quiet
    assert "chatTemplateArguments" not in plain


def test_an_argument_that_the_template_never_reads_is_refused() -> None:
    of = renderer("qwen3", arguments={"enable_thinking": False, "enable_thoughts": True})
    with pytest.raises(StageError, match="enable_thoughts") as caught:
        of.chat.require_known_arguments()
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "ChatTemplateArgumentUnknown")
    assert "expected one of enable_thinking)" in str(caught.value)
    renderer("qwen3", arguments={"enable_thinking": False}).chat.require_known_arguments()


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("llama3_1", "builtin_tools, custom_tools, date_string, tools_in_user_message"),
        ("gptoss", "builtin_tools, model_identity, reasoning_effort"),
    ],
)
def test_the_variables_of_a_template_are_reported_without_what_it_sets_itself(
    name: str, variables: str
) -> None:
    with pytest.raises(StageError, match=f"one of {variables}\\)"):
        renderer(name, arguments={"enable_thoughts": True}).chat.require_known_arguments()


def test_a_role_that_a_template_refuses_is_reported_with_another_way_out() -> None:
    result = {"role": "tool", "content": "4"}
    with pytest.raises(
        StageError, match=r"or set datasets\.chatTemplate to one that accepts the role tool\."
    ):
        renderer("gemma3").tokens(read(USER, {"role": "assistant", "content": "x"}, result, ANSWER))
    with pytest.raises(StageError, match=r"alternating turns of user and assistant\."):
        renderer("gemma3").tokens(read(USER, USER, ANSWER))


def test_every_stage_renders_with_the_requests_date_and_arguments(tmp_path: Path) -> None:
    write_model(tmp_path / "models/qwen3", TinyModelSpec())
    data = {
        "chat_template": template("llama3_2"),
        "chat_template_arguments": {"tools_in_user_message": False},
        "chat_template_date": "2025-03-31",
    }
    for stage in ("Preflight", "Train", "Evaluate"):
        context = StageContext(
            request=request(tmp_path, stage, data=data), store=open_store(), stopper=ImmediateStop(),
            processes=Processes(count=1, index=0), scratch=tmp_path,
        )  # fmt: skip
        identity = context.renderer.identity()
        assert identity["chatTemplateDate"] == "2025-03-31"
        assert identity["chatTemplateArguments"] == '{"tools_in_user_message": false}'
        assert "31 Mar 2025" in context.tokenizer.decode(context.renderer.prompt("2 + 2?"))


def test_preflight_refuses_an_argument_that_would_change_nothing(tmp_path: Path) -> None:
    write_model(tmp_path / "models/qwen3", TinyModelSpec())
    write_data(tmp_path / "data", train=4, evaluation=2)
    context = StageContext(
        request=request(tmp_path, "Preflight", data={"chat_template_arguments": {"enable_thinking": False}}),
        store=open_store(), stopper=ImmediateStop(), processes=Processes(count=1, index=0), scratch=tmp_path,
    )  # fmt: skip
    with pytest.raises(StageError, match=r"spec\.datasets\.chatTemplate\.arguments\.enable_thinking"):
        preflight.run(context)


# --- reasoning ------------------------------------------------------------------------------------------------

REASONING = "Two and two, counted on the fingers of one hand, make four."
INLINE = {"role": "assistant", "content": f"<think>\n{REASONING}\n</think>\n\nFour."}
KEYED = {"role": "assistant", "content": "Four.", "reasoning_content": REASONING}


@pytest.mark.parametrize("message", [INLINE, KEYED], ids=["in the content", "reasoning_content"])
@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_think", "qwen3_5_nothink", "glm4moe"])
def test_reasoning_is_trained_where_the_template_shows_it(name: str, message: dict[str, Any]) -> None:
    of = renderer(name)
    tokens = of.tokens(read(USER, message))
    (trained,) = trained_text(tokens, of.chat._tokenizer)
    assert REASONING in trained
    assert "Four." in trained
    assert tokens.notes == ((Note.ASKED_OTHERWISE,) if name == "qwen3_5_nothink" else ())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepseek_r1_distill", INLINE),
        ("deepseek_r1_distill", KEYED),
        ("deepseekv3", INLINE),
        ("llama3", KEYED),
        ("gptoss", KEYED),
        ("gemma3", {"role": "assistant", "content": "Four.", "thinking": REASONING}),
    ],
)
def test_reasoning_that_the_template_leaves_out_is_said(name: str, message: dict[str, Any]) -> None:
    of = renderer(name)
    tokens = of.tokens(read(USER, message))
    assert REASONING not in text(of, tokens)
    asked = (Note.ASKED_OTHERWISE,) if name.startswith("deepseek") else ()
    assert tokens.notes == (*asked, Note.ANSWER_LEFT_OUT)
    whole = Renderer(of.chat._tokenizer, train_on_prompt=True, today=MARCH)
    assert whole.tokens(read(USER, message)).notes == (Note.ANSWER_LEFT_OUT,)


def test_what_a_template_sees_in_a_users_message_does_not_hide_the_answers() -> None:
    """Qwen3's template keeps the reasoning of a turn before a tool's result, even if a user's message contains the
    result."""
    of = renderer("qwen3")
    result = {"role": "user", "content": "<tool_response>\n4\n</tool_response>"}
    tokens = of.tokens(read(USER, INLINE, result, KEYED))
    called, answered = trained_text(tokens, of.chat._tokenizer)
    assert called == answered == f"<think>\n{REASONING}\n</think>\n\nFour.<|im_end|>"
    assert tokens.notes == ()


def test_reasoning_of_earlier_turns_is_said_apart() -> None:
    tokens = renderer("qwen3").tokens(read(USER, INLINE, USER, INLINE))
    assert tokens.notes == (Note.TURN_LEFT_OUT,)


@pytest.mark.parametrize("content", ["  Four. \n", "Four.\n", "", "```\n<think>\n```"])
def test_what_a_template_only_trims_is_not_called_left_out(content: str) -> None:
    for name in ("llama3_1", "gemma3", "qwen3", "gemma4_v5"):
        assert renderer(name).tokens(read(USER, {"role": "assistant", "content": content})).notes == ()


def test_a_template_that_cuts_an_answer_is_said_whatever_it_cuts() -> None:
    of = tokenizer(CHATML.replace("m['content']", "m['content'][:12]"))
    long = {"role": "assistant", "content": "Four, as anyone can see who has ever counted."}
    made = Renderer(of, train_on_prompt=False)
    assert made.tokens(read(USER, long)).notes == (Note.ANSWER_LEFT_OUT,)
    assert made.tokens(read(USER, ANSWER)).notes == ()


def test_the_message_that_the_template_leaves_out_is_the_one_that_is_named() -> None:
    of = tokenizer("{% for m in messages if m['content'] != 'no' %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
                   "<|im_end|>\n{% endfor %}")  # fmt: skip
    with pytest.raises(StageError, match=r"message 3 \(user\)"):
        Renderer(of, train_on_prompt=False).tokens(
            read(USER, KEYED, {"role": "user", "content": "no"}, ANSWER)
        )


# --- weights --------------------------------------------------------------------------------------------------


def test_a_turn_of_weight_0_is_not_trained() -> None:
    of = renderer("qwen2_5")
    tokens = of.tokens(
        read(USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "content": "Still four.", "weight": 1})
    )
    assert trained_text(tokens, of.chat._tokenizer) == ["Still four.<|im_end|>"]
    assert "weight" not in text(of, tokens)


def test_a_turn_of_weight_0_is_not_trained_where_the_template_marks_turns() -> None:
    of = renderer("llama3_training")
    tokens = of.tokens(read(USER, {**ANSWER, "weight": 0}, USER, {**ANSWER, "content": "Still four."}))
    assert trained_text(tokens, of.chat._tokenizer) == ["Still four.<|eot_id|>"]


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({**ANSWER, "weight": 0.5}, "the weight of message 2 must be 0 or 1"),
        ({**ANSWER, "weight": True}, "the weight of message 2 must be 0 or 1"),
        ({**ANSWER, "weight": "1"}, "the weight of message 2 must be 0 or 1"),
        ({**USER, "weight": 1}, r"message 2 \(user\) has weight 1"),
    ],
)
def test_another_weight_is_refused(message: dict[str, Any], told: str) -> None:
    with pytest.raises(StageError, match=told):
        read(USER, message)


def test_an_answer_of_a_pair_has_no_weight_0() -> None:
    source = DatasetSpec(path=PLACE.path, name="n", uri="file:///a.jsonl")
    row = Row(
        place=PLACE, value={"prompt": [USER], "chosen": [{**ANSWER, "weight": 0}], "rejected": [ANSWER]}
    )
    with pytest.raises(StageError, match='"chosen" has weight 0'):
        PairSchema(source, row).pair(row)


def test_weight_0_and_training_on_everything_exclude_each_other() -> None:
    of = Renderer(tokenizer(CHATML), train_on_prompt=True)
    with pytest.raises(StageError, match="row 7: a message has weight 0"):
        of.tokens(read(USER, {**ANSWER, "weight": 0}))


# --- tools ----------------------------------------------------------------------------------------------------

TOOL = {"type": "function", "function": {"name": "count", "description": "Counts.", "parameters": {}}}
CALLS = [{"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"to": 4}'}}]


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL])], ids=["objects", "JSON"])
def test_tools_are_shown_to_the_model_in_rows_and_questions(tools: Any) -> None:
    of = renderer("qwen3")
    row = read(USER, ANSWER, tools=tools)
    assert '"name": "count"' in text(of, of.tokens(row))
    assert '"name": "count"' in text(of, question(row, of).prompt)  # type: ignore[union-attr]
    assert of.tokens(row).notes == ()


@pytest.mark.parametrize("name", ["gemma3", "phi3", "deepseekv3", "llama3"])
def test_tools_that_the_template_does_not_show_are_said(name: str) -> None:
    assert renderer(name).tokens(read(USER, ANSWER, tools=[TOOL])).notes[:1] == (Note.TOOLS_LEFT_OUT,)


@pytest.mark.parametrize("tools", [None, [], "", "[]"])
def test_a_row_without_tools_is_as_if_there_were_no_such_column(tools: Any) -> None:
    assert read(USER, ANSWER, tools=tools).tools is None


@pytest.mark.parametrize("tools", [3, {"name": "count"}, ["count"], "count"])
def test_tools_of_another_form_are_refused(tools: Any) -> None:
    with pytest.raises(StageError, match='"tools" must be a list of objects'):
        read(USER, ANSWER, tools=tools)


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_calls_of_different_tools_are_the_same_tokens_from_every_kind_of_file(
    name: str, tmp_path: Path
) -> None:
    rows = []
    for called, arguments in (
        ("get_weather", {"city": "Lima"}),
        ("send_mail", {"to": "a@b.c", "text": "hi"}),
    ):
        function = {"name": called, "description": "Does it.", "parameters": {"type": "object", "properties": {
            key: {"type": "string"} for key in arguments}}}  # fmt: skip
        call = {"type": "function", "function": {"name": called, "arguments": arguments}}
        answer = {"role": "assistant", "content": "", "tool_calls": [call]}
        rows.append({"messages": [USER, answer], "tools": [{"type": "function", "function": function}]})
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    of = renderer(name)
    lines, columns = (
        [of.tokens(example) for example in read_all(
            DatasetSpec(path=PLACE.path, name="n", uri=f"file://{tmp_path}/a.{kind}"), open_store(), tmp_path
        )]
        for kind in ("jsonl", "parquet")
    )  # fmt: skip
    assert [text(of, each) for each in columns] == [text(of, each) for each in lines]
    assert [each.trained.tolist() for each in columns] == [each.trained.tolist() for each in lines]


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3", "llama3_1", "llama3_2", "deepseekv3", "deepseek_r1_distill", "gptoss"]
)
def test_calls_without_content_are_trained_as_the_model_writes_them(name: str, content: str | None) -> None:
    of = renderer(name)
    call = {"role": "assistant", "content": content, "tool_calls": CALLS}
    tokens = of.tokens(
        read(USER, call, {"role": "tool", "name": "count", "content": "4"}, ANSWER, tools=[TOOL])
    )
    called, answered = trained_text(tokens, of.chat._tokenizer)
    assert '{"to": 4}' in called
    assert "None" not in called
    assert "Four." in answered


@pytest.mark.parametrize("name", ["gemma", "phi3", "llama3"])
def test_calls_that_the_template_does_not_show_are_refused(name: str) -> None:
    with pytest.raises(StageError, match=r"does not show the tool calls of message 2 \(assistant\)"):
        renderer(name).tokens(read(USER, {"role": "assistant", "content": "", "tool_calls": CALLS}))


def test_a_second_call_that_the_template_drops_is_refused() -> None:
    two = {"role": "assistant", "content": "", "tool_calls": [*CALLS, *CALLS]}
    with pytest.raises(StageError, match="does not show the tool calls of message 2"):
        renderer("gptoss").tokens(read(USER, two))


def test_calls_must_be_the_assistants() -> None:
    with pytest.raises(StageError, match="the tool_calls of message 1"):
        read({"role": "user", "content": "x", "tool_calls": CALLS}, ANSWER)


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "deepseekv3", "gptoss"])
def test_an_answer_that_calls_a_tool_is_scored_against_the_call(name: str, content: str | None) -> None:
    of = renderer(name)
    call = {"role": "assistant", "content": content, "tool_calls": CALLS}
    row = read(USER, call, tools=[TOOL])
    asked = question(row, of)
    assert asked is not None
    tokens = of.tokens(row)
    written = of.chat._tokenizer.decode(tokens.ids[tokens.trained], skip_special_tokens=True)
    reference = without_reasoning(asked.reference)
    assert exact_match(without_reasoning(written), reference) == 1
    assert exact_match("", reference) == 0
    assert exact_match(without_reasoning(written.replace("4", "5")), reference) == 0


def test_a_call_after_a_result_is_asked_with_that_result() -> None:
    of = renderer("qwen3")
    call = {"role": "assistant", "content": "", "tool_calls": CALLS}
    result = {"role": "tool", "name": "count", "content": "4"}
    asked = question(read(USER, call, result, {**call, "content": "Again."}, tools=[TOOL]), of)
    assert asked is not None
    assert asked.text == "4"
    assert "Again." in asked.reference
    assert '{"to": 4}' in asked.reference
    assert asked.reference.count("<tool_call>") == 1


REASONED = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\nFour."}


@pytest.mark.parametrize(
    ("name", "arguments", "answer", "noted"),
    [
        ("qwen3", {"enable_thinking": False}, REASONED, True),
        ("qwen3", {"enable_thinking": False}, {**ANSWER, "reasoning_content": "Two and two."}, True),
        ("qwen3", {"enable_thinking": False}, ANSWER, False),
        ("qwen3", {}, REASONED, False),
        ("qwen3", {}, ANSWER, False),
        ("qwen3_instruct_2507", {}, ANSWER, False),
        ("llama3_1", {}, ANSWER, False),
        ("gemma3", {}, ANSWER, False),
        ("deepseek_r1_distill", {}, ANSWER, True),
    ],
)
def test_a_row_that_is_trained_behind_another_prompt_than_is_asked_with_is_noted(
    name: str, arguments: dict[str, Any], answer: dict[str, Any], noted: bool
) -> None:
    of = renderer(name, arguments=arguments)
    assert (Note.ASKED_OTHERWISE in of.tokens(read(USER, answer)).notes) == noted
    earlier = [USER, REASONED, USER, ANSWER]
    assert (Note.ASKED_OTHERWISE in of.tokens(read(*earlier)).notes) == (name == "deepseek_r1_distill")


@pytest.mark.parametrize(("value", "found"), [("False", 1), ("no", 1), (False, 0), ("low", 0), (0, 0)])
def test_an_argument_that_is_a_text_and_meant_as_a_flag_is_a_problem(value: Any, found: int) -> None:
    levels = [each.level for each in remarks.of_arguments({"enable_thinking": value})]
    assert levels == ["Problem"] * found


@pytest.mark.parametrize("nested", [True, False], ids=["in function", "beside the name"])
@pytest.mark.parametrize(
    ("arguments", "actual"),
    [('{"to": 4', '{"to": 4'), ("four", "four"), ("[4]", r"\[4\]"), (" ", "an empty text"), ([4], "a list")],
)
def test_arguments_of_a_call_that_are_no_json_object_are_refused(
    arguments: Any, actual: str, nested: bool
) -> None:
    call = {"name": "count", "arguments": arguments}
    calls = [*CALLS, {"type": "function", "function": call} if nested else call]
    told = rf"row 7: the arguments of a tool call in message 2 are not a JSON object \(found {actual}\)"
    with pytest.raises(StageError, match=told):
        read(USER, {"role": "assistant", "content": "", "tool_calls": calls})


@pytest.mark.parametrize("place", ["arguments", "tools"])
def test_half_of_a_character_in_json_text_is_refused_with_its_row(place: str) -> None:
    """In JSON text within a row, the escape is plain text to the reader of rows; the tokenizer failed without naming a
    row."""
    half = r'{"text": "an \ud83d emoji"}'
    call = {
        "type": "function",
        "function": {"name": "count", "arguments": half if place == "arguments" else "{}"},
    }
    more = {"tools": f"[{half}]"} if place == "tools" else {}
    with pytest.raises(StageError, match=r"row 7: its JSON text is refused: \\ud83d is a lone surrogate"):
        read(USER, {"role": "assistant", "content": "", "tool_calls": [call]}, **more)


@pytest.mark.parametrize("arguments", [{}, {"arguments": None}, {"arguments": {}}, {"arguments": "{}"}])
def test_a_call_may_have_no_arguments(arguments: dict[str, Any]) -> None:
    call = {"type": "function", "function": {"name": "count", **arguments}}
    row = read(USER, {"role": "assistant", "content": "", "tool_calls": [call]})
    assert row.messages[1]["tool_calls"][0]["function"].get("arguments", {}) == {}


def test_renderings_are_remembered_up_to_a_size_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of agents' datasets have different tools each, with up to a megabyte of text."""
    monkeypatch.setattr("finetune_trainer.tokens.marked._MOST_CHARACTERS", 50_000)
    renderer = Renderer(tokenizer(template("qwen2_5")), train_on_prompt=False)
    most = 0
    for number in range(40):
        tool = {"type": "function", "function": {"name": f"f{number}", "description": "d" * 2000}}
        renderer.tokens(read(USER, {"role": "assistant", "content": "a"}, tools=[tool]))
        marked = renderer._turns._marked
        kept = sum(len(key[1]) + sum(map(len, around.gaps)) for key, around in marked._arounds.items())
        kept += sum(len(key[1]) + len(tail) for key, tail in marked._tails.items())
        most = max(most, kept)
    assert 25_000 < most <= 50_000
