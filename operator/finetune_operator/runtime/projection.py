"""What is kept of an object that a watch or a listing tells of: what the intake and kopf read, and nothing else.

Whoever may write an object decides what is in it: a job's spec is bounded by its schema, its labels and what the server
notes of them are not. In Python an object takes ten times its JSON and more, kopf copies it several times, and its
backlog has no end. So the JSON is cut before it becomes Python: the parser builds only the keys that are named here.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from pydantic_core import SchemaValidator, to_json
from pydantic_core.core_schema import (
    CoreSchema,
    any_schema,
    list_schema,
    nullable_schema,
    str_schema,
    typed_dict_field,
    typed_dict_schema,
    union_schema,
)

from finetune_operator.api.profile import DEFAULT_PROFILE_ANNOTATION
from finetune_operator.cluster.json_depth import shallow
from finetune_operator.planning.queueing import PRIORITY_LABEL, QUEUE_LABEL
from finetune_operator.rendering.labels import JOB_LABEL, UID_LABEL

#: Of all conditions, those that the intake asks for: of jobs, and of JobSets.
_CONDITIONS = frozenset({"Valid", "Finished", "Completed", "Failed"})
#: A list has each of them once, unless somebody else writes its schema.
_MOST_CONDITIONS = 8


def _some(**fields: CoreSchema) -> CoreSchema:
    """These keys of an object, where it has them."""
    return _keys(fields)


def _keys(fields: Mapping[str, CoreSchema]) -> CoreSchema:
    present = {
        key: typed_dict_field(nullable_schema(schema), required=False) for key, schema in fields.items()
    }
    return typed_dict_schema(present, extra_behavior="ignore")


def _texts(*keys: str) -> CoreSchema:
    return _keys(dict.fromkeys(keys, str_schema()))


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
    # Where a watch ends with an error, its object is a Status, whose status is a word.
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
        metadata=_keys({"resourceVersion": str_schema(), "continue": str_schema()}),
        items=list_schema(_OBJECT),
    )
)


def project_event(line: bytes | bytearray) -> bytes:
    """What is kept of one line of a watch, as JSON. Raises ValueError where it is none."""
    event = _validated(_EVENT, line)
    if event.get("object"):
        _shorten(event["object"])
    return to_json(event)


def project_list(text: bytes | bytearray) -> bytes:
    """What is kept of one page of a listing, as JSON. Raises ValueError where it is none."""
    page = _validated(_LIST, text)
    page["items"] = page.get("items") or []
    for each in page["items"]:
        _shorten(each)
    return to_json(page)


def _validated(validator: SchemaValidator, text: bytes | bytearray) -> Any:
    try:
        return validator.validate_json(text)
    except ValueError:
        # The parser recurses into what is ignored, too, and 200 levels are too many for it.
        return validator.validate_json(shallow(text))


def _shorten(found: dict[str, Any]) -> None:
    """The lists, which have no end: an object has one controller, and each condition once."""
    metadata, status = found.get("metadata") or {}, found.get("status")
    owners = metadata.get("ownerReferences")
    if owners is not None:
        metadata["ownerReferences"] = list(islice((each for each in owners if each.get("controller")), 1))
    if isinstance(status, dict) and status.get("conditions") is not None:
        wanted = (each for each in status["conditions"] if each.get("type") in _CONDITIONS)
        status["conditions"] = list(islice(wanted, _MOST_CONDITIONS))
