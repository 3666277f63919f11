"""The ``finetune`` program: its own options, and how errors of commands are shown."""

import sys
from typing import Annotated, Any

import typer
import typer.core

from finetune_operator.cli.errors import WRONG_ARGUMENT, CliError

#: What does the work of kubectl's verbs that are no commands here.
_KUBECTL = {
    "apply": "`kubectl apply -f FILE`; `finetune watch NAME` then follows the job",
    "create": "`finetune init --output FILE`, then `kubectl apply -f FILE`",
    "delete": "`kubectl delete finetunejob NAME`; `finetune cancel NAME` ends a job and keeps it",
    "describe": "`finetune status NAME`",
    "edit": "`kubectl edit finetunejob NAME`, or for another model, data, method or hyperparameters "
    "`finetune init --from NAME`",
    "get": "`finetune list`, or `finetune status NAME`",
}


class Commands(typer.core.TyperGroup):
    """Prints a CliError, or an error of the system, on stderr and exits with its code.

    Typer exits with 130 after Ctrl-C, and with 1, silently, if nothing reads the output any more.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and (instead := _KUBECTL.get(args[0])):
            print_error(CliError(f'There is no command "{args[0]}".', fix=f"Use {instead}."))
            raise typer.Exit(WRONG_ARGUMENT)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            print_error(error)
            raise typer.Exit(error.code) from None

    def main(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().main(*arguments, **options)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            print_error(CliError(f"{where}{error.strerror or error}"))
            sys.exit(1)


def echo(line: str, *, nl: bool = True, err: bool = False) -> None:
    """Prints what a command writes, which may contain text of tenants: without colors and control characters."""
    from finetune_operator.cli.text import printable

    typer.echo(printable(line), nl=nl, err=err)


def print_error(error: CliError) -> None:
    """Prints an error on stderr: what is wrong, and what to do if that is known."""
    typer.secho("Error: ", fg="red", nl=False, err=True)
    echo(error.message, err=True)
    if error.fix:
        typer.secho("Fix:   ", fg="green", nl=False, err=True)
        echo(error.fix, err=True)


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"finetune {version('finetune-operator')}")
        raise typer.Exit


#: Groups of commands in ``--help``, in the order in which they are needed.
BEFORE, WHILE, AFTER, INTERVENE = "Before a job", "While it runs", "When it has trained", "To intervene"

_FIRST_STEPS = (
    "First steps: finetune init --output job.yaml; finetune validate -f job.yaml; kubectl apply -f job.yaml; "
    "finetune watch NAME; finetune download NAME. Each command has --help."
)

app = typer.Typer(
    name="finetune",
    cls=Commands,
    help="Fine-tune language models on TPUs with Kubernetes.",
    epilog=_FIRST_STEPS,
    no_args_is_help=True,
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
