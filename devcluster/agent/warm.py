"""The agent's side of the warm server: a trainer that has imported everything, from which stages are forked."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from devcluster.agent.process import Launch, StartError, shell_code

PROGRAM = "finetune-stage"
SERVER = Path(__file__).with_name("warm_server.py")
#: Variables that Python and libraries read when they start or are imported, so that a fork can't have its own.
READ_AT_IMPORT = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "PYTHON", "LD_")
#: Exceptions, which are read at each use.
READ_LATE = frozenset({"HF_TOKEN"})
RESTART_SECONDS = 10.0


class WarmProcess:
    """A stage forked from the server."""

    def __init__(self, server: "WarmServer", pid: int) -> None:
        self._server = server
        self.pid = pid
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return await asyncio.shield(self.exit)

    def signal(self, number: int) -> None:
        # through the server, which knows whether the process is still its child
        self._server.send({"signal": self.pid, "number": number})


class WarmServer:
    """Keeps one server running, and says whether a fork from it can replace a fresh process."""

    def __init__(self, *, image: str, environment: Mapping[str, str], log: Path) -> None:
        self.image = image
        self._environment = environment
        self._log = log
        self._writer: asyncio.StreamWriter | None = None
        self.ready = asyncio.Event()
        self._ids = itertools.count(1)
        self._starting: dict[int, asyncio.Future[WarmProcess]] = {}
        self._children: dict[int, WarmProcess] = {}

    def fits(self, launch: Launch) -> str | None:
        """None if a fork would equal a fresh process, else the reason why not."""
        if launch.image != self.image or launch.argv[0] != PROGRAM:
            return "another program"
        if not self.ready.is_set():
            return "the warm server is not ready"
        for name in {*launch.env, *self._environment}:
            early = name.startswith(READ_AT_IMPORT) and name not in READ_LATE
            if early and launch.env.get(name) != self._environment.get(name):
                return f"its {name} differs from the warm server's"
        return None

    async def start(self, launch: Launch) -> WarmProcess:
        """Forks the stage. Raises StartError if the server ends meanwhile."""
        number = next(self._ids)
        started: asyncio.Future[WarmProcess] = asyncio.get_running_loop().create_future()
        self._starting[number] = started
        self.send(
            {
                "start": number,
                "argv": list(launch.argv),
                "env": dict(launch.env),
                "cwd": str(launch.cwd),
                "log": str(launch.log),
            }
        )
        return await started

    def send(self, message: Mapping[str, object]) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def run(self, programs: Path) -> None:
        """Keeps the server running until cancelled; its Python is the one beside the image's programs."""
        while True:
            try:
                await self._serve(programs / "python")
            except OSError as error:
                print(f"warm server: {error}", flush=True)
            await asyncio.sleep(RESTART_SECONDS)

    async def _serve(self, python: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                str(python),
                "-P",
                str(SERVER),
                str(theirs.fileno()),
                env=self._environment,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        # a stage's request may be long, and so is the line that contains it
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        try:
            async for line in reader:
                self._handle_message(json.loads(line))
            print(f"warm server exited with {await process.wait()}; see {self._log}", flush=True)
        finally:
            self.ready.clear()
            self._writer.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            self._lost()

    def _handle_message(self, message: Mapping[str, object]) -> None:
        match message:
            case {"ready": seconds}:
                self.ready.set()
                print(f"warm server ready after {seconds} s", flush=True)
            case {"started": int(number), "pid": int(pid)}:
                child = self._children[pid] = WarmProcess(self, pid)
                self._starting.pop(number).set_result(child)
            case {"exited": int(pid), "code": int(code)}:
                self._children.pop(pid).exit.set_result(shell_code(code))

    def _lost(self) -> None:
        """Ends the children of a server that is gone: each leads a process group, which outlives a killed server."""
        for pid, child in self._children.items():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            child.exit.set_result(128 + signal.SIGKILL)
        for started in self._starting.values():
            if not started.done():
                started.set_exception(StartError("the warm server exited while it started this stage"))
        self._children.clear()
        self._starting.clear()
