"""Reduces the objects of a job to the fields that decisions read.

Tenants decide what their pods contain, and a Python object takes ten times its JSON or more. So each object is reduced
to a fixed shape, with bounded lists and texts, as soon as it is read. The lifecycle's tests use the same reduction.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from sys import getsizeof
from typing import Any

from pydantic_core.core_schema import (
    CoreSchema,
    any_schema,
    list_schema,
    nullable_schema,
    typed_dict_field,
    typed_dict_schema,
)

from finetune_operator.lifecycle.children.node import MAINTENANCE_LABEL, POOL_LABEL
from finetune_operator.lifecycle.children.object_events import REASONS
from finetune_operator.lifecycle.children.ownership import JOBSET_LABEL, may_be_jobset_of, may_be_pod_of
from finetune_operator.lifecycle.children.pod import GROUP_LABEL, INDEX_LABEL, SLICE_KIND_LABELS, SLICE_LABEL
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL
from finetune_operator.rendering import (
    ATTEMPT_LABEL,
    PLAN_ANNOTATION,
    RESTART_LABEL,
    STAGE_LABEL,
    UID_LABEL,
)
from finetune_operator.rendering.labels import CLAIM_ANNOTATION, FLAVOR_ANNOTATION, JOB_LABEL, SPEC_ANNOTATION

type Object = Mapping[str, Any]
type Shape = int | Mapping[str, "Shape"] | "_Each" | "_Labels"
"""A number or a text with this maximum of characters; these keys of an object; a list; labels."""


#: Maximum number of labels, and of annotations, of a FineTuneJob.
MOST_TEXTS = 64
#: Maximum number of characters of one of them.
LONGEST_TEXT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Each:
    """The first ``most`` elements of a list for which ``wanted`` is true."""

    of: Shape
    most: int = 32
    wanted: Callable[[Object], bool] = bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """The labels with these keys, and of the others the first ``most`` in the order of their keys."""

    keys: frozenset[str]
    most: int = 32
    longest: int = 63
    """Kubernetes' own limit for a value."""


def _texts(*keys: str, most: int = 1024) -> dict[str, Shape]:
    return dict.fromkeys(keys, most)


#: Kubernetes' own limit for the message of a condition.
_MESSAGE = _texts("message", most=32_768)
_CONDITIONS = _Each(of=_texts("type", "status", "reason", "lastTransitionTime") | _MESSAGE)
_STATE: Shape = {
    "running": _texts("startedAt"),
    "waiting": _texts("reason") | _MESSAGE,
    "terminated": _texts("exitCode", "reason", "startedAt", "finishedAt") | _MESSAGE,
}
_CONTAINERS = _Each(
    of=_texts("name", "image", "imageID", "restartCount") | {"state": _STATE, "lastState": _STATE}
)
_CONTROLLER = _Each(
    of=_texts("apiVersion", "kind", "name", "uid", "controller"),
    most=1,
    wanted=lambda owner: bool(owner.get("controller")),
)
_METADATA = _texts(
    "name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"
) | {"ownerReferences": _CONTROLLER, "finalizers": _Each(of=253, most=8)}
_SELECTOR: dict[str, Shape] = {"nodeSelector": _texts(*SLICE_KIND_LABELS)}

_POD: Shape = {
    "metadata": _METADATA
    | {
        "labels": _texts(
            STAGE_LABEL,
            ATTEMPT_LABEL,
            RESTART_LABEL,
            UID_LABEL,
            JOB_LABEL,
            JOBSET_LABEL,
            GROUP_LABEL,
            SLICE_LABEL,
            INDEX_LABEL,
        )
    },
    # The containers also distinguish a pod from a JobSet.
    "spec": _SELECTOR
    | _texts("nodeName", "terminationGracePeriodSeconds")
    | {"containers": _Each(of=_texts("name") | {"resources": {"limits": _texts("memory")}})},
    "status": _texts("phase", "startTime", "reason", "message")
    | {
        "conditions": _CONDITIONS,
        "containerStatuses": _CONTAINERS,
        "initContainerStatuses": _CONTAINERS,
    },
}
_JOBSET: Shape = {
    "metadata": _METADATA
    | {
        "labels": _texts(STAGE_LABEL, ATTEMPT_LABEL, JOB_LABEL, UID_LABEL, QUEUE_LABEL, PRIORITY_LABEL),
        "annotations": _texts(PLAN_ANNOTATION, SPEC_ANNOTATION, CLAIM_ANNOTATION, FLAVOR_ANNOTATION),
    },
    "spec": _texts("suspend", "managedBy")
    | {
        "replicatedJobs": _Each(
            of=_texts("name", "replicas")
            | {
                "template": {
                    "spec": _texts("parallelism")
                    | {
                        "template": {
                            "spec": _SELECTOR
                            | {
                                "containers": _Each(of={"resources": {"limits": _texts("google.com/tpu")}}),
                            }
                        }
                    }
                }
            }
        )
    },
    "status": _texts("restarts")
    | {"conditions": _CONDITIONS, "replicatedJobsStatus": _Each(of=_texts("name", "failed"))},
}
_WORKLOAD: Shape = {
    "metadata": _METADATA,
    "spec": _texts("queueName", "active"),
    "status": _texts("accumulatedPastExecutionTimeSeconds")
    | {
        "conditions": _CONDITIONS,
        "admissionChecks": _Each(of=_texts("name", "state") | _MESSAGE),
        "schedulingStats": {"evictions": _Each(of=_texts("reason", "count"))},
    },
}
_NODE: Shape = {
    "metadata": _texts("name", "creationTimestamp") | {"labels": _texts(POOL_LABEL, MAINTENANCE_LABEL)},
    "spec": {"taints": _Each(of=_texts("key"))},
    "status": {
        "conditions": _Each(
            of=_texts("type", "status", "lastTransitionTime", "lastHeartbeatTime"),
            wanted=lambda each: each.get("type") == "Ready",
        )
    },
}
_EVENT: Shape = (
    _texts("type", "reason", "firstTimestamp", "lastTimestamp", "eventTime")
    | _MESSAGE
    | {"series": _texts("lastObservedTime"), "metadata": _texts("creationTimestamp")}
)
_JOB: dict[str, Shape] = _texts("apiVersion", "kind") | {
    "metadata": _texts(
        "name",
        "namespace",
        "uid",
        "generation",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
    )
    # The operator's ledger records the labels.
    | {"labels": _Labels(keys=frozenset({QUEUE_LABEL, PRIORITY_LABEL}))}
}


