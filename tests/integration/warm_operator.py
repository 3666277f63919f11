"""The operator as a process that starts in no time: forked from one that has imported everything, and started again
whenever it dies, as a kubelet does.

What a fresh process would read anew, it reads anew: environment, settings, credentials, everything of the API server.
Run as a program (``python -m tests.integration.warm_operator FOLDER``) it is the process that forks.
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
from devcluster.testing import LocalCluster


@dataclass(frozen=True, slots=True)
class WarmOperator:
    """The one that runs."""

    folder: Path

    @property
    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    @property
    def starts(self) -> int:
        """How often it was started."""
        return (self.folder / "starts").stat().st_size

    def kill(self) -> None:
        """SIGKILL; it is started again."""
        os.kill(self.pid, signal.SIGKILL)

    def set_clock(self, ahead: timedelta) -> None:
        """Its machine's clock is wrong by that much from now on."""
        partial = self.folder / "clock.partial"
        partial.write_text(str(ahead.total_seconds()))
        partial.replace(self.folder / "clock")

    def log(self) -> str:
        return (self.folder / "log").read_text()


@contextmanager
def running(cluster: LocalCluster, folder: Path, server: int) -> Iterator[WarmOperator]:
    """The operator, speaking to the API server at that port, in the place of the cluster's own."""
    cluster.start("operator")  # once: it has an account then
    cluster.stop("operator")
    folder.mkdir(parents=True)
    operator = WarmOperator(folder)
    (folder / "starts").touch()
    operator.set_clock(timedelta())
    component = operator_process.operator(cluster.state, {**cluster.ports, "kube-apiserver": server})
    inherited = {name: value for name, value in os.environ.items() if name not in component.env}
    own = {name: value for name, value in component.env.items() if value is not None}
    ports = {"FINETUNE_HEALTH_PORT": "0", "FINETUNE_METRICS_PORT": "0"}
    keeper = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.warm_operator", str(folder)],
        env=inherited | own | ports | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        lease = "/apis/coordination.k8s.io/v1/namespaces/finetune-system/leases/finetune-operator"
        cluster.wait(lease, lambda found: bool(found["spec"].get("holderIdentity")))
        yield operator
    finally:
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()
        cluster.start("operator")


def _keep() -> None:
    """Forks for ever; returns in the child, which then is the operator."""
    from finetune_operator.lifecycle import decide  # noqa: F401
    from finetune_operator.runtime import operator  # noqa: F401

    while True:
        child = os.fork()
        if child == 0:
            return
        os.waitpid(child, 0)


def _become(folder: Path) -> int:
    """The operator, on a machine whose clock is wrong by what the file says."""
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
    operator._utc_now = wrong
    return __main__.main([])


if __name__ == "__main__":
    place = Path(sys.argv[1])
    _keep()
    sys.exit(_become(place))
