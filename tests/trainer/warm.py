"""A process that has imported the trainer once and forks for every stage: python warm.py, a JSON line of environment in,
``<pid>`` and ``<pid> <exit code>`` out."""

import json
import os
import sys

from finetune_trainer.main import main, preload


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # engines print as they like
    preload()
    print("ready", file=answers)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.environ.update(json.loads(line))
            os._exit(main(os.environ))
        print(pid, file=answers)
        _, status = os.waitpid(pid, 0)
        print(pid, os.waitstatus_to_exitcode(status), file=answers)


if __name__ == "__main__":
    serve()
