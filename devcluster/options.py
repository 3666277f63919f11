"""Options of a cluster: chosen by the user who starts it, or taken from the shell."""

import dataclasses
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.layout import ROOT
from devcluster.sources import OPERATOR, STAGES, digest

#: Variables that pods inherit from the shell that started the cluster: the hub's files, and access to the network.
PASSED_ON = (
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "HF_ENDPOINT",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "http_proxy",
    "https_proxy",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a cluster.

    ``environment`` is set in every pod; ``trainer`` is the folder of the trainer's programs, if installed. The code of
    operator and stages is identified by digests, so that ``up`` runs the checkout's current code.
    """

    warm: bool = True
    trainer: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    store: str | None = None
    """URL of an object store with accounts, in front of the cluster's own."""
    operator_code: str = ""
    stage_code: str = ""

    @classmethod
    def chosen(cls, *, warm: bool, store: str | None = None) -> "Options":
        """The options that this shell and this checkout give."""
        return cls(
            warm=warm,
            trainer=installed_trainer(),
            store=store,
            environment=inherited_environment(),
            operator_code=digest(OPERATOR),
            stage_code=digest(STAGES),
        )

    def differing(self, other: "Options") -> list[str]:
        """Names of the fields that differ."""
        fields = dataclasses.fields(self)
        return [field.name for field in fields if getattr(self, field.name) != getattr(other, field.name)]


def inherited_environment() -> dict[str, str]:
    """The variables of PASSED_ON that are set, and always HF_HOME. Loopback bypasses the proxy."""
    taken = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)}
    # pods have their own home folders, but share downloads from the hub
    taken.setdefault("HF_HOME", str(Path.home() / ".cache" / "huggingface"))
    if any(name.lower().endswith("_proxy") for name in taken):
        taken["NO_PROXY"] = taken["no_proxy"] = "127.0.0.1,localhost"
    return taken


def installed_trainer() -> str | None:
    """Folder of the trainer environment's programs; None if it is not installed."""
    script = ROOT / "trainer_image" / "install.sh"
    shown = subprocess.run([str(script), "--path"], capture_output=True, text=True, check=True)
    environment = Path(shown.stdout.strip())
    return str(environment / "bin") if (environment / ".complete").exists() else None
