"""Commands that answer questions before and after a job: profiles, explain."""

from typing import Annotated

import typer

from finetune_operator.cli.app import app
from finetune_operator.cli.options import Context, Kubeconfig, Namespace, ObjectOutput, User, with_connection


@app.command()
def profiles(  # noqa: PLR0917  typer passes options by name
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this one alone. Default: all.")
    ] = None,
    output: Annotated[
        ObjectOutput | None, typer.Option("--output", "-o", help="Print the objects instead.")
    ] = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    user: User = None,
) -> None:
    """Show what jobs of the namespace may use: slices and prices, models, data, limits, and whom to ask."""
    from finetune_operator.cli.profiles import show_profiles

    with_connection(
        kubeconfig,
        context,
        user,
        namespace,
        lambda cluster: show_profiles(cluster, name, output, typer.echo),
    )


@app.command()
def explain(
    reason: Annotated[
        str | None,
        typer.Argument(metavar="[REASON]", help="For example MemoryExceeded. Default: list all reasons."),
    ] = None,
) -> None:
    """Explain a reason in a job's status, and what to do about it, without a cluster."""
    from finetune_operator.cli.explain import explained

    for line in explained(reason):
        typer.echo(line)
