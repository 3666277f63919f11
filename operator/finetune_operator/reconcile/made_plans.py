"""Remembers what planning has made, so that a plan is made once for what it follows from."""

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import sha256

from pydantic_core import to_json

from finetune_contract import MemoryOutcome
from finetune_operator.objects import Object
from finetune_operator.planning.admission import Admission, CheckedProfile, Planner
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.plan import Plan
from finetune_operator.planning.slices.topology import NONE_TRIED
from finetune_operator.planning.stored_plan import StoredPlan

#: Maximum number of plans, up to 60 KiB each for an ordinary job.
_MOST_PLANS = 1024
#: Maximum size in bytes of what a remembered plan is made from, apart from the profile. Tenants decide it.
_PLAN_BYTES = 16 * 2**10
_MOST_PROFILES = 64

type _Made = tuple[Plan, Refused | None]


class MadePlans(Planner):
    """Keeps at most two plans per job: before preflight has chosen a slice, and for the chosen one. What has not been
    used for longest is dropped first. Threads may share it: each of its operations on a dictionary is atomic."""

    def __init__(self) -> None:
        self._plans: OrderedDict[tuple[str, bool], tuple[object, _Made]] = OrderedDict()
        self._profiles: OrderedDict[tuple[str, str], CheckedProfile] = OrderedDict()

    def checked(self, profile: Object) -> CheckedProfile:
        version = profile["metadata"]["uid"], profile["metadata"]["resourceVersion"]
        checked = self._profiles.pop(version, None) or super().checked(profile)
        _put(self._profiles, version, checked, _MOST_PROFILES)
        return checked

    def admitted(self, admission: Admission) -> None:
        job, stored = admission.job, admission.stored
        if _size(job, stored, None) <= _PLAN_BYTES:
            made = _inputs(job, stored, NONE_TRIED, None), (admission.plan, None)
            _put(self._plans, (job["metadata"]["uid"], False), made, _MOST_PLANS)

    def plan(
        self, job: Object, stored: StoredPlan, tried: Mapping[str, int], found: MemoryOutcome | None
    ) -> _Made:
        key, inputs = (job["metadata"]["uid"], found is not None), _inputs(job, stored, tried, found)
        kept = self._plans.pop(key, None)
        if kept is None or kept[0] != inputs:
            kept = inputs, super().plan(job, stored, tried, found)
            if _size(job, stored, found) > _PLAN_BYTES:
                return kept[1]
        _put(self._plans, key, kept, _MOST_PLANS)
        return kept[1]

    def forget(self, uid: str) -> None:
        """Drops the plans of a job that has ended or is deleted."""
        for chosen in (False, True):
            self._plans.pop((uid, chosen), None)


def _put[K, V](kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    kept[key] = value
    if len(kept) > most:
        kept.popitem(last=False)


def _inputs(
    job: Object, stored: StoredPlan, tried: Mapping[str, int], found: MemoryOutcome | None
) -> tuple[object, ...]:
    """Returns what a plan follows from; what else planning reads of a job is fixed with its uid. A generation does not
    stand for a spec: after etcd is restored, it is another one's."""
    spec, labels = sha256(to_json(job["spec"])).digest(), job["metadata"].get("labels")
    return stored.digest, spec, labels, dict(tried), found


def _size(job: Object, stored: StoredPlan, found: MemoryOutcome | None) -> int:
    record = found.to_json() if found else ""
    return len(to_json(job["spec"])) + len(stored.data["spec.json"]) + len(record)
