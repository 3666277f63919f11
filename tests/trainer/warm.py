"""A process that imports the trainer once and forks for every run of ``finetune-stage``: python -m tests.trainer.warm

It reads lines of JSON and answers each with one line. The answer to ``{"start": {"environment", "arguments", "log",
"fault"}}`` is the id of the new process, and to ``{"wait": id}`` the exit code of that process, once it has ended.
"""

import json
import os
import sys
import traceback
from importlib import import_module
from typing import Any

from finetune_trainer.commands.main import preload, run


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines print to stdout
    preload()
    print("ready", file=answers)
    for line in sys.stdin:
        match json.loads(line):
            case {"start": wanted}:
                pid = os.fork()
                if pid == 0:
                    become(**wanted)
                print(pid, file=answers)
            case {"wait": int(pid)}:
                _, status = os.waitpid(pid, 0)
                print(os.waitstatus_to_exitcode(status), file=answers)


def become(environment: dict[str, str], arguments: list[str], log: str, fault: list[Any] | None) -> None:
    """Turns this process into ``finetune-stage``.

    ``fault``: name and arguments of a function in ``tests.trainer.faults``, which is called before the stage begins.
    """
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["finetune-stage", *arguments]
    code: object = 1
    try:
        if fault:
            getattr(import_module("tests.trainer.faults"), fault[0])(*fault[1:])
        run()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - os._exit below ends the process without a traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve()
