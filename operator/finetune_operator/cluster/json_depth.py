"""Parses JSON of any depth: deeply nested JSON is truncated to a depth that the parser accepts.

Objects that other clients write may be nested without limit, for example in ``metadata.managedFields``, and parsers
reject JSON that is nested deeper than they can recurse: between 200 and some thousand levels.
"""

import re
from typing import Any

from pydantic_core import from_json

#: Levels that are kept; no Kubernetes object needs as many, apart from managed fields.
_LEVELS = 64
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def parse_json(text: bytes | bytearray) -> Any:
    """Parses JSON of any depth, with any bytes in texts. Raises ValueError."""
    try:
        return from_json(text)
    except ValueError:
        # The parser fails at 200 levels, and at bytes that are not UTF-8, which the API server takes over from the
        # ``managedFields`` of a client that creates a pod.
        return from_json(shallow(text).decode(errors="replace"))


def shallow(text: bytes | bytearray) -> bytes:
    """Returns the JSON with ``null`` for each object and list below the kept levels. Runs in linear time."""
    kept, depth, begun = bytearray(), 0, 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        if mark in b"[{":
            if depth == _LEVELS:
                kept += text[begun : token.start()] + b"null"
            depth += 1
        elif mark in b"]}":
            depth -= 1
            if depth == _LEVELS:
                begun = token.end()
    return bytes(kept + text[begun:])
