"""The supervisor's process, and requests to it: JSON lines over a Unix socket in the state folder."""

import asyncio
import dataclasses
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from devcluster.build import BuildError
from devcluster.cluster_starter import ClusterStarter
from devcluster.errors import LocalClusterError
from devcluster.identity import end
from devcluster.layout import ROOT, StateFolder
from devcluster.options import Options
from devcluster.pki import PkiError
from devcluster.sources import CLUSTER, digest
from devcluster.supervisor import Supervisor, recorded_processes

type Reply = Mapping[str, Any]


class Service:
    """The supervisor's side: answers requests until a request or a signal shuts it down."""

    def __init__(self, state: StateFolder) -> None:
        self.state = state
        self.supervisor = Supervisor(state)
        self.bringup = ClusterStarter(state, self.supervisor)
        self._done = asyncio.Event()
        self._code = digest(CLUSTER)

    async def run(self) -> None:
        """Serves until shutdown, then ends every process that it started."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._done.set)
        with _socket_path(self.state) as path:
            server = await asyncio.start_unix_server(self._serve, path)
        async with server:
            await self._done.wait()
            await self.bringup.close()
        self.state.processes.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def send(message: Reply) -> None:
            if not writer.is_closing():
                writer.write(json.dumps(message).encode() + b"\n")

        try:
            request = json.loads(await reader.readline())
            send({"done": await self._answer(request, lambda text: send({"say": text}))})
            await writer.drain()
        except (LocalClusterError, BuildError, PkiError) as error:
            send({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - the boundary: the client gets the message, the log the traceback
            traceback.print_exc()
            send({"error": f"{error!r}; more in {self.state.log('supervisor')}"})
        finally:
            writer.close()

    async def _answer(self, request: Mapping[str, Any], report_progress: Callable[[str], None]) -> object:
        name = str(request.get("name", ""))
        match request["do"]:
            case "up":
                options = Options(**request["options"])
                operator, extra = bool(request["operator"]), request["extra"]
                await self.bringup.up(
                    options, operator=operator, extra=extra, report_progress=report_progress
                )
            case "start":
                await self.bringup.start(name)
            case "connect":
                self.bringup.operator_server = request["port"]
            case "stop":
                await self.supervisor.stop(name)
            case "signal":
                await self.supervisor.signal(name, int(request["number"]))
            case "await":
                await self.supervisor.restarted(name)
            case "status":
                return await self.supervisor.status()
            case "ports":
                return self.bringup.ports
            case "code":
                return self._code
            case "shutdown":
                self._done.set()
            case other:
                raise LocalClusterError(f"unknown request {other!r}")
        return None


def call(
    state: StateFolder, request: Mapping[str, Any], report_progress: Callable[[str], None] = lambda _: None
) -> Any:
    """Sends one request to the running supervisor and returns its answer.

    Raises LocalClusterError, also when there is no supervisor.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with _socket_path(state) as path:
                connection.connect(path)
        except OSError as error:
            raise LocalClusterError(f"no cluster runs in {state.root}; start one with `up`") from error
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile() as lines:
                for line in lines:
                    message = json.loads(line)
                    if "say" in message:
                        report_progress(message["say"])
                    elif "error" in message:
                        raise LocalClusterError(message["error"])
                    else:
                        return message["done"]
        except OSError as error:
            raise LocalClusterError(f"the supervisor exited; see {state.log('supervisor')}") from error
    raise LocalClusterError(f"the supervisor exited; see {state.log('supervisor')}")


def alive(state: StateFolder) -> bool:
    """Whether a supervisor answers."""
    try:
        call(state, {"do": "ports"})
    except LocalClusterError:
        return False
    return True


def up(
    state: StateFolder,
    options: Options,
    *,
    operator: bool,
    extra: Sequence[str] = (),
    report_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Starts the cluster, whatever state it is in, with the optional components of ``extra``. Returns when it runs.

    Raises LocalClusterError.
    """
    if alive(state) and call(state, {"do": "code"}) != digest(CLUSTER):
        report_progress(
            "the running cluster belongs to another checkout or to an older version of this one: restarting it"
        )
        shut_down(state)
    ensure_supervisor(state)
    chosen = dataclasses.asdict(options)
    call(state, {"do": "up", "operator": operator, "extra": list(extra), "options": chosen}, report_progress)


def ensure_supervisor(state: StateFolder) -> None:
    """Starts a supervisor for ``state`` in the background, unless one is running."""
    if alive(state):
        return
    # a supervisor that was killed leaves its processes behind; end them before the new one starts
    end(recorded_processes(state).values(), grace=5)
    state.logs.mkdir(parents=True, exist_ok=True)
    with state.log("supervisor").open("ab") as log:
        # it detaches itself, and is not a child of this process when the call returns
        subprocess.run(
            [sys.executable, "-P", "-m", "devcluster", "supervise", "--state", str(state.root)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=state.root,
            check=True,
        )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if alive(state):
            return
        time.sleep(0.05)
    raise LocalClusterError(f"the supervisor does not start; see {state.log('supervisor')}")


def supervise(state: StateFolder) -> None:
    """Runs the supervisor in the background. Ends at once if another one holds the state folder."""
    if os.fork():
        os._exit(0)
    os.setsid()
    with state.lock.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        asyncio.run(_run(state))


async def _run(state: StateFolder) -> None:
    await Service(state).run()


def shut_down(state: StateFolder) -> bool:
    """Ends the cluster, in order through its supervisor, else by the processes that it recorded.

    Returns False if nothing was running.
    """
    processes = [process for process in recorded_processes(state).values() if process.lives()]
    if alive(state):
        call(state, {"do": "shutdown"})
        deadline = time.monotonic() + 120
        while alive(state) and time.monotonic() < deadline:
            time.sleep(0.1)
    end(processes, grace=20)
    state.processes.unlink(missing_ok=True)
    return bool(processes)


@contextmanager
def _socket_path(state: StateFolder) -> Iterator[str]:
    """A short path to the socket: the kernel allows 107 characters, and paths of state folders may be longer."""
    folder = os.open(state.root, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{state.control_socket}"
    finally:
        os.close(folder)
