"""The plan of a job: made at admission, stored, and read again by every later decision."""

from finetune_contract import CONTRACT_VERSION
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts.attempt import Attempt, since_retry
from finetune_operator.lifecycle.attempts.capacity import flavors_tried
from finetune_operator.lifecycle.children.quotas import check_quotas
from finetune_operator.lifecycle.decision import Admit, EventType, JobEvent, NextStep
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.derive import preflight_found
from finetune_operator.planning import Plan, Refused, StoredPlan, admit, check_ledger, render_stored_plan
from finetune_operator.planning.errors import naming_contact
from finetune_operator.planning.stored_plan import identity, plan_name


def admit_job(observation: Observation) -> NextStep:
    """Stores the plan, and does nothing else: nothing is started before the run folder that it names has been
    read, or is known to be new.

    The next decision follows at once and reports the admission. The plan may be that of a job that has run for days: a
    lost plan is made again only if it has the digest that the job's JobSets and status name. Under another plan the job
    would silently get another image, slice or folder in the middle of its run. Raises Refused.
    """
    job, planner = observation.job, observation.planner
    admission = admit(
        job.document,
        observation.profiles,
        observation.template,
        observation.source,
        observation.neighbours,
        checked=planner.checked,
    )
    planner.admitted(admission)
    stored, named, remark = admission.stored, _named(observation), None
    with naming_contact(stored.profile):
        check_ledger(stored.profile_name, stored.profile_spec, observation.ledger)
        if not named and not admission.plan.plan_only:
            remark = check_quotas(admission.plan, observation.quotas)
    if named and named != {stored.digest}:
        raise Refused(
            Reason.PLAN_MISSING,
            f"The job's plan, ConfigMap {plan_name(job.uid)} in the operator's namespace, is missing "
            "and cannot be rebuilt: the job or its profile has changed since the job was admitted. Restore the "
            "ConfigMap or undo the change; or create the job again: spec.resumeFrom continues from its last "
            "checkpoint.",
        )
    events = (
        (JobEvent(type=EventType.WARNING, reason=Reason.QUOTA_TOO_SMALL, message=remark),) if remark else ()
    )
    return NextStep(action=Admit(write=render_stored_plan(stored)), events=events, requeue_after=0.0)


def current_plan(
    observation: Observation, stored: StoredPlan, attempts: tuple[Attempt, ...]
) -> tuple[Plan, Refused | None]:
    """Returns the plan for the spec in its present form; if that is refused, the admitted plan and why. Raises Refused.

    If preflight had slices to choose from, its findings decide which one. Its findings hold even if an edit has
    switched its memory check off since.
    """
    fresh = [each for each in attempts if since_retry(observation.folder.retry, each)]
    tried = flavors_tried(fresh)
    planner, job = observation.planner, observation.job.document
    plan, refused = planner.plan(job, stored, tried, None)
    if plan.memory is not None and not plan.memory.candidates:
        return plan, refused
    found = preflight_found(observation, plan, attempts)
    if found is None or found.memory is None:
        return plan, refused
    return planner.plan(job, stored, tried, found.memory)


def stored_plan(observation: Observation) -> StoredPlan | None:
    """Returns the job's stored plan; None if there is none. Raises Refused if it is not one that this release reads,
    or another job's."""
    stored = observation.stored
    if stored is None:
        return None
    if isinstance(stored, Refused):
        raise stored
    if stored.job != identity(observation.job.document):
        raise Refused(
            Reason.PLAN_MISSING,
            f"ConfigMap {plan_name(stored.job.uid)} in the operator's namespace is the plan of "
            f"{stored.job.namespace}/{stored.job.name} ({stored.job.uid}), not of this job. "
            "Ask the platform team to delete it.",
        )
    if stored.contract.major != CONTRACT_VERSION.major:
        raise Refused(
            Reason.CONTRACT_UNSUPPORTED,
            f"The job was admitted under version {stored.contract} of the contract, and this operator supports "
            f"{CONTRACT_VERSION}: nothing is started, and what runs stays within its limits. Create the job again, or "
            "install the operator's earlier release.",
        )
    return stored


def _named(observation: Observation) -> set[str]:
    """Returns the digests of plans that the job's JobSets and status name."""
    found = {jobset.plan_digest for jobset in observation.jobsets if jobset.plan_digest}
    resolved = observation.status.resolved
    return found | {resolved.plan.digest} if resolved and resolved.plan else found
