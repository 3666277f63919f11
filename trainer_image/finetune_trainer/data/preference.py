"""Preference pairs: a better and a worse answer to one prompt.

Rows have the columns ``chosen``, ``rejected`` and usually ``prompt``. A row is read as two examples of prompt and
completion, so answers may be text or messages, and templates, columns and roles work as for other formats. Without a
prompt, the answers are whole conversations that differ in the last turn, or texts whose common prefix is the prompt.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.data import notes
from finetune_trainer.data.examples import Examples, ExampleWriter, Int64Array
from finetune_trainer.data.layout import Batch, RaggedIndices
from finetune_trainer.data.row_location import Row
from finetune_trainer.data.schema import Conversation, DatasetSchema, Example, require_columns
from finetune_trainer.data.sources import LocatedSource, open_source
from finetune_trainer.data.template import Renderer, TokenizedExample
from finetune_trainer.data.tokenize_batches import tokenize_batches
from finetune_trainer.errors import StageError
from finetune_trainer.stage_progress import ignore
from finetune_trainer.storage import StorageClient

_COLUMNS = ("prompt", "chosen", "rejected")
#: Maximum number of rows in memory at a time.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePair:
    """Token ids of one row."""

    prompt: np.ndarray
    chosen: np.ndarray
    rejected: np.ndarray

    def cut(self, prompt_length: int, answer_length: int, bos: int | None = None) -> "PreferencePair":
        """Returns the pair truncated to the last tokens of the prompt and the first tokens of the answers.

        A token ``bos`` at the beginning of the prompt stays there.
        """
        prompt = self.prompt[max(0, len(self.prompt) - prompt_length) :]
        if len(prompt) < len(self.prompt) and prompt_length > 1 and self.prompt[0] == bos:
            prompt = np.concatenate([self.prompt[:1], prompt[1:]])
        return PreferencePair(
            prompt=prompt,
            chosen=self.chosen[:answer_length],
            rejected=self.rejected[:answer_length],
        )

    def joined(self) -> TokenizedExample:
        """Returns the pair as one example for storage: the prompt followed by each answer; only answers are trained."""
        parts = (self.prompt, self.chosen, self.prompt, self.rejected)
        return TokenizedExample(
            ids=np.concatenate(parts).astype(np.int32),
            trained=np.repeat([False, True, False, True], [len(part) for part in parts]),
        )

    @classmethod
    def parted(cls, tokens: TokenizedExample) -> Self:
        """Inverse of ``joined``. Prompt and answers must not be empty."""
        prompt, chosen, _, rejected = np.split(tokens.ids, np.flatnonzero(np.diff(tokens.trained)) + 1)
        return cls(prompt=prompt, chosen=chosen, rejected=rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRows:
    """Pairs by number in Tunix's layout: prompts are padded on the left, answers on the right."""

    tokens: Examples
    prompt_columns: int
    answer_columns: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def members(self) -> RaggedIndices:
        return RaggedIndices.single(len(self.tokens))

    def batch(self, numbers: Sequence[int], size: int) -> Batch:
        """Returns the pairs with these numbers, padded with empty pairs (weight zero) to ``size`` pairs.

        The arrays are ids and masks of ``prompt``, ``chosen`` and ``rejected``, each int32 ``[size, length]``.
        """
        arrays = {
            name: np.zeros((size, width), np.int32)
            for name, width in pair_arrays(self.prompt_columns, self.answer_columns).items()
        }
        for place, number in enumerate(numbers):
            pair = PreferencePair.parted(self.tokens.read(number))
            for name, ids in (("prompt", pair.prompt), ("chosen", pair.chosen), ("rejected", pair.rejected)):
                start = self.prompt_columns - len(ids) if name == "prompt" else 0
                arrays[f"{name}_ids"][place, start : start + len(ids)] = ids
                arrays[f"{name}_mask"][place, start : start + len(ids)] = 1
        return arrays


