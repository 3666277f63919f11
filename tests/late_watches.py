"""Watches that are late, and are reset again and again, for the tests of all other faults."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.doubles.faultproxy import FaultProxy
from tests.doubles.local_cluster import LocalCluster

#: Collections that the operator watches all the time.
WATCHED = (
    "/apis/tpu-finetune.dev/v1alpha1/finetunejobs",
    "/apis/jobset.x-k8s.io/v1alpha2/jobsets",
    "/api/v1/pods",
)
#: Seconds by which the operator learns of a change late, a multiple of what a reconcile takes.
LATE_SECONDS = 1.0
#: Seconds between two resets. Each collection has its turn, so that a watch lasts three times as long.
RESET_SECONDS = 2.0


@contextmanager
def late_watches(cluster: LocalCluster) -> Iterator[None]:
    """Inside the block the cluster's operator runs behind a proxy that delays its watches and resets them in turn."""
    with FaultProxy(cluster.state, cluster.ports["kube-apiserver"], lambda _: None) as proxy:
        proxy.delay(dict.fromkeys(WATCHED, LATE_SECONDS))
        ended = threading.Event()

        def reset_in_turn() -> None:
            for path in itertools.cycle(WATCHED):
                if ended.wait(RESET_SECONDS):
                    return
                proxy.cut(path)

        resets = threading.Thread(target=reset_in_turn, name="resets of watches")
        with cluster.operator_connected(proxy.port):
            resets.start()
            try:
                yield
            finally:
                ended.set()
                resets.join()
