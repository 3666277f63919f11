"""Other releases of Kubernetes, JobSet and Kueue than the pinned ones, which a cluster runs on request.

FINETUNE_RELEASES names them, for example ``jobset=0.8.2,kubernetes=1.34.4``: one of go/releases/releases.csv for each
project. `make test-matrix` starts every one of them (docs/compatibility.md).
"""

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.layout import GO_MODULE, cache_dir
from devcluster.programs import BY_NAME

VARIABLE = "FINETUNE_RELEASES"
#: go.mod and go.sum of the releases, and the table of them.
RELEASES = GO_MODULE / "releases"
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


def requested(text: str | None = None) -> Mapping[str, Release]:
    """Project -> its requested release, from ``text`` or else the environment. Raises ValueError."""
    known = {str(release): release for release in table()}
    found: dict[str, Release] = {}
    for name in filter(None, (os.environ.get(VARIABLE, "") if text is None else text).split(",")):
        if name not in known:
            raise ValueError(f"{VARIABLE}: unknown release {name!r}; expected some of {', '.join(known)}")
        release = known[name]
        if release.project in found:
            raise ValueError(f"{VARIABLE}: two releases of {release.project}; expected one")
        found[release.project] = release
    return found


def by_program() -> Mapping[str, Release]:
    """Program -> the requested release that it is taken from; a pinned program is not in it."""
    return {program: release for project, release in requested().items() for program in PROGRAMS[project]}


def version(project: str) -> str:
    """The version of a project that a cluster runs."""
    release = requested().get(project)
    return release.version if release else pinned(project)


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
