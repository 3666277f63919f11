"""The blocks of README.md and docs/*.md, and the commands in them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.setup_script import commands

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: After the language of a block: why no test reads or runs it.
MARKS = ("needs a cloud", "needs the internet", "needs containers", "of lm-evaluation-harness")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    language: str
    mark: str
    """One of MARKS; empty if the block needs nothing that tests lack."""
    text: str


def blocks(language: str) -> Iterator[Block]:
    """The blocks of one language."""
    for page in PAGES:
        fences = re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for info, text in fences:
            name, _, mark = info.strip().partition(" ")
            if name == language:
                yield Block(page.name, name, mark, text)


def documented(*programs: str) -> list[list[str]]:
    """The words of all commands of these programs, without variables that are set for one command."""
    found = []
    for block in blocks("bash"):
        for words in commands(block.text):
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words and words[0] in programs:
                found.append([each for each in words if not re.fullmatch(r"[0-9]?[<>].*", each)])
    return found
