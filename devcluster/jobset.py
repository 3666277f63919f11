"""The JobSet controller with its webhooks, under its own identity."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from devcluster.build import share_dir
from devcluster.component import Component
from devcluster.layout import StateFolder
from devcluster.rbac import manager_role
from devcluster.webhooks import with_url_clients
from finetune_operator.objects import Object

#: Pods created by the JobSet controller. Its pod webhooks apply only to these, so they can't block any other pod.
JOBSET_PODS = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


def controller(state: StateFolder, programs: Mapping[str, Path], ports: Mapping[str, int]) -> Component:
    """Writes the controller's configuration and returns its component."""
    folder = state.root / "jobset"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tls.crt", "tls.key"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(state.pki / name)
    config = folder / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
                "kind": "Configuration",
                "leaderElection": {"leaderElect": False},
                "internalCertManagement": {"enable": False},
                "webhook": {"host": "127.0.0.1", "port": ports["jobset-webhook"], "certDir": str(folder)},
                "metrics": {"bindAddress": "0"},
                "health": {"healthProbeBindAddress": f"127.0.0.1:{ports['jobset']}"},
                "clientConnection": {"qps": 500, "burst": 1000},
            }
        )
    )
    return Component(
        name="jobset",
        argv=(str(programs["jobset"]), f"--config={config}"),
        env={"KUBECONFIG": str(state.user_kubeconfig("jobset"))},
        ready_url=f"http://127.0.0.1:{ports['jobset']}/readyz",
    )


def manifests() -> list[Object]:
    """CRD, role and binding, from the module that the controller was built from."""
    (crd,) = _documents("crd.yaml")
    # the conversion webhook and cert-manager annotations are kustomize patches, not part of this file
    (role,) = (document for document in _documents("role.yaml") if document["kind"] == "ClusterRole")
    return [crd, *manager_role("jobset", role, "jobset-controller-manager")]


def webhooks(state: StateFolder, ports: Mapping[str, int]) -> list[Object]:
    """The module's webhook configurations. Apply them once the controller serves."""
    configurations = _documents("webhooks.yaml")
    for configuration in configurations:
        for webhook in configuration["webhooks"]:
            if any("pods" in rule["resources"] for rule in webhook["rules"]):
                webhook["objectSelector"] = JOBSET_PODS
    return with_url_clients(state, configurations, prefix="jobset", port=ports["jobset-webhook"])


def _documents(name: str) -> list[Object]:
    text = (share_dir("jobset") / name).read_text()
    return [document for document in yaml.safe_load_all(text) if document]
