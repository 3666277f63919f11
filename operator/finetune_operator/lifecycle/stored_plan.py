"""A job without a stored plan: new, admitted by an earlier release, or its plan was lost."""

from collections.abc import Iterator
from dataclasses import replace

from finetune_contract import CONTRACT_VERSION, ContractVersion
from finetune_operator.api import Reason
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.planning import Refused, StoredPlan, admit, read_stored_plan
from finetune_operator.planning.first_format import first_format_name, take_over
from finetune_operator.planning.merge import lookup
from finetune_operator.planning.stored_plan import identity, plan_name
from finetune_operator.rendering import plan_of


def stored_plan(observation: Observation) -> StoredPlan | None:
    """The job's stored plan; None where there is none. Raises Refused (PlanMissing) where it is not the job's."""
    if observation.snapshot is None:
        return None
    snapshot = read_stored_plan(observation.snapshot)
    if snapshot.job != identity(observation.job):
        raise Refused(
            Reason.PLAN_MISSING,
            f"ConfigMap {observation.snapshot['metadata']['name']} in the operator's namespace is the plan of "
            f"{snapshot.job.namespace}/{snapshot.job.name} ({snapshot.job.uid}), not of this job. "
            "Ask the platform team to delete it.",
        )
    return snapshot


def plan_to_store(observation: Observation) -> StoredPlan:
    """What is to be stored for a job that has no plan. Raises Refused.

    A plan that was lost is made again only where it comes to what the job's JobSets and status name: under any other
    one the job would silently get another image, slice or folder in the middle of its run.
    """
    job = observation.job
    if first_format_name(job) is not None and (
        observation.first_format or not _unchanged_profile(observation)
    ):
        return take_over(job, observation.first_format)
    snapshot = admit(
        job, observation.profiles, observation.template, observation.source, observation.neighbours
    ).snapshot
    named = _named(observation)
    if not named:
        return snapshot
    made = next((each for each in _by_any_release(snapshot) if named == {each.digest}), None)
    if made is None:
        raise Refused(
            Reason.PLAN_MISSING,
            f"The job's plan, ConfigMap {plan_name(job['metadata']['uid'])} in the operator's namespace, is gone, and "
            "it cannot be made again: the job or its profile has changed since the job was admitted. Restore the "
            "ConfigMap or undo the change; or create the job again, where spec.resumeFrom continues from its last "
            "checkpoint.",
        )
    return made


def _by_any_release(snapshot: StoredPlan) -> Iterator[StoredPlan]:
    """The plan as this operator makes it, and as those have that spoke an earlier minor version of the contract."""
    for minor in range(CONTRACT_VERSION.minor, -1, -1):
        yield replace(snapshot, contract=ContractVersion(CONTRACT_VERSION.major, minor))


def _named(observation: Observation) -> set[str]:
    """Digests of the plan that the job has been seen to run under."""
    status = lookup(observation.job.get("status") or {}, "resolved.plan.digest")
    found = {digest for jobset in observation.jobsets if (digest := plan_of(jobset))}
    return found | ({status} if isinstance(status, str) else set())


def _unchanged_profile(observation: Observation) -> bool:
    """Whether the job of an earlier release, whose plan is gone, can be admitted again under the same profile."""
    status = lookup(observation.job.get("status") or {}, "resolved.profile") or {}
    admitted = admit(
        observation.job,
        observation.profiles,
        observation.template,
        observation.source,
        observation.neighbours,
    ).snapshot
    return (admitted.profile_name, admitted.profile_hash) == (status.get("name"), status.get("hash"))
