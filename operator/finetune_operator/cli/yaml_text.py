"""Writes YAML that kubectl reads as the same values."""

from collections.abc import Sequence
from typing import Any

import yaml

from finetune_operator.cli.documents import is_text


class _Dumper(yaml.SafeDumper):
    """Quotes strings such as ``2e-5`` and ``y``, which kubectl would read as a number and a boolean."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Everything is written out: a person reads it."""
        return True


#: Line ends that parsers treat differently where they are not escaped.
_RARE_LINE_ENDS = frozenset("\x85\u2028\u2029")


def _quoted(dumper: _Dumper, text: str) -> yaml.Node:
    style = '"' if not _RARE_LINE_ENDS.isdisjoint(text) else None if is_text(text) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)


def yaml_text(content: Any) -> str:
    """Returns one document, with a line end, and without a line that separates it from others."""
    return yaml_documents([content])


def yaml_documents(contents: Sequence[Any]) -> str:
    """Returns documents with a line ``---`` between them."""
    written = [
        str(yaml.dump(each, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True))
        for each in contents
    ]
    return "---\n".join(written)
