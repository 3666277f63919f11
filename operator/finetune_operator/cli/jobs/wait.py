"""``finetune wait``: waits for the ends of jobs, for scripts."""

import asyncio
import re
from collections.abc import Callable, Sequence

from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import WRONG_ARGUMENT, CliError, task_group
from finetune_operator.cli.jobs.watch import EXIT_CODES, job_states
from finetune_operator.cluster.port import ClusterError

#: Exit code after the timeout, that of timeout(1).
TIMED_OUT = 124
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(duration: str) -> float:
    """Parses a duration such as ``90s``, ``1h30m`` or ``2d``; a bare number is seconds. Raises CliError."""
    if re.fullmatch(r"\d+(\.\d+)?", duration):
        return float(duration)
    if not re.fullmatch(r"(\d+(\.\d+)?[smhd])+", duration):
        raise CliError(
            f"--timeout {duration}: is not a duration.",
            fix="For example 90s, 30m or 1h30m.",
            code=WRONG_ARGUMENT,
        )
    parts = re.findall(r"([\d.]+)([smhd])", duration)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


async def wait_for(
    connection: Connection, names: Sequence[str], *, seconds: float | None, write: Callable[[str], None]
) -> int:
    """Prints one line for each job when it ends. Returns the exit code; once ``seconds`` have passed, TIMED_OUT.

    Raises CliError if one does not exist, and ClusterError.
    """
    phases = dict.fromkeys(names, "the cluster has not responded")
    codes: dict[str, int] = {}

    async def one(name: str) -> None:
        async for job in job_states(connection, name):
            phase = phases[name] = job_status.phase_of(job)
            if job_status.ended(job):
                codes[name] = EXIT_CODES[phase]
                write(
                    text.one_line(f"{name} {phase}: {job_status.status_of(job).get('summary', '')}").rstrip(
                        ": "
                    )
                )

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            for name in phases:
                # Raises an error with similar names.
                phases[name] = job_status.phase_of(await connection.job(name))
            async with task_group() as group:
                for name in phases:
                    group.create_task(one(name))
    except (TimeoutError, CliError, ClusterError, OSError):
        # What a request raises while it is cancelled is no error of the jobs.
        if not limit.expired():
            raise
        # Without a request: the server may be away.
        for name, phase in phases.items():
            if name not in codes:
                write(f"{name} has not ended after {seconds:g} s: {phase}")
        return TIMED_OUT
    return max(codes.values())
