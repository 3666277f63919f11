"""``finetune watch``: follows a job live until it ends."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from finetune_operator.cli import job_status, text
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs import stage_view, status_view
from finetune_operator.cluster.port import JOBS
from finetune_operator.objects import Object

type Clock = Callable[[], datetime]

#: Final phases, with the command's exit code for each.
EXIT_CODES = {"Succeeded": 0, "Planned": 0, "Failed": 1}
#: Percentage points of training progress after which plain output prints another line.
_STRIDE = 5.0
#: Share of another activity after which it does so.
_SHARE = 0.25


def now() -> datetime:
    return datetime.now(UTC)


async def watch_job(connection: Connection, name: str, console: Console, *, clock: Clock = now) -> int:
    """Shows the job until it has ended and returns the exit code. Raises CliError if the job is deleted."""
    await connection.job(name)  # Raises an error with similar names if the job does not exist.
    show = _live if console.is_terminal else _plain
    job = await show(connection, name, console, clock)
    for line in status_view.status_lines(job, clock()):
        console.print(line, soft_wrap=True)
    return EXIT_CODES[job_status.phase_of(job)]


async def job_states(
    connection: Connection, name: str, trouble: Callable[[str | None], None] = lambda _: None
) -> AsyncIterator[Object]:
    """Yields every state of the job up to and including its last one. Raises CliError if the job is deleted."""
    async for jobs in connection.follow(JOBS, name=name, trouble=trouble):
        if name not in jobs:
            raise CliError(f"FineTuneJob {name} was deleted. What it wrote to its run folder is still there.")
        yield jobs[name]
        if job_status.ended(jobs[name]):
            return


async def _live(connection: Connection, name: str, console: Console, clock: Clock) -> Object:
    """Shows one page that is redrawn continuously, so that durations advance between changes."""
    job: Object = {"metadata": {"name": name, "namespace": connection.namespace}}
    problem: str | None = None

    def page() -> RenderableType:
        note = [Text(f"No connection, trying again: {text.one_line(problem)}", "yellow")] if problem else []
        return Group(*status_view.status_lines(job, clock()), *note)

    def trouble(message: str | None) -> None:
        nonlocal problem
        problem = message

    with Live(get_renderable=page, console=console, refresh_per_second=4, transient=True):
        async for state in job_states(connection, name, trouble):
            job = state
    return job


async def _plain(connection: Connection, name: str, console: Console, clock: Clock) -> Object:
    """Prints one line for each transition."""
    chronicle = TransitionPrinter()
    job: Object = {}
    troubled = False

    def trouble(message: str | None) -> None:
        nonlocal troubled
        if message and not troubled:
            line = f"No connection, trying again: {text.one_line(message)}"
            console.print(line, soft_wrap=True, highlight=False, markup=False)
        troubled = message is not None

    async for state in job_states(connection, name, trouble):
        job = state
        for line in chronicle.news(job, clock()):
            console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print()
    return job


class TransitionPrinter:
    """Turns the states of a job into lines; each transition is printed once."""

    def __init__(self) -> None:
        self._printed: dict[str, str] = {}
        self._percent = 0.0
        self._share = 0.0

    def news(self, job: Object, at: datetime) -> Iterator[str]:
        """Yields a line for each change in this state, with the time since the job was created."""
        age = text.elapsed(job.get("metadata", {}).get("creationTimestamp"), None, at)
        clock = text.duration(age.total_seconds()) if age else ""
        for line in self._lines(text.plain(job_status.status_of(job)), at):
            yield text.printable(f"{clock:>12}  {line}")

    def _lines(self, status: Object, at: datetime) -> Iterator[str]:
        phase = str(status.get("phase") or "Pending")
        if self._new("phase", phase) and phase in ("Suspended", "Recovering", "Queued", "Provisioning"):
            yield f"{phase}: {status.get('summary', '')}".rstrip(": ")
        for stage in status.get("stages") or []:
            yield from self._stage(stage, status, at)
            yield from self._activity(stage)
        yield from self._progress(status)
        waiting = status.get("waiting") or {}
        # The message may contain a counter, so only a different reason is a change.
        if self._new("waiting", str(waiting.get("reason") or "")) and waiting.get("reason"):
            yield f"… {status_view.waiting_text(status, at)}"
        problem = status_view.problem_text(status)
        # If the job waits, the line about waiting already states the problem.
        if self._new("problem", problem) and problem and not waiting:
            yield f"! {problem}"

    def _stage(self, stage: Object, status: Object, at: datetime) -> Iterator[str]:
        name, phase = str(stage.get("name")), str(stage.get("phase") or "Pending")
        attempt = int(stage.get("attempt") or 1)
        if not self._new(name, f"{phase} {attempt}") or phase == "Pending":
            return
        again = f"attempt {attempt}" if attempt > 1 else ""
        if phase == "Running":
            yield f"▶ {name:<10}{again}".rstrip()
            return
        spent = text.elapsed(stage.get("startTime"), stage.get("completionTime"), at)
        notes = "  ".join(stage_view.stage_notes(stage, status))
        if phase == "Skipped" and not notes:
            return
        took = text.duration(spent.total_seconds()) if spent else ""
        yield f"{stage_view.mark(phase)[0]} {name:<10}{took:<12}{notes}".rstrip()

    def _activity(self, stage: Object) -> Iterator[str]:
        """Yields a line for each new activity of a running stage, and whenever a quarter more of it is done."""
        progress = stage_view.running(stage)
        if not progress:
            return
        doing = text.one_line(progress.get("doing") or "")
        share = stage_view.share(progress)
        began = self._new("activity", f"{stage.get('name')} {progress.get('since')} {doing}")
        if began or share - self._share >= _SHARE:
            self._share = share
            yield f"  {'':<10}{'  '.join((*stage_view.counts(progress), doing))}"

    def _progress(self, status: Object) -> Iterator[str]:
        progress = status.get("progress") or {}
        step, total = progress.get("step"), progress.get("totalSteps")
        if status.get("stage") != "Train" or not step or not total:
            return
        percent = 100 * float(step) / float(total)
        # A lower percentage, after a resume from an earlier checkpoint, is printed, too.
        if percent < self._percent or percent - self._percent >= _STRIDE:
            self._percent = percent
            yield f"  {'':<10}{'  '.join(stage_view.progress_notes(status, running=True))}"

    def _new(self, key: str, value: str) -> bool:
        changed = self._printed.get(key) != value
        self._printed[key] = value
        return changed
