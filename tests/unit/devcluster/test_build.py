"""Programs of the machine are used only when they are exactly ours."""

from pathlib import Path

import pytest

from devcluster import build, demo
from devcluster.programs import BY_NAME, selection


def fake(folder: Path, name: str, output: str) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{output}'\n")
    program.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing but its own programs and an empty cache."""
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "output", "taken"),
    [
        ("kube-apiserver", "Kubernetes v1.36.3", True),
        ("kube-apiserver", "Kubernetes v1.36.30", False),
        ("kube-apiserver", "Kubernetes v1.36.2", False),
        ("etcd", "etcd Version: 3.6.8\nGit SHA: 12", True),
        ("kubectl", "Client Version: v1.36.3\nKustomize Version: v5.8.1", True),
        ("kubectl", "Client Version: v1.30.0\nKustomize Version: v1.36.3-x", False),
        ("helm", "v3.22.0+g1234567", True),
        ("jobset", "v0.12.0", False),  # can't tell its version, so nothing it prints is believed
    ],
)
def test_a_program_on_path_is_used_when_its_version_fits(
    machine: Path, name: str, output: str, taken: bool
) -> None:
    fake(machine / "bin", name, output)
    found = build.find(BY_NAME[name])
    assert found == (machine / "bin" / name if taken else None)


def test_what_the_cache_holds_is_not_built_again(machine: Path) -> None:
    folder = build.binary_dir()
    folder.mkdir(parents=True)
    for program in selection():
        (folder / program.name).touch()
    assert set(build.ensure()) == {program.name for program in selection()}


def test_the_demo_runs_the_kubectl_on_path_when_its_version_fits(machine: Path) -> None:
    build.binary_dir().mkdir(parents=True)
    for program in selection():
        if program.name != "kubectl":
            (build.binary_dir() / program.name).touch()
    fake(machine / "bin", "kubectl", "Client Version: v1.36.3")
    assert demo.kubectl("get", "pods", environment={}) == "Client Version: v1.36.3\n"


def test_optional_programs_are_asked_for_by_name() -> None:
    names = [program.name for program in selection(["kwok"])]
    assert "kwok" in names
    assert "kueue" not in names
    with pytest.raises(
        ValueError,
        match="--with kueu: unknown optional program; expected one of kube-proxy, kubelet, kueue, kwok",
    ):
        selection(["kueu"])
