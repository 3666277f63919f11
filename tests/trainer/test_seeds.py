"""Published recipes: the rows of their datasets are read as their manifests say, and become the expected messages."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import DatasetSpec
from finetune_trainer.data.schema import DatasetSchema
from finetune_trainer.readers.row_location import Row, RowLocation
from finetune_trainer.tokens.example import Conversation, PlainText, TextPair

SEEDS = sorted((Path(__file__).parents[2] / "examples" / "seeds").glob("*.yaml"))
TURNS = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
#: A row with all columns of the published dataset, and what it says: its texts in order.
ROWS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "HuggingFaceH4/ultrachat_200k": ({"prompt": "Q", "prompt_id": "0f", "messages": TURNS}, ["Q", "A"]),
    "openai/gsm8k": ({"question": "Q", "answer": "R\n#### 4"}, ["Q", "R\n#### 4"]),
    "allenai/tulu-3-sft-mixture": ({"id": "x", "messages": TURNS, "source": "y"}, ["Q", "A"]),
    "Open-Orca/OpenOrca": (
        {"id": "niv.1", "system_prompt": "S", "question": "Q", "response": "A"},
        ["S", "Q", "A"],
    ),
    "karpathy/tiny_shakespeare": ({"text": "First Citizen:"}, ["First Citizen:"]),
    "gs://my-project-data/team-a/TinyStories-train.txt": ({"text": "Once upon"}, ["Once upon"]),
}


def texts(example: object) -> list[str]:
    match example:
        case Conversation(messages=messages):
            return [str(message["content"]) for message in messages]
        case TextPair(prompt=prompt, completion=completion):
            return [prompt, completion]
        case PlainText(text=text):
            return [text]
    raise AssertionError(example)


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_the_rows_of_a_recipe_are_read(path: Path) -> None:
    for source in yaml.safe_load(path.read_text())["spec"]["datasets"]["train"]:
        name = source["huggingFace"]["repo"] if "huggingFace" in source else source["uri"]
        value, expected = ROWS[name]
        row = Row(
            place=RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1), value=value
        )
        spec = DatasetSpec(
            name="train-0",
            path=row.place.path,
            uri=row.place.file,
            format=source.get("format", "Auto"),
            columns=source.get("columns", {}),
        )
        assert texts(DatasetSchema(spec, row).example(row)) == expected
