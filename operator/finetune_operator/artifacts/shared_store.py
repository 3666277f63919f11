"""Object storage of every scheme for many tenants: what one of them asks for delays no other.

A call has a deadline, and slots of its tenant and its bucket. A tenant whose bucket does not respond is refused at once
for a while, so that not each of its jobs calls it.
"""

import asyncio
import contextvars
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

from finetune_operator.artifacts.pod_paths import written_by_pods
from finetune_operator.artifacts.port import NAME_LENGTH, NAMES_LIMIT, RECORD_LIMIT
from finetune_operator.artifacts.tenant_shares import CallSlots, TenantShare, calls_deadline, share_of
from finetune_storage.calls import CallEndedError, RetryRule, StoreCall, served
from finetune_storage.errors import StorageUnavailable
from finetune_storage.store import BlockingStore
from finetune_storage.uris import parse

#: Consecutive failures of a share's calls that open its circuit; one slow folder must not cut off its tenant.
_FAILURES = 3
#: Shares whose last calls are remembered.
_MOST_SHARES = 4096
#: Seconds that a circuit stays open: the first pause, doubled with each further failure up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 30.0
#: Seconds of one call to a mounted folder: its disk responds at once or not at all.
_FILE_SECONDS = 10.0
#: Of the requests of one call. After that, the work queue waits, and the status reports it.
RETRIES = RetryRule(connect=5, read=10, first=0.2, longest=2, total=10)


def _always() -> bool:
    return True


def _is_file(uri: str) -> bool:
    """Whether the URI is of a mounted folder. Raises InvalidUri."""
    return isinstance(parse(uri), Path)


def _made(scheme: str, advice: str) -> BlockingStore:
    if scheme == "gs":
        # Imported on first use: 20 MiB and 0.4 s that a file://-only cluster and most commands do not need.
        from finetune_storage.google import GoogleStore

        # Otherwise the library requests each bucket's metadata, in threads that never end and with a permission that
        # the operator does not need, for traces that are not recorded.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        return GoogleStore(RETRIES, advice=advice)
    # Imported on first use: it needs POSIX, and the command line reads buckets on Windows, too.
    from finetune_storage.files import FileStore

    return FileStore(written_by_pods)


@dataclass(slots=True)
class _State:
    """What the last calls of a share say of its bucket."""

    answered: float | None = None
    """Time of the last answer; None if there was none, or a later call was refused or not answered."""
    failures: int = 0
    """Calls since the last response of any kind."""
    why: str = ""
    """Message of the last failure."""
    pause: float = 0.0
    until: float = 0.0
    probe_in_flight: bool = False
    """Half-open: one call is in flight that checks whether the store responds again."""

    def responded(self, answered: float | None) -> None:
        self.answered, self.failures, self.pause = answered, 0, 0.0

    def failed(self, why: str, now: float) -> None:
        self.answered, self.why, self.failures = None, why, self.failures + 1
        if self.failures >= _FAILURES and now >= self.until:
            self.pause = min(max(_FIRST_PAUSE, 2 * self.pause), _LONGEST_PAUSE)
            self.until = now + self.pause


