"""Compares runs by their records; the first one is the reference."""

from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase

from finetune_operator.results.comparison.answers import answers_compared
from finetune_operator.results.comparison.configuration import setting_differences
from finetune_operator.results.comparison.jobs import compared_job
from finetune_operator.results.comparison.metrics import metric_comparisons
from finetune_operator.results.comparison.model import Comparison, SetRows, SettingDifference
from finetune_operator.results.comparison.pairing import CommonRows, common_rows
from finetune_operator.results.errors import NotComparableError
from finetune_operator.results.records import RunRecords, text_at

#: Maximum number of runs.
MOST_RUNS = 10
REFERENCE = "A"
#: Settings that decide which rows are evaluated, or their tokens; the refusal of different rows names them.
_DECIDES_ROWS = (
    "datasets.validation", "datasets.splitFromTrain", "datasets.maxSeqLength", "datasets.chatTemplate",
    "evaluation.datasets", "evaluation.benchmarks", "model.", "resolved.datasets.validation",
    "resolved.datasets.evaluation",
)  # fmt: skip
#: Function with which chat templates print the date, and the variable that Llama's print instead if it is set.
_NOW, _DATE = "strftime_now", "date_string"
#: Numbers of settings and of sets that a message names.
_MOST_NAMED, _MOST_SETS = 3, 5

type Runs = Mapping[str, RunRecords]


def compared(runs: Sequence[RunRecords], *, common: bool = False, samples: int = 3) -> Comparison:
    """Compares runs, at most MOST_RUNS; of a single one the result shows the differences from its base model.

    Args:
        runs: the reference first.
        common: compare the rows that all runs have if they were evaluated on different rows.
        samples: number of prompts whose answers are shown.

    Raises:
        NotComparableError: the runs were evaluated on different rows, and ``common`` is not set or cannot help.
    """
    labeled = dict(zip(ascii_uppercase, runs, strict=False))
    evaluated = {label: run for label, run in labeled.items() if run.evaluated}
    # Without the reference's evaluation there are no differences, only the recorded means.
    compares = REFERENCE in evaluated
    measured = {label: run.rows for label, run in evaluated.items() if run.rows} if compares else {}
    differences = setting_differences(labeled)
    rows = common_rows(measured) if measured else CommonRows(rows=(), sets=())
    if compares:
        _check_rows(rows, differences, _dates(evaluated), common=common)
        _check_hashes(evaluated)
    return Comparison(
        jobs=[compared_job(label, run) for label, run in labeled.items()],
        common_only=not rows.complete,
        rows=rows.sets,
        metrics=metric_comparisons(evaluated, rows, list(measured), reference=REFERENCE),
        answers=answers_compared({label: run.samples for label, run in labeled.items()}, samples),
        configuration=differences,
        notes=list(_notes(evaluated, rows, list(measured))),
    )


def _check_rows(
    rows: CommonRows, differences: Sequence[SettingDifference], dates: str | None, *, common: bool
) -> None:
    """Refuses runs with different rows. ``dates``: the result of :func:`_dates`."""
    if rows.complete or (common and rows.rows):
        return
    causes = [each.path for each in differences if each.path.startswith(_DECIDES_ROWS)]
    why = f" Settings that differ: {_listed(causes)}." if causes else ""
    # The date is in every row of a set, or in none.
    why += f" {dates}" if dates and not all(each.common for each in rows.sets) else ""
    labels = dict.fromkeys(label for each in rows.sets for label in each.others)
    sets = [_only(each) for each in rows.sets if each.others]
    more = f"; and {len(sets) - _MOST_SETS} more sets" if len(sets) > _MOST_SETS else ""
    raise NotComparableError(
        f"The evaluations measure different rows: {'; '.join(sets[:_MOST_SETS])}{more}.{why}",
        fix=(
            f"--common compares the {len(rows.rows):,} rows that all have."
            if rows.rows
            else f"Evaluate {' and '.join(labels)} on the same rows: equal validation sets and evaluation.datasets."
        ),
    )


def _only(rows: SetRows) -> str:
    """Returns which rows of a set not all runs have: ``Dataset faq: 200 in all, 3 more in A (3f2a91c04d1e, …)``."""
    more = ", ".join(
        f"{count:,} more in {label} ({', '.join(rows.first[label])}{', …' if count > len(rows.first[label]) else ''})"
        for label, count in rows.others.items()
    )
    return f"{rows.kind} {rows.name[:64]}: {rows.common:,} in all, {more}"


