"""The data report on the page of a report."""

from collections.abc import Iterator, Mapping, Sequence

from finetune_contract import DataReport, DatasetDetails
from finetune_operator.pages.axis import number_text
from finetune_operator.pages.bars import Bar, bar_chart
from finetune_operator.report.model import DataSummary

_CHECKED = {
    "Full": "Every row was read.",
    "Sample": "Only the first rows of each source were read: the counts are of those.",
    "Off": "No row was read (preflight.dataset is Off).",
}


def data_summary(data: DataSummary) -> str:
    """Returns what was read, and how many steps it makes."""
    report = data.report
    packed = ", packed" if report.packing else ""
    more = f" {data.left_out:,} more datasets are in preflight/data.html." if data.left_out else ""
    epochs = ""
    if report.epochs_shown is not None and report.epoch_sequences is not None:
        epochs = f", which is {number_text(report.epochs_shown)} epochs of {report.epoch_sequences:,}"
    return (
        f"{_CHECKED[report.checked]} Sequences of at most {report.max_seq_length:,} tokens{packed}; "
        f"{report.steps:,} steps of {report.global_batch_size:,} sequences{epochs}.{more}"
    )


def datasets(report: DataReport) -> Sequence[tuple[str, Sequence[Mapping[str, object]]]]:
    """Returns the datasets by their use: name, facts, and a chart of the lengths of their rows."""
    groups = (
        ("Training", report.train),
        ("Validation", report.validation),
        ("Evaluation", report.evaluation),
    )
    return [(title, [_dataset(each) for each in sets]) for title, sets in groups]


def _dataset(details: DatasetDetails) -> Mapping[str, object]:
    bars = [
        Bar(name=f"≤ {bucket.up_to:,}", value=bucket.rows, text=f"{bucket.rows:,}")
        for bucket in details.histogram
    ]
    return {
        "name": details.report.name,
        "facts": list(_dataset_facts(details)),
        "lengths": bar_chart(bars, title="Rows by their length in tokens") if bars else "",
    }


def _dataset_facts(details: DatasetDetails) -> Iterator[tuple[str, str]]:
    report = details.report
    yield "Source", report.uri
    yield "Revision", report.revision
    yield "Format", report.format
    yield "Rows", f"{report.rows:,}"
    trained = (
        f", {100 * report.trained_tokens / report.tokens:.1f} % of them trained" if report.tokens else ""
    )
    yield "Tokens", f"{report.tokens:,}{trained}"
    for name, number in (
        ("Dropped", report.dropped_rows),
        ("Truncated", report.truncated_rows),
        ("Equal to an earlier row", report.duplicate_rows),
    ):
        if number:
            yield name, f"{number:,} rows"
    if report.epoch_sequences is not None and report.sequences is not None:
        weight = f", weight {number_text(report.weight)}" if report.weight is not None else ""
        yield "In an epoch", f"{report.epoch_sequences:,} of {report.sequences:,} sequences{weight}"
    if details.longest:
        yield (
            "Lengths",
            f"half at most {details.p50:,} tokens, 95 % at most {details.p95:,}, the longest {details.longest:,}",
        )
    if details.unread:
        names = ", ".join(f"{value.name} ({value.count:,})" for value in details.unread)
        yield "Not read", f"{names}, …" if details.unread_more else names
    for kind in details.found:
        places = ", ".join(kind.first)
        more = ", …" if kind.count > len(kind.first) else ""
        yield f"Rows {kind.kind}", f"{kind.count:,}: {places}{more}"
