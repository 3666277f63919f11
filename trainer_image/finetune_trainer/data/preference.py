"""Preference pairs: a better and a worse answer to one prompt.

A row is read as two examples of prompt and completion (:mod:`.pairs`), which are tokenized like others and then divided
into the prompt and the two answers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from finetune_contract import ExitCode
from finetune_trainer.data.examples import Examples, ExampleWriter, Int64Array
from finetune_trainer.data.layout import Batch, RaggedIndices
from finetune_trainer.data.pairs import PairSchema
from finetune_trainer.data.schema import DatasetSchema
from finetune_trainer.errors import StageError
from finetune_trainer.process.stage_progress import ignore
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.example import Conversation, Example
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer


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
        chosen, rejected = self.chosen[:answer_length], self.rejected[:answer_length]
        return PreferencePair(prompt=prompt, chosen=chosen, rejected=rejected)

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
    schema_class: ClassVar[type[DatasetSchema]] = PairSchema
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

    def write_row(self, example: Example, example_writer: ExampleWriter, *tokens: TokenizedExample) -> None:
        chosen, rejected = tokens
        whole = split_common_prompt(chosen, rejected)
        pair = whole.cut(self.prompt_length, self._answer_length, self.renderer.bos_token_id)
        length = len(whole.joined())
        if why := self._why_dropped(chosen, rejected, whole, pair):
            example_writer.drop(example.place, length, why)
            return
        example_writer.keep(example.place, pair.joined(), length)
        cut = _cuts(example, whole, pair)
        example_writer.note(example.place, [*sorted({*chosen.notes, *rejected.notes}), *cut])

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
        answers = self._answer_length
        return PairRows(tokens=tokens, prompt_columns=self.width - answers, answer_columns=answers)

    @property
    def _answer_length(self) -> int:
        return self.max_length - self.prompt_length


def split_common_prompt(first: TokenizedExample, second: TokenizedExample) -> PreferencePair:
    """Returns the pair of a row's two examples.

    Answers begin at the first trained token of either example, or earlier where the examples differ, and end with the
    token that closes the turn.
    """
    (start, past), (other_start, other_past) = (_trained(tokens) for tokens in (first, second))
    shared = min(len(first), len(second), start, other_start)
    differ = np.flatnonzero(first.ids[:shared] != second.ids[:shared])
    start = int(differ[0]) if len(differ) else shared
    return PreferencePair(
        prompt=first.ids[:start],
        chosen=first.ids[start:past],
        rejected=second.ids[start:other_past],
    )


def _trained(tokens: TokenizedExample) -> tuple[int, int]:
    """Returns the positions of the first trained token and past the last one; (length, 0) without any."""
    numbers = np.flatnonzero(tokens.trained)
    return (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (len(tokens), 0)


def _cuts(example: Example, whole: PreferencePair, pair: PreferencePair) -> Iterator[str]:
    """Yields notes on what truncation removes."""
    if len(pair.chosen) < len(whole.chosen) or len(pair.rejected) < len(whole.rejected):
        yield Note.CUT_IN_ANSWER
    if len(pair.prompt) < len(whole.prompt):
        yield Note.CUT_PROMPT
        if isinstance(example, Conversation) and example.messages[0]["role"] == "system":
            yield Note.CUT_SYSTEM