def _check_hashes(evaluated: Runs) -> None:
    """Refuses runs without values of single rows whose evaluations have another digest than the reference's."""
    first = evaluated[REFERENCE]
    for label, run in evaluated.items():
        before, after = (each.evaluation.dataset_hash if each.evaluation else None for each in (first, run))
        if (first.rows and run.rows) or before is None or after is None or before == after:
            continue
        dates = _dates({REFERENCE: first, label: run})
        without = [name for name, each in ((REFERENCE, first), (label, run)) if not each.rows]
        raise NotComparableError(
            f"The evaluations of {REFERENCE} and {label} measure different rows: datasetHash {before[:12]} and "
            f"{after[:12]}. Which rows differ is unknown, since {' and '.join(without)} "
            f"{'have' if len(without) > 1 else 'has'} no evaluate/rows.jsonl.{f' {dates}' if dates else ''}",
            fix=f"Evaluate {REFERENCE} and {label} on the same rows: equal validation sets and evaluation.datasets.",
        )


def _notes(evaluated: Runs, rows: CommonRows, measured: Sequence[str]) -> Iterator[str]:
    if REFERENCE not in evaluated:
        if len(evaluated) > 0:
            yield f"{REFERENCE} is the reference and has no evaluation: no differences of metrics are known."
        return
    if not rows.complete:
        left = {label: sum(each.others.get(label, 0) for each in rows.sets) for label in measured}
        counts = ", ".join(f"{count:,} of {label}" for label, count in left.items() if count)
        yield f"Only the {len(rows.rows):,} rows that all have are compared; rows left out: {counts}."
    for position, label in enumerate(measured[1:], start=1):
        renamed = dict.fromkeys((each[position].name, each[0].name) for each in rows.rows)
        for theirs, ours in list(renamed)[: 2 * _MOST_NAMED]:
            if theirs != ours:
                yield f"Rows of {label}'s set {theirs[:64]} are compared with those of {REFERENCE}'s set {ours[:64]}."
    unlike = {
        label: sum(each[position].digest != each[0].digest for each in rows.rows)
        for position, label in enumerate(measured)
    }
    first = evaluated[REFERENCE].request
    for label, run in evaluated.items():
        other = run.request
        settings = [
            (each.data.chat_template, each.data.chat_template_arguments) for each in (first, other) if each
        ]
        if len(settings) == 2 and settings[0] != settings[1]:
            yield f"{REFERENCE} and {label} have different chat templates: each is measured with its own."
        elif unlike.get(label):
            yield (
                f"{REFERENCE} and {label} are asked {unlike[label]:,} of the questions with other tokens (tokenizer or "
                "chat template): each is measured with its own."
            )
            if dates := _dates({REFERENCE: evaluated[REFERENCE], label: run}):
                yield dates
    best = [
        label for label in measured if text_at(evaluated[label].status, "resolved", "checkpoint") == "Best"
    ]
    if best and any(each.kind == "Validation" for each in rows.sets):
        yield (
            f"{' and '.join(best)}: the evaluated checkpoint was chosen by its loss on the validation rows, which "
            "favors it in the metrics of these rows, most of all against its base model. Metrics of "
            "evaluation.datasets and benchmarks are not affected."
        )


def _dates(runs: Runs) -> str | None:
    """Returns that chat templates may have printed different dates, with what to do about it; None if they did not."""
    data = [run.request.data for run in runs.values() if run.request]
    days = sorted({each.chat_template_date for each in data if each.chat_template_date})
    prints = [each for each in data if each.chat_template is None or _NOW in each.chat_template]
    if len(days) < 2 or not prints or all(_DATE in each.chat_template_arguments for each in data):
        return None
    return (
        f"A chat template that prints the date printed that of each job's creation ({days[0]} to {days[-1]}): to make "
        f"prompts equal, set the same datasets.chatTemplate.arguments: {{{_DATE}: ...}} (Llama) in all jobs, or an "
        "inline template without the date."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown}{' and others' if len(names) > _MOST_NAMED else ''}"
