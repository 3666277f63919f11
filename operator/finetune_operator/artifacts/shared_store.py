"""Object storage of every scheme for many tenants: what one of them asks for delays no other.

A call has a deadline, and slots of its tenant and its bucket. A tenant whose bucket does not respond is refused at once
for a while, so that not each of its jobs calls it.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

from finetune_operator.artifacts.calls import StoreCall
from finetune_operator.artifacts.port import (
    NAMES_LIMIT,
    RECORD_LIMIT,
    RUN_FOLDER_ADVICE,
    StorageError,
    StorageUnavailable,
)
from finetune_operator.artifacts.tenant_shares import CallSlots, TenantShare, calls_deadline, share_of

#: Consecutive failures of a share's calls that open its circuit; one slow folder must not cut off its tenant.
_FAILURES = 3
#: Shares whose last call is remembered as answered.
_MOST_SHARES = 4096
#: Seconds that a circuit stays open: the first pause, doubled with each further failure up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 30.0


class BlockingStore(Protocol):
    """Object storage of one scheme, by blocking calls in any thread: what :class:`.port.ObjectStore` describes.

    Each asks the call's :meth:`~.calls.StoreCall.left` before each step.
    """

    @property
    def seconds(self) -> float:
        """Time limit of one call."""
        ...

    def read(self, call: StoreCall, uri: str, limit: int) -> bytes | None: ...

    def read_part(self, call: StoreCall, uri: str, start: int, size: int) -> bytes | None: ...

    def list(self, call: StoreCall, uri: str, limit: int) -> Sequence[str]: ...

    def write(self, call: StoreCall, uri: str, content: bytes) -> None: ...

    def create(self, call: StoreCall, uri: str, content: bytes) -> bool: ...

    def explained(self, uri: str, error: Exception) -> StorageError | None:
        """Returns the StorageError for what a call has raised; None if it is no error of the store."""
        ...


type BlockingStores = Mapping[str, Callable[[], BlockingStore]]
"""Makes the store of each scheme, on first use."""


def blocking_stores(advice: str = RUN_FOLDER_ADVICE, seconds: float = 20) -> BlockingStores:
    """Returns those of all schemes.

    Args:
        advice: what to do if a role is missing, as a sentence.
        seconds: time limit of one call to a bucket, from its start.
    """

    def google() -> BlockingStore:
        # Imported on first use: 20 MiB and 0.4 s that a file://-only cluster and the command line do not need.
        from finetune_operator.artifacts.google_store import GoogleStore

        return GoogleStore(advice=advice, seconds=seconds)

    def file() -> BlockingStore:
        # Imported on first use: it needs POSIX, and the command line reads buckets on Windows, too.
        from finetune_operator.artifacts.file_store import FileStore

        return FileStore()

    return {"gs": google, "file": file}


def _always() -> bool:
    return True


@dataclass(slots=True)
class _Circuit:
    """State of a share whose last call got no response."""

    why: str
    failures: int = 0
    pause: float = 0.0
    until: float = 0.0
    probe_in_flight: bool = False
    """Half-open: one call is in flight that checks whether the store responds again."""


class SharedStore:
    """Implements :class:`.port.ObjectStore` and :class:`.port.RecordStore`.

    Args:
        stores: those of each scheme. Default: :func:`blocking_stores`.
        may_write: asked before each step of a write; if it is not allowed, the write raises StorageUnavailable.
        threads: concurrent calls of all tenants. One tenant may use an eighth of them, regardless of the number of
            buckets that it names; half of them may call one bucket, regardless of the number of its tenants.
        requested: called with ``read``, ``list``, ``write`` or ``create`` before each request.
        refused: called with the same before each refusal, for a request that is not made since the store failed to
            respond to earlier ones.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        stores: BlockingStores | None = None,
        *,
        may_write: Callable[[], bool] = _always,
        threads: int = 64,
        requested: Callable[[str], None] = lambda _: None,
        refused: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._make = blocking_stores() if stores is None else stores
        self._stores: dict[str, BlockingStore] = {}
        self._may_write = may_write
        self._slots = CallSlots(total=threads, each=(max(1, threads // 8), max(1, threads // 2)))
        self._requested = requested
        self._refused = refused
        self._clock = clock
        self._circuits: dict[TenantShare, _Circuit] = {}
        self._answered: dict[TenantShare, float] = {}
        self._under_way: set[asyncio.Future[Any]] = set()
        """Of each thread that runs, what it is going to return."""

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        return await self._call("read", uri, lambda store, call: store.read(call, uri, limit))

    async def read_part(self, uri: str, *, start: int, size: int) -> bytes | None:
        return await self._call("read", uri, lambda store, call: store.read_part(call, uri, start, size))

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        return await self._call("list", uri, lambda store, call: store.list(call, uri, limit))

    async def write(self, uri: str, content: bytes) -> None:
        await self._call("write", uri, lambda store, call: store.write(call, uri, content))

    async def create(self, uri: str, content: bytes) -> bool:
        return await self._call("create", uri, lambda store, call: store.create(call, uri, content))

    def answered(self, uri: str) -> float | None:
        """Returns the seconds since a call of the tenant to the bucket was answered; None if none was, or a later one
        was refused or not answered."""
        answered = self._answered.get(share_of(uri))
        return None if answered is None else self._clock() - answered

    async def ended(self) -> None:
        """Returns when no thread runs any more, not even one whose caller no longer waits."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    async def _call[T](self, operation: str, uri: str, work: Callable[[BlockingStore, StoreCall], T]) -> T:
        store, share = self._store(uri), share_of(uri)

        async def request() -> T:
            self._requested(operation)
            allowed = self._may_write if operation in ("write", "create") else _always
            try:
                return await self._in_thread(share, store.seconds, allowed, lambda call: work(store, call))
            except StorageError:
                raise
            except TimeoutError as error:
                raise StorageUnavailable(uri, f"no response within {store.seconds:.0f} s") from error
            except Exception as error:
                if (explained := store.explained(uri, error)) is None:
                    raise
                raise explained from error

        try:
            async with asyncio.timeout_at(calls_deadline()):
                answer = await self._unless_open(operation, uri, share, request)
        except BaseException as error:
            self._answered.pop(share, None)
            if isinstance(error, TimeoutError):
                raise StorageUnavailable(uri, "the store responds too slowly") from error
            raise
        self._answered[share] = self._clock()
        if len(self._answered) > _MOST_SHARES:
            del self._answered[next(iter(self._answered))]
        return answer

    def _store(self, uri: str) -> BlockingStore:
        scheme = urlsplit(uri).scheme
        if scheme not in self._stores:
            if scheme not in self._make:
                raise StorageError(uri, f"unknown scheme; expected one of {', '.join(self._make)}")
            self._stores[scheme] = self._make[scheme]()
        return self._stores[scheme]

    async def _unless_open[T](
        self, operation: str, uri: str, share: TenantShare, request: Callable[[], Awaitable[T]]
    ) -> T:
        """Returns or raises as ``request`` does. While the circuit of the share is open, raises StorageUnavailable with
        the message of the last failure instead."""
        circuit = self._circuits.get(share)
        probing = circuit is not None and circuit.failures >= _FAILURES
        if circuit is not None and probing:
            if circuit.probe_in_flight or self._clock() < circuit.until:
                self._refused(operation)
                raise StorageUnavailable(uri, circuit.why)
            circuit.probe_in_flight = True
        try:
            answer = await request()
        except StorageUnavailable as error:
            self._failed(self._circuits.setdefault(share, _Circuit(error.message)), error, probing=probing)
            raise
        except Exception:
            # Denied, too large, not found: the store responds.
            self._circuits.pop(share, None)
            raise
        else:
            self._circuits.pop(share, None)
            return answer
        finally:
            if circuit is not None and probing:
                circuit.probe_in_flight = False

    def _failed(self, circuit: _Circuit, error: StorageUnavailable, *, probing: bool) -> None:
        circuit.why = error.message
        circuit.failures += 1
        if probing or circuit.failures == _FAILURES:
            circuit.pause = min(max(_FIRST_PAUSE, 2 * circuit.pause), _LONGEST_PAUSE)
            circuit.until = self._clock() + circuit.pause

    async def _in_thread[T](
        self, share: TenantShare, seconds: float, allowed: Callable[[], bool], work: Callable[[StoreCall], T]
    ) -> T:
        """Returns the result of ``work``. Raises what it raises, or TimeoutError after the deadline.

        The call is aborted at the deadline, and if this coroutine is cancelled. It ends before the next step if that
        is no longer ``allowed``. Its slots are held until its thread has ended, so threads never accumulate.
        """
        # Folders have no service in common that many tenants' calls could exhaust.
        bucket = f"file of {share.tenant}" if share.bucket.startswith("file:") else share.bucket
        give_back = await self._slots.take(share.tenant, bucket)
        call = StoreCall(seconds, allowed)
        result = Future[T]()

        def in_thread() -> None:
            try:
                result.set_result(work(call))
            except BaseException as error:  # noqa: BLE001  passed to the caller
                result.set_exception(error)

        def finish(answer: asyncio.Future[T]) -> None:
            give_back()
            self._under_way.remove(answer)
            # Read here, too: the caller may no longer wait.
            answer.exception()

        answer = asyncio.wrap_future(result)
        self._under_way.add(answer)
        answer.add_done_callback(finish)
        context = contextvars.copy_context()
        try:
            # A daemon: a thread that cannot be ended, for example on a dead network disk, must not block process exit.
            Thread(target=context.run, args=(in_thread,), name="store", daemon=True).start()
        except RuntimeError as error:
            result.set_exception(OSError(f"no thread for the call: {error}"))
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(answer)
        finally:
            if not answer.done():
                call.abort()