def pair_arrays(prompt_columns: int, answer_columns: int) -> dict[str, int]:
    """Returns the names of a batch's arrays and their number of columns."""
    widths = {"prompt": prompt_columns, "chosen": answer_columns, "rejected": answer_columns}
    return {f"{name}_{part}": width for name, width in widths.items() for part in ("ids", "mask")}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferencePreprocessor:
    """Turns rows of preference pairs into examples of one pair each."""

    renderer: Renderer
    prompt_length: int
    """Maximum number of tokens of a prompt; the rest of ``max_length`` is available to each answer."""
    max_length: int
    width: int
    """Number of positions of a prompt and one answer in a batch, at least ``max_length``."""
    read: Callable[[int], None] = ignore
    """As in :class:`.prepare.TextPreprocessor`."""
    lacks: ClassVar[str] = "no row has two different answers to train on"
    wanted: ClassVar[str] = "rows whose chosen and rejected differ within maxSeqLength"

    def __post_init__(self) -> None:
        if self.prompt_length >= self.max_length:
            raise StageError(
                ExitCode.BAD_REQUEST, "PromptLengthTooLong", "prompts leave no tokens for answers",
                where="method: maxPromptLength", actual=str(self.prompt_length),
                expected=f"less than maxSeqLength, {self.max_length}",
                fix=f"Use {self.max_length // 2}, or raise datasets.maxSeqLength.",
            )  # fmt: skip

    def identity(self) -> dict[str, str]:
        return {
            "maxSeqLength": str(self.max_length),
            "maxPromptLength": str(self.prompt_length),
            **self.renderer.identity(),
        }

    def write(self, source: LocatedSource, example_writer: ExampleWriter) -> str:
        reader = PairReader(source.spec)
        rows = itertools.islice(source.rows(), source.spec.max_examples)
        for some in tokenize_batches(rows, _AT_ONCE, lambda row: row.value):
            examples = [reader.examples(row) for row in some]
            tokens = self.renderer.many([example for pair in examples for example in pair])
            for row, (example, _), chosen, rejected in zip(
                some, examples, tokens[::2], tokens[1::2], strict=True
            ):
                whole = split_common_prompt(chosen, rejected)
                pair = whole.cut(
                    self.prompt_length, self.max_length - self.prompt_length, self.renderer.bos_token_id
                )
                length = len(whole.joined())
                if why := self._why_dropped(chosen, rejected, whole, pair):
                    example_writer.drop(row.place, length, why)
                    continue
                example_writer.keep(row.place, pair.joined(), length)
                cut = _cuts(example, whole, pair)
                example_writer.note(row.place, [*sorted({*chosen.notes, *rejected.notes}), *cut])
            self.read(len(some))
        return "Preference"

    def _why_dropped(
        self,
        chosen: TokenizedExample,
        rejected: TokenizedExample,
        whole: PreferencePair,
        pair: PreferencePair,
    ) -> str | None:
        if chosen.dropped or rejected.dropped or not len(whole.chosen) or not len(whole.rejected):
            return "an answer is blank"
        if not len(pair.prompt):
            return "no prompt"
        if np.array_equal(whole.chosen, whole.rejected):
            return "both answers are the same"
        if np.array_equal(pair.chosen, pair.rejected):
            return "both answers are the same within maxSeqLength"
        cut = [kept for kept, full in ((pair.chosen, whole.chosen), (pair.rejected, whole.rejected))
               if len(kept) < len(full)]  # fmt: skip
        if any(self.renderer.blank(kept) for kept in cut):
            return "an answer is blank within maxSeqLength"
        return None

    def groups(self, lengths: Int64Array) -> RaggedIndices:
        return RaggedIndices.single(len(lengths))

    def rows(self, tokens: Examples, members: RaggedIndices) -> PairRows:  # noqa: ARG002
        answers = self.max_length - self.prompt_length
        return PairRows(tokens=tokens, prompt_columns=self.width - answers, answer_columns=answers)


def read_chosen(source: DatasetSpec, store: StorageClient, scratch: Path) -> Iterator[Example]:
    """Yields the chosen example of every row, read one at a time."""
    reader = PairReader(source)
    rows = itertools.islice(open_source(source, store, scratch).rows(), source.max_examples)
    return (reader.examples(row)[0] for row in rows)


