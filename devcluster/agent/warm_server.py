"""Runs in the trainer's environment: imports everything once, then forks one process per stage.

Started as a plain file (only the standard library and ``finetune_trainer`` are imported), it exchanges JSON lines over
the socket whose descriptor is its only argument:

    in   {"start": id, "argv": […], "env": {…}, "cwd": "…", "log": "…"}   {"signal": pid, "number": n}
    out  {"ready": seconds}   {"started": id, "pid": n}   {"exited": pid, "code": wait status as exit code}

A child leaves the server's loop and becomes the program: its environment, working folder, output and process group are
those of a fresh process, signals have their defaults, and the interpreter ends as usual. The server and its children
end when the other end of the socket is closed.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from typing import Any


def serve(connection: socket.socket) -> None:
    """Answers requests until the connection ends. Returns only in a child, which then is the program."""
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    buffered = b""
    watched: list[Any] = [connection, wake_read]
    while True:
        readable, _, _ = select.select(watched, [], [])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            reap(connection, children)
        if connection in readable:
            chunk = connection.recv(1 << 20)
            if not chunk:
                for pid in children:
                    kill_group(pid)
                os._exit(0)
            *lines, buffered = (buffered + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "signal" in request:
                    if request["signal"] in children:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(request["signal"], request["number"])
                    continue
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for descriptor in (wake_read, wake_write, connection.detach()):
                        os.close(descriptor)
                    become(request)
                    return
                children.add(pid)
                send(connection, {"started": request["start"], "pid": pid})


def reap(connection: socket.socket, children: set[int]) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)
            send(connection, {"exited": pid, "code": os.waitstatus_to_exitcode(status)})


def become(request: dict[str, Any]) -> None:
    """Makes this process equal to a freshly started one."""
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as in every Python process at its start
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # determined again from TMPDIR
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # a fresh process has its own random state
    sys.argv = [*request["argv"]]


def send(connection: socket.socket, message: dict[str, object]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    started = time.monotonic()
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from finetune_trainer.commands.main import preload, run

    preload()
    send(connection, {"ready": round(time.monotonic() - started, 1)})
    serve(connection)
    run()


main()
