"""Commands that change a job's lifecycle: suspend, resume, retry, cancel."""

from functools import partial
from typing import Annotated, Any

import typer

from finetune_operator.cli.app import INTERVENE, echo
from finetune_operator.cli.connect.options import (
    AllNamespaces,
    ClusterOptions,
    Names,
    NamesOrAll,
    Selector,
    cluster_command,
    stage_named,
)


@cluster_command(INTERVENE)
def suspend(
    names: NamesOrAll = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All live jobs of the namespace, or of all with -A.")
    ] = False,
    selector: Selector = None,
    all_namespaces: AllNamespaces = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask at a terminal.")] = False,
    *,
    cluster: ClusterOptions,
) -> None:
    """Suspend jobs: a training saves, and its slice is freed. Sets spec.suspend."""

    if bool(names) is everything:
        raise typer.BadParameter("give names of jobs, or --all")
    if names:
        from finetune_operator.cli.jobs.edit import suspend_jobs

        if selector or all_namespaces:
            raise typer.BadParameter("-l and -A select among --all jobs, not among names")
        cluster.run(lambda connection: suspend_jobs(connection, names, write=echo))
        return
    from finetune_operator.cli.jobs.suspend_all import consequences, live_jobs, suspend_all
    from finetune_operator.cli.questions import confirmed

    jobs = cluster.run(lambda connection: live_jobs(connection, everywhere=all_namespaces, selector=selector))
    # Asked outside of the event loop, which would take Ctrl-C.
    if jobs and not (yes or confirmed(consequences(jobs), "Suspend them?")):
        echo("Nothing was suspended.", err=True)
        raise typer.Exit(1)
    cluster.run(lambda connection: suspend_all(connection, jobs, write=echo, report=partial(echo, err=True)))


@cluster_command(INTERVENE)
def resume(names: Names, *, cluster: ClusterOptions) -> None:
    """Resume suspended jobs: a training continues from its last checkpoint. Clears spec.suspend."""
    from finetune_operator.cli.jobs.edit import resume_jobs

    cluster.run(lambda connection: resume_jobs(connection, names, write=echo))


@cluster_command(INTERVENE)
def retry(
    names: Names,
    from_stage: Annotated[
        Any,
        typer.Option(
            "--from-stage",
            parser=stage_named,
            metavar="STAGE",
            help="First stage to run again, also after a success. Default: the one that failed.",
        ),
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Run failed jobs again from the stage that failed, with new retry budgets. Raises spec.retry.generation."""
    from finetune_operator.cli.jobs.edit import retry_jobs

    cluster.run(lambda connection: retry_jobs(connection, names, from_stage, write=echo))


@cluster_command(INTERVENE)
def cancel(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")] = False,
    *,
    cluster: ClusterOptions,
) -> None:
    """Cancel jobs for good: a training saves, its slice is freed, and the job ends. Sets spec.cancel."""
    from finetune_operator.cli.jobs.edit import cancel_jobs, consequences, jobs_to_cancel
    from finetune_operator.cli.questions import confirmed

    jobs = cluster.run(lambda connection: jobs_to_cancel(connection, names, write=echo))
    # Asked outside of the event loop, which would take Ctrl-C.
    which = "the job" if len(jobs) == 1 else f"these {len(jobs)} jobs"
    if jobs and not (yes or confirmed(consequences(jobs), f"Cancel {which}?")):
        echo("Nothing was cancelled.", err=True)
        raise typer.Exit(1)
    cluster.run(lambda connection: cancel_jobs(connection, jobs, write=echo))
