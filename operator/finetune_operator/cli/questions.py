"""Questions to a person at a terminal."""

import sys
from collections.abc import Callable, Iterable, Sequence

import typer

from finetune_operator.cli.app import echo


def can_ask() -> bool:
    """Whether a person is there to answer: stdin and stderr are terminals. Stdout may be a file or a pipe."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(lines: Iterable[str], question: str) -> bool:
    """Prints the lines on stderr and asks at a terminal; no is the default. Returns True without a terminal."""
    if not can_ask():
        return True
    for line in lines:
        echo(line, err=True)
    return Questions().confirm(question, default=False)


class Questions:
    """Asks on stderr, so that stdout has only the result. A refused answer is asked again.

    Each method raises KeyboardInterrupt at Ctrl-C and at the end of the input.
    """

    def text(self, question: str, check: Callable[[str], str], default: str | None = None) -> str:
        """Returns an answer for which ``check`` returns no fault. ``default`` is the answer to an empty line."""
        while True:
            answer = self._answer(f"{question} [{default}]: " if default else f"{question}: ")
            if not answer and default is None:
                continue
            if not (fault := check(answer or default or "")):
                return answer or default or ""
            typer.echo(f"Error: {fault}", err=True)

    def choice(self, question: str, choices: Sequence[str], default: str) -> str:
        """Returns one of the choices, in any case."""
        known = {each.lower(): each for each in choices}
        listed = ", ".join(choices)
        answer = self.text(
            f"{question} ({listed})",
            lambda given: "" if given.lower() in known else f"choose one of {listed}",
            default,
        )
        return known[answer.lower()]

    def confirm(self, question: str, *, default: bool) -> bool:
        """Returns whether the answer is yes."""
        while True:
            answer = self._answer(f"{question} [{'Y/n' if default else 'y/N'}] ").lower()
            if not answer:
                return default
            if answer in {"y", "yes", "n", "no"}:
                return answer in {"y", "yes"}
            typer.echo("Error: answer y or n", err=True)

    def _answer(self, prompt: str) -> str:
        # Typer's own prompts write to stdout, and do not distinguish Ctrl-C from an error.
        typer.echo(prompt, nl=False, err=True)
        line = sys.stdin.readline()
        if not line:
            raise KeyboardInterrupt
        return line.strip()
