"""What is kept in memory of a FineTuneJob: all of its spec and status, which its schema bounds, and some metadata."""

from collections.abc import Mapping

from finetune_operator.objects import Object
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL

#: Maximum number of labels, and of annotations, that are reported of a job.
MOST_TEXTS = 64
#: Maximum number of characters of one of them.
LONGEST_TEXT = 1024
#: Maximum number of labels that are kept beside those of Kueue.
_MOST_LABELS = 32
_QUEUE_LABELS = frozenset({QUEUE_LABEL, PRIORITY_LABEL})
_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)


def reduced_job(found: Object) -> Object:
    """Reduces the metadata of a FineTuneJob to what decisions read and the operator's ledger records."""
    metadata = found["metadata"]
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    if labels := metadata.get("labels"):
        others = sorted(labels.keys() - _QUEUE_LABELS)[:_MOST_LABELS]
        kept["labels"] = {key: labels[key] for key in (*(_QUEUE_LABELS & labels.keys()), *others)}
    whole = {key: found[key] for key in ("apiVersion", "kind", "spec", "status") if key in found}
    return whole | {"metadata": kept}


def job_texts(found: Object) -> Mapping[str, Mapping[str, str]]:
    """Returns the labels and annotations of a FineTuneJob, by these names: the first ones that are not long.

    Decisions do not read them, so the watches do not keep them.
    """
    return {kind: _short_texts(found["metadata"].get(kind) or {}) for kind in ("labels", "annotations")}


def _short_texts(texts: Mapping[str, str]) -> dict[str, str]:
    kept = sorted((name, text) for name, text in texts.items() if len(text) <= LONGEST_TEXT)
    return dict(kept[:MOST_TEXTS])