class SharedStore:
    """Implements :class:`.port.ObjectStore` and :class:`.port.RecordStore`.

    Args:
        stores: those of schemes; others are made on first use.
        advice: what to do if a role is missing, as a sentence.
        seconds: time limit of one call, from its start; for a mounted folder at most 10.
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
        stores: Mapping[str, BlockingStore] | None = None,
        *,
        advice: str = "Give the operator's service account roles/storage.objectUser on that folder.",
        seconds: float = 20,
        may_write: Callable[[], bool] = _always,
        threads: int = 64,
        requested: Callable[[str], None] = lambda _: None,
        refused: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._stores = dict(stores or {})
        self._advice = advice
        self._seconds = seconds
        self._may_write = may_write
        self._slots = CallSlots(total=threads, each=(max(1, threads // 8), max(1, threads // 2)))
        self._requested = requested
        self._refused = refused
        self._clock = clock
        self._states: dict[TenantShare, _State] = {}
        """Of each share, that of the last call at the end."""
        self._under_way: set[asyncio.Future[Any]] = set()
        """Of each thread that runs, what it is going to return."""

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        return await self._call("read", uri, lambda store: store.read(uri, limit))

    async def read_part(self, uri: str, *, start: int, size: int) -> bytes | None:
        return await self._call("read", uri, lambda store: store.read_part(uri, start, size))

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        return await self._call("list", uri, lambda store: store.names(uri, limit=limit, longest=NAME_LENGTH))

    async def write(self, uri: str, content: bytes) -> None:
        await self._call("write", uri, lambda store: store.write(uri, content))

    async def create(self, uri: str, content: bytes) -> bool:
        return await self._call("create", uri, lambda store: store.create(uri, content))

    def answered(self, uri: str) -> float | None:
        """Returns the seconds since a call of the tenant to the bucket was answered; None if none was, or a later one
        was refused or not answered."""
        state = self._states.get(share_of(uri))
        return None if state is None or state.answered is None else self._clock() - state.answered

    async def ended(self) -> None:
        """Returns when no thread runs any more, not even one whose caller no longer waits."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    async def _call[T](self, operation: str, uri: str, work: Callable[[BlockingStore], T]) -> T:
        """Returns or raises as ``work`` does. While the circuit of the share is open, raises StorageUnavailable with
        the message of the last failure instead."""
        store, share = self._store(uri), share_of(uri)
        state = self._states[share] = self._states.pop(share) if share in self._states else _State()
        if len(self._states) > _MOST_SHARES:
            del self._states[next(iter(self._states))]
        if probing := state.failures >= _FAILURES:
            if state.probe_in_flight or self._clock() < state.until:
                self._refused(operation)
                raise StorageUnavailable(uri, state.why)
            state.probe_in_flight = True
        try:
            async with asyncio.timeout_at(calls_deadline()):
                answer = await self._in_thread(operation, uri, store, work)
        except StorageUnavailable as error:
            state.failed(error.message, self._clock())
            raise
        except TimeoutError as error:
            # The caller's limit, which says nothing of the store.
            state.answered = None
            raise StorageUnavailable(uri, "the store responds too slowly") from error
        except Exception:
            # Denied, too large, not found: the store responds.
            state.responded(None)
            raise
        except BaseException:
            state.answered = None
            raise
        finally:
            if probing:
                state.probe_in_flight = False
        state.responded(self._clock())
        return answer

    def _store(self, uri: str) -> BlockingStore:
        scheme = "file" if _is_file(uri) else "gs"
        if scheme not in self._stores:
            self._stores[scheme] = _made(scheme, self._advice)
        return self._stores[scheme]

    async def _in_thread[T](
        self, operation: str, uri: str, store: BlockingStore, work: Callable[[BlockingStore], T]
    ) -> T:
        """Returns the result of ``work``. Raises what it raises; at the deadline, StorageUnavailable.

        The call is aborted at the deadline, and if this coroutine is cancelled. It ends before the next step if that
        is no longer allowed. Its slots are held until its thread has ended, so threads never accumulate.
        """
        self._requested(operation)
        share = share_of(uri)
        give_back = await self._slots.take(share.tenant, share.bucket)
        seconds = min(self._seconds, _FILE_SECONDS) if _is_file(uri) else self._seconds
        call = StoreCall(seconds, self._may_write if operation in ("write", "create") else _always)
        result = Future[T]()

        def in_thread() -> None:
            try:
                with served(call):
                    result.set_result(work(store))
            except CallEndedError:
                result.set_exception(TimeoutError())
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
            result.set_exception(StorageUnavailable(uri, f"no thread for the call: {error}"))
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(answer)
        except TimeoutError as error:
            raise StorageUnavailable(uri, f"no response within {seconds:.0f} s") from error
        finally:
            if not answer.done():
                call.abort()
