"""What the usage of a job grows by from one status to the next, for metrics."""

from dataclasses import dataclass

from finetune_operator.api import FineTuneJobStatus
from finetune_operator.api.placement import Capacity
from finetune_operator.lifecycle.accounting.amounts import Amounts
from finetune_operator.lifecycle.decision import Object


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageIncrement:
    """What the usage of a job has grown by from one status to the next."""

    namespace: str
    profile: str
    capacity: str
    currency: str | None
    amounts: Amounts


def usage_increment(job: Object, status: FineTuneJobStatus) -> UsageIncrement | None:
    """Returns the increment from the stored status of ``job`` to ``status``; None before the job has a slice.

    It counts for the capacity that the job had before, because what is reported now has been used since then.
    """
    resolved = status.resolved
    if resolved is None or resolved.profile is None or resolved.resources is None:
        return None
    stored = job.get("status") or {}
    before = Amounts.of_document(stored.get("cost") or {})
    capacity = ((stored.get("resolved") or {}).get("resources") or {}).get("capacity")
    return UsageIncrement(
        namespace=job["metadata"]["namespace"],
        profile=resolved.profile.name,
        capacity=str(capacity if capacity in Capacity else resolved.resources.capacity),
        currency=status.cost.currency if status.cost else None,
        amounts=Amounts.of(status.cost) - before,
    )
