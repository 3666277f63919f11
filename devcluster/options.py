"""What a cluster was started with. Kept in its state folder; a running cluster's options don't change."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.layout import ROOT

#: What pods take over from the shell that started the cluster: where the hub's files are and how to reach the network.
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
    """``environment`` goes into every pod; ``trainer`` is the folder of the trainer's programs, if installed."""

    warm: bool = True
    trainer: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> "Options | None":
        return cls(**json.loads(path.read_text())) if path.exists() else None


def passed_on(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of PASSED_ON that are set. Loopback never goes through a proxy."""
    source = os.environ if environment is None else environment
    taken = {name: source[name] for name in PASSED_ON if source.get(name)}
    if any(name.lower().endswith("_proxy") for name in taken):
        taken["NO_PROXY"] = taken["no_proxy"] = "127.0.0.1,localhost"
    return taken


def installed_trainer() -> str | None:
    """Folder of the trainer environment's programs, or None when it is not installed."""
    script = ROOT / "trainer_image" / "install.sh"
    shown = subprocess.run([str(script), "--path"], capture_output=True, text=True, check=True)
    programs = Path(shown.stdout.strip()) / "bin"
    return str(programs) if (programs / "finetune-stage").exists() else None
