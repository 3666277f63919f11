"""The wheel, installed where nothing of this repository is."""

import os
import subprocess
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
UV = Path(os.environ.get("FINETUNE_CACHE", Path.home() / ".cache/finetune-tpu")) / "tools/bin/uv"
LOCKED = ROOT / "requirements/operator.txt"


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command with an environment that has no path into the repository."""
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    return subprocess.run(
        [str(each) for each in command], cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run(
        UV, "build", "--quiet", "--wheel", "--require-hashes",
        "--build-constraints", "requirements/build.txt", "--out-dir", folder, cwd=ROOT,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what it requires, in the locked versions."""
    folder = tmp_path_factory.mktemp("bare")
    locked = [line.split()[0] for line in LOCKED.read_text().splitlines() if line[:1].isalnum()]
    (folder / "versions.txt").write_text("\n".join(locked))
    for command in (
        ("venv", "--quiet", "--python", ROOT / ".venv/bin/python", "venv"),
        ("pip", "install", "--quiet", "--python", "venv", "--constraint", "versions.txt", wheel),
    ):
        done = run(UV, *command, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_the_wheel_requires_no_package_of_this_repository(wheel: Path) -> None:
    """An index would be asked for it, and any user can register a name there."""
    with ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        required = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist") or []
        packages = {name.split("/")[0] for name in archive.namelist() if ".dist-info" not in name}
        pages = {name for name in archive.namelist() if "/pages/templates/" in name}
    assert packages == {"finetune_operator", "finetune_contract", "finetune_storage"}
    assert {"document.html.j2", "style.css", "compare.html.j2", "compare.txt.j2"} <= {
        name.rpartition("/")[2] for name in pages
    }
    locked = {line.partition("==")[0] for line in LOCKED.read_text().splitlines() if line[:1].isalnum()}
    assert {Requirement(each).name for each in required} <= locked


def test_the_command_works_without_the_operator_s_packages(environment: Path) -> None:
    finetune = environment / "venv/bin/finetune"
    profile, job = ROOT / "examples/profiles/gke-v6e.yaml", ROOT / "examples/huggingface.yaml"
    for command in (("--help",), ("plan", "-f", job, "--profile", profile), ("validate", "-f", job)):
        done = run(finetune, *command, cwd=environment)
        assert done.returncode == 0, done.stderr
    absent = run(environment / "venv/bin/python", "-c", "import kopf", cwd=environment)
    assert "No module named 'kopf'" in absent.stderr


def test_the_operator_names_the_extra_that_it_needs(environment: Path) -> None:
    done = run(environment / "venv/bin/python", "-P", "-m", "finetune_operator", cwd=environment)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("pip install 'finetune-operator[operator]'")
