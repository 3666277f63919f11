"""``finetune compare``: reads the records of several runs, compares them and prints the result."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from finetune_operator.artifacts.port import ObjectStore
from finetune_operator.cli.app import echo
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.connect.store import explained
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.output_file import refuse_existing, save
from finetune_operator.cli.results.run_folder import folder_at, run_records
from finetune_operator.cli.text import one_line
from finetune_operator.results.comparison.compare import MOST_RUNS, compared
from finetune_operator.results.comparison.model import Comparison
from finetune_operator.results.records import RunRecords

_DELETED = "A deleted job is compared by the URI of its run folder (gs://... or file:///...)."


def check_output(output: str, *, force: bool) -> None:
    """Checks ``text``, ``json`` or ``html=FILE``, before anything is read.

    Raises BadParameter for anything else, and CliError if the file exists and ``force`` is false.
    """
    if output in ("text", "json"):
        return
    name, _, file = output.partition("=")
    if name != "html" or not file:
        raise typer.BadParameter(
            f"{output[:128]!r} is not one of 'text', 'json', 'html=FILE'.", param_hint="--output"
        )
    if not force:
        refuse_existing(Path(file))


def show_comparison(comparison: Comparison, output: str, *, force: bool) -> None:
    """Prints the comparison, or writes its page and prints the file's name. Raises CliError."""
    if output == "text":
        from finetune_operator.cli.results.compare_text import print_comparison

        print_comparison(comparison, Console())
    elif output == "json":
        # In ASCII, since its texts come from run folders.
        echo(comparison.model_dump_json(by_alias=True, indent=2, ensure_ascii=True))
    else:
        from finetune_operator.cli.results.compare_page import comparison_page

        file = output.partition("=")[2]
        save(comparison_page(comparison), Path(file), force=force)
        echo(file)


def needs_cluster(names: Sequence[str]) -> bool:
    """Whether any argument is the name of a job rather than a URI. Raises BadParameter for unusable arguments."""
    if not 2 <= len(names) <= MOST_RUNS:
        raise typer.BadParameter(f"compare takes 2 to {MOST_RUNS} jobs or run folders, got {len(names)}.")
    for name in names:
        if "://" in name and folder_at(name) is None:
            raise typer.BadParameter(
                f"{name[:128]!r} is not the URI of a run folder: gs://BUCKET/PATH or file:///PATH, as in "
                "status.resolved.runFolder."
            )
    return not all("://" in name for name in names)


async def records_of(
    names: Sequence[str], connection: Connection | None, store: ObjectStore
) -> list[RunRecords]:
    """Returns the records of each job or run folder, one after the other.

    Raises CliError, also if two of them are one run folder, and ClusterError.
    """
    by_folder: dict[str, RunRecords] = {}
    runs = []
    for name in names:
        run = await run_records(name, connection, store, advice=_DELETED)
        if run.run_folder is not None:
            if (other := by_folder.get(run.run_folder)) is not None:
                raise _same_folder(other, run)
            by_folder[run.run_folder] = run
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
    with explained():
        return compared(runs, common=common, samples=samples)
