"""Tokenized examples on disk, read by number, and an index with a few dozen bytes per row in memory."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from finetune_contract import UnreadValue
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.storage import name_of
from finetune_trainer.tokens.encoding import TokenizedExample

Int64Array = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
#: Odd multipliers as in splitmix64. They mix the content and the position of each of a row's examples into the digest.
_MIX, _MIX_PLACE = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x9E3779B97F4A7C15)
#: Arrays of an index that are written row by row.
_DIGESTS = ("content", "prompt")
_NUMBERS = ("trained", "whole", "place", "said_place", "said_what", "dropped_whole")
#: Bits of the row's number in a place, which is a number that no other row of the source has: file and row.
_ROW_BITS = 40
#: Number of tokens scanned at a time, which takes a few megabytes.
_SCANNED = 1 << 18


class Examples(Protocol):
    """Examples by number, from 0."""

    def __len__(self) -> int: ...

    def lengths(self) -> Int64Array: ...

    def read(self, index: int) -> TokenizedExample: ...


class TrainedRuns(NamedTuple):
    """Runs of trained tokens: the number of each one's example, and where the run begins and ends in ``ids``."""

    ids: npt.NDArray[np.int32]
    """Token ids of consecutive examples; negative numbers for tokens that are not trained."""
    start: int
    """Position of the first of the tokens in the file."""
    examples: Int64Array
    begins: Int64Array
    ends: Int64Array


