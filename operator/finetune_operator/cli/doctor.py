"""``finetune doctor``: what an installation lacks, as its administrator or as a user of a namespace."""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import typer

from finetune_operator.cli.connection import Connection
from finetune_operator.cli.doctor_checks import findings
from finetune_operator.cli.doctor_finding import Finding, State
from finetune_operator.cli.doctor_probe import DEADLINE_SECONDS, LABEL, Probe, probes
from finetune_operator.cli.doctor_probe_ends import ended, judged, left_over, not_tested, refused
from finetune_operator.cli.doctor_setup import Setup, read_setup
from finetune_operator.cli.printing import json_text
from finetune_operator.cli.text import one_line
from finetune_operator.cluster.port import PODS, ClusterError, Object, Rejected


async def examine(
    connection: Connection,
    operator_namespace: str,
    *,
    probe: bool,
    as_json: bool,
    write: Callable[[str], None],
) -> None:
    """Prints the findings; with ``probe``, of pods that it runs, too.

    Raises Exit with code 1 if something is missing, and CliError.
    """
    setup = await read_setup(connection, operator_namespace)
    if probe:
        with _interrupted_by_sigterm():
            tried = await _probed(connection, setup)
    else:
        tried = [not_tested(setup)]
    found = [*findings(setup), *tried]
    missing = sum(each.state is State.MISSING for each in found)
    if as_json:
        write(
            json_text({"namespace": connection.namespace, "missing": missing, "findings": _documents(found)})
        )
    else:
        for each in found:
            write(line(each))
        write(f"{missing} of {len(found)} checks failed." if missing else "Nothing is missing.")
    if missing:
        raise typer.Exit(1)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Inside the block SIGTERM has the effect of Ctrl-C, so that nothing is left behind."""
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _probed(connection: Connection, setup: Setup) -> list[Finding]:
    """Runs the pods and returns their findings. They are deleted at the end, also if the command is interrupted."""
    for old in await connection.pods({LABEL: "access"}):
        if left_over(old):
            await connection.delete(PODS, old)
    found: list[Finding] = []
    running: dict[str, Probe] = {}
    created: list[Object] = []
    last: dict[str, Object] = {}
    try:
        for each in probes(setup):
            try:
                created.append(await connection.create(PODS, each.pod))
            except Rejected as error:
                found.append(refused(setup, each, error.status, str(error)))
            else:
                running[created[-1]["metadata"]["name"]] = each
        typer.echo(f"{len(running)} pods run, for {DEADLINE_SECONDS // 60} minutes at most.", err=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS if running else 0):
                await _ends(connection, {_uid(pod): pod["metadata"]["name"] for pod in created}, last)
    finally:
        for pod in created:
            with suppress(ClusterError):  # its deadline ends it
                await connection.delete(PODS, pod)
    for name, each in running.items():
        found += judged(setup, each, last.get(name))
    return list(dict.fromkeys(found))


async def _ends(connection: Connection, created: Mapping[str, str], last: dict[str, Object]) -> None:
    """Keeps ``last`` at the newest state of each pod, until all have ended.

    ``created``: names of the pods by uid. Another pod of the same name is not ours.
    """
    async for pods in connection.follow(PODS, labels={LABEL: "access"}):
        last.clear()
        last.update({name: pod for name, pod in pods.items() if created.get(_uid(pod)) == name})
        if all(name not in last or ended(last[name]) for name in created.values()):
            return


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def line(finding: Finding) -> str:
    """One line, with the command that mends it."""
    fix = f" Fix: {finding.fix}" if finding.fix else ""
    return f"{finding.state:<7}  {finding.check:<8}  {one_line(finding.message + fix)}"


def _documents(found: Sequence[Finding]) -> list[dict[str, str]]:
    return [
        {"check": each.check, "state": each.state, "message": each.message, "fix": each.fix} for each in found
    ]
