"""Combines prepared sources: the mixture to train on, the validation sets, and rows held out from training. Pure."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from finetune_contract import DatasetReport, ExitCode, SplitSpec
from finetune_trainer.data.batches import BatchRows, MixtureComponent, shares
from finetune_trainer.data.examples import ConcatenatedExamples, Digests, Examples, Int64Array
from finetune_trainer.data.layout import RaggedIndices
from finetune_trainer.data.prepare import PreparedSource
from finetune_trainer.errors import StageError

#: Name of the dataset of rows that are held out from training.
HELD_BACK = "held-back"
#: Reason for rows that ``dedupe: Exact`` leaves out.
REPEATED = "equal to an earlier row of the training sources"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSubset:
    """Some or all examples of one source, in ascending order."""

    source: PreparedSource
    chosen: Int64Array
    counts_dropped: bool = True
    """Whether the source's dropped rows count here. If a source is split in two, they count in one part only."""
    repeated: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """First examples of the rows that are left out because they equal an earlier row of the training sources."""

    @classmethod
    def all_of(cls, source: PreparedSource) -> "SourceSubset":
        return cls(source=source, chosen=np.arange(len(source)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Rows for training or validation, and the sources they come from."""

    name: str
    pieces: Sequence[SourceSubset]
    rows: BatchRows
    parts: Sequence[MixtureComponent]
    """Parts of the rows: one for each piece if the pieces are mixed by weight, otherwise a single one."""
    reports: Sequence[DatasetReport]
    digest: str
    """Digest of the content. Equal digests mean equal training and evaluation."""

    @property
    def examples(self) -> int:
        """Number of the sources' rows in the dataset."""
        return sum(report.rows for report in self.reports)

    @property
    def epoch(self) -> int:
        return sum(part.shown for part in self.parts)

    def source_rows(self) -> Int64Array:
        """Returns the number of each example's row among the sources' rows, from 0.

        A long text is split into several consecutive examples of one row.
        """
        starts = []
        for piece in self.pieces:
            owners = piece.source.index.owners(piece.chosen)
            starts.append(owners == np.arange(len(owners)))
        return np.cumsum(np.concatenate(starts)) - 1


class RowLayout(Protocol):
    """Layout of examples in the rows of a batch."""

    def groups(self, lengths: Int64Array) -> RaggedIndices:
        """Returns the numbers of the examples in each row, given the examples' lengths."""

    def rows(self, tokens: Examples, members: RaggedIndices) -> BatchRows: ...


def assemble(name: str, pieces: Sequence[SourceSubset], form: RowLayout) -> Dataset:
    """Lays out the pieces as a dataset.

    Pieces with weights are laid out separately and mixed by weight; others are laid out together, in order.
    """
    examples = ConcatenatedExamples(parts=[(piece.source.tokens, piece.chosen) for piece in pieces])
    weights = [piece.source.spec.weight for piece in pieces]
    if len(pieces) > 1 and all(weights):
        groups = [form.groups(piece.source.tokens.lengths()[piece.chosen]) for piece in pieces]
        members = RaggedIndices.joined(groups)
        shown = shares(len(members), [weight for weight in weights if weight])
        parts = [
            MixtureComponent(rows=len(group), shown=each) for group, each in zip(groups, shown, strict=True)
        ]
    else:
        members = form.groups(examples.lengths())
        parts = [MixtureComponent(rows=len(members), shown=len(members))]
    own = parts if len(parts) == len(pieces) else [None] * len(pieces)
    return Dataset(
        name=name,
        pieces=pieces,
        rows=form.rows(examples, members),
        parts=parts,
        reports=[report_of(piece, part) for piece, part in zip(pieces, own, strict=True)],
        digest=_digest(pieces),
    )


def report_of(piece: SourceSubset, part: MixtureComponent | None) -> DatasetReport:
    """Returns the counts of a piece. ``part`` is its part of the mixture; None if it has none of its own."""
    source, index, chosen = piece.source, piece.source.index, piece.chosen
    lengths = source.tokens.lengths()[chosen]
    rows, contents = index.row_contents(chosen)
    dropped = {why: len(which) for why, which in index.dropped().items()} if piece.counts_dropped else {}
    if len(piece.repeated) and piece.counts_dropped:
        dropped[REPEATED] = len(piece.repeated)
    return DatasetReport(
        path=source.spec.path,
        name=source.spec.name,
        uri=source.uri,
        revision=source.revision,
        format=source.format,
        rows=len(rows),
        tokens=int(lengths.sum()),
        trained_tokens=int(index.trained[chosen].sum()),
        truncated_rows=int((index.whole[chosen] > lengths).sum()),
        dropped_rows=sum(dropped.values()),
        drop_reasons=dropped,
        duplicate_rows=len(rows) - len(np.unique(contents)),
        weight=source.spec.weight,
        sequences=part.rows if part else None,
        epoch_sequences=part.shown if part else None,
    )


def first_occurrences(pieces: Sequence[SourceSubset]) -> list[SourceSubset]:
    """Returns the pieces without rows that equal an earlier one of any piece: same tokens and same trained part.

    Raises ``StageError`` 65 for a source of which no row is left.
    """
    seen = np.zeros(0, np.uint64)
    kept = []
    for piece in pieces:
        index, chosen = piece.source.index, piece.chosen
        first, contents = index.row_contents(chosen)
        again = np.isin(contents, seen)
        again[repeated(contents)] = True
        if again.all():
            raise StageError(
                ExitCode.BAD_DATA,
                "DatasetHasNothingToTrain",
                "every row equals a row of an earlier training source, and datasets.dedupe is Exact",
                where=piece.source.spec.path,
                actual=f"{len(first)} rows",
                expected="at least one row that no earlier source has",
                fix="Remove the source, or remove datasets.dedupe.",
            )
        seen = np.union1d(seen, contents)
        left = chosen[~np.isin(index.owners(chosen), first[again])]
        kept.append(replace(piece, chosen=left, repeated=chosen[first[again]]))
    return kept


def repeated(content: Digests) -> Int64Array:
    """Returns the numbers of rows that equal an earlier row, in ascending order."""
    first = np.unique(content, return_index=True)[1]
    return np.setdiff1d(np.arange(len(content)), first)


def split_validation(
    pieces: Sequence[SourceSubset], split: SplitSpec
) -> tuple[list[SourceSubset], list[SourceSubset]]:
    """Splits each piece into rows for training and rows held out for validation, in the same proportion.

    At most ``split.max_examples`` rows of a piece are held out, and the rest is trained on. Each side has at least one
    row. The choice is a function of seed and content, by rank over the whole piece: rows with the same content are on
    the same side, and the order of the rows does not matter. If even the rows of one content are more than
    ``max_examples``, the first of them are measured. For a text that is split into several examples, the first one
    determines the side of all. Raises ``StageError`` 65 if all rows of a piece have the same content.
    """
    kept, held = [], []
    for piece in pieces:
        index, chosen = piece.source.index, piece.chosen
        owners = index.owners(chosen)
        content = index.content[chosen]
        if len(np.unique(content[owners])) < 2:
            raise StageError(
                ExitCode.BAD_DATA,
                "SplitImpossible",
                "the rows cannot be split into training and validation",
                where=piece.source.spec.path,
                actual="only rows with the same content",
                expected="at least two different rows",
                fix="Name rows in datasets.validation instead of splitFromTrain.",
            )
        rows = np.unique(owners)
        rank = _mixed(content, split.seed)
        out = rank <= _highest_rank(rank[rows], split)
        kept.append(replace(piece, chosen=chosen[~out[owners]]))
        first = np.flatnonzero(out & (owners == np.arange(len(owners))))[: split.max_examples]
        held.append(replace(piece, chosen=chosen[np.isin(owners, first)], counts_dropped=False))
    return kept, held


def _highest_rank(ranks: Digests, split: SplitSpec) -> np.uint64:
    """Returns the highest rank of a row that is held out; rows with the same content have the same rank."""
    different, counts = np.unique(ranks, return_counts=True)
    rows = np.cumsum(counts)
    wanted = max(1, math.floor(round(split.fraction * len(ranks), 9)))
    last = int(np.searchsorted(rows, wanted))
    if split.max_examples is not None:
        last = min(last, int(np.searchsorted(rows, split.max_examples, side="right")) - 1)
    highest: np.uint64 = different[min(max(last, 0), len(different) - 2)]
    return highest


def _mixed(content: Digests, seed: int) -> Digests:
    """Mixes content and seed with splitmix64's finalizer, a bijection, so different contents stay different."""
    z = content ^ np.random.SeedSequence(seed).generate_state(1, np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Digests = z ^ (z >> np.uint64(31))
    return mixed


def digest_of(several: Sequence[str]) -> str | None:
    """Returns a digest of ordered digests: a single one itself, None if there are none."""
    if len(several) <= 1:
        return several[0] if several else None
    return hashlib.sha256("".join(several).encode()).hexdigest()


def _digest(pieces: Sequence[SourceSubset]) -> str:
    if len(pieces) == 1 and len(pieces[0].chosen) == len(pieces[0].source):
        return pieces[0].source.digest
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece.source.digest.encode())
        digest.update(piece.source.index.content[piece.chosen].tobytes())
    return digest.hexdigest()
