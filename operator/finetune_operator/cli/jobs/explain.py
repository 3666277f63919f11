"""``finetune explain``: what a reason in a status means, from the tables of docs/troubleshooting.md."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

from finetune_operator.cli.errors import CliError, close_names


@dataclass(frozen=True, slots=True)
class Explanation:
    """One row: reasons with the same meaning."""

    section: str
    """Where such a reason is found in a status."""
    title: str
    """The reasons, and the condition where they stand in one."""
    names: tuple[str, ...]
    meaning: str
    remedy: str


def explanations() -> Sequence[Explanation]:
    """Returns all rows in the order of the document."""
    text = files(__package__).joinpath("reasons.csv").read_text(encoding="utf-8")
    rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
    return [
        Explanation(section, title, tuple(names.split()), meaning, remedy)
        for section, title, names, meaning, remedy in rows
    ]


def explained(reason: str | None) -> Iterator[str]:
    """Yields the lines that explain a reason, whatever its case; of None, the list of all. Raises CliError."""
    rows = explanations()
    if reason is None:
        yield from _overview(rows)
        return
    found = [row for row in rows if reason.lower() in (name.lower() for name in row.names)]
    if not found:
        raise CliError(
            f'"{reason}" is not a reason that a status or an alert shows.',
            fix=close_names(reason, {name for row in rows for name in row.names}),
        )
    for number, row in enumerate(found):
        if number:
            yield ""
        yield f"{row.title}  ({row.section})"
        yield f"Meaning   {row.meaning}"
        yield f"Remedy    {row.remedy}"


def _overview(rows: Sequence[Explanation]) -> Iterator[str]:
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            yield f"{section}:"
        yield f"  {row.title}"
