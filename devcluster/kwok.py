"""kwok: nodes without machines, for tests of placement alone. Pods bound to one run until they are deleted.

A fake node has ANNOTATION; the nodes of the node agent do not, and kwok ignores them.
"""

from collections.abc import Mapping
from pathlib import Path

from devcluster.build import share_dir
from devcluster.component import Component
from devcluster.layout import StateFolder

ANNOTATION = {"kwok.x-k8s.io/node": "fake"}
#: Stages from the module's fast ones. Not pod-complete: it would end a Job's pods at once, and free their resources.
_STAGES = ("node-initialize.yaml", "pod-ready.yaml", "pod-delete.yaml")


def controller(state: StateFolder, programs: Mapping[str, Path], ports: Mapping[str, int]) -> Component:
    """The kwok component."""
    ((key, value),) = ANNOTATION.items()
    return Component(
        name="kwok",
        argv=(
            str(programs["kwok"]),
            f"--kubeconfig={state.user_kubeconfig('kwok')}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={key}={value}",
            # without a heartbeat the node controller would consider the nodes dead
            "--node-lease-duration-seconds=40",
            f"--server-address=127.0.0.1:{ports['kwok']}",
            *(f"--config={share_dir('kwok') / stage}" for stage in _STAGES),
        ),
        ready_url=f"http://127.0.0.1:{ports['kwok']}/readyz",
    )
