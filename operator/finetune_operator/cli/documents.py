"""Reads YAML as kubectl does, with the line of every value.

PyYAML differs from kubectl in ways that matter here: it reads ``2e-5`` as a string (kubectl: a number), ``1:30`` as a
number, a date as a date and ``y`` as a letter. In one respect this reader is deliberately stricter than both: it
rejects duplicate keys, of which they silently use the last.
"""

import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

type Place = tuple[str | int, ...]


class YamlError(ValueError):
    """A document is not valid YAML. ``line``, of the file, and ``number``, of the document, count from 1."""

    def __init__(self, message: str, *, line: int, number: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One YAML document of a file."""

    number: int
    """Number in the file, from 1; empty documents are skipped but counted."""
    content: Any
    lines: Mapping[Place, int]
    """Line, from 1, of every value by its path."""

    def line(self, place: Place) -> int:
        """Returns the line of ``place``, or of its closest existing ancestor."""
        while place not in self.lines:
            place = place[:-1]
        return self.lines[place]


_BOOLEANS = {
    word: value
    for value, words in ((True, ("y", "yes", "on", "true")), (False, ("n", "no", "off", "false")))
    for each in words
    for word in (each, each.capitalize(), each.upper())
}
_NULLS = ("", "~", "null", "Null", "NULL")
_NO_NUMBERS = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
#: Underscores are removed before matching if the text starts with a digit or a sign.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_POINT_FIRST = re.compile(r"\.[0-9]+(_[0-9]+)*([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"([-+]?)(?:0[bB]([01]+)|0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|(0|[1-9][0-9]*))")
_BASES = (2, 16, 8, 10)
#: Integers from -2**63 to 2**64 - 1 have at most so many digits, in base 2.
_MOST_DIGITS = 64
_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**64 - 1
_LARGEST_WHOLE = 2**53
#: Nodes that the aliases of a document may add. A manifest has some hundred.
_MOST_REPEATED = 10_000
#: Characters of a text that count as one node.
_LONG = 1000
_TAG = "tag:yaml.org,2002:"
#: Where a document begins, with the directives that belong to it.
_BEGINNING = re.compile(r"^(?:%[^\n]*\n)*---(?=\s|$)", re.MULTILINE)


def _plain(text: str) -> str | int | float | bool | None:
    """Parses an unquoted scalar as go-yaml, and so kubectl, does. Raises ValueError for .inf and .nan."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text in _NULLS:
        return None
    if _NO_NUMBERS.fullmatch(text):
        raise ValueError(f"{text} is not a valid JSON number")
    if text[0] == ".":
        return _float(text, text) if _POINT_FIRST.fullmatch(text) else text
    if text[0] not in "+-0123456789":
        return text
    bare = text.replace("_", "")
    if found := _INTEGER.fullmatch(bare):
        sign, *digits = found.groups()
        written, base = next((each, base) for each, base in zip(digits, _BASES, strict=True) if each)
        if len(written) <= _MOST_DIGITS:
            number = int(sign + written, base)
            if _LEAST_INTEGER <= number <= _MOST_INTEGER:
                # Kubernetes holds integers in 64 bits with a sign, and larger ones as decimals.
                return number if number < 2**63 else float(number)
    return _float(bare, text) if _FLOAT.fullmatch(bare) else text


def is_text(scalar: str) -> bool:
    """Whether it is read as the string that it is where it stands without quotes."""
    try:
        return _plain(scalar) == scalar
    except ValueError:
        return False


def _float(bare: str, text: str) -> int | float | str:
    """Parses a float. An integral value becomes an int, as in JSON; one too large for a float stays text."""
    number = float(bare)
    if not math.isfinite(number):
        return text
    return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number


class _Loader(yaml.SafeLoader):
    """Loader with scalars parsed by :func:`_plain`, and strings as keys, as in JSON."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode or not implicit[0]:
            return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        if value == "<<":
            return f"{_TAG}merge"
        try:
            read = _plain(value)
        except ValueError:
            return f"{_TAG}float"
        return f"{_TAG}{_NAMES[type(read)]}"

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, int):
                # Keys in JSON are strings: 1 becomes "1", yes becomes "true".
                key = str(key).lower()
                key_node.tag, key_node.value = f"{_TAG}str", key
                self.constructed_objects.pop(key_node, None)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is not a string: write it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} occurs twice: remove one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_NAMES: dict[type, str] = {str: "str", bool: "bool", int: "int", float: "float", type(None): "null"}


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    try:
        return _plain(str(loader.construct_scalar(node)))
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    """Joins surrogates, in pairs of which JSON escapes characters such as emoji."""
    text = str(loader.construct_scalar(node))
    try:
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise yaml.constructor.ConstructorError(
            None, None, "a text contains half of a surrogate pair", node.start_mark
        ) from None


def _refused(_loader: _Loader, node: yaml.Node) -> Any:
    raise yaml.constructor.ConstructorError(
        None, None, f"the tag {node.tag.replace(_TAG, '!!')} is not allowed in a manifest", node.start_mark
    )


for _name in ("bool", "int", "float", "null"):
    _Loader.add_constructor(f"{_TAG}{_name}", _scalar)
for _name in ("str", "timestamp", "merge"):
    _Loader.add_constructor(f"{_TAG}{_name}", _text)
for _name in ("binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"{_TAG}{_name}", _refused)
_Loader.add_constructor(None, _refused)


def read_documents(text: str) -> Iterator[Document]:
    """Yields the non-empty documents. Raises YamlError at the first invalid one."""
    for each in each_document(text):
        if isinstance(each, YamlError):
            raise each
        yield each


def each_document(text: str) -> Iterator[Document | YamlError]:
    """Yields the non-empty documents in order, with an error in place of each one that is not valid."""
    text = _with_spaces(text)
    beginnings = [match.start() for match in _BEGINNING.finditer(text)]
    number = line = 0
    for start, end in pairwise(dict.fromkeys([0, *beginnings, len(text)])):
        part = text[start:end]
        try:
            for content, lines in _loaded(part):
                number += 1
                if content is not None:
                    below = {place: line + each for place, each in lines.items()}
                    yield Document(number=number, content=content, lines=below)
        except YamlError as error:
            number += 1
            yield YamlError(error.message, line=line + error.line, number=number)
        line += part.count("\n")


def _with_spaces(text: str) -> str:
    """Returns the text of a JSON file with spaces for tabs, which YAML does not read. No string contains any."""
    if "\t" not in text or not text.lstrip().startswith(("{", "[")):
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def _loaded(text: str) -> Iterator[tuple[Any, Mapping[Place, int]]]:
    """Yields content and lines of each document; the content of an empty one is None. Raises YamlError."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"contains the invalid character {error.character:#x}", line=line) from None
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None
            _require_bounded(node)
            yield loader.construct_document(node), dict(_lines(node, ()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(problem, line=mark.line + 1 if mark else 1) from None
    except RecursionError:
        raise YamlError("is nested too deeply", line=1) from None
    finally:
        loader.dispose()


def _require_bounded(document: yaml.Node) -> None:
    """Raises MarkedYAMLError if aliases repeat so much that the document would not fit in memory."""
    sizes: dict[yaml.Node, int] = {}
    above: set[yaml.Node] = set()
    repeated = 0

    def size(node: yaml.Node) -> int:
        """Returns the number of nodes with every alias written out; a long text counts as several."""
        nonlocal repeated
        if (known := sizes.get(node)) is not None:
            repeated += known
            if repeated <= _MOST_REPEATED:
                return known
            raise yaml.MarkedYAMLError(
                problem=f"aliases repeat more than {_MOST_REPEATED:,} values: write them out, or repeat less",
                problem_mark=node.start_mark,
            )
        if node in above:
            raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
        above.add(node)
        if isinstance(node, yaml.ScalarNode):
            total = 1 + len(node.value) // _LONG
        elif isinstance(node, yaml.MappingNode):
            total = 1 + sum(size(each) for pair in node.value for each in pair)
        else:
            total = 1 + sum(map(size, node.value))
        above.discard(node)
        sizes[node] = total
        return total

    size(document)


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
