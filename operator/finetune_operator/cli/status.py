"""``finetune status``: the one-page story of a job."""

from datetime import UTC, datetime

from rich.console import Console

from finetune_operator.cli import status_view
from finetune_operator.cli.connection import Connection


async def show_status(connection: Connection, name: str, console: Console) -> None:
    """Print what the job is doing, how far it is, and in the end where the model lies."""
    job = await connection.job(name)
    for line in status_view.status_lines(job, datetime.now(UTC)):
        console.print(line, soft_wrap=True)
