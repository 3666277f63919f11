"""``finetune plan`` and ``validate``: commands on files, without a cluster."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from finetune_operator.cli.app import app
from finetune_operator.cli.options import ManifestNamespace


class PlanOutput(StrEnum):
    """Output formats of ``plan``."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


@app.command()
def plan(
    file: Annotated[
        Path,
        typer.Option("--filename", "-f", help="Manifest of one FineTuneJob; - is stdin.", metavar="FILE"),
    ],
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help="Manifest of the FineTuneProfile; default: the one beside the job in --filename.",
            metavar="FILE",
        ),
    ] = None,
    output: Annotated[
        PlanOutput,
        typer.Option(
            "--output",
            "-o",
            help="yaml: every JobSet, one document each; an annotation names what is known later.",
        ),
    ] = PlanOutput.TEXT,
    namespace: ManifestNamespace = None,
) -> None:
    """Show what a job would do, without a cluster: stages, TPU and the reason for it, batch size, names, run folder.
    Exit code 1 if the job would be refused."""
    from finetune_operator.cli.plan import show_plan

    typer.echo(show_plan(file, profile, output.value, namespace))


@app.command()
def validate(
    files: Annotated[
        list[Path],
        typer.Option(
            "--filename", "-f", help="Manifest; may be given more than once; - is stdin.", metavar="FILE"
        ),
    ],
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="Further manifests.")] = None,
    namespace: ManifestNamespace = None,
) -> None:
    """Check manifests without a cluster against the rules of the API server and the operator, and jobs against their
    profile if it is among the manifests. Exit code 1 if there are errors."""
    from finetune_operator.cli.checks import check_files

    given = [*files, *(more or [])]
    checked = check_files(given, namespace)
    for problem in checked.problems:
        typer.echo(problem, err=True)
    if checked.problems:
        raise typer.Exit(1)
    typer.echo(f"{len(given)} file{'s' if len(given) > 1 else ''} valid.")
    for remark in checked.remarks:
        typer.echo(remark)
