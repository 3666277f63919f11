"""Blocking calls in threads. The deadline of a call ends its work, not only the wait for it."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from threading import Lock, Thread
from time import monotonic

from finetune_operator.artifacts.tenant_shares import CallSlots, share_of


class CallEndedError(TimeoutError):
    """The time of the call is over, or its caller no longer waits: the thread must end."""


def always() -> bool:
    return True


class StoreCall:
    """Time limit of one call. Its thread calls :meth:`left` before each step; any thread may call :meth:`abort`.

    Args:
        seconds: from now on.
        allowed: whether the call may continue, asked before each step.
    """

    def __init__(self, seconds: float, allowed: Callable[[], bool] = always) -> None:
        self._ends = monotonic() + seconds
        self._allowed = allowed
        self._lock = Lock()
        self._aborted = False
        self._stop: Callable[[], None] | None = None
        self.last_modified: str | None = None
        """The header of the last HTTP response."""

    def left(self) -> float:
        """Returns the remaining seconds, more than 0. Raises CallEndedError if none remain or it is not allowed."""
        left = self._ends - monotonic()
        if self._aborted or left <= 0 or not self._allowed():
            raise CallEndedError
        return left

    def stop_by(self, stop: Callable[[], None]) -> None:
        """Registers the function that interrupts the thread's blocking operation; called once, on abort."""
        with self._lock:
            self._stop = stop
            if self._aborted:
                self._end()

    def abort(self) -> None:
        """Ends the work; its result is no longer needed."""
        with self._lock:
            if not self._aborted:
                self._aborted = True
                self._end()

    def _end(self) -> None:
        # The operation may just have ended by itself.
        with contextlib.suppress(Exception):
            if self._stop is not None:
                self._stop()


class StoreCalls:
    """Runs blocking work. A slot is held until its thread has ended, so threads never accumulate.

    Args:
        seconds: time limit of one call, from its start; the wait for a slot does not count.
        total: concurrent calls of all tenants.
        per_tenant: concurrent calls of one tenant (see :func:`finetune_operator.artifacts.tenant_shares.share_of`),
            regardless of the number of buckets that it names.
        per_bucket: concurrent calls to one bucket, regardless of the number of tenants that use it.
    """

    def __init__(self, *, seconds: float, total: int, per_tenant: int, per_bucket: int) -> None:
        self._seconds = seconds
        self._slots = CallSlots(total=total, each=(per_tenant, per_bucket))
        self._under_way: dict[asyncio.Future[None], StoreCall] = {}

    async def run[T](
        self, uri: str, work: Callable[[StoreCall], T], allowed: Callable[[], bool] = always
    ) -> T:
        """Runs ``work`` in a thread and returns its result. Raises what it raises, or TimeoutError after the deadline.

        The call is aborted at the deadline, and if this coroutine is cancelled. It ends before the next step if that
        is no longer ``allowed``.
        """
        loop = asyncio.get_running_loop()
        share = share_of(uri)
        keys = share.tenant, share.bucket
        await self._slots.take(*keys)
        call = StoreCall(self._seconds, allowed)
        answer: asyncio.Future[T] = loop.create_future()
        ended: asyncio.Future[None] = loop.create_future()

        def finish(result: T | None, error: BaseException | None) -> None:
            self._slots.give_back(*keys)
            del self._under_way[ended]
            ended.set_result(None)
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # only an error leaves no result

        def in_thread() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work(call)
            except BaseException as raised:  # noqa: BLE001  passed to the caller
                error = raised
            # The loop may have been closed; then no caller awaits the result.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, result, error)

        self._under_way[ended] = call
        context = contextvars.copy_context()
        try:
            # A daemon: a thread that cannot be ended, for example on a dead network disk, must not block process exit.
            Thread(target=context.run, args=(in_thread,), name="store", daemon=True).start()
        except RuntimeError as error:
            finish(None, OSError(f"no thread for the call: {error}"))
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        finally:
            if not ended.done():
                call.abort()

    def abort(self) -> None:
        """Aborts the calls in flight."""
        for call in self._under_way.values():
            call.abort()

    async def ended(self) -> None:
        """Returns when no thread runs any more."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))
