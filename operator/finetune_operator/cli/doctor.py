"""``finetune doctor``: what an installation lacks, as its administrator or as a user of a namespace."""

from collections.abc import Callable, Sequence

import typer

from finetune_operator.cli.connection import Connection
from finetune_operator.cli.doctor_checks import Finding, State, findings
from finetune_operator.cli.doctor_setup import read_setup
from finetune_operator.cli.printing import json_text
from finetune_operator.cli.text import one_line


async def examine(
    connection: Connection, operator_namespace: str, *, as_json: bool, write: Callable[[str], None]
) -> None:
    """Prints the findings. Raises Exit with code 1 if something is missing, and CliError."""
    found = findings(await read_setup(connection, operator_namespace))
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


def line(finding: Finding) -> str:
    """One line, with the command that mends it."""
    fix = f" Fix: {finding.fix}" if finding.fix else ""
    return one_line(f"{finding.state:<7}  {finding.check:<8}  {finding.message}{fix}")


def _documents(found: Sequence[Finding]) -> list[dict[str, str]]:
    return [
        {"check": each.check, "state": each.state, "message": each.message, "fix": each.fix} for each in found
    ]
