"""The metrics of single rows: which there are, and the values of each run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from finetune_contract import EvaluatedRow, RowMeasures
from finetune_operator.results.comparison.bootstrap import Column
from finetune_operator.results.comparison.pairing import CommonRows
from finetune_operator.results.errors import NotComparableError

LOSS = "loss"
#: Maximum number of metrics; a job has at most 32 sets, most with one or two.
_MOST_METRICS = 256
#: Values beyond it count as infinite, so that no sum overflows.
_LARGEST = 1e100

type Kind = Literal["Validation", "Dataset", "Benchmark"]
type Named = tuple[str, Sequence[tuple[float, float]]]
"""Name of a model, with its value and weight of each row that has a value."""
_KINDS: Sequence[Kind] = ("Validation", "Dataset", "Benchmark")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowMetric:
    """A metric of the rows of one set, or of all validation sets together."""

    kind: Kind
    set_name: str | None
    """None: all sets of the kind."""
    score: str
    """``loss``, or the short name of a score."""

    @property
    def name(self) -> str:
        """Name as in gates."""
        return self.score if self.set_name is None else f"{self.set_name}/{self.score}"

    def selects(self, row: EvaluatedRow) -> bool:
        """Whether the row belongs to the sets of this metric."""
        return row.kind == self.kind and self.set_name in (None, row.name)

    def of(self, measures: RowMeasures | None) -> tuple[float, float] | None:
        """Returns value and weight of a row: a sum over tokens and their number, or a score and 1. None if unknown."""
        if measures is None:
            return None
        if self.score == LOSS:
            return None if measures.loss is None or not measures.tokens else (measures.loss, measures.tokens)
        value = measures.scores.get(self.score)
        return None if value is None else (value, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRows:
    """Value and weight of one metric on the rows that all runs have in common."""

    metric: RowMetric
    pairs: bool
    """Whether the rows are preference pairs."""
    contents: Sequence[str]
    """Digest of each row that has a value in any run."""
    tuned: Mapping[str, Sequence[tuple[float, float]]]
    """By label of the run, without runs that do not measure the metric."""
    baseline: Mapping[str, Sequence[tuple[float, float]]]
    """The same of the base model."""
    unlike: Mapping[str, int]
    """By label of the run, number of rows whose digest is not the first run's: their tokens are others."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.contents)

    @property
    def different(self) -> int:
        """Number of rows with different content."""
        return len(set(self.contents))

    def from_baseline(self, label: str) -> Column | str:
        """Returns the differences of a run from its base model; the reason in words if there are none."""
        return self._column((f"{label}'s base model", self.baseline[label]), (label, self.tuned[label]))

    def from_reference(self, reference: str, label: str) -> Column | str:
        """Returns the differences of a run from the first one; the reason in words if there are none."""
        if self.metric.score == LOSS and (unlike := self.unlike[label]):
            return (
                f"the tokens of {unlike:,} row{'s' if unlike > 1 else ''} differ: "
                "another tokenizer, chat template or maxSeqLength"
            )
        return self._column((reference, self.tuned[reference]), (label, self.tuned[label]))

    def _column(self, first: Named, second: Named) -> Column | str:
        # A model that lacks values chooses the rows: those that it got wrong may be missing.
        lacking = [
            f"{self.rows - len(values):,} of {name}'s {self.rows:,} rows have no value"
            for name, values in (first, second)
            if len(values) < self.rows
        ]
        if lacking:
            return " and ".join(lacking)
        before, after = first[1], second[1]
        numbers = [value for value, _ in (*before, *after)]
        if unusable := sum(1 for value in numbers if not abs(value) < _LARGEST):
            return f"{unusable:,} value{'s are' if unusable > 1 else ' is'} not a finite number"
        if any(a[1] != b[1] for a, b in zip(before, after, strict=True)):
            return "rows have different numbers of tokens: the tokenizer or the chat template is another one"
        return Column(
            differences=[b[0] - a[0] for a, b in zip(before, after, strict=True)],
            weights=[weight for _, weight in before],
            contents=self.contents,
            score=self.metric.score != LOSS and all(0 <= value <= 1 for value in numbers),
        )


def mean(values: Sequence[tuple[float, float]]) -> float | None:
    """Returns the weighted mean; None without values."""
    weight = sum(each for _, each in values)
    return sum(value for value, _ in values) / weight if weight else None


def row_metrics(common: CommonRows) -> list[RowMetric]:
    """Returns the metrics of the rows: of all validation sets, of each, then of datasets and benchmarks.

    Raises:
        NotComparableError: there are more metrics than any job can have.
    """
    scores: dict[tuple[Kind, str], dict[str, None]] = {}
    for runs in common.rows:
        names = scores.setdefault((runs[0].kind, runs[0].name), {})
        for row in runs:
            if row.tuned.loss is not None and row.tuned.tokens:
                names[LOSS] = None
            names.update(dict.fromkeys(row.tuned.scores))
        if len(names) > _MOST_METRICS:
            break
    validation = [name for kind, name in scores if kind == "Validation"]
    together = dict.fromkeys(chain(*(scores["Validation", name] for name in validation)))
    found = [RowMetric(kind="Validation", set_name=None, score=score) for score in together]
    found += [
        RowMetric(kind=kind, set_name=name, score=score)
        for (kind, name), names in sorted(scores.items(), key=lambda item: _KINDS.index(item[0][0]))
        for score in names
        if kind != "Validation" or (len(validation) > 1 and score == LOSS)
    ]
    if len(found) > _MOST_METRICS:
        raise NotComparableError(
            f"The rows of the evaluations have more than {_MOST_METRICS} metrics.",
            fix="Check who has written evaluate/rows.jsonl; repeat the evaluation.",
        )
    return found


def metric_rows(metric: RowMetric, common: CommonRows, labels: Sequence[str]) -> MetricRows:
    """Returns the values of one metric. ``labels``: of the runs, in the order of ``common.rows``."""
    rows = [each for each in common.rows if metric.selects(each[0])]
    tuned = {label: [metric.of(each[at].tuned) for each in rows] for at, label in enumerate(labels)}
    base = {label: [metric.of(each[at].baseline) for each in rows] for at, label in enumerate(labels)}
    measuring = [label for label in labels if any(tuned[label])]
    kept = [
        at
        for at in range(len(rows))
        if any(each[at] for label in labels for each in (tuned[label], base[label]))
    ]

    def known(values: Sequence[tuple[float, float] | None]) -> list[tuple[float, float]]:
        return [value for at in kept if (value := values[at])]

    return MetricRows(
        metric=metric,
        pairs=any("reward_accuracy" in row.tuned.scores for each in rows for row in each),
        contents=[rows[at][0].digest for at in kept],
        tuned={label: known(tuned[label]) for label in measuring},
        baseline={label: known(base[label]) for label in measuring if any(base[label])},
        unlike={
            label: sum(rows[place][at].digest != rows[place][0].digest for place in kept)
            for at, label in enumerate(labels)
        },
    )
