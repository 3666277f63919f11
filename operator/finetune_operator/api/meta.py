"""Kubernetes' own object metadata, as far as the operator reads it, and the form of its labels."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Strict
from pydantic.alias_generators import to_camel

from finetune_operator.api.wording import shown

#: Kubernetes' own fields of ``metadata``.
METADATA_FIELDS = (
    "name", "generateName", "namespace", "labels", "annotations", "finalizers", "ownerReferences", "uid", "generation",
    "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields",
    "selfLink",
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_DOMAIN = 253


def is_domain(text: str) -> bool:
    """Whether it is a DNS subdomain in lower case, such as most names of objects."""
    return len(text) <= _LONGEST_DOMAIN and _DOMAIN.fullmatch(text) is not None


def is_key(text: str) -> bool:
    """Whether Kubernetes takes it as the key of a label, or, in lower case, of an annotation."""
    domain, slash, name = text.rpartition("/")
    return (is_domain(domain) or not slash) and _NAME.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether Kubernetes takes it as the value of a label."""
    return not text or _NAME.fullmatch(text) is not None


_NAME_FORM = "up to 63 letters, digits, '-', '_' and '.', first and last a letter or digit"


def _label_key(text: str) -> str:
    if not is_key(text):
        raise ValueError(f"must be {_NAME_FORM}, after a domain and '/' if any, not {shown(text)}")
    return text


def _annotation_key(text: str) -> str:
    _label_key(text.lower())
    return text


def _label_value(text: str) -> str:
    if not is_label_value(text):
        raise ValueError(f"must be {_NAME_FORM}, not {shown(text)}: longer texts fit into annotations")
    return text


class ObjectMeta(BaseModel):
    """``metadata`` as the API server stores it; open, because Kubernetes owns it."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    name: str
    namespace: str | None = None
    uid: str | None = None
    generation: Annotated[int, Strict()] | None = None
    resource_version: str | None = None
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: AwareDatetime | None = None
    labels: Mapping[
        Annotated[str, AfterValidator(_label_key)], Annotated[str, AfterValidator(_label_value)]
    ] = {}
    annotations: Mapping[Annotated[str, AfterValidator(_annotation_key)], str] = {}
