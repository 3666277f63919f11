"""Commands that read jobs of a cluster: list, status, watch, wait, logs."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from finetune_operator.cli.app import WHILE, echo
from finetune_operator.cli.options import (
    AllNamespaces,
    ClusterOptions,
    Name,
    Names,
    ObjectOutput,
    Selector,
    cluster_command,
    stage_named,
)


class ListOutput(StrEnum):
    """Output formats of ``list``."""

    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    YAML = "yaml"


@cluster_command(WHILE, name="list")
def list_jobs(
    all_namespaces: AllNamespaces = False,
    selector: Selector = None,
    output: Annotated[
        ListOutput | None, typer.Option("--output", "-o", help="Default: a table; wide: more columns.")
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """List jobs with phase, stage, progress, cost and age."""
    from finetune_operator.cli.jobs.listing import show_list

    cluster.run(
        lambda connection: show_list(
            connection, everywhere=all_namespaces, selector=selector, output=output, write=echo
        )
    )


@cluster_command(WHILE)
def status(
    name: Name,
    output: Annotated[
        ObjectOutput | None, typer.Option("--output", "-o", help="Print the object instead.")
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show the status of a job on one page."""
    from finetune_operator.cli.jobs.listing import show_status

    cluster.run(lambda connection: show_status(connection, name, output, echo))


@cluster_command(WHILE)
def watch(name: Name, *, cluster: ClusterOptions) -> None:
    """Follow a job live until it ends. Exit code 0 if it succeeded, 1 if it failed."""
    from rich.console import Console

    from finetune_operator.cli.jobs.watch import watch_job

    try:
        code = cluster.run(lambda connection: watch_job(connection, name, Console()))
    except KeyboardInterrupt:
        echo(f"The job continues; `finetune watch {name}` follows it again.", err=True)
        raise
    raise typer.Exit(code)


@cluster_command(WHILE)
def wait(
    names: Names,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", help="For example 90s, 30m or 2h. Default: no limit.", metavar="DURATION"),
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Wait until jobs have ended, without output but one line for each. Exit code 0 if all succeeded, 1 if one failed,
    124 after the timeout."""
    from finetune_operator.cli.jobs.wait import seconds_of, wait_for

    seconds = None if timeout is None else seconds_of(timeout)
    code = cluster.run(lambda connection: wait_for(connection, names, seconds=seconds, write=echo))
    raise typer.Exit(code)


@cluster_command(WHILE)
def logs(
    name: Name,
    stage: Annotated[
        Any,
        typer.Option(
            "--stage",
            parser=stage_named,
            metavar="STAGE",
            help="For example Train. Default: the last that ran.",
        ),
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Default: the last.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the logs until the job ends.")
    ] = False,
    *,
    cluster: ClusterOptions,
) -> None:
    """Print the logs of a stage's pods, or the stored end of the log after the pods are deleted."""
    from finetune_operator.cli.jobs.logs import LogSelection, show_logs
    from finetune_operator.cli.run_folder import caller_store

    selection = LogSelection(stage=stage, attempt=attempt)
    cluster.run(
        lambda connection: show_logs(
            connection, name, selection, follow=follow, store=caller_store(), write=echo
        )
    )
