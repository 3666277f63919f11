"""Jobs with a random life: preempted, without nodes, evicted by Kueue, failed, suspended, retried, deleted.

Between any two writes the operator may crash, and the ledger may be away. Many run over midnight, some over the end of
November.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from finetune_contract import ExitCode, Stage
from finetune_operator.api.timestamps import parse, stamp
from finetune_operator.lifecycle.children.object_condition import find_condition
from finetune_operator.lifecycle.children.workload import Workload
from finetune_operator.lifecycle.decide import decide
from tests.unit.lifecycle.test_limits import flavors
from tests.unit.lifecycle.world import Crash, World, job, profile

PRICES = {"Spot": 0.8, "OnDemand": 2.7}
DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
RESERVED = ("QuotaReserved", "True", "QuotaReserved", "Quota reserved")
ADMITTED = ("Admitted", "True", "Admitted", "The workload is admitted")
#: Events of one life.
MOST_EVENTS = 60


class SimulatedJob:
    """One job. ``live`` runs it until it has ended or is deleted, and the ledger contains it.

    Args:
        number: of the job, which decides its life.
        faults: whether the operator crashes and the ledger is away at times.
    """

    def __init__(self, number: int, *, faults: bool = True) -> None:
        self._random = random = Random(number)
        self._faults = faults
        queue = {"queue": {"localQueue": "tpu", "cpuLocalQueue": "cpu"}} if random.random() < 0.4 else {}
        offered = [
            {**each, "chipHourPrice": PRICES[each["capacity"]]} for each in flavors("OnDemand", "Spot")
        ]
        made = job(
            resources={"tpu": "v6e-4", "capacity": ["Spot", "OnDemand"]},
            evaluation={"prompts": ["Reset my password"]} if random.random() < 0.5 else {},
            recovery={
                "maxInfrastructureRetries": random.choice([0, 5]),
                "maxUserRetries": random.choice([0, 2]),
            },
        )
        made["metadata"] |= {
            "name": f"job-{number}",
            "namespace": random.choice(["team-a", "team-b", "team-c"]),
            "uid": f"{number:08d}-0000-4000-8000-000000000000",
            "labels": {"cost-center": random.choice(["r", "s"])},
        }
        profiles = [profile(flavors=offered, currency="USD", **queue)]
        self.world = World(job=made, profiles=profiles, ledger={})
        self.world.job["metadata"]["creationTimestamp"] = stamp(self.world.now)
        self.world.now += timedelta(days=random.randrange(10), hours=random.randrange(24))
        self.reports: list[tuple[datetime, Decimal]] = []
        """The time and the chip hours of each status."""
        self.unreported: Any = None
        """The status that was due when the job was deleted right after a crash; None otherwise."""
        self.deleted = False
        self.evictions = 0
        self._crashed = False

    def live(self) -> None:
        """Lives the job's life."""
        dies_after = self._random.randrange(MOST_EVENTS // 3) if self._random.random() < 0.4 else None
        for number in range(MOST_EVENTS):
            self.reconcile()
            if self.ended or number == dies_after:
                break
            self._event()
            self.world.wait(self._random.choice([5, 60, 600, 7200]))
            if self._faults:
                self.world.ledger_away = self._random.random() < 0.15
        self.world.ledger_away = False
        if dies_after is None or self.ended:
            self._end()
        if dies_after is not None or self._random.random() < 0.2:
            self._delete()

    @property
    def ended(self) -> bool:
        return self.world.finished and self.world.requeue_after != 0

    def reconcile(self, crashes: float = 0.2) -> None:
        """Reconciles, with a crash in so many of all cases."""
        crash = self._random.randrange(5) if self._faults and self._random.random() < crashes else None
        with suppress(Crash):
            self._crashed = crash is not None
            self.world.reconcile(crash_after=crash)
            self._crashed = False
        if active := self.world.status.get("activeTime"):
            self.reports.append((parse(active["asOf"]), hours(self.world.status)))

    def _end(self) -> None:
        """Faults stop, and the job ends."""
        self._faults = False
        for _ in range(200):
            if self.world.job["spec"].get("suspend"):
                self.world.edit(suspend=False)
            self.reconcile()
            if self.ended and "pending" not in (self.world.status.get("ledger") or {}):
                return
            for name in self.world.live():
                if "deletionTimestamp" in self.world.jobsets[name]["metadata"]:
                    self.world.stop(name) if self.world.pods_of(name) else self.world.lose(name)
                elif self.world.jobsets[name]["spec"]["suspend"]:
                    self._admit(name)
                else:
                    self.world.succeed(name)
            self.world.wait(max(self.world.requeue_after or 0, 60))
        raise AssertionError(f"the job does not end: {self.world.status.get('summary')}")

    def _delete(self) -> None:
        if not self.ended and self._random.random() < 0.5:
            self._event()
            self.world.wait(600)
            self.reconcile(crashes=1)
        if self._crashed:
            self.unreported = decide(self.world.observe()).status.to_document()
        self.world.delete()
        self.deleted = True

    def _event(self) -> None:
        live = self.world.live()
        if not live:
            self._of_user()
            return
        name = live[-1]
        jobset = self.world.jobsets[name]
        running = any(pod["status"]["phase"] == "Running" for pod in self.world.pods_of(name))
        if "deletionTimestamp" in jobset["metadata"]:
            self.world.stop(name) if self.world.pods_of(name) and running else self.world.lose(name)
        elif jobset["spec"]["suspend"]:
            self._admit(name)
        elif not running:
            self._random.choice([self._run, self._run, self._run, self._without_nodes])(name)
        else:
            self._while_running(name)

    def _while_running(self, name: str) -> None:
        if self.world.key_of(name).stage not in (Stage.TRAIN, Stage.EVALUATE):
            rare = self._random.choice([self._disrupt, self._fail, self._suspend])
            (rare if self._random.random() < 0.2 else self.world.succeed)(name)
            return
        choices: list[Callable[[str], None]] = [self._work] * 6 + [self.world.succeed] * 2
        choices += [self.world.stop, self._disrupt, self._disrupt, self._fail, self._lose, self._suspend]
        if jobset_queue(self.world.jobsets[name]):
            choices += [self._evict] * 4
        self._random.choice(choices)(name)

    def _work(self, name: str) -> None:
        """Runs for up to two days; statuses follow as usual."""
        for _ in range(self._random.randrange(1, 4)):
            self.world.wait(self._random.choice([600, 3600, 12 * 3600]))
            if self.world.key_of(name).stage is Stage.TRAIN and name in self.world.live():
                self.world.train(name, self._random.randrange(1, 99))
            self.reconcile()
            if name not in self.world.live():
                return

    def _run(self, name: str) -> None:
        self.world.run(name)

    def _disrupt(self, name: str) -> None:
        self.world.kill(name, conditions=DISRUPTED)

    def _fail(self, name: str) -> None:
        self.world.fail(name, self._random.choice([69, 134, int(ExitCode.BAD_DATA)]))

    def _lose(self, name: str) -> None:
        """Another client deletes the JobSet: its usage is known from the status alone."""
        self.world.lose(name)

    def _without_nodes(self, name: str) -> None:
        """No node appears; the next capacity follows."""
        self.world.schedule(name)
        self.reconcile()
        self.world.wait(7300)

    def _suspend(self, _name: str) -> None:
        self.world.edit(suspend=True)

    def _of_user(self) -> None:
        if self.world.job["spec"].get("suspend"):
            self.world.edit(suspend=False)

    def _admit(self, name: str) -> None:
        reported = (self.world.workloads or {}).get(name, {}).get("status", {})
        kept = {key: reported[key] for key in ("schedulingStats",) if key in reported}
        self.world.workload(name, RESERVED, ADMITTED, **kept)
        self.world.hold(name, held=False)

    def _evict(self, name: str) -> None:
        before = Workload.parse((self.world.workloads or {}).get(name, {}))
        if find_condition(before.conditions, "Admitted") is None:
            self._admit(name)
        count = len(before.evictions) + 1
        stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": count}]}
        waits = ("QuotaReserved", "False", "Pending", "insufficient unused quota")
        self.world.workload(
            name, waits, ("Evicted", "True", "Preempted", "it gave way"), schedulingStats=stats
        )
        self.world.save(name)
        self.world.hold(name, held=True)
        self.evictions += 1


def jobset_queue(jobset: Any) -> bool:
    return "kueue.x-k8s.io/queue-name" in jobset["metadata"].get("labels", {})


def hours(status: Any) -> Decimal:
    return Decimal((status.get("cost") or {}).get("chipHours", "0"))


def amount(status: Any) -> Decimal:
    return Decimal((status.get("cost") or {}).get("amount", "0"))
