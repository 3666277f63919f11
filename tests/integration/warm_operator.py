"""An operator process that starts at once, because it is forked from a process that has imported all modules.

Whenever it ends it is started again, as by a kubelet. Each start reads all that a new process would read: environment,
settings, credentials, and the objects of the API server. As a program (``python -m tests.integration.warm_operator
FOLDER``), this module is the process that forks.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from devcluster import operator_process
from devcluster.layout import ROOT
from tests.doubles.local_cluster import LocalCluster

LEASE = "/apis/coordination.k8s.io/v1/namespaces/finetune-system/leases/finetune-operator"


@dataclass(frozen=True, slots=True)
class WarmOperator:
    """The operator that is running."""

    folder: Path

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def identity(self) -> str:
        """What the running process writes to the Lease; empty before its first start."""
        identity = self.folder / "identity"
        return identity.read_text() if identity.exists() else ""

    @property
    def starts(self) -> int:
        """The number of starts up to now."""
        return (self.folder / "starts").stat().st_size

    def kill(self) -> None:
        """Sends SIGKILL; the operator is then started again."""
        os.kill(self.pid, signal.SIGKILL)

    def set_clock(self, ahead: timedelta) -> None:
        """Sets the operator's clock ahead by that much; a negative value sets it behind."""
        partial = self.folder / "clock.partial"
        partial.write_text(str(ahead.total_seconds()))
        partial.replace(self.folder / "clock")

    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def running(cluster: LocalCluster, folder: Path, server: int) -> Iterator[WarmOperator]:
    """Runs the operator, connected to the API server at that port, in place of the cluster's own."""
    with absent(cluster), process(cluster, folder, server) as operator:
        cluster.wait(LEASE, lambda found: bool(found["spec"].get("holderIdentity")))
        yield operator


@contextmanager
def absent(cluster: LocalCluster) -> Iterator[None]:
    """Stops the cluster's own operator during the block."""
    cluster.start("operator")  # the first start creates its account
    cluster.stop("operator")
    try:
        yield
    finally:
        cluster.start("operator")


@contextmanager
def process(
    cluster: LocalCluster, folder: Path, server: int, pod: str | None = None
) -> Iterator[WarmOperator]:
    """Runs one operator, which may be one of several.

    ``pod``: beginning of its identity, which each start completes, as pods that replace one another have different
    names. None: each start has the same identity, as a container that is started again in its pod.
    """
    folder.mkdir(parents=True)
    operator = WarmOperator(folder)
    (folder / "starts").touch()
    operator.set_clock(timedelta())
    component = operator_process.operator(cluster.state, {**cluster.ports, "kube-apiserver": server})
    inherited = {name: value for name, value in os.environ.items() if name not in component.env}
    own = {name: value for name, value in component.env.items() if value is not None}
    ports = {"FINETUNE_HEALTH_PORT": "0", "FINETUNE_METRICS_PORT": "0"}
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.warm_operator", str(folder), *([pod] if pod else [])],
        env=inherited | own | ports | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        yield operator
    finally:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()


def _keep() -> None:
    """Forks a child whenever the previous one has ended. Returns only in a child, which becomes the operator."""
    from finetune_operator.lifecycle import decide  # noqa: F401
    from finetune_operator.runtime import operator  # noqa: F401

    while True:
        child = os.fork()
        if child == 0:
            return
        os.waitpid(child, 0)


def _become(folder: Path, pod: str | None) -> int:
    """Runs the operator with the clock offset, in seconds, of the file ``clock``. Returns the exit code."""
    from finetune_operator import __main__
    from finetune_operator.runtime import operator

    def wrong() -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float((folder / "clock").read_text()))

    log = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for stream in (1, 2):
        os.dup2(log, stream)
    (folder / "pid").write_text(str(os.getpid()))
    with (folder / "starts").open("a") as starts:
        starts.write(".")
    if pod is not None:
        os.environ["FINETUNE_IDENTITY"] = f"{pod}-{(folder / 'starts').stat().st_size}"
    (folder / "identity").write_text(os.environ["FINETUNE_IDENTITY"])
    operator._utc_now = wrong
    return __main__.main([])


if __name__ == "__main__":
    place, pod_name = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    _keep()
    sys.exit(_become(place, pod_name))
