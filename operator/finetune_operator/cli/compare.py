"""``finetune compare``: reads the records of several runs, compares them and prints the result."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli.app import echo
from finetune_operator.cli.compare_view import Line, comparison_lines
from finetune_operator.cli.comparison_inputs import is_run_folder, is_run_folder_uri, run_records
from finetune_operator.cli.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.text import one_line
from finetune_operator.comparison import (
    MOST_RUNS,
    Comparison,
    NotComparableError,
    RunRecords,
    compared,
)

#: Columns that a continued line has at least, however far it is indented.
_NARROWEST = 20


class ComparisonFormat(StrEnum):
    """Output formats of ``compare``."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class Output:
    """Where the comparison is printed or written."""

    format: ComparisonFormat
    file: Path | None = None
    """The file of an HTML page; None for text and JSON, which are printed."""


def output_named(text: str, *, force: bool) -> Output:
    """Parses ``text``, ``json`` or ``html=FILE``, before anything is read.

    Raises BadParameter for anything else, and CliError if the file exists and ``force`` is false, or if the packages
    for pages are not installed.
    """
    name, _, file = text.partition("=")
    if name == ComparisonFormat.HTML and file:
        from finetune_operator.cli.html_page import require_pages
        from finetune_operator.cli.output_file import refuse_existing

        require_pages()
        if not force:
            refuse_existing(Path(file))
        return Output(ComparisonFormat.HTML, Path(file))
    if text not in (ComparisonFormat.TEXT, ComparisonFormat.JSON):
        raise typer.BadParameter(
            f"{text[:128]!r} is not one of 'text', 'json', 'html=FILE'.", param_hint="--output"
        )
    return Output(ComparisonFormat(text))


def show_comparison(comparison: Comparison, output: Output, *, force: bool) -> None:
    """Prints the comparison, or writes its page and prints the file's name. Raises CliError."""
    match output.format:
        case ComparisonFormat.TEXT:
            print_comparison(comparison, Console())
        case ComparisonFormat.JSON:
            echo(comparison_json(comparison))
        case ComparisonFormat.HTML:
            from finetune_operator.cli.compare_page import comparison_page
            from finetune_operator.cli.output_file import save

            assert output.file is not None
            save(comparison_page(comparison), output.file, force=force)
            echo(str(output.file))


def needs_cluster(names: Sequence[str]) -> bool:
    """Whether any argument is the name of a job rather than a URI. Raises BadParameter for unusable arguments."""
    if not 2 <= len(names) <= MOST_RUNS:
        raise typer.BadParameter(f"compare takes 2 to {MOST_RUNS} jobs or run folders, got {len(names)}.")
    for name in names:
        if is_run_folder(name) and not is_run_folder_uri(name):
            raise typer.BadParameter(
                f"{name[:128]!r} is not the URI of a run folder: gs://BUCKET/PATH or file:///PATH, as in "
                "status.resolved.runFolder."
            )
    return not all(map(is_run_folder, names))


async def records_of(
    names: Sequence[str], connection: Connection | None, store: ObjectStore
) -> list[RunRecords]:
    """Returns the records of each job or run folder, one after the other.

    Raises CliError, also if two of them are one run folder, and ClusterError.
    """
    found: dict[str, RunRecords] = {}
    runs = []
    for name in names:
        run = await run_records(name, connection, store)
        if run.run_folder is not None:
            if (other := found.get(run.run_folder)) is not None:
                raise _same_folder(other, run)
            found[run.run_folder] = run
        runs.append(run)
    return runs


def _same_folder(first: RunRecords, second: RunRecords) -> CliError:
    """Returns the error for two runs of one folder: a job named twice, or a job and its continuation."""
    one, other = one_line(first.name), one_line(second.name)
    if second.spec.get("resumeFrom"):
        said = f"{other} continues the run folder of {one}, whose records it replaces"
    elif first.spec.get("resumeFrom"):
        said = f"{one} continues the run folder of {other}, whose records it replaces"
    else:
        said = f"{one} is named twice" if one == other else f"{one} and {other} have one run folder"
    return CliError(f"{said}: {one_line(first.run_folder)}.", fix="Compare jobs with different run folders.")


def comparison_of(runs: Sequence[RunRecords], *, common: bool, samples: int) -> Comparison:
    """Returns the comparison. Raises CliError if the runs were evaluated on different rows."""
    try:
        return compared(runs, common=common, samples=samples)
    except NotComparableError as error:
        raise CliError(one_line(error.message), fix=error.fix) from error


def comparison_json(comparison: Comparison) -> str:
    """Returns the comparison as JSON in ASCII, since its texts come from run folders."""
    return json.dumps(json.loads(comparison.model_dump_json(by_alias=True)), indent=2)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the comparison, wrapped to the width of a terminal; in a pipe, lines are as long as they are."""
    colors = console.is_terminal and console.color_system is not None and not console.no_color
    width = console.width if console.is_terminal else None
    for line in comparison_lines(comparison, colors=colors):
        for text in _wrapped(line, width, console):
            console.print(text, soft_wrap=True)


def _wrapped(line: Line, width: int | None, console: Console) -> Iterator[Text]:
    if width is None or line.indent + line.text.cell_len <= width:
        yield Text(" " * line.indent) + line.text
        return
    inner = max(_NARROWEST, width - line.indent - line.hanging)
    for number, part in enumerate(line.text.wrap(console, inner, overflow="fold")):
        part.rstrip()
        yield Text(" " * (line.indent + (line.hanging if number else 0))) + part
