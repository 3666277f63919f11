"""Owns the cluster's processes: starts them, restarts those that exit, ends them in order. One per state folder."""

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from devcluster.component import Component, is_ready
from devcluster.errors import LocalClusterError
from devcluster.identity import ProcessIdentity, memory
from devcluster.layout import StateFolder

#: A component that exits is restarted after this many seconds, doubled each time up to the limit.
FIRST_RESTART_SECONDS = 0.5
LONGEST_RESTART_SECONDS = 30.0
#: After running this long, a component's restart delay starts from the beginning.
STABLE_SECONDS = 60.0


@dataclass(slots=True)
class _Slot:
    """One component and its current process."""

    component: Component
    wanted: bool = True
    process: asyncio.subprocess.Process | None = None
    identity: ProcessIdentity | None = None
    started: float = 0.0
    restarts: int = 0
    last_exit: int | None = None
    keeper: asyncio.Task[None] | None = None
    failures: int = 0
    #: Its next exit was requested, and does not count as a failure.
    signalled: bool = False
    running: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Keeps started components running. All methods belong to one event loop."""

    def __init__(self, state: StateFolder) -> None:
        self.state = state
        self._slots: dict[str, _Slot] = {}
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None

    def trust(self, context: ssl.SSLContext) -> None:
        """Sets the TLS context for readiness checks, once the certificates exist."""
        self._tls = context

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        return self._session

    async def start(self, component: Component) -> None:
        """Starts the component unless it runs, and returns when it is ready. Raises LocalClusterError."""
        slot = self._slots.get(component.name)
        if slot is None or not slot.wanted:
            slot = _Slot(component)
            self._slots[component.name] = slot
            slot.keeper = asyncio.create_task(self._keep(slot), name=f"keep {component.name}")
        await self._until_ready(slot)

    async def stop(self, name: str) -> None:
        """Ends the component and keeps it down. Does nothing if it is not running."""
        slot = self._slots.get(name)
        if slot is None or not slot.wanted:
            return
        slot.wanted = False
        if slot.process is not None and slot.process.returncode is None:
            _signal(slot.process.pid, signal.SIGTERM)
            try:
                await asyncio.wait_for(slot.process.wait(), slot.component.grace_seconds)
            except TimeoutError:
                _signal(slot.process.pid, signal.SIGKILL)
                await slot.process.wait()
        if slot.keeper is not None:
            slot.keeper.cancel()
            await asyncio.gather(slot.keeper, return_exceptions=True)
        self._record()

    async def signal(self, name: str, number: int) -> None:
        """Signals a component's process, as a fault would: it is restarted. Raises LocalClusterError."""
        slot = self._slots.get(name)
        if slot is None or slot.process is None or slot.process.returncode is not None:
            raise LocalClusterError(
                f"{name} is not running; running: {', '.join(self.running()) or 'nothing'}"
            )
        slot.running.clear()
        slot.signalled = True
        _signal(slot.process.pid, number)

    async def restarted(self, name: str) -> None:
        """Returns when the component runs again and is ready."""
        await self._until_ready(self._slots[name])

    async def close(self) -> None:
        """Ends all components, the last started first."""
        for name in reversed(list(self._slots)):
            await self.stop(name)
        if self._session is not None:
            await self._session.close()

    def running(self) -> list[str]:
        return [name for name, slot in self._slots.items() if slot.wanted and slot.running.is_set()]

    async def status(self) -> list[Mapping[str, object]]:
        """One row per component: name, state, pid, seconds, restarts, memory in bytes, log."""
        return [await self._row(name, slot) for name, slot in self._slots.items()]

    async def _row(self, name: str, slot: _Slot) -> Mapping[str, object]:
        pid = slot.identity.pid if slot.identity and slot.running.is_set() else None
        if not slot.wanted:
            condition = "stopped"
        elif pid is None:
            condition = f"restarting (exit {slot.last_exit})"
        else:
            condition = "ready" if await is_ready(self.session, slot.component, self.tls) else "not ready"
        return {
            "name": name,
            "state": condition,
            "pid": pid,
            "seconds": round(time.monotonic() - slot.started) if pid else 0,
            "restarts": slot.restarts,
            "memory": memory(pid) if pid else 0,
            "log": str(self.state.log(name)),
        }

    async def _keep(self, slot: _Slot) -> None:
        while slot.wanted:
            await self._spawn(slot)
            assert slot.process is not None
            slot.last_exit = await slot.process.wait()
            slot.running.clear()
            self._record()
            if not slot.wanted:
                return
            lived = time.monotonic() - slot.started
            if slot.signalled or lived > STABLE_SECONDS:
                slot.failures = 0
            slot.failures += not slot.signalled
            slot.signalled = False
            pause = min(FIRST_RESTART_SECONDS * 2 ** max(slot.failures - 1, 0), LONGEST_RESTART_SECONDS)
            print(
                f"{slot.component.name} exited with {slot.last_exit} after {lived:.0f} s; again in {pause} s",
                flush=True,
            )
            await asyncio.sleep(pause)
            slot.restarts += 1

    async def _spawn(self, slot: _Slot) -> None:
        component = slot.component
        merged: dict[str, str | None] = {**os.environ, **component.env}
        environment = {name: value for name, value in merged.items() if value is not None}
        with self.state.log(component.name).open("ab") as log:
            slot.process = await asyncio.create_subprocess_exec(
                *component.argv,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.state.root,
                start_new_session=True,
            )
        slot.started = time.monotonic()
        slot.identity = ProcessIdentity.of(slot.process.pid)
        slot.running.set()
        self._record()

    async def _until_ready(self, slot: _Slot) -> None:
        component = slot.component
        deadline = time.monotonic() + component.ready_seconds
        while time.monotonic() < deadline:
            if slot.running.is_set() and await is_ready(self.session, component, self.tls):
                return
            if slot.failures >= 3:
                raise LocalClusterError(
                    f"{component.name} exits immediately (exit {slot.last_exit}){self._tail(component.name)}"
                )
            await asyncio.sleep(0.05)
        raise LocalClusterError(
            f"{component.name} is not ready after {component.ready_seconds:.0f} s{self._tail(component.name)}"
        )

    def _tail(self, name: str) -> str:
        log = self.state.log(name)
        with contextlib.suppress(OSError):
            last = log.read_text(errors="replace").splitlines()[-8:]
            return f"; the end of {log}:\n  " + "\n  ".join(last)
        return f"; see {log}"

    @property
    def tls(self) -> ssl.SSLContext:
        """Trusts the cluster's certificates and presents the administrator's."""
        assert self._tls is not None, "trust() comes before start()"
        return self._tls

    def _record(self) -> None:
        """Records every process identity on disk, so that `down` can end what a killed supervisor left."""
        alive = {
            name: dataclasses.asdict(slot.identity)
            for name, slot in self._slots.items()
            if slot.identity is not None and slot.running.is_set()
        }
        own = ProcessIdentity.of(os.getpid())
        assert own is not None
        alive["supervisor"] = dataclasses.asdict(own)
        partial = self.state.processes.with_suffix(".partial")
        partial.write_text(json.dumps(alive, indent=1))
        partial.replace(self.state.processes)


def recorded_processes(state: StateFolder) -> dict[str, ProcessIdentity]:
    """The processes that the last supervisor of this state folder started. They may no longer exist."""
    try:
        return {
            name: ProcessIdentity(**fields)
            for name, fields in json.loads(state.processes.read_text()).items()
        }
    except (OSError, ValueError, TypeError):
        return {}


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
