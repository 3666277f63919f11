"""Finds the evaluation rows that several runs have in common."""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from finetune_contract import EvaluatedRow
from finetune_operator.results.comparison.model import SetRows
from finetune_operator.results.errors import NotComparableError

#: Digits of a digest that a user sees, and rows of a set of which they are shown.
_DIGITS, _FIRST = 12, 3
#: Maximum number of sets: a job has at most 8 validation sets, 8 datasets and 16 benchmarks.
_MOST_SETS = 64

type Rows = Sequence[EvaluatedRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonRows:
    """Rows that all runs have."""

    rows: Sequence[tuple[EvaluatedRow, ...]]
    """One tuple for each row, in the order of the first run: its measurements in each run."""
    sets: Sequence[SetRows]
    """The rows by set, in the order of their first appearance."""

    @property
    def complete(self) -> bool:
        """Whether no run has other rows."""
        return not any(each.others for each in self.sets)


def common_rows(files: Mapping[str, Rows]) -> CommonRows:
    """Returns the rows that all runs have. ``files``: rows by the run's label, the reference first.

    Rows correspond if kind and digest are equal, or else their content, which is known of rows with scores; rows that
    occur several times in their order. A row of the same set is preferred to one of a set with another name.

    Raises:
        NotComparableError: the files name more sets than any job can have.
    """
    chosen = in_all(list(files.values()), _ROW_KEYS)
    rows = [
        tuple(file[place] for file, place in zip(files.values(), places, strict=True)) for places in chosen
    ]
    used = {label: {places[position] for places in chosen} for position, label in enumerate(files)}
    return CommonRows(rows=rows, sets=_sets(files, used, rows))


_ROW_KEYS: Sequence[Callable[[EvaluatedRow], Hashable]] = (
    lambda row: (row.kind, row.name, row.digest),
    lambda row: (row.kind, row.digest),
    lambda row: row.content and (row.kind, row.name, row.content),
    lambda row: row.content and (row.kind, row.content),
)


def in_all[T](files: Sequence[Sequence[T]], keys: Sequence[Callable[[T], Hashable]]) -> list[tuple[int, ...]]:
    """Returns the items that all files have, in the order of the first file, as their places in each file.

    Items correspond if one of their ``keys`` is equal, the first ones before the others; None is equal to nothing.
    Several items with an equal key correspond in their order.
    """
    first, *others = files
    partners = [range(len(first)), *(_partners(first, other, keys) for other in others)]
    known = (tuple(each for each in places if each is not None) for places in zip(*partners, strict=True))
    return [places for places in known if len(places) == len(files)]


def _partners[T](
    first: Sequence[T], second: Sequence[T], keys: Sequence[Callable[[T], Hashable]]
) -> Sequence[int | None]:
    """Returns the position in ``second`` of each item of ``first``; None for one that it does not have."""
    partners: list[int | None] = [None] * len(first)
    free = dict.fromkeys(range(len(second)))
    for key in keys:
        places: defaultdict[Hashable, deque[int]] = defaultdict(deque)
        for place in free:
            if (wanted := key(second[place])) is not None:
                places[wanted].append(place)
        for number, row in enumerate(first):
            if partners[number] is None and (found := places.get(key(row))):
                partners[number] = place = found.popleft()
                del free[place]
    return partners


def _sets(
    files: Mapping[str, Rows], used: Mapping[str, set[int]], rows: Sequence[tuple[EvaluatedRow, ...]]
) -> list[SetRows]:
    names = dict.fromkeys((row.kind, row.name) for file in files.values() for row in file)
    if len(names) > _MOST_SETS:
        raise NotComparableError(
            f"The rows of the evaluations belong to {len(names):,} sets, and a job has at most {_MOST_SETS}.",
            fix="Check who has written evaluate/rows.jsonl; repeat the evaluation.",
        )
    common = dict.fromkeys(names, 0)
    for row, *_ in rows:
        common[row.kind, row.name] += 1
    others: defaultdict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)
    for label, file in files.items():
        for place, row in enumerate(file):
            if place not in used[label]:
                others[row.kind, row.name].setdefault(label, []).append(row.digest[:_DIGITS])
    return [
        SetRows(
            kind=kind,
            name=name,
            common=count,
            others={label: len(digests) for label, digests in others[kind, name].items()},
            first={label: digests[:_FIRST] for label, digests in others[kind, name].items()},
        )
        for (kind, name), count in common.items()
        if count or others[kind, name]
    ]
