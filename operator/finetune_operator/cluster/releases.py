"""What a release of the chart says of itself in its ClusterRole, which no tenant can write. Pure."""

from finetune_operator.cluster.port import Object

#: Annotation: namespaces, separated by commas, or ``*`` for all.
SERVES = "tpu-finetune.dev/serves"
EVERY = "*"


def served_namespaces(role: Object) -> frozenset[str]:
    """Returns the namespaces that the role's release serves, ``EVERY`` for all; nothing if it is no such role."""
    text = str((role["metadata"].get("annotations") or {}).get(SERVES, ""))
    return frozenset(text.split(",")) - {""}
