"""What a release of the chart says of itself in its ClusterRole, which no tenant can write. Pure."""

from finetune_operator.cluster.port import Object

#: Annotation: namespaces, separated by commas, or ``*`` for all.
SERVES = "tpu-finetune.dev/serves"
EVERY = "*"
#: Annotation: namespace of the release.
RELEASE_NAMESPACE = "tpu-finetune.dev/release-namespace"


def served_namespaces(role: Object) -> frozenset[str]:
    """Returns the namespaces that the role's release serves, ``EVERY`` for all; nothing if it is no such role."""
    return frozenset(_annotation(role, SERVES).split(",")) - {""}


def release_namespace(role: Object) -> str:
    """Returns the namespace of the role's release; empty if the chart was older or the role is no such role."""
    return _annotation(role, RELEASE_NAMESPACE)


def _annotation(role: Object, name: str) -> str:
    return str((role["metadata"].get("annotations") or {}).get(name, ""))
