"""Other releases of Kubernetes, JobSet and Kueue than the pinned ones: those of go/releases.csv.

    export FINETUNE_PROGRAMS="$(python -m tests.matrix.releases jobset=0.8.2 kubernetes=1.34.4)"

builds what is missing of them, including Kueue's, and makes clusters run them: at most one release of each project.
`make test-matrix` starts every one of them (docs/compatibility.md).
"""

import contextlib
import csv
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from devcluster import build
from devcluster.layout import cache_dir
from devcluster.programs import BY_NAME, KUBERNETES_VERSION
from tests.go_modules import module_folder

#: go.mod and go.sum of the releases, and the table of them.
RELEASES = Path(__file__).with_name("go")
#: The programs that are built from each project's module, with the seconds of a build on two cores that shares nothing
#: with another release. kubectl is a user's program, and stays the pinned one.
PROGRAMS: Mapping[str, Mapping[str, int]] = {
    "kubernetes": {"kube-apiserver": 230, "kube-controller-manager": 57, "kube-scheduler": 5},
    "jobset": {"jobset": 75},
    "kueue": {"kueue": 225},
}
_MODULES = {
    "kubernetes": "k8s.io/kubernetes",
    "jobset": "sigs.k8s.io/jobset",
    "kueue": "sigs.k8s.io/kueue",
}


@dataclass(frozen=True, slots=True)
class Release:
    """One release of a project."""

    project: str
    version: str
    reason: str = ""
    """Why it is in the table."""

    def __str__(self) -> str:
        return f"{self.project}={self.version}"

    @property
    def module(self) -> str:
        """The Go module that holds it."""
        return _MODULES[self.project]

    @property
    def folder(self) -> Path:
        """Where its programs are built."""
        return cache_dir() / "go" / "releases" / f"{self.project}-{self.version}"


def table() -> tuple[Release, ...]:
    """The releases that can be requested, in the order of the file."""
    with (RELEASES / "releases.csv").open() as file:
        return tuple(Release(**row) for row in csv.DictReader(file))


def pinned(project: str) -> str:
    """The version that a cluster runs if no other one is requested."""
    return BY_NAME[next(iter(PROGRAMS[project]))].version


def requested(names: Sequence[str]) -> list[Release]:
    """The releases of these names. Raises ValueError."""
    by_name = {str(release): release for release in table()}
    if strange := [name for name in names if name not in by_name]:
        raise ValueError(f"unknown release {strange[0]!r}; expected some of {', '.join(by_name)}")
    releases = [by_name[name] for name in names]
    projects = [release.project for release in releases]
    if twice := [project for project in projects if projects.count(project) > 1]:
        raise ValueError(f"two releases of {twice[0]}; expected one")
    return releases


def ensure(release: Release) -> Path:
    """The folder of the release's programs, built if they are missing. Raises build.BuildError."""
    target = release.folder
    target.mkdir(parents=True, exist_ok=True)
    with build.exclusive(target.with_name(f"{target.name}.lock")):
        missing = [
            replace(BY_NAME[name], version=release.version, seconds=seconds)
            for name, seconds in PROGRAMS[release.project].items()
            if not (target / name).exists()
        ]
        if missing:
            build.build_all(missing, target, _source(release))
    return target


def _source(release: Release) -> build.Source:
    """A release's own module, with a go.mod that works without the rest of its repository."""
    module = module_folder(release.module, release.version, pins=RELEASES)
    go_mod = release.folder / "go.mod"
    go_mod.write_text(standalone((module / "go.mod").read_text(), release))
    go_mod.with_suffix(".sum").write_text((module / "go.sum").read_text() + (RELEASES / "go.sum").read_text())
    kubernetes = release.version if release.project == "kubernetes" else KUBERNETES_VERSION
    return build.Source(module, ("-ldflags", build.linker_flags(kubernetes), f"-modfile={go_mod}"))


def standalone(go_mod: str, release: Release) -> str:
    """Kubernetes' go.mod with published staging modules in place of its own folders; another project's as it is."""
    staging = "v0." + release.version.partition(".")[2]
    published = re.sub(
        r"=> \./staging/src/(k8s\.io/[a-z-]+)$", rf"=> \1 {staging}", go_mod, flags=re.MULTILINE
    )
    names = re.findall(rf"=> (k8s\.io/[a-z-]+) {re.escape(staging)}$", published, flags=re.MULTILINE)
    for name in names:
        published = re.sub(
            rf"^(\s+{re.escape(name)}) v0\.0\.0\b", rf"\1 {staging}", published, flags=re.MULTILINE
        )
    return published


def main(names: Sequence[str]) -> int:
    try:
        releases = requested(names)
        with contextlib.redirect_stdout(sys.stderr):
            folders = [str(ensure(release)) for release in releases]
    except (ValueError, build.BuildError) as error:
        print(error, file=sys.stderr)
        return 1
    print(os.pathsep.join(folders))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
