"""Reads rows with a better and a worse answer to one prompt as two examples of prompt and completion. Pure.

Answers are texts or messages. Without a prompt they are whole conversations that differ in the last turn, texts in the
form of Anthropic's HH-RLHF, or texts whose common beginning is the prompt.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data.advice import kind, leave_out, quoted
from finetune_trainer.data.columns import LONG, is_text
from finetune_trainer.data.schema import DatasetSchema, Unwanted
from finetune_trainer.data.shapes import PAIRS, Shape
from finetune_trainer.errors import StageError
from finetune_trainer.readers.known_names import is_empty
from finetune_trainer.readers.row_location import Row, shown
from finetune_trainer.tokens.example import Conversation, Example, texts_of

NO_PROMPT = "it has no prompt, and its answers begin differently"
OTHER_PROMPTS = "its answers do not follow one turn of the user"
BETTER_REJECTED = "its scores say that the rejected answer is better"
_TURN = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


class PairSchema(DatasetSchema):
    shapes: Sequence[Shape] = PAIRS

    def __init__(self, source: DatasetSpec, first: Row, **options: Any) -> None:
        if source.format not in ("Auto", "Preference"):
            raise StageError(
                ExitCode.BAD_REQUEST, "FormatMismatch", "this method learns from pairs of answers",
                where=f"{source.path}.format", actual=source.format, expected="Preference", fix="Remove it.",
            )  # fmt: skip
        super().__init__(source, first, **options)

    def pair(self, row: Row) -> tuple[Example, Example] | Unwanted:
        """Returns the row's chosen and rejected examples, or the reason why the dataset excludes it.

        Raises ``StageError`` 65 with the row's location, the value found and a suggested fix.
        """
        if self._prefers_rejected(row):
            return Unwanted(place=row.place, why=BETTER_REJECTED)
        chosen, rejected = self._answer(row, "chosen"), self._answer(row, "rejected")
        row, prompt = self._prompt(row)
        alone = self.columns.optional(row, "input")[1] is not None and not self.columns.named("prompt")
        if prompt is None and alone:
            prompt = ""  # the text that belongs to the prompt is all of it
        if prompt is None:
            divided = self._divided(row, chosen, rejected)
            if isinstance(divided, Unwanted):
                return divided
            prompt, chosen, rejected = divided
        else:
            prompt, chosen, rejected = self._without_prompt(prompt, chosen, rejected)
        examples = self.prompted(row, prompt, chosen, rejected)
        better, worse = map(partial(self._only_answer, row), ("chosen", "rejected"), examples)
        (asked, answer), (_, other) = texts_of(better), texts_of(worse)
        self.columns.account(row, asked, [*answer, *other])
        return better, worse

    read = pair

    def _prefers_rejected(self, row: Row) -> bool:
        scores = []
        for name in ("score_chosen", "score_rejected"):
            column, score = self.columns.optional(row, name)
            if score is None:
                return False
            try:
                scores.append(float(score))
            except (TypeError, ValueError, OverflowError):
                scores.append(math.nan)
            if not math.isfinite(scores[-1]):
                raise row.place.mismatch(
                    f'"{column}" must be a number',
                    f"Write one, or {leave_out(column)}.",
                    actual=shown(str(score)),
                )
        return scores[0] < scores[1]

    def _answer(self, row: Row, name: str) -> Any:
        value = self._as_messages(self.columns.value(row, name), row.place)
        if value is None:
            what = f'"{self.columns.column(name)}" must be an answer'
            raise row.place.mismatch(what, "Write both answers, or remove the row.", actual="null")
        return value

    def _prompt(self, row: Row) -> tuple[Row, Any]:
        """Returns the prompt, and the row with the tools of a prompt that is a request of OpenAI's API."""
        column, prompt = self.columns.optional(row, "prompt")
        if isinstance(prompt, Mapping) and "messages" in prompt:
            more = {name: said for name, said in prompt.items() if name != "messages" and not is_empty(said)}
            beside = {name: row.value[name] for name in more if not is_empty(row.value.get(name))}
            if twice := [name for name, value in beside.items() if value != more[name]]:
                what = f"{quoted(twice[0])} is in {quoted(column)} and beside it, with another value"
                raise row.place.mismatch(what, f"Write it once, in {quoted(column)} or beside it.")
            return replace(row, value={**row.value, column: prompt["messages"], **more}), prompt["messages"]
        if prompt is None and isinstance(row.value.get(column), str):
            return row, ""  # a blank prompt is one, and none is taken from the answers
        return row, self._as_messages(prompt, row.place, keyed=self._asks)

    @staticmethod
    def _without_prompt(prompt: Any, chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
        """Returns prompt and answers without the prompt, which many datasets repeat in front of both answers."""
        if isinstance(prompt, str):
            asked = _turns_of(prompt)
            if asked and not asked[-1]["content"]:
                asked.pop()  # "Assistant:" asks for the answer
            talks = _turns_of(chosen), _turns_of(rejected)
            before = talks[0][:-1]
            said = [
                str(turn.get("content", turn.get("value"))) for turn in before if isinstance(turn, Mapping)
            ]
            here = before == asked or prompt.strip() in map(str.strip, said)
            if here and before == talks[1][:-1] != []:
                return before, talks[0][-1:], talks[1][-1:]
            if isinstance(chosen, str) and isinstance(rejected, str):
                rest = [text[len(prompt) :] for text in (chosen, rejected) if text.startswith(prompt)]
                if len(prompt) >= LONG and len(rest) == 2 and all(rest):
                    chosen, rejected = rest
                return (asked, chosen.strip(), rejected.strip()) if asked else (prompt, chosen, rejected)
            prompt = asked or [{"role": "user", "content": prompt}]
        return prompt, chosen, rejected

    def _divided(self, row: Row, chosen: Any, rejected: Any) -> tuple[Any, Any, Any] | Unwanted:
        """Returns prompt, chosen and rejected of a row without a prompt."""
        if isinstance(chosen, str) and isinstance(rejected, str):
            talks = _turns_of(chosen), _turns_of(rejected)
            if all(talks):
                chosen, rejected = talks
                last = [turn["role"] for turn in chosen[-2:]]
                if chosen[:-1] != rejected[:-1] or last != ["user", "assistant"]:
                    return Unwanted(place=row.place, why=OTHER_PROMPTS)
                return chosen[:-1], chosen[-1:], rejected[-1:]
            if due := self.columns.named("prompt"):
                what = f'the row has no prompt in "{due}"'
                raise row.place.mismatch(what, "Write it, or remove the row.", actual="nothing")
            if prompts := self.columns.likely_prompts(row):
                column, said = quoted(prompts[0]), row.value[prompts[0]]
                way = (
                    f"Map it: columns: {{prompt: {column}}}"
                    if is_text(said)
                    else "Write it as the column prompt"
                )
                what = "should have one" if is_empty(said) else "may have it"
                raise row.place.mismatch(
                    f"the row has no prompt, and {column} {what}", f"{way}, or {leave_out(*prompts)}."
                )
            ends = (at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
            prompt = chosen[: next(ends, min(len(chosen), len(rejected)))]
            # The prompt ends with the last whole line or word that the answers share; words begin with a space.
            prompt = prompt[: max(prompt.rfind("\n") + 1, prompt.rfind(" "), 0)]
            if not prompt.strip():
                return Unwanted(place=row.place, why=NO_PROMPT)
            return prompt, chosen[len(prompt) :], rejected[len(prompt) :]
        if isinstance(chosen, list) and isinstance(rejected, str):  # beside a whole conversation
            rejected = [*chosen[:-1], {"role": "assistant", "content": rejected}]
        if isinstance(chosen, list) and isinstance(rejected, list) and chosen[:-1] == rejected[:-1] != []:
            return chosen[:-1], chosen[-1:], rejected[-1:]
        raise row.place.mismatch(
            "chosen and rejected must be two texts, or two conversations that differ in the last turn",
            "Give the row a prompt, and chosen and rejected only what answers it.",
            actual=f"{kind(chosen)} and {kind(rejected)}",
        )

    def _only_answer(self, row: Row, name: str, example: Example) -> Example:
        """Returns the example with its last turn, the answer, as the only trained one."""
        if not isinstance(example, Conversation):
            return example
        if not example.trained[-1]:
            raise row.place.mismatch(
                f'"{self.columns.column(name)}" has weight 0 or is no turn of the assistant, but training uses both',
                "Give it the role assistant and no weight, or remove the row.",
                actual=f"a turn of the {example.messages[-1]['role']}",
            )
        return replace(example, trained=[*[False] * (len(example.trained) - 1), True], held_out=False)


def _turns_of(text: Any) -> list[Any]:
    """Returns the messages of a text in the form of HH-RLHF; a list unchanged, and none for any other value."""
    if not isinstance(text, str):
        return text if isinstance(text, list) else []
    before, *parts = _TURN.split(text if text.startswith("\n") else f"\n\n{text}")
    if before.strip() or not parts or parts[0] != "Human":
        return []
    return [
        {"role": _ROLES[role], "content": content.strip()}
        for role, content in zip(parts[::2], parts[1::2], strict=True)
    ]
