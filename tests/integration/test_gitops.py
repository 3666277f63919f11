"""The examples for Argo CD, Flux and Kustomize, judged by the tools' own schemas, helm and kubectl's kustomize."""

import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from devcluster import build
from devcluster.layout import ROOT
from finetune_operator.cluster.port import KubernetesClient
from finetune_operator.cluster.releases import served_namespaces
from finetune_operator.runtime.other_releases import earlier_releases
from finetune_operator.runtime.settings import Settings
from tests.doubles.local_cluster import LocalCluster
from tests.integration.helm import helm
from tests.integration.jobs import Object

#: Modules with the CRDs of the tools, by their checksum, and where the CRDs are.
SCHEMAS = {
    "github.com/argoproj/argo-cd/v3@v3.5.0": (
        "h1:iqnPFSKaQ0l3hREMH2Rk55VDcxrvBFaSO0g9bifZKzc=",
        "manifests/crds/*-crd.yaml",
    ),
    "github.com/fluxcd/helm-controller@v1.4.0": (
        "h1:rkm8rmB6Na7eNc4pJOnvtXEaJ19iKluRtayHKjBxcUM=",
        "config/crd/bases/*.yaml",
    ),
    "github.com/fluxcd/kustomize-controller@v1.7.3": (
        "h1:SzNnGn/4ObAPEHHleM5U7y/AKxKXph3Vj6ZhteeXw8M=",
        "config/crd/bases/*.yaml",
    ),
    "github.com/fluxcd/source-controller@v1.9.0": (
        "h1:5msg2yyjVYDULZos+2ve8MZzcSqTpusiXmrOeBhc9yY=",
        "config/crd/bases/*_gitrepositories.yaml",
    ),
}
CHART = ROOT / "charts" / "finetune-operator"
FILES = [
    ROOT / "examples/argo-cd/operator.yaml",
    ROOT / "examples/argo-cd/teams.yaml",
    *sorted((ROOT / "examples/flux").glob("*.yaml")),
]


