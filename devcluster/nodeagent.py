"""The node agent's configuration file and process."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster import gcs, pathways
from devcluster.component import Component
from devcluster.layout import ROOT, StateFolder, cache_dir
from devcluster.options import Options

#: The image that the operator's profile `local` uses.
TRAINER_IMAGE = "localhost/finetune-trainer:dev"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The node agent's configuration, as the JSON file that it is started with."""

    kubeconfig: str
    port: int
    certificate: str
    key: str
    authority: str
    pods: str
    """Folder for pods' logs and volumes."""
    images: str
    """JSON file: image reference -> folder of programs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every container, from node, platform and the machine's owner."""
    store: str | None = None
    """URL of an object store with accounts: each pod gets the endpoint of its account."""
    warm_image: str | None = None
    """The image whose `finetune-stage` is forked from a warm process; None to always start cold."""

    @classmethod
    def load(cls, path: Path) -> "AgentConfig":
        return cls(**json.loads(path.read_text()))


def agent(state: StateFolder, options: Options, ports: Mapping[str, int]) -> Component:
    """Writes the agent's configuration and returns its component."""
    config = AgentConfig(
        kubeconfig=str(state.user_kubeconfig("node-agent")),
        port=ports["node-agent"],
        certificate=str(state.pki / "tls.crt"),
        key=str(state.pki / "tls.key"),
        authority=str(state.pki / "ca.crt"),
        pods=str(state.pods),
        images=str(state.images),
        environment={
            "JAX_COMPILATION_CACHE_DIR": str(cache_dir() / "jax"),
            **gcs.client_environment(gcs.endpoint(ports)),
            **options.environment,
        },
        store=options.store,
        warm_image=TRAINER_IMAGE if options.warm and options.trainer else None,
    )
    path = state.root / "node-agent.json"
    path.write_text(json.dumps(dataclasses.asdict(config), indent=1))
    return Component(
        name="node-agent",
        argv=(sys.executable, "-P", "-m", "devcluster.agent", str(path)),
        env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        ready_url=f"https://127.0.0.1:{ports['node-agent']}/healthz",
        # longer than it gives pods to save their work
        grace_seconds=40,
    )


def images(state: StateFolder, options: Options) -> dict[str, str]:
    """Image references that nodes have from the start -> folders of programs."""
    trainer = {TRAINER_IMAGE: options.trainer} if options.trainer else {}
    return {**trainer, **pathways.install(state.root / "pathways")}
