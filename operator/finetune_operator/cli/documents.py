"""YAML read as the API server's clients read it, with the line of every value.

PyYAML alone differs from kubectl where it hurts: it takes ``2e-5`` for a string (kubectl: a number, which the
schema then refuses), ``1:30`` for a number, a date for a date, and the last of two equal keys without a word.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

type Place = tuple[str | int, ...]


class YamlError(ValueError):
    """The text is no YAML. ``line`` counts from 1."""

    def __init__(self, message: str, *, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document of a file."""

    number: int
    """Counts from 1; empty documents are skipped but counted."""
    content: Any
    lines: Mapping[Place, int]
    """Line, from 1, of every place that holds a value."""

    def line(self, place: Place) -> int:
        """The line of ``place``, or of the nearest thing around it."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without dates and base-60 numbers, and with the floats that Go's readers know."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) and key_node.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is not a string: write it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice: remove one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_REPLACED = {
    "tag:yaml.org,2002:timestamp",
    "tag:yaml.org,2002:int",
    "tag:yaml.org,2002:float",
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(0b[01_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    list("-+0123456789"),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def read_documents(text: str) -> Iterator[Document]:
    """The documents that hold something. Raises YamlError at the first that cannot be read."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"holds the character {error.character:#x}", line=line) from None
    try:
        number = 0
        while loader.check_node():
            number += 1
            node = loader.get_node()
            assert node is not None
            content = loader.construct_document(node)
            if content is not None:
                yield Document(number=number, content=content, lines=dict(_lines(node, ())))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(said, line=mark.line + 1 if mark else 1) from None
    except RecursionError:
        raise YamlError("is nested too deeply", line=1) from None
    finally:
        loader.dispose()


def _lines(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int]]:
    yield place, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            yield inner, key.start_mark.line + 1
            yield from ((below, line) for below, line in _lines(value, inner) if below != inner)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*place, index))
