"""Errors of the command line."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from difflib import get_close_matches

#: Exit code of a wrong argument, as of those that typer itself refuses.
WRONG_ARGUMENT = 2


class CliError(Exception):
    """An error for users: the problem and one remedy. Shown on stderr, without a traceback.

    ``code`` is the exit code of the program.
    """

    def __init__(self, message: str, *, fix: str = "", code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.code = code


def close_names(name: str, known: Iterable[str]) -> str:
    """Returns a hint for a misspelled name: ``Did you mean a or b?``.

    If no known name is similar, the hint lists known names; it is empty if there are none.
    """
    names = sorted(known)
    if not names:
        return ""
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    shown = ", ".join(names[:8])
    return f"Available: {shown}{' …' if len(names) > 8 else ''}."


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Opens a TaskGroup whose first error is raised itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
