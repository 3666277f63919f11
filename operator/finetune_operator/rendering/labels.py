"""Names and labels of children: what links a pod to its job, stage and attempt."""

import re
from collections.abc import Mapping
from typing import Any

from finetune_contract import Stage
from finetune_operator.planning import Plan
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL

type Object = Mapping[str, Any]

#: Every restart up to the newest is an attempt, so a label must not name more of them than there can be.
MAX_RESTART = 999
_NUMBER = re.compile(r"[1-9][0-9]{0,2}")
_RESTART = re.compile(r"[0-9]{1,9}")

JOB_LABEL = "tpu-finetune.dev/job"
UID_LABEL = "tpu-finetune.dev/job-uid"
STAGE_LABEL = "tpu-finetune.dev/stage"
"""Value: the stage's name, ``Train``."""
ATTEMPT_LABEL = "tpu-finetune.dev/attempt"
RESTART_LABEL = "jobset.sigs.k8s.io/restart-attempt"
"""JobSet's own, on its Jobs and pods: how often it had been restarted when they were made."""


#: On JobSets: a digest of what job and profile ask of the stage. What a release renders of that does not count, so that
#: an upgrade of the operator replaces nothing.
SPEC_ANNOTATION = "tpu-finetune.dev/spec"


def spec_of(jobset: Object) -> str | None:
    """The digest of what was asked for; None for one that carries no such annotation."""
    found: str | None = jobset["metadata"].get("annotations", {}).get(SPEC_ANNOTATION)
    return found


#: On JobSets: the sha256 of the stored plan that they were made under.
PLAN_ANNOTATION = "tpu-finetune.dev/plan"


def plan_of(jobset: Object) -> str | None:
    """The digest of the plan that it was made under; None for one of a release that did not write it."""
    found: str | None = jobset["metadata"].get("annotations", {}).get(PLAN_ANNOTATION)
    return found


#: On JobSets of stages on TPU: a digest of what they claim of the cluster.
CLAIM_ANNOTATION = "tpu-finetune.dev/claim"


def claim_of(jobset: Object) -> str | None:
    """What it claims, in short; None for one that carries no such annotation."""
    found: str | None = jobset["metadata"].get("annotations", {}).get(CLAIM_ANNOTATION)
    return found


#: On JobSets of stages on TPU: the profile's flavor that they were rendered for.
FLAVOR_ANNOTATION = "tpu-finetune.dev/flavor"


def flavor_of(jobset: Object) -> str | None:
    """The name of its flavor; None for one that carries no such annotation."""
    found: str | None = jobset["metadata"].get("annotations", {}).get(FLAVOR_ANNOTATION)
    return found


def jobset_name(job: str, stage: Stage, attempt: int) -> str:
    """``<job>-<prep|conv|train|eval|export>-<attempt>``."""
    return f"{job}-{stage.short}-{attempt}"


def child_labels(plan: Plan, stage: Stage, attempt: int) -> dict[str, str]:
    """On the JobSet, its Jobs and its pods."""
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


def queue_labels(plan: Plan, *, on_tpu: bool) -> dict[str, str]:
    """What puts a JobSet into a queue; empty where it goes to the scheduler directly. For the JobSet alone: Kueue
    would take its Jobs and pods for workloads of their own."""
    queue = plan.queues.tpu if on_tpu else plan.queues.cpu
    if queue is None:
        return {}
    priority = plan.queues.priority_class
    return {QUEUE_LABEL: queue} | ({PRIORITY_LABEL: priority} if priority else {})


def attempt_of(child: Object) -> tuple[Stage, int, int] | None:
    """Stage, number of the JobSet and restart inside it, of a JobSet (as it stands now) or of a pod; None for an object
    that carries no such labels, or numbers beyond those that the operator and JobSet would give."""
    labels = child["metadata"].get("labels", {})
    # Whoever makes a JobSet writes its labels. Its restarts are what its controller has counted.
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
