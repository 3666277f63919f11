"""How the command line says no."""

from collections.abc import Iterable
from difflib import get_close_matches


class CliError(Exception):
    """An error for people: what is wrong, and one thing to do about it. Shown on stderr, without a traceback."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def close_names(name: str, known: Iterable[str]) -> str:
    """``Did you mean a or b?``, or what there is, or nothing where there is nothing."""
    names = sorted(known)
    if not names:
        return ""
    close = get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    shown = ", ".join(names[:8])
    return f"There are: {shown}{' …' if len(names) > 8 else ''}."
