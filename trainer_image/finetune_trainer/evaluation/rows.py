"""Measurements of single rows: sums of the losses by row, and the records of both models (``evaluate/rows.jsonl``).

Arrays with a few numbers per row hold what is measured; a record is made when it is written.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from finetune_contract import EvaluatedRow, RowMeasures
from finetune_trainer.data.dataset import Dataset
from finetune_trainer.data.examples import Int64Array, file_and_row
from finetune_trainer.evaluation.questions import Question
from finetune_trainer.tokens.encoding import TokenizedExample

type Floats = npt.NDArray[np.float64]


class RowSums:
    """Sums of loss and metrics of each row of a dataset, as its sources count rows.

    Packing and the split of long texts do not change them: an example counts toward its row wherever it is laid out.
    """

    def __init__(self, data: Dataset, metrics: Sequence[str]) -> None:
        """``metrics``: names of the sums beside ``nats``, which is the loss."""
        members = data.rows.members
        self._numbers, self._starts = members.numbers, np.concatenate([[0], members.ends[:-1]])
        self._row_of = data.source_rows()
        count = int(self._row_of[-1]) + 1
        self.sums: Mapping[str, Floats] = {name: np.zeros(count) for name in ("nats", *metrics)}
        self.weights: Int64Array = np.zeros(count, np.int64)
        """Number of tokens or pairs in the sums of each row."""
        self._done = 0

    def add(self, examples: npt.NDArray[np.int32], parts: Mapping[str, Floats]) -> None:
        """Adds the next batch. Rows that only fill it have no example, so they count toward no row.

        ``examples`` is what ``Objective.examples`` returns; each array of ``parts`` has the same shape.
        """
        places = np.nonzero(examples)
        starts = self._starts[self._done : self._done + len(examples)]
        self._done += len(examples)
        rows = self._row_of[self._numbers[starts[places[0]] + examples[places] - 1]]
        np.add.at(self.weights, rows, 1)
        for name, sums in self.sums.items():
            np.add.at(sums, rows, parts[name][places])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKey:
    """A row of a set: its digests, and its number among the dataset's rows and among the questions."""

    digest: str
    content: str | None = None
    """Digest of what is asked before a chat template renders it. None if no answer is scored."""
    row: int | None = None
    """None if its loss is not measured."""
    question: int | None = None
    """Number of the question, or of the row of a benchmark. None if no answer is scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRows:
    """One model's measurements of the rows of one set."""

    losses: RowSums | None = None
    """By row of the dataset. None if no loss is measured."""
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By short name, the score of each question or of each row of a benchmark."""

    def of(self, key: RowKey) -> RowMeasures:
        """Returns the measurements of one row."""
        loss, tokens, scores = None, 0, dict[str, float]()
        if self.losses is not None and key.row is not None:
            sums = {name: float(each[key.row]) for name, each in self.losses.sums.items()}
            loss, tokens, scores = sums.pop("nats"), int(self.losses.weights[key.row]), sums
        if key.question is not None:
            scores |= {name: float(each[key.question]) for name, each in self.scores.items()}
        return RowMeasures(loss=loss, tokens=tokens, scores=scores)


def row_keys(data: Dataset | None, questions: Sequence[Question] = ()) -> Iterator[RowKey]:
    """Yields the rows of a dataset in their order, each with its question; then questions without such a row.

    A row that is not trained on because of its length may still be a question. ``data`` is None if only answers are
    scored.
    """
    by_place = {(each.place.number, each.place.row): number for number, each in enumerate(questions)}
    if data is not None:
        row_of = data.source_rows()
        starts = np.flatnonzero(np.diff(row_of, prepend=-1))
        for row, (place, begin, past) in enumerate(
            zip(_places(data), starts.tolist(), [*starts[1:].tolist(), len(row_of)], strict=True)
        ):
            number = by_place.pop(place, None)
            examples = [data.rows.tokens.read(example) for example in range(begin, past)]
            asked = _numbered(questions, number)
            yield RowKey(
                digest=_digest(examples, asked),
                content=asked.content if asked else None,
                row=row,
                question=number,
            )
    for number in by_place.values():
        asked = questions[number]
        yield RowKey(digest=_digest((), asked), content=asked.content, question=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSet:
    """A validation set, evaluation dataset or benchmark, with its rows."""

    kind: Literal["Validation", "Dataset", "Benchmark"]
    name: str
    keys: Iterable[RowKey]


def write_rows(
    path: Path,
    sets: Iterable[RowSet],
    *,
    baseline: Sequence[MeasuredRows] | None,
    tuned: Sequence[MeasuredRows],
) -> None:
    """Writes the records of all rows to a local file, one per line.

    ``baseline`` and ``tuned``: each model's measurements of each set. ``baseline`` is None if the base model is not
    measured.
    """
    with path.open("w", encoding="utf-8") as file:
        for at, rows in enumerate(sets):
            before, after = baseline[at] if baseline is not None else None, tuned[at]
            for key in rows.keys:
                row = EvaluatedRow(
                    kind=rows.kind,
                    name=rows.name,
                    digest=key.digest,
                    content=key.content,
                    baseline=before.of(key) if before is not None else None,
                    tuned=after.of(key),
                )
                file.write(f"{row.to_json()}\n")


def _places(data: Dataset) -> Iterator[tuple[int, int]]:
    """Yields number of the file and number in the file of each row."""
    for piece in data.pieces:
        index = piece.source.index
        first = piece.chosen[np.unique(index.owners(piece.chosen))]
        yield from file_and_row(index.place[first])


def _numbered(questions: Sequence[Question], number: int | None) -> Question | None:
    return None if number is None else questions[number]


def _digest(examples: Iterable[TokenizedExample], question: Question | None) -> str:
    """Returns a digest of a row's token ids and masks, and of its question's prompt and reference."""
    digest = hashlib.sha256()
    for each in examples:
        digest.update(f"example {len(each)}\n".encode())
        digest.update(each.ids.astype("<i4").tobytes() + each.trained.tobytes())
    if question is not None:
        digest.update(f"question {len(question.prompt)}\n".encode())
        digest.update(np.asarray(question.prompt, "<i4").tobytes())
        digest.update(question.reference.encode(errors="surrogatepass"))
    return digest.hexdigest()
