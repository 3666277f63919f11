"""Commands that read jobs, profiles and costs: profiles, list, status, watch, wait, logs, explain, costs."""

import asyncio
from typing import Annotated, Any, Literal

import typer

from finetune_operator.cli.app import AFTER, BEFORE, WHILE, app, echo
from finetune_operator.cli.connect.options import (
    AllNamespaces,
    ClusterOptions,
    Name,
    Names,
    ObjectOutput,
    OperatorNamespace,
    Selector,
    cluster_command,
    parsed_option,
    stage_named,
)


@cluster_command(BEFORE)
def profiles(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this one alone. Default: all.")
    ] = None,
    output: Annotated[
        ObjectOutput | None, typer.Option("--output", "-o", help="Print the objects instead.")
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show what jobs of the namespace may use: slices and prices, models, data, limits, and whom to ask."""
    from finetune_operator.cli.jobs.profiles import show_profiles

    cluster.run(lambda connection: show_profiles(connection, name, output, echo))


@cluster_command(WHILE, name="list")
def list_jobs(
    all_namespaces: AllNamespaces = False,
    selector: Selector = None,
    output: Annotated[
        Literal["wide", "name", "json", "yaml"] | None,
        typer.Option("--output", "-o", help="Default: a table; wide: more columns."),
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
    from finetune_operator.cli.connect.store import caller_store
    from finetune_operator.cli.jobs.logs import LogSelection, show_logs

    selection = LogSelection(stage=stage, attempt=attempt)
    cluster.run(
        lambda connection: show_logs(
            connection, name, selection, follow=follow, store=caller_store(), write=echo
        )
    )


@app.command(rich_help_panel=WHILE)
def explain(
    reason: Annotated[
        str | None,
        typer.Argument(metavar="[REASON]", help="For example MemoryExceeded. Default: list all reasons."),
    ] = None,
) -> None:
    """Explain a reason in a job's status, and what to do about it, without a cluster."""
    from finetune_operator.cli.jobs.explain import explained

    for line in explained(reason):
        echo(line)


@cluster_command(AFTER)
def costs(  # noqa: PLR0917  typer passes options by name
    by: Annotated[
        str, typer.Option("--by", help="namespace, profile, model or label=KEY.", metavar="FIELD")
    ] = "namespace",
    since: Annotated[
        str, typer.Option("--since", help="First day (UTC): 2026-11-01, or 30d before today.", metavar="DAY")
    ] = "30d",
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help="Last day (UTC), included; written as --since. Default: today.", metavar="DAY"
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            envvar="FINETUNE_LEDGER",
            help="The operator's ledger; needs no cluster. Default: the one that the operator names.",
            metavar="URI",
        ),
    ] = None,
    operator_namespace: OperatorNamespace = "finetune-system",
    output: Annotated[
        Literal["wide", "json"] | None,
        typer.Option("--output", "-o", help="Default: a table; wide: hours by capacity; json: exact."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="This one alone. Default: all of the ledger; without one, the context's.",
            metavar="NS",
        ),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Without a ledger: jobs of all namespaces.")
    ] = False,
    *,
    cluster: ClusterOptions,
) -> None:
    """Sum chip hours and money, from the operator's ledger, or from the statuses of existing jobs without it."""
    from datetime import UTC, datetime

    from finetune_operator.cli.jobs.costs import CostQuery, day_named, parse_by, show_costs, show_ledger
    from finetune_operator.cli.ledger import ledger_named, ledger_store

    today = datetime.now(UTC).date()
    first = parsed_option("--since", lambda value: day_named(value, today), since)
    last = today if until is None else parsed_option("--until", lambda value: day_named(value, today), until)
    if last < first:
        raise typer.BadParameter(f"{last} is before --since, {first}.", param_hint="--until")
    query = CostQuery(
        by=parsed_option("--by", parse_by, by), since=first, until=last, namespace=namespace, output=output
    )
    store = ledger_store()
    if ledger is not None:
        uri = parsed_option("--ledger", ledger_named, ledger)
        asyncio.run(show_ledger(store, uri, query, echo))
        return
    cluster.run(
        lambda connection: show_costs(connection, store, operator_namespace, all_namespaces, query, echo)
    )
