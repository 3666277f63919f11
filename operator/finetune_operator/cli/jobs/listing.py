"""``finetune list``: the jobs of a namespace, or of all, as a table."""

from collections.abc import Callable
from datetime import UTC, datetime

from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.jobs import status_view
from finetune_operator.cli.printing import item_text, list_text, table
from finetune_operator.objects import Object

_COLUMNS = ("NAME", "PHASE", "STAGE", "STEP", "ETA", "COST", "AGE")
_WIDE = ("TPU", "MODEL", "SUMMARY")


async def show_list(
    connection: Connection,
    *,
    everywhere: bool,
    selector: str | None,
    output: str | None,
    write: Callable[[str], None],
    now: datetime | None = None,
) -> None:
    """Prints the jobs that ``selector`` selects, of the connection's namespace or of all (``everywhere``)."""
    jobs = connection.jobs(everywhere=everywhere, selector=selector)
    if output in ("json", "yaml", "name"):
        # The text of an object takes a fraction of the memory of the object itself.
        items = [item_text(job, output) async for job in jobs]
        if items or output != "name":
            write(list_text(items, output))
        return
    at = now or datetime.now(UTC)
    rows = [_row(job, at, everywhere=everywhere, wide=output == "wide") async for job in jobs]
    if not rows:
        where = "in any namespace" if everywhere else f"in namespace {connection.namespace}"
        write(f"No jobs {where}{f' with labels {selector}' if selector else ''}.")
        return
    head = (*(("NAMESPACE",) if everywhere else ()), *_COLUMNS, *(_WIDE if output == "wide" else ()))
    for line in table([head, *rows]):
        write(line)


def _row(job: Object, at: datetime, *, everywhere: bool, wide: bool) -> tuple[str, ...]:
    metadata, status = job["metadata"], job_status.status_of(job)
    progress, cost = status.get("progress") or {}, status.get("cost") or {}
    resolved = status.get("resolved") or {}
    age = text.elapsed(metadata.get("creationTimestamp"), None, at)
    live = job_status.phase_of(job) not in job_status.ENDED
    cells = [
        *((metadata.get("namespace"),) if everywhere else ()),
        metadata["name"],
        job_status.phase_of(job),
        status.get("stage"),
        progress.get("stepText"),
        progress.get("etaText") if live else None,
        " ".join(str(each) for each in (cost.get("amount"), cost.get("currency")) if each is not None),
        text.duration(age.total_seconds()) if age else None,
    ]
    if wide:
        cells += [
            (resolved.get("resources") or {}).get("tpu"),
            (resolved.get("model") or {}).get("source"),
            status.get("summary"),
        ]
    return tuple(text.cell(each) for each in cells)


async def show_status(
    connection: Connection, name: str, output: str | None, write: Callable[[str], None]
) -> None:
    """Prints the job's current activity and progress and, after it has finished, the location of the model.

    With ``output`` it prints the object in that format instead.
    """
    job = await connection.job(name)
    if output:
        write(item_text(job, output))
        return
    from rich.console import Console

    console = Console()
    for line in status_view.status_lines(job, datetime.now(UTC)):
        console.print(line, soft_wrap=True)
