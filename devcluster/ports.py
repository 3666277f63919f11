"""Ports of one cluster: chosen once among the free ones, kept for its life, replaced where another program took one."""

import json
import random
import socket
from collections.abc import Mapping

from devcluster.layout import State

#: Below those that systems hand out for outgoing connections: while a component is started again, one of these would
#: take its port.
_SERVERS = range(20_000, 32_000)

NAMES = (
    "etcd",
    "etcd-peer",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "jobset",
    "jobset-webhook",
    "kueue",
    "kueue-webhook",
    "kwok",
    "gcs",
    "node-agent",
    "operator-health",
    "operator-metrics",
)


def assign(state: State) -> Mapping[str, int]:
    """A free port for every name; those of the last start where they are still free."""
    try:
        kept: dict[str, int] = json.loads(state.ports.read_text())
    except (OSError, ValueError):
        kept = {}
    chosen: dict[str, int] = {}
    with _Holder() as holder:
        for name in NAMES:
            chosen[name] = holder.take(kept.get(name))
    state.ports.write_text(json.dumps(chosen, indent=1))
    return chosen


class _Holder:
    """Keeps each chosen port bound until all are chosen, so that none is given twice."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> "_Holder":
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._sockets:
            held.close()

    def take(self, wish: int | None) -> int:
        others = random.sample(_SERVERS, 100)
        for port in (wish, *others) if wish else others:
            held = socket.socket()
            # as the servers do: a connection of the last life in TIME_WAIT is no obstacle
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind(("127.0.0.1", port))
            except OSError:
                held.close()
                continue
            self._sockets.append(held)
            return int(held.getsockname()[1])
        raise OSError("no free port on 127.0.0.1")
