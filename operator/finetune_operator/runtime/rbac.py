"""The rights that the operator uses, as data: a test compares the chart's roles with them.

No Secret is ever read: pods get them by reference, and a missing one is seen at the pod.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One rule of a Role."""

    group: str
    resource: str
    verbs: frozenset[str]


def _rule(group: str, resource: str, *verbs: str) -> PolicyRule:
    return PolicyRule(group, resource, frozenset(verbs))


#: In every namespace that is served (a ClusterRole when all are).
JOB_RULES = (
    _rule("tpu-finetune.dev", "finetunejobs", "get", "list", "watch"),
    # The operator never writes spec or metadata.
    _rule("tpu-finetune.dev", "finetunejobs/status", "patch"),
    # Created and deleted, never changed: a JobSet is immutable for our purposes.
    _rule("jobset.x-k8s.io", "jobsets", "list", "watch", "create", "delete"),
    _rule("", "pods", "list", "watch"),
    # Why a JobSet waits in its queue. Kueue need not be there.
    _rule("kueue.x-k8s.io", "workloads", "list", "watch"),
    # The ConfigMap of a chat template, and <job>-plan of an earlier release, each by name.
    _rule("", "configmaps", "get"),
    # Told of jobs; and read of one pod that finds no node, or of one Job that makes no pods.
    _rule("", "events", "list", "create"),
)
#: Cluster-wide: these are cluster-scoped.
CLUSTER_RULES = (
    _rule("tpu-finetune.dev", "finetuneprofiles", "get", "list", "watch"),
    # Whether they are valid and how many jobs use them; the rest belongs to the platform team.
    _rule("tpu-finetune.dev", "finetuneprofiles/status", "patch"),
    # Of a slice on which a pod has failed: was a host taken away, or did the program crash?
    _rule("", "nodes", "list"),
)
#: In the operator's own namespace.
OWN_RULES = (
    _rule("coordination.k8s.io", "leases", "get", "create", "patch"),
    # The plans of jobs: written once, read by name, deleted when the job is gone.
    _rule("", "configmaps", "get", "list", "create", "delete"),
)