class PairReader:
    """Reads each row of a dataset as two examples of prompt and completion. Raises ``StageError`` 64 or 65."""

    def __init__(self, spec: DatasetSpec) -> None:
        wrong = [name for name in spec.columns if name not in _COLUMNS]
        if wrong:
            raise StageError(
                ExitCode.BAD_REQUEST, "UnknownColumn", "preference data has no such column",
                where=f"{spec.path}.columns", actual=wrong[0], expected=f"one of {', '.join(_COLUMNS)}",
                fix="Write the standard name first, then the dataset's column.",
            )  # fmt: skip
        if spec.format not in ("Auto", "Preference"):
            raise StageError(
                ExitCode.BAD_REQUEST, "FormatMismatch", "this method learns from pairs of answers",
                where=f"{spec.path}.format", actual=spec.format, expected="Preference", fix="Remove it.",
            )  # fmt: skip
        self._given = spec
        self._columns = {name: spec.columns.get(name, name) for name in _COLUMNS}
        self._spec = spec.model_copy(update={"format": "PromptCompletion", "columns": {}})
        self._schema: DatasetSchema | None = None

    def examples(self, row: Row) -> tuple[Example, Example]:
        """Returns the row's chosen and rejected examples."""
        if self._schema is None:
            require_columns(self._given, row)
        chosen, rejected = self._value(row, "chosen"), self._value(row, "rejected")
        prompt = row.value.get(self._columns["prompt"])
        if prompt is None:
            prompt, chosen, rejected = self._divided(row, chosen, rejected)
        elif isinstance(prompt, str) and isinstance(chosen, list):
            prompt = [{"role": "user", "content": prompt}]
        if isinstance(chosen, list) and isinstance(prompt, list):
            # Many datasets repeat the prompt in front of both answers.
            chosen, rejected = (
                answer[len(prompt) :] if answer[: len(prompt)] == prompt else answer
                for answer in (chosen, rejected)
            )
            self._check_turns(row, chosen, rejected)
        return self._read(row, prompt, chosen), self._read(row, prompt, rejected)

    def _value(self, row: Row, name: str) -> Any:
        column = self._columns[name]
        if column not in row.value:
            raise row.place.mismatch(
                f'there is no column "{column}"',
                "Name the columns: columns: {chosen: …, rejected: …} and, if there is one, {prompt: …}.",
                actual=f"columns {', '.join(list(row.value)[:12]) or 'none'}",
            )
        if row.value[column] is None:
            raise row.place.mismatch(
                f'"{column}" must be an answer', "Write both answers, or remove the row.", actual="null"
            )
        return row.value[column]

    def _divided(self, row: Row, chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
        """Returns prompt, chosen and rejected of a row without a prompt column."""
        if isinstance(chosen, str) and isinstance(rejected, str):
            ends = (at for at, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
            prompt = chosen[: next(ends, min(len(chosen), len(rejected)))]
            # The prompt ends with the last whole line or word that the answers share.
            prompt = prompt[: max(prompt.rfind("\n"), prompt.rfind(" ")) + 1]
            return prompt, chosen[len(prompt) :], rejected[len(prompt) :]
        if isinstance(chosen, list) and isinstance(rejected, list) and chosen[:-1] == rejected[:-1] != []:
            return chosen[:-1], chosen[-1:], rejected[-1:]
        raise row.place.mismatch(
            "chosen and rejected must be two texts, or two conversations that differ in the last turn",
            "Give the row a prompt, and chosen and rejected only what answers it.",
        )

    def _check_turns(self, row: Row, chosen: list[Any], rejected: list[Any]) -> None:
        for name, answer in (("chosen", chosen), ("rejected", rejected)):
            if len(answer) != 1:
                raise row.place.mismatch(
                    f'"{self._columns[name]}" must be one turn of the assistant after the prompt',
                    "Put the earlier turns into the prompt.",
                    actual=f"{len(answer)} messages",
                )
            if isinstance(answer[0], Mapping) and answer[0].get("weight") == 0:
                raise row.place.mismatch(
                    f'"{self._columns[name]}" has weight 0, but training uses both answers',
                    "Remove the weight, or the row.",
                )

    def _read(self, row: Row, prompt: Any, completion: Any) -> Example:
        plain: Mapping[str, Any] = {
            "prompt": prompt,
            "completion": completion,
            "tools": row.value.get("tools"),
        }
        as_pair = replace(row, value=plain)
        if self._schema is None:
            self._schema = DatasetSchema(self._spec, as_pair)
        return self._schema.example(as_pair)


def split_common_prompt(first: TokenizedExample, second: TokenizedExample) -> PreferencePair:
    """Returns the pair of a row's two examples.

    Answers begin at the first trained token of either example, or earlier where the examples differ, and end with the
    token that closes the turn.
    """
    start = min(_first_trained(first), _first_trained(second))
    shared = min(len(first), len(second), start)
    differ = np.flatnonzero(first.ids[:shared] != second.ids[:shared])
    start = int(differ[0]) if len(differ) else shared
    return PreferencePair(
        prompt=first.ids[:start],
        chosen=first.ids[start : _past_trained(first)],
        rejected=second.ids[start : _past_trained(second)],
    )


def _first_trained(tokens: TokenizedExample) -> int:
    return int(np.argmax(tokens.trained)) if tokens.trained.any() else len(tokens)


def _past_trained(tokens: TokenizedExample) -> int:
    found = np.flatnonzero(tokens.trained)
    return int(found[-1]) + 1 if len(found) else 0


def _cuts(example: Example, whole: PreferencePair, pair: PreferencePair) -> Iterator[str]:
    """Yields notes on what truncation removes."""
    if len(pair.chosen) < len(whole.chosen) or len(pair.rejected) < len(whole.rejected):
        yield notes.CUT_IN_ANSWER
    if len(pair.prompt) < len(whole.prompt):
        yield notes.CUT_PROMPT
        if isinstance(example, Conversation) and example.messages[0]["role"] == "system":
            yield notes.CUT_SYSTEM
