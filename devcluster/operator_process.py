"""The operator as a local process with the identity that its chart gives it: a ServiceAccount's token."""

import asyncio
import shutil
import sys
from collections.abc import Mapping

from devcluster import gcs
from devcluster.component import Component
from devcluster.kube import Kube
from devcluster.layout import StateFolder

NAMESPACE = "finetune-system"
RELEASE = "finetune-operator"
TOKEN_SECONDS = 3600
#: Renewed well before expiry, as by a kubelet: clients read the file again by themselves.
RENEW_SECONDS = TOKEN_SECONDS * 0.8


def operator(state: StateFolder, ports: Mapping[str, int], store: str | None = None) -> Component:
    """The operator's process, in the environment of this process. It finds the API server as a pod does.

    ``store``: URL of an object store with accounts.
    """
    buckets = gcs.account_endpoint(store, NAMESPACE, RELEASE) if store else gcs.endpoint(ports)
    return Component(
        name="operator",
        argv=(sys.executable, "-P", "-m", "finetune_operator"),
        env={
            "KUBECONFIG": None,
            "PYTHONPATH": None,
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(ports["kube-apiserver"]),
            "FINETUNE_SERVICEACCOUNT_DIR": str(state.service_account),
            "FINETUNE_OPERATOR_NAMESPACE": NAMESPACE,
            "FINETUNE_IDENTITY": "finetune-operator-local",
            "FINETUNE_HEALTH_HOST": "127.0.0.1",
            "FINETUNE_HEALTH_PORT": str(ports["operator-health"]),
            "FINETUNE_METRICS_PORT": str(ports["operator-metrics"]),
            "FINETUNE_LEDGER": state.ledger.as_uri(),
            **gcs.client_environment(buckets),
        },
        # It is the only operator, so it can serve when it leads: /readyz also succeeds while it waits for the Lease.
        ready_url=f"http://127.0.0.1:{ports['operator-metrics']}/metrics",
        ready_text="\nfinetune_leader 1.0\n",
        grace_seconds=30,
    )


async def write_credentials(kube: Kube, state: StateFolder, account: str) -> None:
    """Writes token, ca.crt and namespace, each atomically.

    The files are those of ``/var/run/secrets/kubernetes.io/serviceaccount``.
    """
    answer = await kube.create(
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_SECONDS},
        },
    )
    folder = state.service_account
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(state.pki / "ca.crt", folder / "ca.crt")
    (folder / "namespace").write_text(NAMESPACE)
    partial = folder / ".token"
    partial.touch(mode=0o600)
    partial.write_text(answer["status"]["token"])
    partial.replace(folder / "token")


async def keep_credentials(kube: Kube, state: StateFolder, account: str) -> None:
    """Renews the token until cancelled. A failed attempt is repeated soon, while the old token is still valid."""
    pause = RENEW_SECONDS
    while True:
        await asyncio.sleep(pause)
        try:
            await write_credentials(kube, state, account)
            pause = RENEW_SECONDS
        except Exception as error:  # noqa: BLE001 - whatever the error, the next attempt may succeed
            print(f"the operator's token could not be renewed: {error}", flush=True)
            pause = 15
