"""Ports of one cluster: chosen once among the free ones, kept for its life, replaced if another program took one.

A port is bound a while after it was chosen, by the program that it was chosen for. Clusters that start at the same time
therefore share a list of recently chosen ports.
"""

import contextlib
import fcntl
import json
import random
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from devcluster.layout import StateFolder, cache_dir

#: Below the range that systems use for outgoing connections: one of these could take a component's port while the
#: component restarts.
_SERVERS = range(20_000, 32_000)
#: Seconds within which a cluster binds a port that was assigned to it.
_STARTING = 300.0

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

type Chosen = dict[str, tuple[float, str]]
"""When each port was chosen, in seconds since the epoch, and the state folder of its cluster."""


def assign(state: StateFolder) -> Mapping[str, int]:
    """Assigns a free port to every name; the ports of the last start if they are still free."""
    kept: Mapping[str, int] = _read(state.ports)
    owner, assigned = str(state.root), dict[str, int]()
    with _lately_chosen(cache_dir() / "ports.json") as lately:
        taken = {int(port) for port, (_, other) in lately.items() if other != owner}
        others = [port for port in _SERVERS if port not in kept.values()]
        for name in NAMES:
            wish = [kept[name]] if name in kept else []
            assigned[name] = _first_free([*wish, *random.sample(others, len(others))], taken)
            taken.add(assigned[name])  # two sockets may be bound to one port as long as neither listens
        lately |= {str(port): (time.time(), owner) for port in assigned.values()}
    state.ports.write_text(json.dumps(assigned, indent=1))
    return assigned


@contextlib.contextmanager
def _lately_chosen(file: Path) -> Iterator[Chosen]:
    """The recently chosen ports of all clusters of this cache, locked meanwhile; written back without old entries."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        since = time.time() - _STARTING
        lately: Chosen = {port: (at, owner) for port, (at, owner) in _read(file).items() if at > since}
        yield lately
        file.write_text(json.dumps(lately))


def _read(file: Path) -> dict[str, Any]:
    """The file's content; empty if there is no such file or it is damaged."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _first_free(candidates: Iterable[int], taken: set[int]) -> int:
    for port in candidates:
        if port not in taken and _free(port):
            return port
    raise OSError("no free port on 127.0.0.1")


def _free(port: int) -> bool:
    with socket.socket() as tried:
        # as the servers do: an earlier connection in TIME_WAIT is no obstacle
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
