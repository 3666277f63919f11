"""Commands on manifests: init, plan, validate."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from finetune_operator.cli.app import BEFORE, app, echo, print_error
from finetune_operator.cli.connect.options import (
    ClusterOptions,
    ManifestFiles,
    ManifestNamespace,
    MoreFiles,
    Recursive,
    cluster_command,
    complete_names,
    complete_profiles,
    member_named,
    parsed_option,
)

if TYPE_CHECKING:
    from finetune_operator.api import MethodType
    from finetune_operator.api.method import Quantization
    from finetune_operator.planning.estimate.past_runs import PastTrainings


def method_named(text: str) -> "MethodType":
    """Parses the type of a method, ignoring case."""
    from finetune_operator.api import MethodType

    return member_named(text, list(MethodType))


def quantization_named(text: str) -> "Quantization":
    """Parses a quantization of the base model, ignoring case."""
    from finetune_operator.api.method import Quantization

    return member_named(text, [each for each in Quantization if each is not Quantization.NONE])


@cluster_command(BEFORE)
def init(  # noqa: PLR0917  typer passes options by name
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="OWNER/NAME on the Hugging Face Hub, @REVISION if wanted; or gs://BUCKET/FOLDER.",
            metavar="MODEL",
        ),
    ] = None,
    datasets: Annotated[
        list[str] | None,
        typer.Option(
            "--dataset",
            help="Training data: gs://BUCKET/FILES.jsonl, or OWNER/NAME on the Hub. May be repeated.",
            metavar="DATA",
        ),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(
            "--validation",
            help="Data to measure the loss on, as --dataset. Default: rows held back from the training data.",
            metavar="DATA",
        ),
    ] = None,
    method: Annotated[
        Any,
        typer.Option(
            "--method", parser=method_named, metavar="METHOD", help="SFT, DPO or ORPO. Default: SFT."
        ),
    ] = None,
    lora: Annotated[
        bool | None,
        typer.Option("--lora/--no-lora", help="Train an adapter, or all weights. Default: an adapter."),
    ] = None,
    quantization: Annotated[
        Any,
        typer.Option(
            "--quantization",
            parser=quantization_named,
            metavar="FORMAT",
            help="NF4 or INT8: LoRA on a base model in fewer bits. Default: none.",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option("--learning-rate", help="For example 1e-4. Default: by the method.", metavar="RATE"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Length of the training, instead of --epochs.", metavar="N")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Passes through the data. Default: 1.", metavar="N")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Of the job. Default: from the model.", metavar="NAME")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Profile of the job. Default: the cluster's default one.",
            metavar="PROFILE",
            autocompletion=complete_profiles,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Begin with a copy of this job of the cluster; other flags change it.",
            metavar="JOB",
            autocompletion=complete_names,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write to this file. Default: stdout.", metavar="FILE")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Of the job. Default: none in the manifest; with --from the context's.",
            metavar="NS",
        ),
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Write the manifest of a job: from flags, by asking where model or data are not given, or from another job."""
    from finetune_operator.cli.manifests.init import cloned_manifest, new_manifest, show_next
    from finetune_operator.cli.manifests.new_job import NewJob
    from finetune_operator.cli.output_file import refuse_existing, save
    from finetune_operator.cli.questions import Questions, can_ask

    given = NewJob(
        name=name,
        namespace=namespace,
        profile=profile,
        model=model or "",
        datasets=datasets or (),
        method=method,
        lora=lora,
        quantization=quantization,
        validation=validation or (),
        learning_rate=learning_rate,
        steps=steps,
        epochs=epochs,
    )
    if output is not None and not force:
        refuse_existing(output)
    if source is not None:
        text = cluster.run(lambda connection: cloned_manifest(connection, source, given))
    else:
        text = new_manifest(given, Questions() if can_ask() else None)
    if output is None:
        echo(text, nl=False)
    else:
        save(text, output, force=force)
    show_next(text, output, lambda line: echo(line, err=True))


@cluster_command(BEFORE)
def plan(  # noqa: PLR0917
    files: ManifestFiles,
    more: MoreFiles = None,
    recursive: Recursive = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help="Manifest of the FineTuneProfile. Default: the one among the other manifests, or else the cluster's.",
            metavar="FILE",
        ),
    ] = None,
    model_config: Annotated[
        Path | None,
        typer.Option(
            "--model-config",
            help="config.json of the model's folder or repository: adds parameters, memory, disk and least time. "
            "Widely used models of the Hub are known by name.",
            metavar="FILE",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help="Number of training rows: adds the number of steps.", metavar="N"),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger",
            help="The operator's ledger, which is then read: adds time and cost of past runs of the same shape.",
            metavar="URI",
        ),
    ] = None,
    output: Annotated[
        Literal["text", "json", "yaml"],
        typer.Option(
            "--output", "-o", help="json: facts and JobSets; yaml: every JobSet, one document each."
        ),
    ] = "text",
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask a cluster for the profile.")] = False,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            help="Of a job whose manifest names none; else it is default, or the context's if a cluster is asked.",
            metavar="NS",
        ),
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Show what jobs would do: stages, TPU and the reason for it, batch size, names, run folder.
    Exit code 1 if a job would be refused."""
    from finetune_operator.cli.manifests.plan import cluster_profiles, planned_jobs, shown_plans
    from finetune_operator.cli.manifests.plan_report import KnownInputs, read_model_config
    from finetune_operator.cli.text import plain

    model = None if model_config is None else read_model_config(model_config)
    past = None if ledger is None else _past_trainings(ledger)
    found = planned_jobs(
        [*files, *(more or [])],
        profile,
        namespace,
        recursive=recursive,
        known=KnownInputs(model=model, rows=rows, past=past),
        ask=lambda: None if offline else cluster.ask(cluster_profiles),
    )
    if found.cluster:
        names = ", ".join(dict.fromkeys(found.profiles))
        echo(plain(f"{f'Profile {names}' if names else 'No profile'} of {found.cluster}."), err=True)
    if found.jobs:
        echo(shown_plans(found.jobs, output))
    for error in found.errors:
        print_error(error)
    if found.skipped and output == "text":
        echo(plain(found.skipped), err=True)
    if found.errors:
        raise typer.Exit(1)


def _past_trainings(ledger: str) -> "PastTrainings":
    # No other use of the command needs these modules, some of which are slow to import.
    import asyncio
    from datetime import UTC, datetime

    from finetune_operator.cli.ledger import ledger_named, ledger_store, past_trainings

    uri = parsed_option("--ledger", ledger_named, ledger)
    return asyncio.run(past_trainings(ledger_store(), uri, datetime.now(UTC).date()))


@app.command(rich_help_panel=BEFORE)
def validate(
    files: ManifestFiles,
    more: MoreFiles = None,
    recursive: Recursive = False,
    namespace: ManifestNamespace = None,
) -> None:
    """Check manifests without a cluster against the rules of the API server and the operator, and jobs against their
    profile if it is among the manifests. Exit code 1 if there are errors."""
    from finetune_operator.cli.manifests.checks import check_files
    from finetune_operator.cli.text import plain

    checked = check_files([*files, *(more or [])], namespace, recursive=recursive)
    for problems in checked.problems.values():
        for problem in problems:
            echo(plain(problem), err=True)
    number, faulty = len(checked.problems), checked.faulty
    valid = f"{number - faulty} of {number}" if faulty else str(number)
    echo(f"{valid} file{'s' if number > 1 else ''} valid.")
    for remark in checked.remarks:
        echo(plain(remark))
    if faulty:
        raise typer.Exit(1)
