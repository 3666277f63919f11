"""Projects objects from watches and listings to the fields that the event handlers and kopf read.

Tenants decide how large an object is: its schema bounds a job's spec, but not its labels or managed fields. As Python
objects it takes ten times its JSON or more, kopf copies it several times, and kopf's backlog is unbounded. So the JSON
is reduced before it becomes Python objects: the parser builds only the keys that are named here.
"""

from itertools import islice
from typing import Any

from pydantic_core import SchemaValidator, to_json
from pydantic_core.core_schema import (
    CoreSchema,
    any_schema,
    list_schema,
    str_schema,
    union_schema,
)

from finetune_operator.api.profile import DEFAULT_PROFILE_ANNOTATION
from finetune_operator.lifecycle.children.projection import optional_keys
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL
from finetune_operator.reconcile.watch_objects import validated
from finetune_operator.rendering.labels import JOB_LABEL, UID_LABEL

#: Condition types of jobs and JobSets that the event handlers read.
_CONDITIONS = frozenset({"Valid", "Finished", "Completed", "Failed"})
#: Maximum number of conditions kept. A list normally has each type once, but other schemas may not enforce it.
_MOST_CONDITIONS = 8


def _some(**fields: CoreSchema) -> CoreSchema:
    """Returns a schema for these keys of an object, all optional."""
    return optional_keys(fields)


def _texts(*keys: str) -> CoreSchema:
    return optional_keys(dict.fromkeys(keys, str_schema()))


_METADATA = _some(
    name=str_schema(),
    namespace=str_schema(),
    uid=str_schema(),
    resourceVersion=str_schema(),
    generation=any_schema(),
    creationTimestamp=str_schema(),
    deletionTimestamp=str_schema(),
    labels=_texts(JOB_LABEL, UID_LABEL, QUEUE_LABEL, PRIORITY_LABEL),
    annotations=_texts(DEFAULT_PROFILE_ANNOTATION),
    ownerReferences=list_schema(_some(uid=str_schema(), controller=any_schema())),
)
_STATUS = _some(
    conditions=list_schema(_texts("type", "status")),
    resolved=_some(profile=_texts("name")),
)
_OBJECT = _some(
    apiVersion=str_schema(),
    kind=str_schema(),
    metadata=_METADATA,
    # If a watch ends with an error, its object is a Status, whose status is a string.
    status=union_schema([_STATUS, str_schema()]),
    code=any_schema(),
    reason=str_schema(),
    message=str_schema(),
)
_EVENT = SchemaValidator(_some(type=str_schema(), object=_OBJECT))
_LIST = SchemaValidator(
    _some(
        apiVersion=str_schema(),
        kind=str_schema(),
        metadata=optional_keys({"resourceVersion": str_schema(), "continue": str_schema()}),
        items=list_schema(_OBJECT),
    )
)


def project_event(line: bytes | bytearray) -> bytes:
    """Returns the projection of one line of a watch, as JSON. Raises ValueError if the line is not an event."""
    event = validated(_EVENT, line)
    if event.get("object"):
        _shorten(event["object"])
    return to_json(event)


def project_list(text: bytes | bytearray) -> bytes:
    """Returns the projection of one page of a listing, as JSON. Raises ValueError if the text is not a list."""
    page = validated(_LIST, text)
    page["items"] = page.get("items") or []
    for each in page["items"]:
        _shorten(each)
    return to_json(page)


def _shorten(found: dict[str, Any]) -> None:
    """Shortens the unbounded lists: an object has one controller, and each condition once."""
    metadata, status = found.get("metadata") or {}, found.get("status")
    owners = metadata.get("ownerReferences")
    if owners is not None:
        metadata["ownerReferences"] = list(islice((each for each in owners if each.get("controller")), 1))
    if isinstance(status, dict) and status.get("conditions") is not None:
        wanted = (each for each in status["conditions"] if each.get("type") in _CONDITIONS)
        status["conditions"] = list(islice(wanted, _MOST_CONDITIONS))
