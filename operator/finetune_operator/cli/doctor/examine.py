"""``finetune doctor``: what an installation lacks, as its administrator or as a user of a namespace."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

import typer

from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.doctor.checks import findings
from finetune_operator.cli.doctor.probe import DEADLINE_SECONDS, LABEL, Probe, probes
from finetune_operator.cli.doctor.probe_ends import ended, judged, left_over, not_tested, refused
from finetune_operator.cli.doctor.setup import Finding, Setup, State, read_setup
from finetune_operator.cli.printing import json_text
from finetune_operator.cli.text import one_line
from finetune_operator.cluster.port import PODS, ClusterError, Rejected
from finetune_operator.objects import Object

type _Run = tuple[Probe, Object | None]
"""A probe and its pod as it was last seen; None: it is gone."""


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
            json_text(
                {
                    "namespace": connection.namespace,
                    "missing": missing,
                    "findings": [asdict(each) for each in found],
                }
            )
        )
    else:
        for each in found:
            write(line(each))
        write(closing(found))
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
            await connection.remove(PODS, old)
    found: list[Finding] = []
    running: dict[str, _Run] = {}
    try:
        for probe in probes(setup):
            try:
                pod = await connection.create(PODS, probe.pod)
            except Rejected as error:
                found.append(refused(setup, probe, error.status, str(error)))
            else:
                running[pod["metadata"]["name"]] = probe, pod
        typer.echo(f"{len(running)} pods run, for {DEADLINE_SECONDS // 60} minutes at most.", err=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS if running else 0):
                await _ends(connection, running)
    finally:
        for _, last in running.values():
            if last is not None:
                with suppress(ClusterError):  # its deadline ends it
                    await connection.remove(PODS, last)
    for probe, last in running.values():
        found += judged(setup, probe, last)
    return list(dict.fromkeys(found))


async def _ends(connection: Connection, running: dict[str, _Run]) -> None:
    """Keeps ``running``, by name, at the newest state of each pod, until all have ended."""
    async for pods in connection.follow(PODS, labels={LABEL: "access"}):
        for name, (probe, last) in list(running.items()):
            # Another pod of the same name is not ours.
            is_ours = last is not None and name in pods and _uid(pods[name]) == _uid(last)
            running[name] = probe, pods[name] if is_ours else None
        if all(last is None or ended(last) for _, last in running.values()):
            return


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def closing(found: Sequence[Finding]) -> str:
    """The last line: how many checks failed, and how many are unknown."""
    count = Counter(each.state for each in found)
    missing, unknown = count[State.MISSING], count[State.UNKNOWN]
    failed = f"{missing} of {len(found)} checks failed" if missing else "Nothing is missing"
    return f"{failed}; unknown: {unknown} of {len(found)}." if unknown else f"{failed}."


def line(finding: Finding) -> str:
    """One line, with the command that mends it."""
    fix = f" Fix: {finding.fix}" if finding.fix else ""
    return f"{finding.state:<7}  {finding.check:<8}  {one_line(finding.message + fix)}"
