"""Truncates deeply nested JSON to a depth that every parser accepts.

Objects that other clients write may be nested without limit, for example in ``metadata.managedFields``, and parsers
reject JSON that is nested deeper than they can recurse: between 200 and some thousand levels.
"""

import re

#: Levels that are kept; no Kubernetes object needs as many, apart from managed fields.
_LEVELS = 64
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


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
