"""The programs of the command line. Commands import their dependencies when they run, so that ``--help`` is fast."""

import io
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

#: Options that take the name of a file, in all commands and in one.
_FILE_OPTIONS = ("-f", "--filename", "--model-config", "--kubeconfig")
_FILE_OPTIONS_OF_ONE = (("plan", "--profile"), ("init", "--output"), ("download", "--to"))


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
    import shlex

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
    # Until a command handles Ctrl-C, and after it has ended, Ctrl-C ends the process without a traceback.
    asked = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if asked:  # A process in the background may ignore it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import logging

    from finetune_operator.cli.commands import app

    # Users see the commands' errors instead of the libraries' log messages.
    logging.getLogger().addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Where the encoding has no such symbol, a question mark is shown.
            stream.reconfigure(errors="replace")
    try:
        if asked:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app(prog_name=program)
    finally:
        if asked:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        _drop_unwritten()


def _drop_unwritten() -> None:
    """Drops output that cannot be written, of which an error was shown: the interpreter would try again at its end."""
    if (stdout := sys.__stdout__) is None:
        return
    try:
        stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())


if __name__ == "__main__":
    main()
