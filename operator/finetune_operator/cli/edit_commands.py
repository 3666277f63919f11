"""Commands that change a job's lifecycle: suspend, resume, retry, cancel."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finetune_operator.cli.app import INTERVENE, app, echo
from finetune_operator.cli.options import (
    AllNamespaces,
    Context,
    Kubeconfig,
    Names,
    NamesOrAll,
    Namespace,
    Selector,
    User,
    stage_named,
    with_connection,
)

if TYPE_CHECKING:
    from finetune_operator.cli.connection import Connection


@app.command(rich_help_panel=INTERVENE)
def suspend(  # noqa: PLR0917  typer passes options by name
    names: NamesOrAll = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All live jobs of the namespace, or of all with -A.")
    ] = False,
    selector: Selector = None,
    all_namespaces: AllNamespaces = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --all: do not ask at a terminal.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    user: User = None,
) -> None:
    """Suspend jobs: a training saves, and its slice is freed. Sets spec.suspend."""

    def run[T](command: Callable[["Connection"], Awaitable[T]]) -> T:
        return with_connection(kubeconfig, context, user, namespace, command)

    if bool(names) is everything:
        raise typer.BadParameter("give names of jobs, or --all")
    if names:
        from finetune_operator.cli.edit import suspend_jobs

        if selector or all_namespaces:
            raise typer.BadParameter("-l and -A select among --all jobs, not among names")
        run(lambda cluster: suspend_jobs(cluster, names, write=echo))
        return
    from finetune_operator.cli.suspend_all import confirmed, live_jobs, suspend_all

    jobs = run(lambda cluster: live_jobs(cluster, everywhere=all_namespaces, selector=selector))
    # Asked outside of the event loop, which would take Ctrl-C.
    if jobs and not (yes or confirmed(jobs)):
        echo("Nothing was suspended.", err=True)
        raise typer.Exit(1)
    run(lambda cluster: suspend_all(cluster, jobs, write=echo, report=partial(echo, err=True)))


@app.command(rich_help_panel=INTERVENE)
def resume(
    names: Names,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    user: User = None,
) -> None:
    """Resume suspended jobs: a training continues from its last checkpoint. Clears spec.suspend."""
    from finetune_operator.cli.edit import resume_jobs

    with_connection(
        kubeconfig, context, user, namespace, lambda cluster: resume_jobs(cluster, names, write=echo)
    )


@app.command(rich_help_panel=INTERVENE)
def retry(  # noqa: PLR0917  typer passes options by name
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
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    user: User = None,
) -> None:
    """Run failed jobs again from the stage that failed, with new retry budgets. Raises spec.retry.generation."""
    from finetune_operator.cli.edit import retry_jobs

    with_connection(
        kubeconfig,
        context,
        user,
        namespace,
        lambda cluster: retry_jobs(cluster, names, from_stage, write=echo),
    )


@app.command(rich_help_panel=INTERVENE)
def cancel(  # noqa: PLR0917  typer passes options by name
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask at a terminal.")] = False,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    user: User = None,
) -> None:
    """Cancel jobs for good: a training saves, its slice is freed, and the job ends. Sets spec.cancel."""
    from finetune_operator.cli.cancel import cancel_jobs, confirmed, jobs_to_cancel

    def run[T](command: Callable[["Connection"], Awaitable[T]]) -> T:
        return with_connection(kubeconfig, context, user, namespace, command)

    jobs = run(lambda cluster: jobs_to_cancel(cluster, names, write=echo))
    # Asked outside of the event loop, which would take Ctrl-C.
    if jobs and not (yes or confirmed(jobs)):
        echo("Nothing was cancelled.", err=True)
        raise typer.Exit(1)
    run(lambda cluster: cancel_jobs(cluster, jobs, write=echo))
