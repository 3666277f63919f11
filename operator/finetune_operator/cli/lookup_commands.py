"""Commands that answer questions before and after a job: profiles, costs, explain, compare."""

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from finetune_operator.cli.app import AFTER, BEFORE, WHILE, app, echo
from finetune_operator.cli.options import (
    ClusterOptions,
    ObjectOutput,
    OperatorNamespace,
    cluster_command,
    complete_names,
    parsed_option,
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


class DoctorOutput(StrEnum):
    """Output formats of ``doctor``."""

    JSON = "json"


@cluster_command(BEFORE)
def doctor(
    operator_namespace: OperatorNamespace = "finetune-system",
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Also run a pod for each account, which pulls the images and tries the buckets. Minutes.",
        ),
    ] = False,
    output: Annotated[
        DoctorOutput | None, typer.Option("--output", "-o", help="Default: a line for each finding.")
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Check the installation, as its administrator or as a user: what is missing, and the command that mends it."""
    from finetune_operator.cli.doctor.examine import examine

    cluster.run(
        lambda connection: examine(
            connection, operator_namespace, probe=probe, as_json=output is not None, write=echo
        )
    )


class CostsOutput(StrEnum):
    """Output formats of ``costs``."""

    WIDE = "wide"
    JSON = "json"


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
        CostsOutput | None,
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


@app.command(rich_help_panel=WHILE)
def explain(
    reason: Annotated[
        str | None,
        typer.Argument(metavar="[REASON]", help="For example MemoryExceeded. Default: list all reasons."),
    ] = None,
) -> None:
    """Explain a reason in a job's status, and what to do about it, without a cluster."""
    from finetune_operator.cli.explain import explained

    for line in explained(reason):
        echo(line)


@cluster_command(AFTER)
def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...",
            help="FineTuneJobs by name, or run folders by URI (gs://, file://), for deleted jobs. The first is the "
            "reference.",
            autocompletion=complete_names,
        ),
    ],
    common: Annotated[
        bool, typer.Option("--common", help="Compare the rows that all have, if they have different ones.")
    ] = False,
    samples: Annotated[
        int, typer.Option("--samples", min=0, max=100, help="Prompts whose answers are shown.", metavar="N")
    ] = 3,
    output: Annotated[
        str, typer.Option("--output", "-o", help="html=FILE writes a page.", metavar="text|json|html=FILE")
    ] = "text",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    *,
    cluster: ClusterOptions,
) -> None:
    """Compare evaluated jobs: metrics on the same rows with intervals, answers, settings, cost and time."""
    from finetune_operator.cli.compare import (
        check_output,
        comparison_of,
        needs_cluster,
        records_of,
        show_comparison,
    )
    from finetune_operator.cli.run_folder import caller_store

    check_output(output, force=force)
    store = caller_store()
    if needs_cluster(names):
        runs = cluster.run(lambda connection: records_of(names, connection, store))
    else:
        runs = asyncio.run(records_of(names, None, store))
    show_comparison(comparison_of(runs, common=common, samples=samples), output, force=force)
