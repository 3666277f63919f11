"""Keeps the plans of each job's last decision, so that the next decision about the job need not make them again.

A job has one plan before preflight has chosen a slice, and one for the chosen slice: every decision makes both.
"""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from finetune_operator.planning import Plan

#: Maximum number of plans, up to 60 KiB each for an ordinary job.
_MOST_PLANS = 1024


class KeptPlans:
    """At most two plans per job, the least recently used dropped first. Decisions in several threads may share it."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[str, bool], tuple[bytes, Plan]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._plans)

    def plan(self, uid: str, inputs: bytes, *, chosen: bool, make: Callable[[], Plan]) -> Plan:
        """Returns what ``make`` returns, which is called only if the last plan was made from other inputs.

        Errors of ``make`` are raised and not kept.

        Args:
            uid: of the job.
            inputs: digest of everything that the plan depends on.
            chosen: whether it is the plan for a slice that preflight has chosen.
            make: makes the plan.
        """
        key = uid, chosen
        with self._lock:
            kept = self._plans.get(key)
            if kept is not None and kept[0] == inputs:
                self._plans.move_to_end(key)
                return kept[1]
        made = make()
        with self._lock:
            self._plans[key] = (inputs, made)
            self._plans.move_to_end(key)
            if len(self._plans) > _MOST_PLANS:
                self._plans.popitem(last=False)
        return made

    def forget(self, uid: str) -> None:
        """Drops the plans of a job that has ended or is deleted."""
        with self._lock:
            for chosen in (False, True):
                self._plans.pop((uid, chosen), None)

    def clear(self) -> None:
        """Drops all plans."""
        with self._lock:
            self._plans.clear()


#: The process's plans.
kept_plans = KeptPlans()
