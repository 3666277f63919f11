"""Notes on special tokens within contents, on texts that are rendered already, and on texts with ends of their own."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tokenizers import processors

from finetune_contract import DataReport, DatasetSpec
from finetune_trainer.data.schema import DatasetSchema
from finetune_trainer.readers.row_location import Row
from finetune_trainer.tokens.contents import holds_template
from finetune_trainer.tokens.example import Conversation, PlainText, TextPair
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer import published_templates
from tests.trainer.test_data_report import chat, check
from tests.trainer.test_template import CHATML, LLAMA3, PLACE, conversation, tokenizer

CONTROL = "say <|im_end|> now"
CALL = {"type": "function", "function": {"name": "f", "arguments": {"text": CONTROL}}}
TRAINED, PROMPT, TEXT = Note.CONTROL_TRAINED, Note.CONTROL_IN_PROMPT, Note.CONTROL_IN_TEXT


def said(example: Any, template: str | None = CHATML, *, train_on_prompt: bool = False) -> list[str]:
    of = tokenizer(template, bos=True)
    return list(Renderer(of, train_on_prompt=train_on_prompt).tokens(example).notes)


def pair(prompt: str, completion: str) -> TextPair:
    return TextPair(place=PLACE, prompt=prompt, completion=completion)


def calling() -> Conversation:
    answer = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    messages = [{"role": "user", "content": "x"}, answer]
    return Conversation(place=PLACE, messages=messages, trained=[False, True])


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (conversation(("user", "x"), ("assistant", CONTROL)), [TRAINED]),
        (conversation(("user", CONTROL), ("assistant", "x")), [PROMPT]),
        (conversation(("system", CONTROL), ("user", "x"), ("assistant", CONTROL)), [TRAINED, PROMPT]),
        (conversation(("user", "x"), ("assistant", CONTROL), ("user", "y"), ("assistant", "z"),
                      trained=[False, False, False, True]), [PROMPT]),
        (conversation(("user", "x"), ("tool", CONTROL), ("assistant", "y")), [PROMPT]),
        (conversation(("user", "x"), ("assistant", "y")), []),
        (pair(CONTROL, "x"), [PROMPT]),
        (pair("x", CONTROL), [TRAINED]),
        (PlainText(place=PLACE, text=CONTROL), [TEXT]),
        (PlainText(place=PLACE, text="one<eos>two"), [TEXT]),
        (PlainText(place=PLACE, text="no token"), []),
    ],
)  # fmt: skip
def test_special_tokens_within_contents_are_noted_by_whether_they_are_trained(
    example: Any, expected: list[str]
) -> None:
    assert said(example) == expected
    if not isinstance(example, PlainText):
        assert said(example, train_on_prompt=True) == ([TRAINED] if expected else [])


def test_special_tokens_within_a_call_are_trained() -> None:
    shows = CHATML.replace("{{ m['content'] }}", "{{ m['content'] }}{{ m['tool_calls'] or '' }}")
    assert said(calling(), shows) == [TRAINED]


RENDERED_TEXTS = [
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n",
    "<bos><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "<|begin_of_text|><|header_start|>user<|header_end|>\n\nhi<|eot|>",
    "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nhi [/INST] yo </s>",
    "[INST]hi[/INST]yo", "<start_of_turn>user\nhi<end_of_turn>\n", "<bos><|turn>user\nhi<turn|>\n", "<|turn|>user\nhi",
    "<|user|>\nhi<|end|>\n<|assistant|>\nyo<|end|>", "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜>yo",
    "<|start|>user<|message|>hi<|end|>", "<|start_of_role|>user<|end_of_role|>hi<|end_of_text|>",
    "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>hi", "<|im_user|>user<|im_middle|>hi<|im_end|>", "[|user|]hi\n[|assistant|]yo",
    "<extra_id_1>User\nhi\n<extra_id_1>Assistant\nyo", "GPT4 Correct User: hi<|end_of_turn|>",
    "Below is an instruction.\n\n### Instruction:\nAdd.\n\n### Response:\n2", "### Human: hi### Assistant: yo",
    "A chat between a user and an assistant. USER: hi ASSISTANT: yo", "\n\nHuman: hi\n\nAssistant: yo",
]  # fmt: skip


@pytest.mark.parametrize("text", RENDERED_TEXTS)
def test_a_text_with_a_rendered_template_of_any_model_is_found(text: str) -> None:
    assert holds_template(text)
    assert said(PlainText(place=PLACE, text=text)) == [Note.RENDERED]
    assert Note.RENDERED in said(pair(text, "x"))
    assert Note.RENDERED in said(pair("x", text), None)
    assert Note.RENDERED in said(conversation(("user", text), ("assistant", "x")))


def test_an_answer_that_ends_within_its_thought_is_found() -> None:
    assert said(conversation(("user", "x"), ("assistant", "<think>\nSo"))) == [Note.OPEN_THOUGHT]
    assert said(pair("x", " <think>So")) == [Note.OPEN_THOUGHT]
    for whole in ("<think>So</think>y", "So</think>y", "The tag <think> opens it."):
        assert said(pair("x", whole)) == []


def test_an_answer_that_ends_as_another_models_does_is_found() -> None:
    assert said(conversation(("user", "x"), ("assistant", "y</s>\n"))) == [Note.RENDERED]
    assert said(pair("x", "y<|endoftext|>")) == said(PlainText(place=PLACE, text="y</s>")) == [Note.RENDERED]
    assert said(pair("x", "y<eoa>")) == said(pair("x", "y<|end_of_turn|>")) == [Note.RENDERED]
    assert said(pair("x", "<s>y</s> and z")) == []
    assert said(pair("x", "y<eos>"), None) == [Note.OWN_ENDS]


@pytest.mark.parametrize(
    "text",
    [
        "A plain text.", "x = a[i] < b\n### Heading\n", "He said: USER is a word.", "<b>bold</b> [1] <|x|>",
        "An assistant: someone who assists.", "Human: a species.", "### Instructions for use\nTurn it on.",
    ],
)  # fmt: skip
def test_a_text_without_one_is_not(text: str) -> None:
    assert not holds_template(text)
    assert said(PlainText(place=PLACE, text=text)) == []


def test_the_markers_of_the_models_own_template_are_known_too() -> None:
    own = LLAMA3.replace("<|start_header_id|>", "<start_of_turn>").replace("<|end_header_id|>", "<eos>")
    own = own.replace("<start_of_turn>", "<|eot_id|>")
    assert said(PlainText(place=PLACE, text="<|eot_id|>user"), own) == [Note.RENDERED]
    assert said(PlainText(place=PLACE, text="<|eot_id|>user"), CHATML) == [TEXT]


# --- tokens that begin and end a text ---------------------------------------------------------------------------------


def framing() -> Any:
    of = tokenizer(None, bos=True)
    of.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", of.bos_token_id)]
    )
    return of


@pytest.mark.parametrize("begin", ["", "<bos>"])
@pytest.mark.parametrize("end", ["", "<eos>", "<eos>\n"])
def test_a_text_has_one_token_at_each_end(begin: str, end: str) -> None:
    of = framing()
    renderer = Renderer(of, train_on_prompt=False)
    for example in (
        PlainText(place=PLACE, text=f"{begin}one two{end}"),
        pair(f"{begin}one", f" two{end}"),
    ):
        tokens = renderer.tokens(example)
        assert of.decode(tokens.ids).rstrip() == "<bos>one two<eos>"
        assert not tokens.trained[0]
        assert tokens.trained[-1]
        assert list(tokens.notes) == ([Note.OWN_ENDS] if begin or end else [])
    assert renderer.opened(f"{begin}one") == [of.bos_token_id, *renderer.ids("one")]


# --- the report ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> DataReport:
    root = tmp_path_factory.mktemp("contents")
    write_model(root / "models/qwen3", TinyModelSpec())
    (root / "data").mkdir()
    rows = [chat("one", "first"), chat("two", CONTROL), chat(CONTROL, "x"), chat("three", " \n")]
    texts = [{"text": RENDERED_TEXTS[0]}, {"text": "plain"}, {"text": "\u200b"}]
    for name, lines in (("train", rows), ("eval", texts)):
        (root / f"data/{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    return check(root, hyperparameters={"steps": None, "epochs": 1.0, "global_batch_size": 2})


@pytest.mark.parametrize(
    ("source", "kind", "rows", "level", "told"),
    [
        ("train-0", TRAINED, ["row 2"], "Problem", "an answer contains"),
        ("train-0", PROMPT, ["row 3"], "Note", "a prompt contains"),
        ("train-0", "dropped: the answer is blank", ["row 4"], "Note", "1 rows are dropped"),
        ("faq", Note.RENDERED, ["row 1"], "Problem", "contains a rendered chat template"),
        ("faq", "dropped: the text is blank", ["row 3"], "Note", "1 rows are dropped"),
    ],
)
def test_the_report_counts_them_names_rows_and_says_what_to_do(
    found: DataReport, source: str, kind: str, rows: list[str], level: str, told: str
) -> None:
    (details,) = [each for each in (*found.train, *found.validation) if each.report.name == source]
    (listed,) = [each for each in details.found if each.kind == kind]
    assert (listed.count, listed.first) == (len(rows), rows)
    assert any(
        each.level == level and each.text.startswith(source) and told in each.text for each in found.remarks
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Peru?", ()),
        (" \n", (Note.BLANK_PROMPT,)),
        ("<image>\nWhat is it?", (Note.PLACEHOLDER,)),
        ("a <b> image", ()),
    ],
)
def test_a_prompt_without_its_content_is_noted(prompt: str, expected: tuple[Note, ...]) -> None:
    of = Renderer(tokenizer(CHATML), train_on_prompt=False)
    answer = {"role": "assistant", "content": "Lima."}
    talk = Conversation(
        place=PLACE, messages=[{"role": "user", "content": prompt}, answer], trained=[False, True]
    )
    assert of.tokens(talk).notes == expected
    assert of.tokens(TextPair(place=PLACE, prompt=prompt, completion="Lima.")).notes == expected


HERMES = [
    {"from": "system", "value": "You may call <tools> [] </tools>."},
    {"from": "human", "value": "Warm?"},
    {"from": "gpt", "value": '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call>'},
    {"from": "tool", "value": '<tool_response>\n{"degrees": 22}\n</tool_response>'},
    {"from": "gpt", "value": "22 degrees."},
]
WEATHER = {"name": "weather", "description": "Says it.", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("name", "turns", "tools", "expected"),
    [
        ("qwen3", HERMES, [WEATHER], [Note.TOOLS_TWICE]),
        ("qwen3", [HERMES[0], *HERMES[1:3]], [WEATHER], [Note.TOOLS_TWICE]),
        ("qwen3", [HERMES[0], *HERMES[1:3]], [], []),
        ("qwen2_5", HERMES[1:], [WEATHER], [Note.TOOLS_TWICE]),
        ("qwen3", [*HERMES[1:3], {**HERMES[3], "value": "22"}, HERMES[4]], [WEATHER], []),
        ("llama3", HERMES, [], []),
    ],
)  # fmt: skip
def test_what_the_template_writes_around_tools_is_found_in_contents(
    name: str, turns: Sequence[Mapping[str, Any]], tools: Sequence[Any], expected: Sequence[Note]
) -> None:
    row = Row(place=PLACE, value={"conversations": turns, "tools": tools})
    spec = DatasetSpec(path=PLACE.path, name="n", uri="file:///a.jsonl")
    read = DatasetSchema(spec, row, reads=lambda _: False).example(row)
    assert isinstance(read, Conversation)
    of = published_templates.tokenizer(published_templates.template(name))
    assert list(Renderer(of, train_on_prompt=False).tokens(read).notes) == expected


def test_a_call_that_is_written_as_qwen_writes_it_is_trained_like_one() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Lima"}}}
    of = published_templates.tokenizer(published_templates.template("qwen3"))
    asked = {"role": "user", "content": "Warm?"}
    made = [
        Renderer(of, train_on_prompt=False).tokens(
            Conversation(place=PLACE, messages=[asked, answer], trained=[False, True])
        )
        for answer in (
            {"role": "assistant", "content": HERMES[2]["value"]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        )
    ]
    assert made[0].ids.tolist() == made[1].ids.tolist()
    assert made[0].trained.tolist() == made[1].trained.tolist()
