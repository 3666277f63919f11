"""Docstrings, comments and documents use no word of a short list, each of which once stood for a plainer one."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.layout import ROOT

#: Each with what to write instead.
WORDS = {
    "told": "reported, given, passed",
    "tells": "reports, shows, states",
    "nobody": "no user, no client, none",
    "somebody": "another client, a user",
    "whoever": "any user or client that",
    "in vain": "without a result",
    "goes on": "continues",
    "to be had": "available",
    "that very": "the same",
    "looked at": "read, observed, checked",
    "looks at": "reads, observes, checks",
    "looked for": "searched for, expected",
    "stranger": "another owner, a foreign object",
}
_BANNED = re.compile(r"\b(" + "|".join(WORDS) + r")\b", re.IGNORECASE)
PACKAGES = (
    "operator/finetune_operator",
    "contract/finetune_contract",
    "trainer_image/finetune_trainer",
    "devcluster",
)
#: Not rewritten yet.
LATER = ("operator/finetune_operator/lifecycle/",)


def prose(text: str) -> Iterator[str]:
    """Docstrings, also those below assignments, and comments of a module."""
    for node in ast.walk(ast.parse(text)):
        for statement in getattr(node, "body", ()) if isinstance(getattr(node, "body", ()), list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not str(path.relative_to(ROOT)).startswith(LATER):
                yield path


def test_docstrings_and_comments_use_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {each.group()}: {WORDS[each.group().lower()]}"
        for path in sources()
        for text in prose(path.read_text())
        for each in _BANNED.finditer(re.sub(r"(`+)[^`]*\1", "", text))
    ]
    assert found == []


#: They quote messages and figures.
QUOTING = ("benchmarks.md", "troubleshooting.md")


def test_documents_use_plain_words() -> None:
    folders = (ROOT / "docs", ROOT / "docs/decisions")
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(page for each in folders for page in each.glob("*.md")),
    ]
    assert len(pages) > 30
    found = [
        f"{path.name}: {each.group()}"
        for path in pages
        if path.name not in QUOTING
        for each in _BANNED.finditer(re.sub(r"(`+)[^`]*\1", "", path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ['"""It is told so."""\n', "x = 1  # nobody reads it\n", 'x = 1\n"""Looked at once."""\n']
)
def test_each_place_of_prose_is_read(text: str) -> None:
    assert [_BANNED.search(each) is not None for each in prose(text)] == [True]
