"""Docstrings, comments, messages, test names and documents use no word of a short list.

Each word of the list once stood for a plainer one.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
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
    "storage/finetune_storage",
    "trainer_image/finetune_trainer",
    "devcluster",
    "tools",
)


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


def messages(text: str) -> Iterator[str]:
    """All string literals of a module, with the literal parts of f-strings."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Constant(value=str(literal)):
                yield literal


def sentences_of_tests(text: str) -> Iterator[str]:
    """Names of a module's tests as sentences."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name.replace("_", " ")


def modules(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def banned(paths: Iterable[Path], *parts: Callable[[str], Iterator[str]]) -> list[str]:
    """Banned words in parts of modules, each with its place and what to write instead."""
    return [
        f"{path.relative_to(ROOT)}: {each.group()}: {WORDS[each.group().lower()]}"
        for path in paths
        for part in parts
        for text in part(path.read_text())
        for each in _BANNED.finditer(re.sub(r"(`+)[^`]*\1", "", text))
    ]


def test_docstrings_comments_and_messages_use_plain_words() -> None:
    assert banned(modules(*PACKAGES), prose, messages) == []


def test_prose_and_names_of_tests_use_plain_words() -> None:
    paths = [path for path in modules("tests") if path != Path(__file__)]
    assert len(paths) > 200
    assert banned(paths, prose, sentences_of_tests) == []


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
