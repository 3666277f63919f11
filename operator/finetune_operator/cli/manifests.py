"""Manifests from files for the commands that work on whole objects."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune_operator.api import GROUP
from finetune_operator.cli.documents import YamlError, read_documents
from finetune_operator.cli.errors import CliError

type Object = Mapping[str, Any]


def shown_name(path: Path) -> str:
    """What messages call the file."""
    return "stdin" if str(path) == "-" else str(path)


def read(path: Path) -> str:
    """The text of a file or of stdin. Raises CliError."""
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise CliError(f"{path}: is not UTF-8 text") from error


def parse(text: str, name: str) -> list[Object]:
    """The objects of one file's text, those of a ``kind: List`` taken out of it. Raises CliError."""
    try:
        documents = list(read_documents(text))
    except YamlError as error:
        raise CliError(f"{name}:{error.line}: is not valid YAML: {error.message}") from error
    objects: list[Object] = []
    for document in documents:
        if not isinstance(document.content, Mapping) or not isinstance(document.content.get("kind"), str):
            raise CliError(f"{name}:{document.line(())}: is no Kubernetes object: it has no kind.")
        listed = document.content["kind"] == "List"
        objects += document.content.get("items") or [] if listed else [document.content]
    return objects


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Those of one kind of ours."""
    return [item for item in objects if kind_of(item) == kind]


def kind_of(item: Object) -> str | None:
    """Its kind, if that is one of ours."""
    return str(item["kind"]) if str(item.get("apiVersion", "")).startswith(f"{GROUP}/") else None
