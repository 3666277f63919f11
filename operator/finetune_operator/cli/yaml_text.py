"""Writes YAML that kubectl reads as the same values."""

from collections.abc import Sequence
from typing import Any

import yaml

from finetune_operator.cli import text
from finetune_operator.cli.documents import is_text


class _Dumper(yaml.SafeDumper):
    """Quotes strings such as ``2e-5`` and ``y``, which kubectl would read as a number and a boolean."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Everything is written out: a person reads it."""
        return True


def _quoted(dumper: _Dumper, value: str) -> yaml.Node:
    # Control characters, and line ends that parsers treat differently, are escaped, which only these quotes allow.
    style = '"' if text.escaped(value, lambda _each: "") != value else None if is_text(value) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 2**16 else f"\\U{ord(character):08x}"


_Dumper.add_representer(str, _quoted)


def yaml_text(content: Any) -> str:
    """Returns one document, with a line end, and without a line that separates it from others."""
    return yaml_documents([content])


def yaml_documents(contents: Sequence[Any]) -> str:
    """Returns documents with a line ``---`` between them."""
    written = [
        text.escaped(yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True), _escape)
        for each in contents
    ]
    return "---\n".join(written)
