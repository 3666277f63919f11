"""Permissions that the operator uses, as data: a test compares the chart's roles with them.

The operator never reads a Secret: pods get them by reference, and the pod's status shows a missing one.
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


#: Rules for every namespace that the operator serves, as a ClusterRole if it serves all.
JOB_RULES = (
    _rule("tpu-finetune.dev", "finetunejobs", "get", "list", "watch"),
    # The operator never writes spec or metadata.
    _rule("tpu-finetune.dev", "finetunejobs/status", "patch"),
    # Created and deleted, never changed: a JobSet is treated as immutable.
    _rule("jobset.x-k8s.io", "jobsets", "list", "watch", "create", "delete"),
    _rule("", "pods", "list", "watch"),
    # Show why a JobSet waits in its queue. Kueue is optional.
    _rule("kueue.x-k8s.io", "workloads", "list", "watch"),
    # The ConfigMap of a chat template, by name.
    _rule("", "configmaps", "get"),
    # Compared with a job's slice before the job is admitted.
    _rule("", "resourcequotas", "list"),
    # Created for jobs; listed for one pod that is unschedulable, or one Job that creates no pods.
    _rule("", "events", "list", "create"),
)
#: Rules for cluster-scoped resources.
CLUSTER_RULES = (
    _rule("tpu-finetune.dev", "finetuneprofiles", "get", "list", "watch"),
    # Reports whether they are valid and how many jobs use them; the platform team owns the rest.
    _rule("tpu-finetune.dev", "finetuneprofiles/status", "patch"),
    # Nodes of a slice with a failed pod, to distinguish the loss of a host from a crash of the program.
    _rule("", "nodes", "list"),
    # Other releases of the chart say in theirs which namespaces they serve.
    _rule("rbac.authorization.k8s.io", "clusterroles", "list"),
)
#: Rules for the operator's own namespace.
OWN_RULES = (
    _rule("coordination.k8s.io", "leases", "get", "create", "patch"),
    # The plans of jobs: written once, read by name, deleted after the job is deleted.
    _rule("", "configmaps", "get", "list", "create", "delete"),
)
#: Rule for two ConfigMaps of that namespace: the record of delivered notices, and that of jobs on chips.
RECORD_RULES = (_rule("", "configmaps", "patch"),)
