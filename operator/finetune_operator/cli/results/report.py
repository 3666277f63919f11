"""``finetune report``: reads the records of a run and writes them as one HTML file, by ``report.html.j2``."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli import text
from finetune_operator.cli.connect.options import ClusterOptions
from finetune_operator.cli.output_file import save
from finetune_operator.cli.results.compare_page import TONES
from finetune_operator.cli.results.run_folder import run_at, run_records
from finetune_operator.cli.results.wording import about_text, contrast_text, value_text
from finetune_operator.results.pages.axis import number_text
from finetune_operator.results.pages.chart import line_chart
from finetune_operator.results.pages.document import render
from finetune_operator.results.report.build import report_of
from finetune_operator.results.report.model import MetricCurve, Report, TimeAndCost

#: ``--output`` for stdout.
STDOUT = Path("-")


def read_report(name: str | None, uri: str | None, cluster: ClusterOptions, store: ObjectStore) -> Report:
    """Returns the report on the job ``name``, or on the run folder at ``uri``, for which no cluster is called.

    Raises:
        BadParameter: the URI is none of a run folder.
        CliError: there is no such job or folder, or cluster or store do not return it.
    """
    if name is None:
        assert uri is not None, "one of them is given"
        records = asyncio.run(run_records(run_at(uri).folder.uri, None, store, whole=True))
    else:
        records = cluster.run(lambda connection: run_records(name, connection, store, whole=True))
    return report_of(records, datetime.now(UTC))


def file_of(name: str | None, uri: str | None) -> Path:
    """Returns the file for a report without ``--output``: that of the job, or of the run folder, in this folder."""
    return Path(f"{name or (uri or '').rstrip('/').rpartition('/')[2]}-report.html")


def write_page(page: str, output: Path, *, force: bool) -> None:
    """Writes the page as a whole to a file or stdout. Raises CliError."""
    if output == STDOUT:
        sys.stdout.buffer.write(page.encode(errors="replace"))
        sys.stdout.buffer.flush()
    else:
        save(page, output, force=force)


def report_page(report: Report) -> str:
    """Returns the report as HTML."""
    curves = [report.loss, *report.curves] if report.loss else report.curves
    return render(
        "report.html.j2",
        report=report,
        tones=TONES,
        when=when,
        duration=lambda seconds: None if seconds is None else text.duration(seconds),
        size=text.size,
        whole=lambda number: "" if number is None else f"{number:,}",
        number=number_text,
        value=value_text,
        about=about_text,
        words=contrast_text,
        seconds=text.step_time,
        money=money,
        times=_time_rows,
        lengths=lambda details: [
            (f"≤ {each.up_to:,}", each.rows, f"{each.rows:,}") for each in details.histogram
        ],
        charts=[_chart(curve) for curve in curves],
        series=[line for curve in curves for line in curve.series],
        chips=list(_chips(report.usage)) if report.usage else [],
    )


def when(time: datetime | None) -> str | None:
    """Formats a time: ``2026-11-25 18:28:38``, in UTC. None also for one that no calendar has in UTC."""
    try:
        return None if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except OverflowError:
        return None


def money(amount: str, currency: str | None) -> str:
    """Formats an amount, which is a decimal."""
    return f"{amount} {currency}" if currency else amount


def _chart(curve: MetricCurve) -> Markup:
    return line_chart(curve.series, title=curve.title, x="step", y=curve.unit or curve.title)


def _time_rows(usage: TimeAndCost) -> list[tuple[str, float, str]]:
    """Returns name, seconds and text of each part of the time."""
    whole = sum(part.seconds for part in usage.parts)
    return [
        (part.name, part.seconds, f"{text.duration(part.seconds)}, {100 * part.seconds / whole:.0f} %")
        for part in usage.parts
    ]


def _chips(usage: TimeAndCost) -> Iterator[Mapping[str, str]]:
    """Yields chip hours and cost of each part that has held chips, of the rest, and of all."""
    rows = [(part.name, part.chip_hours, part.cost) for part in usage.parts if part.chip_hours is not None]
    if not rows or usage.chip_hours is None:
        return
    rest = float(usage.chip_hours) - sum(hours for _, hours, _ in rows)
    if rest > 0:
        spent = None if usage.cost is None else float(usage.cost) - sum(cost or 0.0 for _, _, cost in rows)
        rows.append(("not divided: starts, saving, ends", rest, spent))
    for name, hours, cost in rows:
        shown = "–" if cost is None else money(number_text(max(0.0, cost)), usage.currency)
        yield {"name": name, "hours": number_text(hours), "cost": shown}
    total = money(usage.cost, usage.currency) if usage.cost else "–"
    yield {"name": "all", "hours": usage.chip_hours, "cost": total}