def objects(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


EXAMPLES = [each for path in FILES for each in objects(path.read_text())]


def crds(folder: Path) -> Iterator[Path]:
    """Downloads the modules and returns the files of their CRDs."""
    environment = build.go_environment() | {"GOFLAGS": "-mod=mod"}
    (folder / "go.mod").write_text("module schemas\n")
    done = subprocess.run(
        [str(build.go_compiler()), "mod", "download", "-json", *SCHEMAS],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    decoder, rest = json.JSONDecoder(), done.stdout.strip()
    assert rest, done.stderr
    while rest:
        module, end = decoder.raw_decode(rest)
        rest = rest[end:].strip()
        checksum, pattern = SCHEMAS[f"{module['Path']}@{module['Version']}"]
        assert module.get("Sum") == checksum, module
        yield from Path(module["Dir"]).glob(pattern)


def established(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or ()  # null at first
    return any((each["type"], each["status"]) == ("Established", "True") for each in conditions)


@pytest.fixture(scope="module")
def tools(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The cluster with the CRDs of Argo CD and Flux."""
    paths = list(crds(tmp_path_factory.mktemp("schemas")))
    names = [yaml.safe_load(path.read_text())["metadata"]["name"] for path in paths]
    assert len(names) == 3 + 3
    files = [f"--filename={path}" for path in paths]
    cluster.kubectl("apply", "--server-side", *files)
    for name in names:
        cluster.wait(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}", established)
    for namespace in ("argocd", "flux-system"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    yield cluster
    cluster.kubectl("delete", "--wait=false", *files)


@pytest.mark.thorough
def test_the_objects_of_argo_cd_and_flux_are_valid(tools: LocalCluster) -> None:
    assert {each["kind"] for each in EXAMPLES} == {
        "Application", "ApplicationSet", "AppProject", "GitRepository", "HelmRelease", "Kustomization",
    }  # fmt: skip
    for each in EXAMPLES:
        tools.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(each))
    wrong = {**EXAMPLES[0], "spec": {**EXAMPLES[0]["spec"], "prune": True}}
    with pytest.raises(AssertionError, match=r'unknown field "spec.prune"'):
        tools.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=json.dumps(wrong))


def rendered(*arguments: str) -> list[dict[str, Any]]:
    done = helm("template", "finetune-operator", str(CHART), "--namespace", "finetune-system", *arguments)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


@pytest.mark.parametrize("kind", ["Application", "HelmRelease"])
def test_the_chart_takes_the_values_of_the_examples(kind: str, tmp_path: Path) -> None:
    release = next(each["spec"] for each in EXAMPLES if each["kind"] == kind)
    values = release["source"]["helm"]["valuesObject"] if kind == "Application" else release["values"]
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    found = rendered("--values", str(tmp_path / "values.yaml"))
    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.startswith(values["image"]["repository"] + ":")
    assert {each["metadata"].get("namespace") for each in found if each["kind"] == "Role"} >= {
        "team-a",
        "team-b",
    }


def team() -> dict[str, Any]:
    """The spec of Flux's Kustomization for the jobs of a team."""
    name = ("Kustomization", "finetune-team-a")
    return next(each["spec"] for each in EXAMPLES if (each["kind"], each["metadata"]["name"]) == name)


def test_a_teams_jobs_do_not_wait_until_every_profile_is_valid() -> None:
    """A commit that suspends or cancels a job is applied whatever the state of another team's profile."""
    assert "dependsOn" not in team()


def test_flux_leaves_what_kubectl_sets_on_a_teams_jobs() -> None:
    """By default Flux removes fields of kubectl that git does not contain, and so resumes a suspended job."""
    assert team()["commonMetadata"]["annotations"] == {"kustomize.toolkit.fluxcd.io/ssa": "Merge"}


def kustomized(folder: str | Path) -> list[dict[str, Any]]:
    """The objects of a folder, which kustomize renders as documented: with the kubectl and helm of the build cache."""
    programs = build.ensure()
    done = subprocess.run(
        [str(programs["kubectl"]), "kustomize", "--enable-helm", ROOT / folder],
        env=os.environ | {"PATH": f"{programs['helm'].parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def by_name(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda each: (each["kind"], each["metadata"]["name"]))


@pytest.mark.parametrize("folder", ["crds", "examples/profiles"])
def test_a_kustomization_contains_every_file_of_its_folder(folder: str) -> None:
    files = [each for path in (ROOT / folder).glob("*.yaml") for each in objects(path.read_text())]
    assert by_name(kustomized(folder)) == by_name(files)


def test_the_kustomization_of_the_operator_is_the_chart_without_crds() -> None:
    found = rendered("--set", "crds.install=false")
    assert by_name(kustomized("charts")) == by_name(found)


class ClusterRoles:
    """Serves these ClusterRoles alone."""

    def __init__(self, *roles: Object) -> None:
        self.roles = roles

    async def pages(self, *_: object, **__: object) -> AsyncIterator[Sequence[Object]]:
        yield self.roles


@pytest.fixture
def renamed(tmp_path: Path) -> list[dict[str, Any]]:
    """The operator's objects under the names that an overlay gives them."""
    base = os.path.relpath(ROOT / "charts", tmp_path)
    overlay = {"namePrefix": "prod-", "nameSuffix": "-eu", "resources": [base]}
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    return kustomized(tmp_path)


async def test_an_operator_whose_objects_an_overlay_renames_does_not_wait_for_itself(
    renamed: list[dict[str, Any]],
) -> None:
    (operator,) = (each for each in renamed if each["kind"] == "Deployment")
    (own,) = (each for each in renamed if served_namespaces(each))
    assert own["metadata"]["name"] == "prod-finetune-operator-eu"
    environment = operator["spec"]["template"]["spec"]["containers"][0]["env"]
    settings = Settings.from_environment({each["name"]: each["value"] for each in environment})
    cluster = cast("KubernetesClient", ClusterRoles(own))
    namespace = operator["metadata"]["namespace"]
    assert await earlier_releases(cluster, namespace, settings.lease_name, settings.namespaces) == ()


def test_the_folder_of_crds_can_still_be_applied_as_files(cluster: LocalCluster) -> None:
    applied = cluster.kubectl("apply", "--dry-run=server", "--server-side", "-f", str(ROOT / "crds"))
    assert len(applied.splitlines()) == 2
