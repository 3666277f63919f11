"""``finetune status``: the status of a job on one page."""

from datetime import UTC, datetime

from rich.console import Console

from finetune_operator.cli import status_view
from finetune_operator.cli.connection import Connection


async def show_status(connection: Connection, name: str, console: Console) -> None:
    """Prints the job's current activity and progress and, after it has finished, the location of the model."""
    job = await connection.job(name)
    for line in status_view.status_lines(job, datetime.now(UTC)):
        console.print(line, soft_wrap=True)
