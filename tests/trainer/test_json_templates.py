"""MaxText's templates in JSON, as the Jinja that the operator makes of them: the same text as MaxText's own code."""

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import maxtext
import pytest
from maxtext.input_pipeline import instruction_data_processing
from maxtext.input_pipeline.input_pipeline_utils import apply_chat_template

from finetune_contract import OWN_TEMPLATE, DatasetSpec
from finetune_trainer.data.schema import DatasetSchema
from finetune_trainer.errors import StageError
from finetune_trainer.readers.row_location import Row, RowLocation
from finetune_trainer.tokens.template import Renderer, with_template
from tests.trainer.published_templates import template, tokenizer

#: What the operator makes of the files, by tests/unit/planning/test_json_template.py.
COPIES = Path(__file__).parents[1] / "maxtext_templates"
PUBLISHED = Path(maxtext.__path__[0]) / "examples" / "chat_templates"
FORMATTED = [COPIES / "math_qa.json", *sorted((COPIES / "variants").glob("*.json"))]
QUESTION = "  Tom's 3 boxes hold {4} pens \\ each.\nHow many?  "
ANSWERS = (
    "Each box has 4.\n3 * 4 = <<3*4=12>>12\n#### 12",
    "  no separator here  ",
    "a\n'.*\\b",
)
#: With white space at the beginning, which a template in front of them must not change.
OWN = ("qwen3", "llama3", "gemma3", "  {{ bos_token }}{% for m in messages %}\n{{ m.content }}{% endfor %}\n")


def own(name: str) -> str:
    return name if "{" in name else template(name)


def set_up(name: str, file: str) -> Any:
    made = tokenizer(own(name))
    with_template(made, (COPIES / file).with_suffix(".jinja").read_bytes().decode())
    return made


def test_the_copies_are_the_files_that_maxtext_publishes() -> None:
    assert {path.name: path.read_bytes() for path in PUBLISHED.glob("*.json")} == {
        path.name: path.read_bytes() for path in COPIES.glob("*.json")
    }


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("file", FORMATTED, ids=lambda path: path.stem)
def test_questions_and_answers_become_the_text_of_maxtexts_formatter(
    file: Path, name: str, text: str
) -> None:
    config = json.loads(file.read_text(encoding="utf-8"))
    row = {"question": QUESTION, "answer": text}
    formatted = instruction_data_processing.math_qa_formatting(dict(row), template_config=config)["messages"]
    plain = tokenizer(own(name))
    expected = plain.apply_chat_template(formatted, tokenize=False)
    asked = plain.apply_chat_template(formatted[:1], tokenize=False, add_generation_prompt=True)
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": text}]
    ours = set_up(name, str(file.relative_to(COPIES)))
    assert expected == ours.apply_chat_template(messages, tokenize=False)
    assert asked == ours.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("name", ["qwen3", "llama3", "gemma3"])
def test_the_same_tokens_are_trained_as_by_maxtext(name: str) -> None:
    """MaxText's Gemma 3 closes a turn with a token and a line break, of which we train the token."""
    config = json.loads((PUBLISHED / "math_qa.json").read_text())
    row = {"question": QUESTION, "answer": ANSWERS[0]}
    formatted = instruction_data_processing.math_qa_formatting(dict(row), template_config=config)["messages"]
    _, completion = apply_chat_template(
        {"messages": formatted}, tokenizer_model=tokenizer(own(name)), data_column_name="messages"
    )["messages"]
    ours = set_up(name, "math_qa.json")
    place = RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1)
    source = DatasetSpec(name="train-0", path=place.path, uri=place.file, format="QuestionAnswer")
    schema = DatasetSchema(source, Row(place=place, value=row))
    tokens = Renderer(ours, train_on_prompt=False).tokens(schema.example(Row(place=place, value=row)))
    assert ours.decode(tokens.ids[tokens.trained]).rstrip() == completion.rstrip()
    assert tokens.notes == ()


def formatter() -> Any:
    """Returns MaxText's function without the packages for rewards that its module imports, which the image lacks."""
    module = ast.parse((Path(maxtext.__path__[0]) / "trainers/post_train/rl/utils_rl.py").read_text())
    wanted = [part for part in module.body if getattr(part, "name", None) == "format_maxtext_messages"]
    names: dict[str, Any] = {"Any": Any}
    exec(compile(ast.Module(body=wanted, type_ignores=[]), "utils_rl.py", "exec"), names)
    return names["format_maxtext_messages"]


@pytest.mark.parametrize("file", ["gsm8k_rl.json", "openmathinstruct2_rl.json", "gpt_oss_rl.json"])
@pytest.mark.parametrize("name", OWN)
def test_prompts_of_reinforcement_learning_become_the_text_of_maxtexts_program(file: str, name: str) -> None:
    tags = {
        "reasoning_start_token": "<think>",
        "reasoning_end_token": "</think>",
        "solution_start_token": "<<",
        "solution_end_token": ">>",
    }
    config = json.loads((PUBLISHED / file).read_text())
    (message,) = formatter()([QUESTION], config, SimpleNamespace(**tags))
    expected = tokenizer(own(name)).apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    asked = [{"role": "user", "content": QUESTION}]
    made = set_up(name, file).apply_chat_template(asked, tokenize=False, add_generation_prompt=True, **tags)
    assert made == expected


def test_a_whole_template_is_used_as_maxtext_uses_it() -> None:
    file = "gemma-3-27b-chat_template.json"
    expected = instruction_data_processing.load_chat_template_from_file(str(PUBLISHED / file))
    assert set_up("qwen3", file).chat_template == expected


def test_content_in_parts_is_rewritten_and_calls_without_content_are_left_alone() -> None:
    made = set_up("{% for m in messages %}{{ m.content }}|{% endfor %}", "openmathinstruct2_rl.json")
    parts = [{"type": "text", "text": "2 "}, {"type": "text", "text": "+ 2?"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    shown = made.apply_chat_template(messages, tokenize=False)
    assert shown.endswith("\n\n2 + 2?|None|")


def test_an_answer_with_two_separators_is_refused_where_maxtext_fails() -> None:
    config = json.loads((PUBLISHED / "math_qa.json").read_text())
    row = {"question": "Q", "answer": "a #### b #### c"}
    with pytest.raises(ValueError, match="too many values"):
        instruction_data_processing.math_qa_formatting(row, template_config=config)
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": row["answer"]}]
    with pytest.raises(Exception, match="an answer has #### more than once"):
        set_up("qwen3", "math_qa.json").apply_chat_template(messages, tokenize=False)


def test_a_tokenizer_without_a_template_cannot_be_included() -> None:
    made = tokenizer("")
    made.chat_template = None
    with pytest.raises(StageError) as caught:
        with_template(made, f"{{% set x = 1 %}}\n{OWN_TEMPLATE}")
    assert (caught.value.reason, caught.value.actual) == ("ChatTemplateMissing", OWN_TEMPLATE)


def test_a_template_is_not_put_in_front_of_itself() -> None:
    """The export of a job has the whole template, and the next job that starts from it may name the same JSON."""
    made = set_up("qwen3", "math_qa.json")
    once = made.chat_template
    with_template(made, (COPIES / "math_qa.jinja").read_text(encoding="utf-8"))
    assert made.chat_template == once