class TokenFile:
    """Examples of any length in a file that is first written, then read. Only the offsets are held in memory."""

    def __init__(self, path: Path, written: Int64Array | None = None) -> None:
        """Opens a complete file, given the ends of its examples in ``written``; creates a new one if that is None."""
        self.path = path
        self._file: IO[bytes] | None = path.open("wb") if written is None else None
        self._ends = array("q", b"" if written is None else written.tobytes())
        self._words: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._ends)

    def append(self, tokens: TokenizedExample) -> None:
        # One word per token: its id, encoded as -1 - id if it is trained.
        words = np.where(tokens.trained, -1 - tokens.ids, tokens.ids).astype("<i4", copy=False)
        assert self._file is not None, "already written completely"
        self._file.write(words.tobytes())
        self._ends.append((self._ends[-1] if self._ends else 0) + len(words))

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def ends(self) -> Int64Array:
        return np.asarray(self._ends, np.int64)

    def lengths(self) -> Int64Array:
        return np.diff(self.ends(), prepend=0)

    def first_from(self, limit: int) -> int | None:
        """Returns the number of the first example with an id of ``limit`` or more; None if there is none."""
        words = self._mapped()
        for start in range(0, len(words), _SCANNED):
            part = words[start : start + _SCANNED]
            found = np.flatnonzero((part >= limit) | (part < -limit))
            if len(found):
                return int(np.searchsorted(self.ends(), start + found[0], side="right"))
        return None

    def trained_runs(self) -> Iterator[TrainedRuns]:
        """Yields the runs of trained tokens, those of some examples at a time.

        The file is read, not mapped, as its pages would count as memory of the process.
        """
        self.finish()
        ends, first = self.ends(), 0
        while first < len(ends):
            start = int(ends[first - 1]) if first else 0
            past = max(first + 1, int(np.searchsorted(ends, start + _SCANNED, side="right")))
            words = np.fromfile(self.path, "<i4", int(ends[past - 1]) - start, offset=4 * start)
            trained = words < 0
            fresh = np.zeros(len(trained) + 1, np.bool_)
            fresh[ends[first:past] - start] = fresh[0] = True
            beside = np.concatenate([[False], trained, [False]])
            begins = np.flatnonzero(trained & (fresh[:-1] | ~beside[:-2]))
            yield TrainedRuns(
                ids=-1 - words,
                start=start,
                examples=np.searchsorted(ends, start + begins, side="right"),
                begins=begins,
                ends=1 + np.flatnonzero(trained & (fresh[1:] | ~beside[2:])),
            )
            first = past

    def _mapped(self) -> npt.NDArray[np.int32]:
        if self._words is None:
            self.finish()
            self._words = np.memmap(self.path, "<i4", mode="r")
        return self._words

    def read(self, index: int) -> TokenizedExample:
        words = np.asarray(self._mapped()[self._ends[index - 1] if index else 0 : self._ends[index]])
        trained = words < 0
        return TokenizedExample(ids=np.where(trained, -1 - words, words).astype(np.int32), trained=trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatenatedExamples:
    """Selected examples of several files, numbered consecutively in the order of the files."""

    parts: Sequence[tuple[TokenFile, Int64Array]]

    def __len__(self) -> int:
        return sum(len(chosen) for _, chosen in self.parts)

    def lengths(self) -> Int64Array:
        return np.concatenate([file.lengths()[chosen] for file, chosen in self.parts])

    def read(self, index: int) -> TokenizedExample:
        for file, chosen in self.parts:
            if index < len(chosen):
                return file.read(int(chosen[index]))
            index -= len(chosen)
        raise IndexError(index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleIndex:
    """Metadata of a source's rows.

    Arrays from ``ends`` to ``place`` have an element per kept example, the others one per dropped row or note.
    """

    ends: Int64Array
    """End of the example in the token file, in tokens."""
    trained: Int64Array
    """Number of tokens that count toward the loss."""
    whole: Int64Array
    """Number of tokens before truncation."""
    content: Digests
    """Digest of ids and mask, equal for equal rows."""
    prompt: Digests
    """Digest of the tokens before the first trained one; 0 if there are none."""
    place: Int64Array
    """The example's row (``file_and_row``). A long text is split into several consecutive examples of one row."""
    said_place: Int64Array
    said_what: Int64Array
    """Index into ``kinds``."""
    dropped_whole: Int64Array
    """Number of tokens of the dropped row; -1 for a note on a row that is kept."""
    files: tuple[str, ...]
    kinds: tuple[str, ...]
    """Reasons to drop a row, and notes on others (:mod:`finetune_trainer.tokens.notes`)."""
    unread: tuple[str, ...] = ()
    """JSON of each ``UnreadValue`` of the source."""
    unread_more: int = 0
    """Number of values that nothing reads under further names."""

    def unread_values(self) -> list[UnreadValue]:
        return [UnreadValue.model_validate_json(value) for value in self.unread]

    def places(self, kept: Int64Array) -> list[str]:
        """Returns the locations of examples: ``row 41``, or ``b.jsonl row 2`` if there are several files."""
        return self._named(self.place[kept])

    def said_places(self, which: Int64Array) -> list[str]:
        return self._named(self.said_place[which])

    def dropped(self) -> dict[str, Int64Array]:
        """Returns the numbers of the dropped rows by reason."""
        return self._by_kind(self.dropped_whole >= 0)

    def noted(self, kept: Int64Array) -> dict[str, Int64Array]:
        """Returns the numbers of the notes on rows of these examples by kind, in ascending order."""
        return self._by_kind((self.dropped_whole < 0) & np.isin(self.said_place, self.place[kept]))

    def _by_kind(self, wanted: npt.NDArray[np.bool_]) -> dict[str, Int64Array]:
        numbers = (
            (kind, np.flatnonzero(wanted & (self.said_what == n))) for n, kind in enumerate(self.kinds)
        )
        return {kind: which for kind, which in numbers if len(which)}

    def owners(self, kept: Int64Array) -> Int64Array:
        """Returns, for each example, the position in ``kept`` of the first example of its row."""
        rows = self.place[kept]
        begins = np.ones(len(kept), np.bool_)
        begins[1:] = rows[1:] != rows[:-1]
        owners: Int64Array = np.flatnonzero(begins)[np.cumsum(begins) - 1]
        return owners

    def row_contents(self, kept: Int64Array) -> tuple[Int64Array, Digests]:
        """Returns the position in ``kept`` of each row's first example, and a digest of all examples of the row.

        Digests of different sources can be compared.
        """
        owners = self.owners(kept)
        first = np.unique(owners)
        if len(first) == len(kept):
            mixed = self.content[kept] * _MIX
            return first, mixed ^ (mixed >> np.uint64(29))
        place = (np.arange(len(kept)) - owners).astype(np.uint64)
        mixed = (self.content[kept] + place * _MIX_PLACE) * _MIX
        return first, np.add.reduceat(mixed ^ (mixed >> np.uint64(29)), first)

    def _named(self, places: Int64Array) -> list[str]:
        many = len(self.files) > 1
        return [
            f"{name_of(self.files[file])} row {row}" if many else f"row {row}"
            for file, row in file_and_row(places)
        ]

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path, allow_pickle=False) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
        for name in ("files", "kinds", "unread"):
            arrays[name] = tuple(arrays[name].astype(str).tolist())
        arrays["unread_more"] = int(arrays["unread_more"])
        return cls(**arrays)


class ExampleWriter:
    def __init__(self, path: Path) -> None:
        self.tokens = TokenFile(path)
        self._arrays = {name: array("q") for name in _NUMBERS} | {name: array("Q") for name in _DIGESTS}
        self._files: dict[int, str] = {}
        self._kinds: dict[str, int] = {}
        self._unread: tuple[Sequence[UnreadValue], int] = ((), 0)
        self._all = hashlib.sha256()

    def keep(self, place: RowLocation, tokens: TokenizedExample, whole: int) -> None:
        """Writes an example. ``whole`` is its number of tokens before truncation."""
        data = tokens.ids.tobytes() + tokens.trained.tobytes()
        self._all.update(data)
        first = int(tokens.trained.argmax())
        self.tokens.append(tokens)
        self._add(
            place=self._key(place), whole=whole, content=_digest(data),
            trained=int(np.count_nonzero(tokens.trained[1:])),
            prompt=_digest(tokens.ids[:first].tobytes()) if first else 0,
        )  # fmt: skip

    def drop(self, place: RowLocation, whole: int, why: str) -> None:
        """Records a row of ``whole`` tokens that is not used, with the reason."""
        self._say(place, why, whole)

    def note(self, place: RowLocation, notes: Sequence[str]) -> None:
        """Adds notes to a row. Every kind of note occurs once in ``notes``."""
        for what in notes:
            self._say(place, what, -1)

    def _say(self, place: RowLocation, kind: str, dropped_whole: int) -> None:
        what = self._kinds.setdefault(kind, len(self._kinds))
        self._add(said_place=self._key(place), said_what=what, dropped_whole=dropped_whole)

    def unread(self, values: Sequence[UnreadValue], more: int) -> None:
        """Records what the source contains and nothing reads; ``more`` is the number of values under further names."""
        self._unread = values, more

    def _key(self, place: RowLocation) -> int:
        self._files.setdefault(place.number, place.file)
        return place.number << _ROW_BITS | place.row

    def _add(self, **values: int) -> None:
        for name, value in values.items():
            self._arrays[name].append(value)

    def finish(self) -> tuple[TokenFile, ExampleIndex, str]:
        """Ends writing and returns the examples, their index, and the SHA-256 of all tokens and masks in hexadecimal.

        Equal digests mean equal training.
        """
        self.tokens.finish()
        # A file without any row in the index has no name here.
        names = tuple(self._files.get(number, "") for number in range(max(self._files, default=-1) + 1))
        arrays: dict[str, Any] = {name: np.asarray(values) for name, values in self._arrays.items()}
        index = ExampleIndex(
            ends=self.tokens.ends(),
            **arrays,
            files=names,
            kinds=tuple(self._kinds),
            unread=tuple(value.to_json() for value in self._unread[0]),
            unread_more=self._unread[1],
        )
        return self.tokens, index, self._all.hexdigest()


def file_and_row(places: Int64Array) -> Iterator[tuple[int, int]]:
    """Yields the file's number of each place, and the row's number in the file."""
    return zip((places >> _ROW_BITS).tolist(), (places & ((1 << _ROW_BITS) - 1)).tolist(), strict=True)


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
