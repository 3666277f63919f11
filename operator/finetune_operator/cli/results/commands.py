"""Commands that show or fetch what jobs have produced: compare, report, download, tensorboard, try."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from finetune_operator.cli.app import AFTER, echo
from finetune_operator.cli.connect.options import (
    ClusterOptions,
    ExportName,
    NamesOrAll,
    cluster_command,
    complete_names,
)

JobName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Name of the FineTuneJob.", autocompletion=complete_names)
]
RunUri = Annotated[
    str | None, typer.Option("--run", help="Run folder of a deleted job, instead of NAME.", metavar="URI")
]
What = Annotated[
    ExportName | None, typer.Option("--what", help="Default: the model, or else what the job exported.")
]


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
    from finetune_operator.cli.connect.store import caller_store
    from finetune_operator.cli.results.compare import (
        check_output,
        comparison_of,
        needs_cluster,
        records_of,
        show_comparison,
    )

    check_output(output, force=force)
    store = caller_store()
    if needs_cluster(names):
        runs = cluster.run(lambda connection: records_of(names, connection, store))
    else:
        runs = asyncio.run(records_of(names, None, store))
    show_comparison(comparison_of(runs, common=common, samples=samples), output, force=force)


@cluster_command(AFTER)
def report(
    name: JobName = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Default: ./NAME-report.html; - is stdout.", metavar="FILE"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    run: RunUri = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Write one HTML page about a job, in any state: curves, time and cost, data, answers, attempts, files."""
    from finetune_operator.cli.connect.store import caller_store
    from finetune_operator.cli.output_file import refuse_existing
    from finetune_operator.cli.results.report import STDOUT, file_of, read_report, report_page, write_page
    from finetune_operator.cli.results.run_folder import require_one

    require_one(name, run)
    file = output or file_of(name, run)
    if file != STDOUT and not force:
        refuse_existing(file)
    write_page(report_page(read_report(name, run, cluster, caller_store())), file, force=force)
    if file != STDOUT:
        echo(str(file))


@cluster_command(AFTER)
def download(
    name: JobName = None,
    what: What = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Default: ./NAME-WHAT, for example ./my-job-model.", metavar="DIR"),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files with the same names, and keep others.")
    ] = False,
    run: RunUri = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Fetch the exported model or adapter, and check every file's digest. Run it again to continue a download."""
    from rich.console import Console

    from finetune_operator.cli import text
    from finetune_operator.cli.results.download import download as fetch
    from finetune_operator.cli.results.download import next_commands, open_exported
    from finetune_operator.cli.results.run_folder import find_run

    console = Console(stderr=True)
    try:
        found = find_run(name, run, cluster)
        exported = open_exported(found, what)
        folder = to or Path(f"{found.name}-{exported.name}")
        fetch(exported, folder, force=force, console=console)
    except KeyboardInterrupt:
        echo("Interrupted; the same command continues.", err=True)
        raise typer.Exit(130) from None
    files = exported.manifest.files
    echo(str(folder))
    echo(
        f"{len(files)} file{'s' if len(files) != 1 else ''}, {text.size(exported.manifest.size)}; "
        "every SHA-256 is that of the export's manifest.",
        err=True,
    )
    for line in next_commands(found, exported, folder):
        echo(line, err=True)


@cluster_command(AFTER)
def tensorboard(
    names: NamesOrAll = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Default: TensorBoard's, 6006.", min=0, max=65535)
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="Address to listen on. Default: localhost.")
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Option("--run", help="Run folder of a deleted job; may be repeated.", metavar="URI"),
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Run TensorBoard on the metrics of jobs, side by side, also while they train. Ctrl-C ends it."""
    import asyncio

    from finetune_operator.cli.connect.store import caller_store
    from finetune_operator.cli.results.run_folder import find_runs
    from finetune_operator.cli.results.tensorboard import show_tensorboard, tensorboard_program

    if not names and not runs:
        raise typer.BadParameter("give the NAME of a job, or --run URI, the run folder of a deleted one.")
    options = [*([f"--port={port}"] if port is not None else []), *([f"--host={host}"] if host else [])]
    program = tensorboard_program()
    found = find_runs(names or [], runs or [], cluster)
    asyncio.run(show_tensorboard(found, program, options, caller_store(), lambda line: echo(line, err=True)))


@cluster_command(AFTER, name="try")
def try_prompt(  # noqa: PLR0917
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the FineTuneJob; with --run the PROMPT alone.",
            autocompletion=complete_names,
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="What to ask, in quotes. Default: show the answers of Evaluate."
        ),
    ] = None,
    what: What = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", help="Limit of the answer.", min=1, max=100_000)
    ] = 256,
    temperature: Annotated[
        float,
        typer.Option("--temperature", help="Sample with this temperature. Default: greedy.", min=0, max=10),
    ] = 0.0,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", help="Base model of an adapter. Default: the one that it names.", metavar="REPO|DIR"
        ),
    ] = None,
    run: RunUri = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Let the exported model answer a prompt, with transformers. Without a prompt, or without transformers, show the
    answers that Evaluate has recorded."""
    from rich.console import Console

    from finetune_operator.cli.results.answering import Prompt
    from finetune_operator.cli.results.run_folder import find_run
    from finetune_operator.cli.results.try_model import show_samples, try_model

    asked, text = (None, name) if run is not None and prompt is None else (name, prompt)
    found = find_run(asked, run, cluster)
    if text is None:
        show_samples(found, echo)
        return
    try_model(
        found,
        Prompt(text=text, max_new_tokens=max_new_tokens, temperature=temperature),
        what=what,
        base=base,
        console=Console(stderr=True),
        write=echo,
    )
