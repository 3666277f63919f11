"""Names and labels of children, which link a pod to its job, stage and attempt."""

import re
from collections.abc import Mapping

from finetune_contract import Stage
from finetune_operator.objects import Object
from finetune_operator.planning import Plan
from finetune_operator.planning.policy.pod_settings import read_by_controllers
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL

#: Every restart up to the newest is an attempt, so a label must not name more restarts than are possible.
MAX_RESTART = 999
_NUMBER = re.compile(r"[1-9][0-9]{0,2}")
_JOBSET_NAME = re.compile(f"(.+)-(?:{'|'.join(stage.short for stage in Stage)})-[1-9][0-9]{{0,2}}")
_RESTART = re.compile(r"[0-9]{1,9}")

JOB_LABEL = "tpu-finetune.dev/job"
UID_LABEL = "tpu-finetune.dev/job-uid"
STAGE_LABEL = "tpu-finetune.dev/stage"
"""Value: the stage's name, ``Train``."""
ATTEMPT_LABEL = "tpu-finetune.dev/attempt"
RESTART_LABEL = "jobset.sigs.k8s.io/restart-attempt"
"""Set by JobSet on its Jobs and pods: the number of restarts of the JobSet before they were created."""

#: On JobSets: a digest of what the job and the profile request of the stage. It does not cover how a release renders
#: that request, so an upgrade of the operator replaces no JobSet.
SPEC_ANNOTATION = "tpu-finetune.dev/spec"
#: On JobSets: the sha256 of the stored plan under which they were created.
PLAN_ANNOTATION = "tpu-finetune.dev/plan"
#: On JobSets of TPU stages: a digest of the slices and the mesh that they claim.
CLAIM_ANNOTATION = "tpu-finetune.dev/claim"
#: On JobSets of TPU stages: the profile's flavor for which they were rendered.
FLAVOR_ANNOTATION = "tpu-finetune.dev/flavor"


def jobset_name(job: str, stage: Stage, attempt: int) -> str:
    """Returns ``<job>-<prep|conv|train|eval|export>-<attempt>``."""
    return f"{job}-{stage.short}-{attempt}"


def job_of_jobset(name: str) -> str | None:
    """Returns the name of the job whose JobSet may have that name; None if no JobSet of a job may."""
    match = _JOBSET_NAME.fullmatch(name)
    return match[1] if match else None


def child_labels(plan: Plan, stage: Stage, attempt: int) -> dict[str, str]:
    """Returns the labels of the JobSet, its Jobs and its pods."""
    return {
        "app.kubernetes.io/name": "finetune",
        "app.kubernetes.io/instance": plan.job.name,
        "app.kubernetes.io/managed-by": "finetune-operator",
        "app.kubernetes.io/component": stage.value.lower(),
        JOB_LABEL: plan.job.name,
        UID_LABEL: plan.job.uid,
        STAGE_LABEL: stage.value,
        ATTEMPT_LABEL: str(attempt),
    }


def of_profile(entries: Mapping[str, str]) -> dict[str, str]:
    """Returns the labels or annotations of pods that JobSets and Jobs get as well."""
    return {key: value for key, value in entries.items() if not read_by_controllers(key)}


def queue_labels(plan: Plan, *, on_tpu: bool) -> dict[str, str]:
    """Returns the labels that put a JobSet into a queue; empty if it goes to the scheduler directly.

    They belong on the JobSet only: Kueue would treat labeled Jobs and pods as workloads of their own.
    """
    queue = plan.queues.tpu if on_tpu else plan.queues.cpu
    if queue is None:
        return {}
    priority = plan.queues.priority_class
    return {QUEUE_LABEL: queue} | ({PRIORITY_LABEL: priority} if priority else {})


def attempt_of(child: Object) -> tuple[Stage, int, int] | None:
    """Returns stage, JobSet number and restart number of a JobSet (in its current state) or of a pod.

    None if the object has no such labels, or numbers beyond those that the operator and JobSet assign.
    """
    labels = child["metadata"].get("labels", {})
    # The creator of a JobSet chooses its labels, but its controller counts the restarts.
    pod = "containers" in child.get("spec", {})
    counted = min(child.get("status", {}).get("restarts", 0), MAX_RESTART)
    restart = labels.get(RESTART_LABEL, "0") if pod else str(counted)
    number = labels.get(ATTEMPT_LABEL, "")
    if not _NUMBER.fullmatch(number) or not _RESTART.fullmatch(restart):
        return None
    try:
        return Stage(labels.get(STAGE_LABEL)), int(number), min(int(restart), MAX_RESTART)
    except ValueError:
        return None
