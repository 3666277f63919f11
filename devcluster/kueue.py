"""Kueue with its webhooks, under its own identity; started only if a cluster requests queues."""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from devcluster.build import share_dir
from devcluster.component import Component
from devcluster.layout import StateFolder
from devcluster.rbac import manager_role
from devcluster.webhooks import with_url_clients
from finetune_operator.objects import Object

NAMESPACE = "kueue-system"
_PREFIX = "kueue"
#: API groups of Kueue's own objects and JobSets; without the filter every pod and Job would wait for Kueue.
_GROUPS = frozenset({"kueue.x-k8s.io", "jobset.x-k8s.io"})
_USER = "kueue-controller-manager"


def controller(state: StateFolder, programs: Mapping[str, Path], ports: Mapping[str, int]) -> Component:
    """Writes the controller's configuration and returns its component."""
    folder = state.root / "kueue"
    # Without internal certificates, Kueue requires /etc/kueue/metrics/certs, even without metrics. It gets an /etc
    # with nothing else, visible only to itself: it resolves no names, and root is not needed.
    etc = folder / "etc"
    certificates = etc / "kueue" / "metrics" / "certs"
    certificates.mkdir(parents=True, exist_ok=True)
    for name in ("tls.crt", "tls.key"):
        shutil.copyfile(state.pki / name, certificates / name)
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(_configuration(ports, certificates)))
    program = [
        str(programs["kueue"]),
        f"--config={config}",
        # its own API server, which is not used here; and MultiKueue, with which it waits for objects of other clusters
        "--feature-gates=VisibilityOnDemand=false,MultiKueue=false",
    ]
    command = f"mount --bind {shlex.quote(str(etc))} /etc && exec {shlex.join(program)}"
    return Component(
        name="kueue",
        argv=("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command),
        env={"KUBECONFIG": str(state.user_kubeconfig("kueue"))},
        ready_url=f"http://127.0.0.1:{ports['kueue']}/readyz",
    )


def manifests() -> list[Object]:
    """CRDs, role and binding, from the module that the controller was built from."""
    components = share_dir("kueue") / "components"
    crds = [_one(path) for path in sorted((components / "crd" / "bases").glob("*.yaml"))]
    for crd in crds:
        for version in crd["spec"]["versions"]:
            # older versions need Kueue's conversion webhook
            version["served"] = version["storage"]
    (role,) = (each for each in _all(components / "rbac" / "role.yaml") if each["kind"] == "ClusterRole")
    return [*crds, *manager_role("kueue", role, _USER)]


def webhooks(state: StateFolder, ports: Mapping[str, int]) -> list[Object]:
    """The module's webhook configurations for its own objects and JobSets. Apply them once the controller serves."""
    configurations = _all(share_dir("kueue") / "components" / "webhook" / "manifests.yaml")
    for configuration in configurations:
        configuration["webhooks"] = [hook for hook in configuration["webhooks"] if _groups(hook) <= _GROUPS]
    return with_url_clients(state, configurations, prefix=_PREFIX, port=ports["kueue-webhook"])


def webhook_paths() -> list[str]:
    """API paths of the configurations. Delete them if Kueue does not run: no JobSet could be created."""
    return [
        f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/"
        f"{_PREFIX}-{kind}-webhook-configuration"
        for kind in ("mutating", "validating")
    ]


def _configuration(ports: Mapping[str, int], certificates: Path) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {
            "host": "127.0.0.1",
            "port": ports["kueue-webhook"],
            "certDir": str(certificates),
        },
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports['kueue']}"},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["jobset.x-k8s.io/jobset"]},
    }


def _groups(hook: Object) -> set[str]:
    return {group for rule in hook["rules"] for group in rule["apiGroups"]}


def _all(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _one(path: Path) -> dict[str, Any]:
    (document,) = _all(path)
    return document
