"""Which objects in a job's namespace are the job's children. Whoever may write there can put labels on anything.

A label alone makes no child. A JobSet is the job's where its controller is the job, its name is the one that its
labels come to, and it names the plan that it was made under. A pod is the job's where its controller is a Job of such
a JobSet. Everything else is neither counted nor stopped nor deleted. A child that is forged in every one of these costs
at most the job that it claims to belong to, in the namespace of whoever forged it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from finetune_operator.api import API_VERSION
from finetune_operator.lifecycle.times import parse
from finetune_operator.rendering import attempt_of, jobset_name, plan_of

type Object = Mapping[str, Any]

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"


def own_jobsets(job: Object, jobsets: Iterable[Object], plan: Object | None) -> tuple[Object, ...]:
    """The job's JobSets among those that carry its label. ``plan``: its stored plan, or None."""
    reported = _reported(job)
    return tuple(
        each for each in jobsets if may_be_jobset_of(job, each) and _names_a_plan(each, plan, reported)
    )


def own_pods(job: Object, pods: Iterable[Object], jobsets: Sequence[Object]) -> tuple[Object, ...]:
    """The job's pods among those that carry its label.

    A pod of a JobSet that exists has at most the restart that the JobSet counts, or the next one, which JobSet counts
    before it makes pods but the listings may be of two moments.
    """
    restarts = {each["metadata"]["name"]: each.get("status", {}).get("restarts", 0) for each in jobsets}
    return tuple(each for each in pods if _pod_of(job, each, restarts))


def may_be_jobset_of(job: Object, jobset: Object) -> bool:
    """Whether it is the job's as far as it tells itself."""
    key = attempt_of(jobset)
    if key is None:
        return False
    stage, number, _ = key
    owner = _controller(jobset)
    return (
        owner.get("uid") == job["metadata"]["uid"]
        and (owner.get("apiVersion"), owner.get("kind")) == (API_VERSION, "FineTuneJob")
        and jobset["metadata"]["name"] == jobset_name(job["metadata"]["name"], stage, number)
    )


def _reported(job: Object) -> frozenset[str]:
    """Names of JobSets that the status shows; tenants do not write it."""
    status = job.get("status") or {}
    entries = (*status.get("stages", ()), *status.get("attempts", {}).get("history", ()))
    return frozenset(each["jobSet"] for each in entries if "jobSet" in each)


def _names_a_plan(jobset: Object, plan: Object | None, reported: frozenset[str]) -> bool:
    """Releases before stored plans wrote no digest. What they made is older than the stored plan or, after a rollback
    to such a release, stands in the status."""
    if plan is None or plan_of(jobset) is not None or jobset["metadata"]["name"] in reported:
        return True
    stored, made = (each["metadata"].get("creationTimestamp") for each in (plan, jobset))
    return stored is not None and made is not None and parse(made) <= parse(stored)


def may_be_pod_of(job: Object, pod: Object) -> bool:
    """Whether it is the job's as far as it tells itself."""
    return _jobset_of(job, pod) is not None


def _pod_of(job: Object, pod: Object, restarts: Mapping[str, int]) -> bool:
    found = _jobset_of(job, pod)
    if found is None:
        return False
    name, restart = found
    return name not in restarts or restart <= restarts[name] + 1


def _jobset_of(job: Object, pod: Object) -> tuple[str, int] | None:
    """Name and restart of the job's JobSet that it claims to be of."""
    key, owner = attempt_of(pod), _controller(pod)
    if key is None or owner.get("kind") != "Job":
        return None
    stage, number, restart = key
    name = jobset_name(job["metadata"]["name"], stage, number)
    labelled = pod["metadata"].get("labels", {}).get(JOBSET_LABEL)
    if labelled != name or not str(owner.get("name", "")).startswith(f"{name}-"):
        return None
    return name, restart


def _controller(child: Object) -> Object:
    """The owner reference of the child's controller; empty where it has none."""
    owners = child["metadata"].get("ownerReferences", ())
    return next((each for each in owners if each.get("controller")), {})
