"""Delivers notices of jobs at least once, without delaying decisions.

Notices are derived from every version of every job, so what is missing after a restart is which of them were delivered.
A ConfigMap in the operator's namespace records that: a time before which nothing is left to deliver, and the ids of
later notices that were delivered. It is written some seconds after a delivery. A notice that was delivered in between
is delivered again after a crash, with the same id.

The time follows complete listings of the jobs. A status is written at most :data:`WRITE_SECONDS` after the time that it
contains, so a listing shows every transition that is that much older than its beginning. Of a namespace that may not be
listed, the time stays, and ids are kept until then: nothing is written there meanwhile.
"""

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from finetune_operator.api.timestamps import parse, stamp
from finetune_operator.cluster.port import CONFIG_MAPS, ClusterError, KubernetesClient, NotFound
from finetune_operator.lifecycle.job_notices import Notice, notices
from finetune_operator.objects import Object

log = logging.getLogger(__name__)

#: Seconds between the time that a status contains and its write, at most: a reconcile is cancelled before.
WRITE_SECONDS = 300
#: Hours after which a notice that its receiver does not take is given up.
LONGEST_HOURS = 24
#: Notices that wait for their delivery, in all and of one namespace. Those beyond are derived again at a later listing.
MOST_PENDING, MOST_OF_NAMESPACE = 2_000, 200
#: Refusals after which a notice is given up that the receiver itself refuses while it takes others: half an hour.
MOST_REFUSALS = 12
#: Ids of delivered notices that are recorded. The oldest beyond may be delivered again after a restart.
MOST_RECORDED = 5_000
#: Deliveries at the same time.
_AT_ONCE = 4
#: Seconds until a refused notice is sent again: the first pause, doubled up to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
#: Seconds between two attempts to read the record, and between two writes.
_READ_PAUSE, _RECORD_PAUSE = 10.0, 5.0
#: Seconds at shutdown for the record.
_LAST_SECONDS = 5.0
_KEY = "notifications.json"


class DeliveryError(Exception):
    """The receiver could not be reached, or did not take the notice.

    ``final``: the receiver says that it will not take this one later either.
    """

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


