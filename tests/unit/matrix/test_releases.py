"""Other releases of the cluster's programs are requested by name, and built from what the table pins."""

from pathlib import Path

import pytest

from devcluster import build
from devcluster.programs import selection
from tests.matrix import releases
from tests.matrix.releases import PROGRAMS, RELEASES, Release, main

GO_MOD = """\
module k8s.io/kubernetes

go 1.24.0

require (
	github.com/blang/semver/v4 v4.0.0
	k8s.io/api v0.0.0
	k8s.io/api-tools v0.1.0
	k8s.io/client-go v0.0.0 // indirect
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
)
"""


@pytest.fixture
def first() -> Release:
    return releases.table()[0]


@pytest.mark.parametrize("project", PROGRAMS)
def test_the_table_has_no_pinned_release_and_none_twice(project: str) -> None:
    versions = [release.version for release in releases.table() if release.project == project]
    assert versions, project
    assert releases.pinned(project) not in versions, (
        "remove it from the table: every row tests the pinned one"
    )
    assert len(set(versions)) == len(versions)


def test_the_module_of_every_release_is_pinned() -> None:
    pins = (RELEASES / "go.sum").read_text()
    for release in releases.table():
        for suffix in ("", "/go.mod"):
            assert f"{release.module} v{release.version}{suffix} h1:" in pins
        assert release.reason


def test_a_cluster_gets_the_programs_of_the_named_folders_and_the_pinned_ones_otherwise(
    first: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINETUNE_CACHE", str(tmp_path))
    first.folder.mkdir(parents=True)
    for name in PROGRAMS[first.project]:
        (first.folder / name).touch()
    build.binary_dir().mkdir(parents=True)
    for program in selection(["kueue"]):
        (build.binary_dir() / program.name).touch()
    monkeypatch.setenv(build.VARIABLE, str(releases.ensure(first)))
    programs = build.ensure(["kueue"])
    assert set(programs) == {program.name for program in selection(["kueue"])}
    of_release = {name for name, path in programs.items() if path.is_relative_to(first.folder)}
    assert of_release == set(PROGRAMS[first.project])
    assert all(build.share_dir(name).is_relative_to(first.folder) for name in of_release)
    assert build.share_dir("kwok").is_relative_to(build.binary_dir())


def test_without_folders_everything_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.VARIABLE, "")
    assert build.share_dir("jobset").is_relative_to(build.binary_dir())


def test_one_release_of_each_project_can_be_requested() -> None:
    some = {release.project: release for release in releases.table()}
    assert releases.requested([str(release) for release in some.values()]) == list(some.values())
    two = [str(release) for release in releases.table() if release.project == "jobset"][:2]
    with pytest.raises(ValueError, match="two releases of jobset; expected one"):
        releases.requested(two)


@pytest.mark.parametrize("name", ["jobset", "jobset=0.1", "jobsets=0.8.2", "jobset=0.8.2=", " "])
def test_an_unknown_release_is_refused_with_the_known_ones(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"unknown release {name!r}; expected some of " in told.err
    assert "jobset=0.8.2" in told.err


def test_kubernetes_is_built_with_its_published_staging_modules() -> None:
    text = releases.standalone(GO_MOD, Release("kubernetes", "1.34.4"))
    assert "./staging" not in text
    assert "\tk8s.io/api => k8s.io/api v0.34.4\n" in text
    assert "\tk8s.io/client-go v0.34.4 // indirect\n" in text
    assert "\tk8s.io/api-tools v0.1.0\n" in text
    assert "v0.0.0" not in text


def test_another_project_is_built_as_it_is() -> None:
    text = "module sigs.k8s.io/jobset\n\nrequire k8s.io/api v0.32.2\n"
    assert releases.standalone(text, Release("jobset", "0.8.2")) == text
