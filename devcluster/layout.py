"""Paths: the project's cache, and one cluster's state folder inside it."""

import os
from dataclasses import dataclass
from pathlib import Path

#: The repository; ``devcluster`` runs from a checkout, as it needs the chart and the manifests beside it.
ROOT = Path(__file__).resolve().parent.parent
GO_MODULE = ROOT / "devcluster" / "go"
MANIFESTS = ROOT / "devcluster" / "manifests"
CHART = ROOT / "charts" / "finetune-operator"


def cache_dir() -> Path:
    """``$FINETUNE_CACHE``, or ``~/.cache/finetune-tpu``. Always absolute."""
    chosen = os.environ.get("FINETUNE_CACHE")
    return (Path(chosen) if chosen else Path.home() / ".cache" / "finetune-tpu").expanduser().resolve()


def default_state_dir() -> Path:
    """The state folder of the user's cluster. Tests use folders of their own, so that the two never conflict."""
    return cache_dir() / "state" / "default"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The files of one cluster. Everything that it writes is below ``root``."""

    root: Path

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def ports(self) -> Path:
        return self.root / "ports.json"

    @property
    def processes(self) -> Path:
        """Identities of all processes that the supervisor started (identity.ProcessIdentity by name)."""
        return self.root / "processes.json"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.root / "lock"

    @property
    def control_socket(self) -> str:
        return "supervisor.sock"

    @property
    def images(self) -> Path:
        """Image reference -> folder of programs, as JSON; read again for each container start."""
        return self.root / "images.json"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def buckets(self) -> Path:
        """Each bucket is a folder here."""
        return self.root / "gcs"

    @property
    def ledger(self) -> Path:
        """The operator's ledger, in no bucket, so that no pod finds it."""
        return self.root / "ledger"

    @property
    def pods(self) -> Path:
        return self.root / "pods"

    @property
    def service_account(self) -> Path:
        """The operator's ``/var/run/secrets/kubernetes.io/serviceaccount``: token, ca.crt, namespace."""
        return self.root / "operator" / "serviceaccount"

    def user_kubeconfig(self, user: str) -> Path:
        return self.pki / f"{user}.kubeconfig"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"
