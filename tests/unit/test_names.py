"""Names of public classes, and of the modules that sources and docs name."""

import ast
import re
from collections import defaultdict

from devcluster.layout import ROOT

PACKAGES = (
    "operator/finetune_operator",
    "contract/finetune_contract",
    "storage/finetune_storage",
    "trainer_image/finetune_trainer",
    "devcluster",
    "tools",
)


def test_no_public_class_name_stands_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


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
        if path.name != "CHANGELOG.md"
        for name, new in re.findall(r"`([a-z_/]+/[a-z][a-z_]*\.py)`( \(new\))?", path.read_text())
        if not new
        and not any(str(each).endswith(f"/{name}") for each in sources)
        and not (ROOT / name).exists()
    ]
    assert beside + named == []
