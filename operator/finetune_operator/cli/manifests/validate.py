"""``finetune validate``: reports what the API server and the operator would refuse, without a cluster.

An object is valid if its model accepts it. The result is that of the API server except in one case that the server
silently accepts: of duplicate keys it uses the last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from finetune_operator.api import (
    API_VERSION,
    GROUP,
    FieldError,
    FineTuneJob,
    FineTuneProfile,
    InvalidObject,
    did_you_mean,
    parse_job,
    parse_profile,
    render_path,
    shown,
    without_nulls,
)
from finetune_operator.api.meta import METADATA_FIELDS, is_domain
from finetune_operator.api.wording import unknown_field
from finetune_operator.cli.documents import Place, YamlError, each_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One error in a manifest."""

    file: str
    message: str
    document: int = 1
    """Number of the YAML document in the file, from 1."""
    line: int | None = None
    path: str = ""
    """Path of the field, ``spec.datasets.train[0].weight``. Empty for the whole document."""
    fix: str = ""
    """Remedy. Empty if the message includes it."""

    def __str__(self) -> str:
        parts = [
            location(self.file, self.line, self.document),
            *([self.path] if self.path else []),
            self.message,
        ]
        return ": ".join(parts) + (f". {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An object of a file: a job or a profile without a problem, or an object of another API group."""

    file: str
    """Name of the file for messages."""
    where: str
    """File, and the place in it after the first document."""
    content: Mapping[str, Any]
    is_ours: bool
    """Whether it is a job or a profile."""

    @property
    def name(self) -> str:
        return str(self.content["metadata"]["name"])


def location(file: str, line: int | None, document: int) -> str:
    """Returns a place in a file for messages: ``jobs.yaml:17 (document 2)``."""
    where = file if line is None else f"{file}:{line}"
    return f"{where} (document {document})" if document > 1 else where


def validate_text(text: str, *, file: str) -> list[Problem]:
    """Returns all errors in the operator's objects in the text of ``file``, in their order.

    Objects of other API groups are ignored; a text without any FineTuneJob or FineTuneProfile is an error.
    """
    found = list(checked_objects(text, file=file))
    if any(isinstance(each, Problem) or each.is_ours for each in found):
        return [each for each in found if isinstance(each, Problem)]
    return [Problem(file=file, message=f"contains {NONE_OF_OURS}", fix=USE_API_VERSION)]


#: For files without any of the operator's objects.
NONE_OF_OURS = "no FineTuneJob and no FineTuneProfile"
USE_API_VERSION = f"Set apiVersion: {API_VERSION}."


def checked_objects(text: str, *, file: str) -> Iterator[Problem | Manifest]:
    """Yields the objects in the text of ``file`` in their order, and the problems of a job or a profile in its place.

    A faulty document hides nothing of the others.
    """
    for document in each_document(text):
        number = document.number
        if isinstance(document, YamlError):
            message = f"is not valid YAML: {document.message}"
            yield Problem(file=file, document=number, line=document.line, message=message)
            continue
        for place, written in _objects(document.content):
            content = _as_created(written)
            is_ours = _is_ours(content)
            problems = [
                Problem(
                    file=file,
                    document=number,
                    line=document.line((*place, *fault.location)),
                    path=render_path((*place, *fault.location)),
                    message=fault.message,
                    fix=fault.fix,
                )
                for fault in (_check(content) if is_ours else ())
            ]
            yield from sorted(problems, key=lambda problem: problem.line or 0)
            if not problems:
                where = location(file, document.line(place), number) if number > 1 else file
                yield Manifest(file=file, where=where, content=content, is_ours=is_ours)


def _objects(content: Any) -> Iterator[tuple[Place, Any]]:
    """Yields the document itself, or the items of a ``kind: List``, with their paths."""
    if (
        isinstance(content, Mapping)
        and content.get("kind") == "List"
        and isinstance(content.get("items"), list)
    ):
        yield from ((("items", index), item) for index, item in enumerate(content["items"]))
    else:
        yield (), content


def _is_ours(content: Any) -> bool:
    """Whether the object is in the operator's API group or has one of its kinds, in any case."""
    if not isinstance(content, Mapping):
        return True
    group = str(content.get("apiVersion", "")).partition("/")[0]
    return group == GROUP or str(content.get("kind", "")).lower() in ("finetunejob", "finetuneprofile")


_MODELS: Mapping[str, type[BaseModel]] = {"FineTuneJob": FineTuneJob, "FineTuneProfile": FineTuneProfile}
#: Stands for the random characters that the API server adds to ``generateName``, cut to a length.
_GENERATED = "xxxxx"
_LONGEST_PREFIX = 58
_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "FineTuneJob": parse_job,
    "FineTuneProfile": parse_profile,
}


