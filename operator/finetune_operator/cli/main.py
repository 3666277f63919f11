"""The command line. Commands import their dependencies when they run, so that ``--help`` is fast."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from finetune_operator.cli.errors import CliError

if TYPE_CHECKING:
    from finetune_contract import Stage
    from finetune_operator.cli.connection import Connection


class Commands(typer.core.TyperGroup):
    """Prints a CliError as two lines on stderr and exits with code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            typer.secho("Error: ", fg="red", nl=False, err=True)
            typer.echo(error.message, err=True)
            if error.fix:
                typer.secho("Fix:   ", fg="green", nl=False, err=True)
                typer.echo(error.fix, err=True)
            raise typer.Exit(1) from None


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"finetune {version('finetune-operator')}")
        raise typer.Exit


app = typer.Typer(
    name="finetune",
    cls=Commands,
    help="Fine-tune language models on TPUs with Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the FineTuneJob.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Default: the context's namespace.", metavar="NS")
]
ManifestNamespace = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", help="Of a job whose manifest names none; else it is default.", metavar="NS"
    ),
]
Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="Default: $KUBECONFIG, ~/.kube/config.", metavar="FILE")
]
Context = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default: its current one.")
]


class Output(StrEnum):
    """Output format of ``plan``."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


def _stage(text: str) -> "Stage":
    """Parses the name of a stage, ignoring case."""
    from finetune_contract import Stage

    found = next((stage for stage in Stage if stage.lower() == text.lower()), None)
    if found is None:
        names = ", ".join(repr(stage.lower()) for stage in Stage)
        raise typer.BadParameter(f"{text!r} is not one of {names}.")
    return found


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
        Output,
        typer.Option(
            "--output",
            "-o",
            help="yaml: every JobSet, one document each; an annotation names what is known later.",
        ),
    ] = Output.TEXT,
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


@app.command()
def status(
    name: Name, namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None
) -> None:
    """Show the status of a job on one page."""
    from rich.console import Console

    from finetune_operator.cli.status import show_status

    _with_connection(kubeconfig, context, namespace, lambda cluster: show_status(cluster, name, Console()))


@app.command()
def watch(
    name: Name, namespace: Namespace = None, kubeconfig: Kubeconfig = None, context: Context = None
) -> None:
    """Follow a job live until it ends. Exit code 0 if it succeeded, 1 if it failed."""
    from rich.console import Console

    from finetune_operator.cli.watch import watch_job

    try:
        code = _with_connection(
            kubeconfig, context, namespace, lambda cluster: watch_job(cluster, name, Console())
        )
    except KeyboardInterrupt:
        typer.echo(f"The job continues; `finetune watch {name}` follows it again.", err=True)
        code = 130
    raise typer.Exit(code)


@app.command()
def logs(  # noqa: PLR0917  typer passes options by name
    name: Name,
    stage: Annotated[
        Any,
        typer.Option(
            "--stage", parser=_stage, metavar="STAGE", help="For example Train. Default: the last that ran."
        ),
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Default: the last.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")
    ] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """Print the logs of a stage's pods, or the stored end of the log after the pods are deleted."""
    from finetune_operator.artifacts.scheme_router import SchemeRouter
    from finetune_operator.cli.logs import LogSelection, show_logs

    selection = LogSelection(stage=stage, attempt=attempt)
    try:
        _with_connection(
            kubeconfig,
            context,
            namespace,
            lambda cluster: show_logs(
                cluster, name, selection, follow=follow, store=SchemeRouter(), write=typer.echo
            ),
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _with_connection[T](
    kubeconfig: Path | None,
    context: str | None,
    namespace: str | None,
    command: Callable[["Connection"], Awaitable[T]],
) -> T:
    """Runs one command against a cluster."""
    from finetune_operator.cli.connection import connect

    async def run() -> T:
        path = str(kubeconfig) if kubeconfig else None
        async with connect(path=path, context=context, namespace=namespace) as cluster:
            return await command(cluster)

    return asyncio.run(run())


def main() -> None:
    """Entry point of the ``finetune`` program."""
    # Users see the errors above instead of the libraries' log messages.
    logging.getLogger().addHandler(logging.NullHandler())
    app(prog_name="finetune")


if __name__ == "__main__":
    main()
