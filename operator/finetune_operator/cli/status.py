"""``finetune status``: the status of a job on one page."""

from collections.abc import Callable
from datetime import UTC, datetime

from finetune_operator.cli import status_view
from finetune_operator.cli.connection import Connection
from finetune_operator.cli.printing import object_text


async def show_status(
    connection: Connection, name: str, output: str | None, write: Callable[[str], None]
) -> None:
    """Prints the job's current activity and progress and, after it has finished, the location of the model.

    With ``output`` it prints the object in that format instead.
    """
    job = await connection.job(name)
    if output:
        write(object_text([job], output, single=True))
        return
    from rich.console import Console

    console = Console()
    for line in status_view.status_lines(job, datetime.now(UTC)):
        console.print(line, soft_wrap=True)
