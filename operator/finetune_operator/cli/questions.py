"""Questions to a person at a terminal."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer


def can_ask() -> bool:
    """Whether a person is there to answer: input and output are both terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Questions:
    """Asks on stderr, so that stdout has only the result. A refused answer is asked again.

    Each method raises typer.Abort at Ctrl-C and at the end of the input.
    """

    def text(self, question: str, check: Callable[[str], str], default: str | None = None) -> str:
        """Returns an answer for which ``check`` returns no fault. ``default`` is the answer to an empty line."""

        def checked(answer: str) -> str:
            if fault := check(answer.strip()):
                raise typer.BadParameter(fault)
            return answer.strip()

        return self._asked(question, default, checked)

    def choice(self, question: str, choices: Sequence[str], default: str) -> str:
        """Returns one of the choices, in any case."""

        def chosen(answer: str) -> str:
            found = next((each for each in choices if each.lower() == answer.strip().lower()), None)
            if found is None:
                raise typer.BadParameter(f"choose one of {', '.join(choices)}")
            return found

        return self._asked(f"{question} ({', '.join(choices)})", default, chosen)

    def confirm(self, question: str, *, default: bool) -> bool:
        """Returns whether the answer is yes."""
        return typer.confirm(question, default=default, err=True)

    def _asked(self, question: str, default: str | None, read: Callable[[str], str]) -> str:
        answer: Any = typer.prompt(
            question, default=default, show_default=bool(default), value_proc=read, err=True
        )
        return str(answer)
