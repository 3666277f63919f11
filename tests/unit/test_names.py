"""One word for one thing: names of public classes, and the table of names that changed."""

import ast
import re
import tokenize
from collections import defaultdict
from pathlib import Path

from devcluster.layout import ROOT
from tests.unit.renamed import files, words

PACKAGES = (
    "operator/finetune_operator",
    "contract/finetune_contract",
    "trainer_image/finetune_trainer",
    "devcluster",
)


def test_no_public_class_name_stands_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_renamed_files_have_their_new_names_alone() -> None:
    renamed = [(old, new) for old, new in files().items() if old.endswith(".py")]
    assert len(renamed) > 70
    assert [old for old, _ in renamed if Path(ROOT / old).exists()] == []
    assert [new for _, new in renamed if not Path(ROOT / new).exists()] == []


def test_no_source_has_an_old_name_of_an_object_or_record() -> None:
    old = words().keys()
    assert old
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert {path.name: found for path in sources if (found := _names(path) & old)} == {}


def _names(path: Path) -> set[str]:
    """Identifiers of a module, and its strings that consist of one word."""
    with path.open("rb") as file:
        return {
            token.string.strip("'\"")
            for token in tokenize.tokenize(file.readline)
            if token.type in {tokenize.NAME, tokenize.STRING}
        }


def test_modules_that_sources_and_docs_name_exist() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    beside = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources
        for name in re.findall(r":mod:`\.(\w+)`", path.read_text())
        if not (path.parent / f"{name}.py").exists() and not (path.parent / name).is_dir()
    ]
    named = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        if path.name not in ("CHANGELOG.md", "renamed.md")
        for name, new in re.findall(r"`([a-z_/]+/[a-z][a-z_]*\.py)`( \(new\))?", path.read_text())
        if not new
        and not any(str(each).endswith(f"/{name}") for each in sources)
        and not (ROOT / name).exists()
    ]
    assert beside + named == []
