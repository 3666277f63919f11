"""Places in object storage that a job or a profile names.

A URI that is checked as text must mean one place to every program that reads it. Some programs resolve ``..``,
some decode ``%2e``, some cut at ``#``; so none of these is accepted. The schema and the models enforce the same.
"""

import re
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from finetune_operator.api.common import checked
from finetune_operator.api.rules import ValidationRule

_PATTERN = r"^(gs://[a-z0-9]|file:///).+"
#: A name between two slashes: neither empty nor "." nor "..".
_NAME = r"([^/.]|\.[^/.]|\.\.[^/])[^/]*"
#: At most 63 characters; 222 with dots.
_BUCKET = r"[a-z0-9][-_a-z0-9]{0,62}(\.[-_.a-z0-9]{0,158})?"
_SEGMENTS = rf"^(gs://{_BUCKET}|file://)(/{_NAME})*/?$"
#: Control characters, characters that other programs read as a separator or a query, escapes that may decode to one,
#: and any percent sign in a path of a file system.
_AMBIGUOUS = r"[\x00-\x1f\x7f-\x9f\\#]|%([01][0-9a-fA-F]|2[eEfF5]|5[cC]|7[fF])|^file:.*%"
_WILDCARD = r"[*?\[\]]"


def _matches(pattern: str) -> ValidationRule:
    return ValidationRule(
        cel=f"self.matches(r'{pattern}')",
        message=(
            "must be gs://bucket/path (the bucket's name of at most 63 characters, 222 with dots) or file:///path "
            "without a wildcard in the bucket's name, empty segments, '.' and '..': write the path as it is"
        ),
        holds=lambda uri: re.fullmatch(pattern, uri) is not None,
    )


def _without(pattern: str, message: str) -> ValidationRule:
    return ValidationRule(
        cel=f"!self.matches(r'{pattern}')", message=message, holds=lambda uri: re.search(pattern, uri) is None
    )


_ONE_PATH = _matches(_SEGMENTS)
_UNAMBIGUOUS = _without(
    _AMBIGUOUS,
    "must not hold control characters, '\\', '#', or a percent-encoded '.', '/', '%' or control character "
    "(file://: no '%' at all), which programs read differently: rename the object",
)
_ONE_PLACE = _without(_WILDCARD, "names one place: remove '*', '?', '[' and ']'")

_text = Field(pattern=_PATTERN, max_length=1024)

StorageUri = Annotated[str, _text, checked(_ONE_PATH, _UNAMBIGUOUS, _ONE_PLACE)]
"""One file or folder: ``gs://bucket/path``, or ``file:///path`` on a local cluster."""
_STORAGE_URI: TypeAdapter[str] = TypeAdapter(StorageUri)
DatasetUri = Annotated[str, _text, checked(_ONE_PATH, _UNAMBIGUOUS)]
"""One file or folder as in :data:`StorageUri`, or a glob of files."""


def is_storage_uri(text: str) -> bool:
    """Whether the text is a storage URI that every program reads as the same location."""
    try:
        _STORAGE_URI.validate_python(text)
    except ValidationError:
        return False
    return True
