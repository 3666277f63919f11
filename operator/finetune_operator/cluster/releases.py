"""What a release of the chart says of itself in its ClusterRole, which no tenant can write. Pure."""

from finetune_operator.objects import Object

#: Annotation: namespaces, separated by commas, or ``*`` for all.
SERVES = "tpu-finetune.dev/serves"
EVERY = "*"
#: Annotation: namespace and full name of the release, separated by a slash.
RELEASE = "tpu-finetune.dev/release"


def served_namespaces(role: Object) -> frozenset[str]:
    """Returns the namespaces that the role's release serves, ``EVERY`` for all; nothing if it is no such role."""
    return frozenset(_annotation(role, SERVES).split(",")) - {""}


def release_of(role: Object) -> str:
    """Returns the role's release as ``<namespace>/<full name>``; empty if the chart was older or it is no such role."""
    return _annotation(role, RELEASE)


def _annotation(role: Object, name: str) -> str:
    return str((role["metadata"].get("annotations") or {}).get(name, ""))
