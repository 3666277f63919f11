"""Which objects in a job's namespace are the job's children. Tenants can put labels on any object there.

A label alone does not make a child. A JobSet is a child if the job is its controller and its name is the one that its
labels imply; the digest of a plan that it carries decides only whether it is replaced. A pod is a child if its
controller is a Job of such a JobSet. All other objects are neither counted nor stopped nor deleted. A child for which
all of this is forged affects at most the job that it claims to belong to, in the namespace of the tenant who forged it.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from finetune_contract import Stage
from finetune_operator.api import API_VERSION
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.children.jobset import JobSet
from finetune_operator.lifecycle.children.pod import Pod
from finetune_operator.objects import Object
from finetune_operator.rendering import MAX_RESTART, jobset_name
from finetune_operator.rendering.labels import job_of_jobset

JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"


def own_pods(pods: Iterable[Pod], jobsets: Sequence[JobSet], now: datetime) -> tuple[Pod, ...]:
    """Returns the job's pods among those for which :func:`may_be_pod_of` holds, as they are at that time.

    A pod of an existing JobSet has at most the restart that ``status.restarts`` counts, or the next one: the JobSet
    controller counts it before it creates pods, but the pods may have been listed after the JobSets.
    """
    made = {each.key.jobset: each for each in jobsets if each.key}
    found: list[Pod] = []
    for pod in pods:
        jobset = made.get(pod.key.jobset) if pod.key else None
        if pod.key and pod.key.restart <= (jobset.restarts if jobset else MAX_RESTART) + 1:
            found.append(pod.settled((jobset and jobset.end_time) or now))
    return tuple(found)


def may_be_jobset_of(job: Object, jobset: Object) -> bool:
    """Whether a JobSet is the job's by its own metadata."""
    key = AttemptKey.of(jobset)
    if key is None:
        return False
    owner = _controller(jobset)
    return (
        owner.get("uid") == job["metadata"]["uid"]
        and (owner.get("apiVersion"), owner.get("kind")) == (API_VERSION, "FineTuneJob")
        and jobset["metadata"]["name"] == jobset_name(job["metadata"]["name"], key.stage, key.number)
    )


def possible_jobsets(job: Object) -> frozenset[str]:
    """Returns the names of all JobSets that the job may have by its status: those that it contains, and the next one of
    each stage, which may have been created after it was written."""
    status, name = job.get("status") or {}, job["metadata"]["name"]
    # Tenants cannot write the status.
    entries = (*status.get("stages", ()), *status.get("attempts", {}).get("history", ()))
    reported = frozenset(each["jobSet"] for each in entries if "jobSet" in each)
    following = set()
    for stage in Stage:
        stem = jobset_name(name, stage, 0).removesuffix("0")
        numbers = (each.removeprefix(stem) for each in reported if each.startswith(stem))
        last = max((int(each) for each in numbers if each.isdecimal()), default=0)
        following.add(jobset_name(name, stage, last + 1))
    return reported | following


def may_be_pod_of(job: Object, pod: Object) -> bool:
    """Whether a pod is the job's by its own metadata: it names the JobSet of its attempt and, as its controller, a Job
    of that JobSet."""
    key = AttemptKey.of(pod)
    if key is None:
        return False
    name, owner = jobset_name(job["metadata"]["name"], key.stage, key.number), _controller(pod)
    return (
        owner.get("kind") == "Job"
        and pod["metadata"].get("labels", {}).get(JOBSET_LABEL) == name
        and str(owner.get("name", "")).startswith(f"{name}-")
    )


def may_be_workload_of(job: Object, workload: Object) -> bool:
    """Whether a Workload is of a JobSet of the job by its own metadata. Which JobSet is decided by its uid."""
    return bool(job_named_by(workload) == job["metadata"]["name"])


def job_named_by(workload: Object) -> str | None:
    """Returns the name of the job that the name of a Workload's JobSet implies; None for other Workloads."""
    owner = _controller(workload)
    return job_of_jobset(str(owner.get("name", ""))) if owner.get("kind") == "JobSet" else None


def owner_uids(child: Object) -> Iterator[str]:
    """Yields the uids of a child's owners."""
    return (each["uid"] for each in child["metadata"].get("ownerReferences", ()) if "uid" in each)


def _controller(child: Object) -> Object:
    """Returns the owner reference of the child's controller; empty if it has none."""
    owners = child["metadata"].get("ownerReferences", ())
    return next((each for each in owners if each.get("controller")), {})