def _check(content: Any) -> list[FieldError]:
    """Returns the errors of one object: of kind and metadata, then of the model.

    An object of an unknown kind gets the errors of kind and metadata only.
    """
    if not isinstance(content, Mapping):
        return [FieldError(location=(), message=f"must be an object, not {shown(content)}")]
    faults = [*_check_head(content), *_check_metadata(content.get("metadata"))]
    if parse := _PARSERS.get(str(content.get("kind"))):
        try:
            parse(content)
        except InvalidObject as error:
            faults += _unreported(error.faults, faults)
    faults += _unreported(_check_name(content.get("metadata")), faults)
    return [_of_prefix(fault, content) for fault in faults]


def _unreported(errors: Iterable[FieldError], reported: Sequence[FieldError]) -> list[FieldError]:
    locations = {error.location for error in reported}
    return [error for error in errors if error.location not in locations]


def _as_created(content: Any) -> Any:
    """Returns one of the operator's objects as the API server creates it: without nulls, and with a generated name.

    An object of another kind, or none, stays as it is.
    """
    model = _MODELS.get(str(content.get("kind"))) if isinstance(content, Mapping) else None
    if model is None:
        return content
    created: dict[str, Any] = without_nulls(model, content)
    metadata = created.get("metadata")
    if isinstance(metadata, dict):
        if metadata.get("name"):
            metadata.pop("generateName", None)
        elif isinstance(prefix := metadata.get("generateName"), str) and prefix:
            metadata["name"] = prefix[:_LONGEST_PREFIX] + _GENERATED
    return created


def _of_prefix(fault: FieldError, content: Any) -> FieldError:
    """Returns an error of a generated name as one of the prefix that the user has written."""
    if fault.location != ("metadata", "name") or "generateName" not in (content.get("metadata") or {}):
        return fault
    fix = f"{fault.fix} The API server adds {len(_GENERATED)} characters to it.".strip()
    return replace(fault, location=("metadata", "generateName"), fix=fix)


def _check_head(content: Mapping[str, Any]) -> Iterator[FieldError]:
    if content.get("apiVersion") != API_VERSION:
        yield FieldError(
            location=("apiVersion",),
            message=f"is {shown(content.get('apiVersion'))}",
            fix=f"Write apiVersion: {API_VERSION}.",
        )
    kind = content.get("kind")
    if str(kind) not in _PARSERS:
        message = f"unknown kind {shown(kind)}{did_you_mean(str(kind), tuple(_PARSERS))}"
        yield FieldError(location=("kind",), message=message)


_OBJECT_NAME = "lower-case letters, digits, '-' and '.', first and last a letter or digit"


def _check_metadata(metadata: Any) -> Iterator[FieldError]:
    """Yields the errors of unknown fields, and of a name that is missing. The model names one of another type."""
    for field in metadata if isinstance(metadata, Mapping) else ():
        if field not in METADATA_FIELDS:
            location = ("metadata", field)
            yield FieldError(
                location=location, message=unknown_field(location, metadata[field], METADATA_FIELDS)
            )
    match metadata:
        case {"name": name} if name is not None and name != "":
            return
        case Mapping():
            fix = "With generateName instead, the API server makes one."
            yield FieldError(location=("metadata", "name"), message="required, but not set", fix=fix)
        case None:
            fix = "Write metadata: {name: …}."
            yield FieldError(location=("metadata",), message="required, but not set", fix=fix)


def _check_name(metadata: Any) -> Iterator[FieldError]:
    """Yields the error of a name that no object may have. A job's own rule on its name is narrower."""
    match metadata:
        case {"name": str(name)} if not is_domain(name):
            message = f"must be the name of a Kubernetes object: {_OBJECT_NAME}, not {shown(name)}"
            yield FieldError(location=("metadata", "name"), message=message)
