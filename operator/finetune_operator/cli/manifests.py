"""Reads manifests from files as whole objects."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune_operator.api import GROUP
from finetune_operator.cli.documents import YamlError, read_documents
from finetune_operator.cli.errors import CliError

type Object = Mapping[str, Any]


def shown_name(path: Path) -> str:
    """Returns the name of the file for messages."""
    return "stdin" if str(path) == "-" else str(path)


def read(path: Path) -> str:
    """Returns the text of a file or of stdin. Raises CliError if it cannot be read."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path}: is not UTF-8 text") from error


def parse(text: str, name: str) -> list[Object]:
    """Returns the objects in the text of one file, including the items of a ``kind: List``. Raises CliError."""
    try:
        documents = list(read_documents(text))
    except YamlError as error:
        raise CliError(f"{name}:{error.line}: is not valid YAML: {error.message}") from error
    objects: list[Object] = []
    for document in documents:
        if not isinstance(document.content, Mapping) or not isinstance(document.content.get("kind"), str):
            raise CliError(f"{name}:{document.line(())}: is not a Kubernetes object: it has no kind.")
        listed = document.content["kind"] == "List"
        objects += document.content.get("items") or [] if listed else [document.content]
    return objects


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Returns the objects of one kind of the operator's API group."""
    return [item for item in objects if kind_of(item) == kind]


def kind_of(item: Object) -> str | None:
    """Returns the object's kind; None if it is not in the operator's API group."""
    return str(item["kind"]) if str(item.get("apiVersion", "")).startswith(f"{GROUP}/") else None
