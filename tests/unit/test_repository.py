"""What must hold of the tree itself."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Written in parts, so that this file does not contain what the test searches for.
PACKAGE_HOSTS = [
    "pypi" + ".org",
    "files.pythonhosted" + ".org",
    "proxy.golang" + ".org",
    "sum.golang" + ".org",
    "registry.npmjs" + ".org",
]
#: Paths of one person's machine: absolute, so not .../work/... inside another path.
MACHINE_PATHS = [r"(?<![\w.$}/-])/" + folder + r"/(?!\s)" for folder in ("root", "work", "home")]


def tracked() -> Iterator[Path]:
    """Files that git would take along."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    yield from (ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file())


def findings(pattern: str) -> list[str]:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


def test_no_package_called_operator_shadows_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists(), "python -m anything from this folder would crash"


@pytest.mark.parametrize("host", PACKAGE_HOSTS)
def test_no_file_names_a_package_host(host: str) -> None:
    assert findings(re.escape(host)) == [], "whichever index a machine is configured with serves"


@pytest.mark.parametrize("path", MACHINE_PATHS)
def test_no_file_names_a_path_of_one_machine(path: str) -> None:
    assert findings(path) == []


def test_locks_are_hashed_requirement_files() -> None:
    assert not list(ROOT.rglob("uv.lock"))
    folders = (ROOT / "requirements", ROOT / "trainer_image", ROOT / "tests" / "pages")
    for lock in [each for folder in folders for each in folder.glob("*.txt")]:
        pinned = [line for line in lock.read_text().splitlines() if re.match(r"[a-z0-9].*==", line)]
        assert pinned, lock
        assert all(line.endswith("\\") for line in pinned), f"{lock}: a pin without a hash"


def test_the_lock_of_npm_has_hashes_and_no_address() -> None:
    packages = json.loads((ROOT / "tests" / "pages" / "package-lock.json").read_text())["packages"]
    locked = {name: package for name, package in packages.items() if name}
    assert list(locked) == ["node_modules/axe-core"]
    assert all(package["integrity"].startswith("sha512-") for package in locked.values())
    assert not any("resolved" in package for package in locked.values())


def test_generated_files_are_up_to_date() -> None:
    from tools.generate import outdated

    assert outdated(ROOT) == [], "run make generate"


def anchors(document: Path) -> set[str]:
    """Returns the anchors that GitHub gives the headings of a document."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in plain}


def leads_somewhere(document: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    found = document.parent / path if path else document
    return found.exists() and (not anchor or found.suffix != ".md" or anchor in anchors(found))


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in tracked()
        if document.suffix == ".md"
        for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8"))
        if "://" not in target and not leads_somewhere(document, target)
    ]
    assert broken == []
