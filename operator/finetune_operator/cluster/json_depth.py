"""JSON of any depth, cut to one that every parser takes.

An object that somebody else writes may be nested without an end, in ``metadata.managedFields`` for one, and parsers
refuse what is nested deeper than they can recurse: 200 levels and some thousand.
"""

import re

#: Levels that are kept; no object of Kubernetes has as many outside of what its writer notes.
_LEVELS = 64
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]')


def shallow(text: bytes | bytearray) -> bytes:
    """The same JSON with ``null`` for each object and list below the levels that are kept. Linear in its length."""
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
