"""An administrator's setup of a fresh cluster: the chart's CRDs and RBAC, the profile, namespaces and accounts."""

import asyncio
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from devcluster.errors import LocalClusterError
from devcluster.kube import Kube
from devcluster.layout import CHART, MANIFESTS
from devcluster.operator_process import NAMESPACE, RELEASE
from finetune_operator.cluster.port import ClusterError
from finetune_operator.objects import Object

#: Kinds of the chart's objects that work without containers; the supervisor starts its Deployment's process.
INSTALLED_KINDS = frozenset(
    {
        "CustomResourceDefinition",
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
#: Service accounts that the local profile names.
STAGE_ACCOUNTS = ("ft-train", "ft-cpu")
#: Stage pods must pass the strictest of Kubernetes' pod security standards.
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


async def node_agent_rbac(kube: Kube) -> None:
    await apply_all(kube, documents(MANIFESTS / "node-agent.yaml"))


async def kwok_rbac(kube: Kube) -> None:
    await apply_all(kube, documents(MANIFESTS / "kwok.yaml"))


async def chart(kube: Kube, programs: Mapping[str, Path]) -> str:
    """Renders the chart with helm as a user would and applies CRDs and RBAC. Returns the operator's account."""
    await namespace(kube, NAMESPACE)
    version = (await kube.get("/version"))["gitVersion"]
    rendered = await asyncio.to_thread(_render, programs["helm"], version)
    wanted = [manifest for manifest in rendered if manifest["kind"] in INSTALLED_KINDS]
    definitions = crds(wanted)
    await apply_all(kube, definitions)
    await established(kube, definitions)
    await apply_all(kube, (manifest for manifest in wanted if manifest["kind"] != "CustomResourceDefinition"))
    (deployment,) = (manifest for manifest in rendered if manifest["kind"] == "Deployment")
    return str(deployment["spec"]["template"]["spec"]["serviceAccountName"])


async def profile(kube: Kube) -> None:
    await apply_all(kube, documents(MANIFESTS / "profile-local.yaml"))


async def namespace(kube: Kube, name: str, *, stages: bool = False) -> None:
    """Creates a namespace, restricted; with ``stages`` also the service accounts of stage pods."""
    await kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
    )
    for account in STAGE_ACCOUNTS if stages else ():
        await kube.apply(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": account, "namespace": name},
                # stages access only object storage
                "automountServiceAccountToken": False,
            }
        )


async def apply_all(kube: Kube, manifests: Iterable[Object]) -> None:
    """Applies the manifests in order. Raises LocalClusterError that names the failing one."""
    for manifest in manifests:
        try:
            await kube.apply(manifest)
        except ClusterError as error:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            raise LocalClusterError(f"the API server rejects {name}: {error}") from error


def crds(manifests: Iterable[Object]) -> list[Object]:
    """The manifests that are CustomResourceDefinitions."""
    return [manifest for manifest in manifests if manifest["kind"] == "CustomResourceDefinition"]


async def established(kube: Kube, definitions: Iterable[Object]) -> None:
    """Returns when the API server serves the kinds. Raises LocalClusterError if it does not."""
    for crd in definitions:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
        for _ in range(200):
            conditions = (await kube.get(path)).get("status", {}).get("conditions") or []
            states = {condition["type"]: condition for condition in conditions}
            if states.get("Established", {}).get("status") == "True":
                break
            await asyncio.sleep(0.05)
        else:
            raise LocalClusterError(f"CRD {crd['metadata']['name']} is not established: {states}")


def documents(path: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _render(helm: Path, version: str) -> list[Object]:
    command = [str(helm), "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--include-crds"]
    # helm is not connected to the cluster, and believes in the version that it was built with.
    command += ["--kube-version", version]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise LocalClusterError(f"helm can't render {CHART}:\n{done.stderr.strip()}")
    return [document for document in yaml.safe_load_all(done.stdout) if document]
