"""The command line. Commands import their dependencies when they run, so that ``--help`` is fast."""

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

# Each module registers its commands, in the order in which --help shows them.
from finetune_operator.cli import manifest_commands, lookup_commands, job_commands, edit_commands  # isort: skip  # noqa: F401
from finetune_operator.cli import result_commands  # isort: skip  # noqa: F401
from finetune_operator.cli.app import app

#: Options that take the name of a file, in all commands and in one.
_FILE_OPTIONS = ("-f", "--filename", "--model-config", "--kubeconfig")
_FILE_OPTIONS_OF_ONE = (
    ("plan", "--profile"), ("init", "--output"), ("download", "--to"), ("report", "--output"), ("report", "-o"),
)  # fmt: skip


def main() -> None:
    """Entry point of the ``finetune`` program."""
    _run("finetune")


def kubectl_plugin() -> None:
    """Entry point of ``kubectl-finetune``, which kubectl runs for ``kubectl finetune``."""
    _run("kubectl finetune")


def kubectl_completion() -> None:
    """Entry point of ``kubectl_complete-finetune``, which kubectl runs to complete ``kubectl finetune``.

    Prints a completion per line, and last Cobra's directive: whether the shell completes file names.
    """
    *complete, last = sys.argv[1:] or [""]
    words = shlex.join(["finetune", *complete, *([last] if last else [])])
    cursor = str(len(complete) + 1)
    os.environ.update(_FINETUNE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=cursor)
    with suppress(SystemExit):
        _run("finetune")
    sys.stdout.write(":0\n" if _takes_file(complete) else ":4\n")


def _takes_file(words: Sequence[str]) -> bool:
    """Whether the next word after a command and its arguments is the name of a file."""
    return bool(words) and (words[-1] in _FILE_OPTIONS or (words[0], words[-1]) in _FILE_OPTIONS_OF_ONE)


def _run(program: str) -> None:
    # Users see the commands' errors instead of the libraries' log messages.
    logging.getLogger().addHandler(logging.NullHandler())
    app(prog_name=program)


if __name__ == "__main__":
    main()