def jobset_of(job: Object, found: Object) -> Object | None:
    """Reduces a JobSet with the job's label; None if it cannot be the job's."""
    return _reduced(found, _JOBSET) if may_be_jobset_of(job, found) else None


def pod_of(job: Object, found: Object) -> Object | None:
    """Reduces a pod with the job's label; None if it cannot be the job's."""
    return _reduced(found, _POD) if may_be_pod_of(job, found) else None


def reduced_jobset(found: Object) -> Object:
    """Reduces a JobSet."""
    return _reduced(found, _JOBSET)


def reduced_pod(found: Object) -> Object:
    """Reduces a pod."""
    return _reduced(found, _POD)


def reduced_workload(found: Object) -> Object:
    """Reduces a Workload."""
    return _reduced(found, _WORKLOAD)


def reduced_event(found: Object) -> Object | None:
    """Reduces an Event; None if no decision reads Events with its reason and type."""
    wanted = found.get("reason") in REASONS or found.get("type") == "Warning"
    return _reduced(found, _EVENT) if wanted else None


def reduced_node(found: Object) -> Object:
    """Reduces a node."""
    return _reduced(found, _NODE)


def reduced_job(found: Object) -> Object:
    """Reduces the metadata of a FineTuneJob; its schema bounds spec and status."""
    return _reduced(found, _JOB) | {key: found[key] for key in ("spec", "status") if key in found}


def job_texts(found: Object) -> Mapping[str, Mapping[str, str]]:
    """Returns the labels and annotations of a FineTuneJob, by these names: the first ones that are not long.

    Decisions do not read them, so the watches do not keep them.
    """
    return {kind: _short_texts(found["metadata"].get(kind) or {}) for kind in ("labels", "annotations")}


def _short_texts(texts: Mapping[str, str]) -> dict[str, str]:
    kept = sorted((name, text) for name, text in texts.items() if len(text) <= LONGEST_TEXT)
    return dict(kept[:MOST_TEXTS])


def parser_of(shape: Shape) -> CoreSchema:
    """Returns a schema whose JSON parser builds only the keys of the shape, so that no others take memory."""
    if isinstance(shape, _Each):
        return list_schema(parser_of(shape.of))
    if isinstance(shape, Mapping):
        return optional_keys({key: parser_of(part) for key, part in shape.items()})
    return any_schema()


def optional_keys(fields: Mapping[str, CoreSchema]) -> CoreSchema:
    """Returns a schema for these keys of an object, all optional; its parser ignores the others."""
    present = {
        key: typed_dict_field(nullable_schema(schema), required=False) for key, schema in fields.items()
    }
    return typed_dict_schema(present, extra_behavior="ignore")


#: What the watches keep of an object. Decisions read no other fields of it.
JOBSET_PARSER = parser_of(_JOBSET)
POD_PARSER = parser_of(_POD)
WORKLOAD_PARSER = parser_of(_WORKLOAD)
JOB_PARSER = parser_of({**_JOB, "spec": 0, "status": 0})


def _reduced(found: Object, shape: Shape) -> dict[str, Any]:
    reduced: dict[str, Any] = _cut(found, shape)
    return reduced


def _cut(value: Any, shape: Shape) -> Any:
    if isinstance(shape, _Labels):
        return _labels(value, shape)
    if isinstance(value, Mapping):
        parts = shape if isinstance(shape, Mapping) else {}
        return {key: _cut(value[key], part) for key, part in parts.items() if key in value}
    if isinstance(value, list | tuple):
        if not isinstance(shape, _Each):
            return []
        return [_cut(each, shape.of) for each in islice(filter(shape.wanted, value), shape.most)]
    return value[:shape] if isinstance(value, str) and isinstance(shape, int) else value


def _labels(value: Any, shape: _Labels) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {}
    others = islice(sorted(key for key in value if key not in shape.keys), shape.most)
    return {key: str(value[key])[: shape.longest] for key in (*(shape.keys & value.keys()), *others)}


def weight(found: Iterable[Object]) -> int:
    """Returns the bytes of memory that reduced objects take, at most: shared values count for each, keys for none."""
    return sum(map(_weight, found))


def _weight(value: object) -> int:
    if isinstance(value, dict):
        return getsizeof(value) + sum(map(_weight, value.values()))
    if isinstance(value, list):
        return getsizeof(value) + sum(map(_weight, value))
    return getsizeof(value) if isinstance(value, str) else 0
