"""Resource manager, proxy and worker: they track which workers are registered, and nothing else.

worker → manager    {"slice": 0, "host": 1, "hosts": 2}      and stays connected for as long as it serves
proxy → manager     {"watch": true}
manager → proxy     {"complete": true, "devices": 8}         at once, and whenever it changes
proxy → client      {"devices": 8}                           when all workers are registered, not before
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from devcluster.pathways.flags import ClientFlags, ResourceManagerFlags

#: Seconds between attempts to reach a resource manager, which may start later or be restarted.
RETRY_SECONDS = 0.2

type Object = dict[str, object]
type Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class WorkerRejectedError(Exception):
    """The resource manager refuses this worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """A worker's position, from the environment that node and JobSet set."""

    slice_number: int
    host: int
    hosts: int
    """Number of hosts of the slice."""


class ResourceManager:
    """Tracks the registered workers. A worker is registered while its connection lasts."""

    def __init__(self, flags: ResourceManagerFlags) -> None:
        self._flags = flags
        self._workers: dict[tuple[int, int], WorkerIdentity] = {}
        self._changed = asyncio.Condition()

    @property
    def complete(self) -> bool:
        """Whether all hosts of all slices are registered."""
        per_slice = [
            [place for place in self._workers.values() if place.slice_number == number]
            for number in range(self._flags.slices)
        ]
        return all(found and len(found) == found[0].hosts for found in per_slice)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until it ends."""
        message = await _read_message(reader)
        if message is None:
            return
        if message.get("watch"):
            await self._send_readiness(reader, writer)
        elif fault := self._fault(place := _place(message)):
            await _write_message(writer, {"refused": fault})
        else:
            await self._keep(place, reader)

    def _fault(self, place: WorkerIdentity) -> str | None:
        if place.slice_number >= self._flags.slices:
            return f"slice {place.slice_number}, but there are {self._flags.slices}"
        if self._flags.chips % place.hosts:
            return f"{place.hosts} hosts cannot share {self._flags.chips} chips"
        return None

    async def _keep(self, place: WorkerIdentity, reader: asyncio.StreamReader) -> None:
        key = (place.slice_number, place.host)
        async with self._changed:
            self._workers[key] = place
            print(f"worker {key} connected; complete: {self.complete}", flush=True)
            self._changed.notify_all()
        await reader.read()
        async with self._changed:
            # its successor may have registered already
            if self._workers.get(key) is place:
                del self._workers[key]
                print(f"worker {key} disconnected", flush=True)
                self._changed.notify_all()

    async def _send_readiness(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent: bool | None = None
        while not reader.at_eof():
            async with self._changed:
                while self.complete is sent:
                    await self._changed.wait()
                sent = self.complete
            await _write_message(
                writer, {"complete": sent, "devices": self._flags.chips * self._flags.slices}
            )


class Proxy:
    """Lets clients wait until there are devices."""

    def __init__(self) -> None:
        self._devices = 0
        self._complete = asyncio.Event()

    async def follow(self, flags: ClientFlags) -> None:
        """Follows the resource manager's messages. Never returns."""

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await _write_message(writer, {"watch": True})
            while (message := await _read_message(reader)) is not None:
                self._devices = int(str(message["devices"]))
                print(f"all workers connected: {message['complete']}", flush=True)
                if message["complete"]:
                    self._complete.set()
                else:
                    self._complete.clear()
            self._complete.clear()

        await _keep_connected(flags, listen)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one client for as long as it stays connected, whatever happens to the workers."""
        await self._complete.wait()
        await _write_message(writer, {"devices": self._devices})
        await reader.read()


async def run_manager(flags: ResourceManagerFlags, address: str) -> None:
    """Runs forever, as the other servers do. Also listens on the port after its own, which is part of it."""
    async with _listening(ResourceManager(flags).answer, address, flags.port, flags.port + 1):
        await asyncio.get_running_loop().create_future()


async def run_proxy(flags: ClientFlags, address: str) -> None:
    proxy = Proxy()
    async with _listening(proxy.answer, address, flags.port):
        await proxy.follow(flags)


async def run_worker(flags: ClientFlags, address: str, place: WorkerIdentity) -> None:
    """Raises WorkerRejectedError if the resource manager refuses it."""
    identity = {"slice": place.slice_number, "host": place.host, "hosts": place.hosts}

    async def register(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _write_message(writer, identity)
        print(f"registered with the resource manager: {identity}", flush=True)
        if (message := await _read_message(reader)) is not None:
            raise WorkerRejectedError(f"the resource manager rejects this worker: {message['refused']}")

    async with _listening(_hold, address, flags.port, flags.port + 1):
        await _keep_connected(flags, register)


@contextlib.asynccontextmanager
async def _listening(talk: Talk, address: str, *ports: int) -> AsyncIterator[None]:
    """Listens on these ports meanwhile; closes the remaining connections at the end."""
    talks: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio's servers answer in tasks"
        talks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await talk(reader, writer)
        finally:
            talks.discard(task)
            writer.close()

    servers = [await asyncio.start_server(answer, address, port) for port in ports]
    print(f"serving on {address}:{', '.join(map(str, ports))}", flush=True)
    try:
        yield
    finally:
        for server in servers:
            server.close()
        for task in talks:
            task.cancel()


async def _hold(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Keeps a connection open and sends nothing."""
    await reader.read()


async def _keep_connected(flags: ClientFlags, talk: Talk) -> None:
    """Calls ``talk`` with a connection to the resource manager, and again whenever it ended. Never returns."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(flags.manager_host, flags.manager_port)
            try:
                await talk(reader, writer)
            finally:
                writer.close()
        await asyncio.sleep(RETRY_SECONDS)


async def _write_message(writer: asyncio.StreamWriter, message: Mapping[str, object]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


async def _read_message(reader: asyncio.StreamReader) -> Object | None:
    """The next message; None if the other end has closed."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return None
    return dict(json.loads(line)) if line else None


def _place(message: Object) -> WorkerIdentity:
    numbers = {key: int(str(message[key])) for key in ("slice", "host", "hosts")}
    return WorkerIdentity(slice_number=numbers["slice"], host=numbers["host"], hosts=numbers["hosts"])