type Deliver = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Sends an event with its id. Raises DeliveryError."""


class Notifications:
    """The notices of one leader. It is used by one event loop.

    Args:
        namespace: the operator's own namespace.
        name: name of the ConfigMap.
        notified: called with ``delivered``, ``refused`` (and sent again later) or ``expired`` (given up).
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        namespace: str,
        name: str,
        deliver: Deliver,
        *,
        utc_now: Callable[[], datetime],
        notified: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._namespace, self._name = namespace, name
        self._deliver = deliver
        self._utc_now = utc_now
        self._notified = notified
        self._until: datetime | None = None
        """Nothing older is left to deliver. None until the record is read."""
        self._delivered: dict[str, tuple[str, datetime]] = {}
        """Namespaces and times of delivered notices that are not older, by id."""
        self._left_out: dict[str, datetime] = {}
        """Of namespaces that listings lack: the time before which nothing is left to deliver."""
        self._pending: dict[str, tuple[Notice, asyncio.Task[None]]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._turns: dict[str, asyncio.Semaphore] = {}
        """A namespace has one delivery at a time, so that its notices do not keep out those of others."""
        self._waiting: Counter[str] = Counter()
        """Pending notices by namespace."""
        self._taken = 0
        """Deliveries so far."""
        self._changed = asyncio.Event()
        self._listing: datetime | None = None
        """Beginning of the listing in progress; None if a notice of it was not taken."""

    @property
    def pending(self) -> int:
        """Number of notices that wait for their delivery."""
        return len(self._pending)

    async def restore(self) -> bool:
        """Reads the record; jobs are ignored until then. Returns whether it could be read.

        Without a record, only what happens from now on is delivered.
        """
        try:
            found = await self._cluster.get(CONFIG_MAPS, self._namespace, self._name)
        except NotFound:
            found = {}
        except ClusterError as error:
            log.warning("the record of notifications cannot be read; none is sent until it can: %s", error)
            return False
        self._until, self._delivered, self._left_out = self._read(found)
        # Jobs of a listing in progress have been ignored.
        self._listing = None
        self._changed.set()
        return True

    def _read(self, found: Object) -> tuple[datetime, dict[str, tuple[str, datetime]], dict[str, datetime]]:
        now = self._utc_now().astimezone(UTC)
        if not found:
            return now.replace(microsecond=0), {}, {}
        try:
            record = json.loads(found["data"][_KEY])
            delivered = {id_: (name, parse(time)) for id_, (name, time) in record["delivered"].items()}
            left_out = {name: parse(time) for name, time in record["leftOut"].items()}
            return parse(record["until"]), delivered, left_out
        except (KeyError, TypeError, ValueError, AttributeError):
            log.error(
                "ConfigMap %s/%s is damaged; the notices of the last %d h are sent again",
                self._namespace, self._name, LONGEST_HOURS,
            )  # fmt: skip
            return self._oldest(), {}, {}

    def job(self, job: Object) -> None:
        """Takes a version of a job, and sends those of its notices that have not been sent."""
        if self._until is None:
            return
        namespace = job["metadata"]["namespace"]
        for notice in notices(job, since=self._left_out.get(namespace, self._until)):
            if notice.id in self._delivered or notice.id in self._pending:
                continue
            if len(self._pending) >= MOST_PENDING or self._waiting[namespace] >= MOST_OF_NAMESPACE:
                self._listing = None
                continue
            task = asyncio.get_running_loop().create_task(self._send(notice, namespace))
            self._pending[notice.id] = notice, task
            self._waiting[namespace] += 1

    def listing(self) -> None:
        """Called before the jobs are listed."""
        self._listing = self._utc_now()

    def listed(self, left_out: Collection[str] = ()) -> None:
        """Called after a listing, each page of which was passed to :meth:`job`; ``left_out`` may not be listed."""
        if self._listing is None or self._until is None:
            return
        shown = self._listing - timedelta(seconds=WRITE_SECONDS)
        waiting = (notice.time for notice, _ in self._pending.values())
        # Those that are back, too, until what was late is delivered.
        kept = {*left_out, *(name for name in self._left_out if self._waiting[name])}
        self._left_out = {name: self._left_out.get(name, self._until) for name in kept}
        self._until = max(self._until, min([shown, *waiting]))
        self._delivered = {
            id_: (name, time)
            for id_, (name, time) in self._delivered.items()
            if time >= self._left_out.get(name, self._until)
        }
        self._changed.set()

    async def run(self) -> None:
        """Reads the record if it is not read yet, and then writes it after each change, until cancelled."""
        while True:
            if self._until is None and not await self.restore():
                await asyncio.sleep(_READ_PAUSE)
                continue
            await self._changed.wait()
            await self._write()
            await asyncio.sleep(_RECORD_PAUSE)

    async def finish(self) -> None:
        """Ends the deliveries and writes the record a last time."""
        tasks = [task for _, task in self._pending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._changed.is_set():
            try:
                async with asyncio.timeout(_LAST_SECONDS):
                    await self._write()
            except TimeoutError:
                log.warning("the record of notifications was not written: some may be sent again")

    async def _send(self, notice: Notice, namespace: str) -> None:
        pause, refusals, taken = _FIRST_PAUSE, 0, self._taken
        turn = self._turns.setdefault(namespace, asyncio.Semaphore(1))
        while True:
            async with turn, self._places:
                try:
                    await self._deliver(notice.id, notice.event)
                except DeliveryError as error:
                    self._notified("refused")
                    refusals += error.final
                    log.warning(
                        "the notice %s was not delivered (again in %.0f s): %s", notice.id, pause, error
                    )
                else:
                    self._taken += 1
                    self._end(notice, namespace, "delivered")
                    return
            if notice.time < self._oldest():
                why = f"not delivered in {LONGEST_HOURS} h"
                break
            if refusals >= MOST_REFUSALS and self._taken > taken:
                why = "the webhook refuses this one, and takes others"
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        log.error("the notice %s is given up: %s", notice.id, why)
        self._end(notice, namespace, "expired")

    def _end(self, notice: Notice, namespace: str, result: str) -> None:
        self._notified(result)
        del self._pending[notice.id]
        self._waiting[namespace] -= 1
        if not self._waiting[namespace]:
            del self._waiting[namespace], self._turns[namespace]
        self._delivered[notice.id] = namespace, notice.time
        self._changed.set()

    def _oldest(self) -> datetime:
        return self._utc_now() - timedelta(hours=LONGEST_HOURS)

    async def _write(self) -> None:
        """Writes the record. It stays due if that fails."""
        if self._until is None:
            return
        self._changed.clear()
        newest = sorted(self._delivered.items(), key=lambda each: each[1][1])[-MOST_RECORDED:]
        record = {
            "until": stamp(self._until),
            "delivered": {id_: [name, stamp(time)] for id_, (name, time) in newest},
            "leftOut": {name: stamp(time) for name, time in self._left_out.items()},
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": self._namespace, "name": self._name},
            "data": {_KEY: json.dumps(record)},
        }
        try:
            await self._cluster.apply(CONFIG_MAPS, manifest)
        except ClusterError as error:
            self._changed.set()
            log.warning("the record of notifications cannot be written: %s", error)
