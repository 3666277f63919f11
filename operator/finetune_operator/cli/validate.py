"""``finetune validate``: reports what the API server and the operator would refuse, without a cluster.

An object is valid if its model accepts it. The errors of another one are those of the CRD's schema and of the CRD's
CEL rules (except transition rules, which need the stored object), or else of the model. The result is that of the API
server except in one case that the server silently accepts: of duplicate keys it uses the last.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from finetune_operator.api import (
    API_VERSION,
    GROUP,
    FineTuneJob,
    FineTuneProfile,
    InvalidObject,
    did_you_mean,
    parse_job,
    parse_profile,
    render_path,
    without_nulls,
)
from finetune_operator.cli.documents import Place, YamlError, each_document
from finetune_operator.cli.violations import SchemaViolation, shown


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
class FoundObject:
    """An object in the text of a file."""

    content: Mapping[str, Any]
    where: str
    """File, line and, after the first one, document."""
    document: int
    """Number of the YAML document in the file, from 1."""


@dataclass(frozen=True, slots=True)
class CheckedText:
    """What the text of a file contains, in its order."""

    problems: list[Problem] = field(default_factory=list)
    valid: list[FoundObject] = field(default_factory=list)
    """The operator's objects without a problem."""
    others: list[FoundObject] = field(default_factory=list)
    """Objects of other API groups."""


def location(file: str, line: int | None, document: int) -> str:
    """Returns a place in a file for messages: ``jobs.yaml:17 (document 2)``."""
    where = file if line is None else f"{file}:{line}"
    return f"{where} (document {document})" if document > 1 else where


def validate_text(text: str, *, file: str) -> list[Problem]:
    """Returns all errors in the operator's objects in the text of ``file``, in their order.

    Objects of other API groups are ignored; a text without any FineTuneJob or FineTuneProfile is an error.
    """
    checked = check_text(text, file=file)
    if checked.problems or checked.valid:
        return checked.problems
    return [Problem(file=file, message=f"contains {NONE_OF_OURS}", fix=USE_API_VERSION)]


#: For files without any of the operator's objects.
NONE_OF_OURS = "no FineTuneJob and no FineTuneProfile"
USE_API_VERSION = f"Set apiVersion: {API_VERSION}."


def check_text(text: str, *, file: str) -> CheckedText:
    """Checks the operator's objects in the text of ``file``. A faulty document hides nothing of the others."""
    checked = CheckedText()
    for document in each_document(text):
        if isinstance(document, YamlError):
            message = f"is not valid YAML: {document.message}"
            fault = Problem(file=file, document=document.number, line=document.line, message=message)
            checked.problems.append(fault)
            continue
        for place, written in _objects(document.content):
            content = _as_created(written)
            where = location(file, document.line(place), document.number)
            if not _is_ours(content):
                checked.others.append(FoundObject(content=content, where=where, document=document.number))
                continue
            found = [
                Problem(
                    file=file,
                    document=document.number,
                    line=document.line((*place, *finding.place)),
                    path=render_path((*place, *finding.place)),
                    message=finding.message,
                    fix=finding.fix,
                )
                for finding in (_of_prefix(each, content) for each in _check(content))
            ]
            checked.problems.extend(sorted(found, key=lambda problem: problem.line or 0))
            if not found:
                checked.valid.append(FoundObject(content=content, where=where, document=document.number))
    return checked


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


def _check(content: Any) -> list[SchemaViolation]:
    """Returns the errors of one object: of kind and metadata, then of schema and rules, or else of the model.

    An object of an unknown kind gets the errors of kind and metadata only.
    """
    if not isinstance(content, Mapping):
        return [SchemaViolation((), f"must be an object, not {shown(content)}")]
    head = [*_check_head(content), *_check_metadata(content.get("metadata"))]
    kind = str(content.get("kind"))
    if kind not in _PARSERS:
        return head
    # The operator writes the status; the creator of an object does not set it.
    content = {key: value for key, value in content.items() if key != "status"}
    try:
        _PARSERS[kind](content)
    except InvalidObject as error:
        of_model = [SchemaViolation(fault.location, fault.message) for fault in error.faults]
    else:
        # Tests ensure that the API server stores every object that its model accepts.
        return head
    # Schema and rules take a second to load, and explain most errors better than the model.
    from finetune_operator.cli.schema_check import violations

    return violations(kind, content, head) or of_model


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


def _of_prefix(finding: SchemaViolation, content: Any) -> SchemaViolation:
    """Returns an error of a generated name as one of the prefix that the user has written."""
    if finding.place != ("metadata", "name") or "generateName" not in (content.get("metadata") or {}):
        return finding
    fix = f"The API server adds {len(_GENERATED)} characters to it."
    return SchemaViolation(("metadata", "generateName"), finding.message, f"{finding.fix} {fix}".strip())


def _check_head(content: Mapping[str, Any]) -> Iterator[SchemaViolation]:
    if content.get("apiVersion") != API_VERSION:
        yield SchemaViolation(
            ("apiVersion",), f"is {shown(content.get('apiVersion'))}", f"Write apiVersion: {API_VERSION}."
        )
    kind = content.get("kind")
    if kind not in _PARSERS:
        yield SchemaViolation(
            ("kind",), f"unknown kind {shown(kind)}{did_you_mean(str(kind), tuple(_PARSERS))}"
        )


def _check_metadata(metadata: Any) -> Iterator[SchemaViolation]:
    match metadata:
        case {"name": str(name)} if name:
            return
        case Mapping():
            fix = "With generateName instead, the API server makes one."
            yield SchemaViolation(("metadata", "name"), "required, but not set", fix)
        case _:
            yield SchemaViolation(("metadata",), "required, but not set", "Write metadata: {name: …}.")
