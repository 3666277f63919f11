"""Prerequisites of watching: the CRDs, permission to list their objects, and no other operator for them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from finetune_operator.cluster.port import (
    JOBSETS,
    ClusterError,
    KubernetesClient,
    NotFound,
    Rejected,
    ResourceKind,
    WatchStream,
)

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0


async def wait_for_prerequisites(
    cluster: KubernetesClient,
    wanted: Callable[[], Awaitable[tuple[WatchStream, ...]]],
    stop: asyncio.Event,
    report: Callable[[tuple[str, ...]], None],
    conflicts: Callable[[], Awaitable[tuple[str, ...]]],
) -> tuple[WatchStream, ...] | None:
    """Waits until every kind to watch can be listed and nothing conflicts.

    Returns the streams to watch, or None if ``stop`` is set first.

    Args:
        cluster: client of the API server.
        wanted: returns the streams to watch; called for each attempt, as it may depend on what the cluster serves.
        stop: ends the wait.
        report: called with a sentence for each problem, after each attempt.
        conflicts: returns a sentence for each reason why another operator must end first.
    """
    reported: tuple[str, ...] = ()
    while not stop.is_set():
        watches = await wanted()
        missing = tuple([problem for watch in watches if (problem := await _problem(cluster, watch))])
        missing = missing or await conflicts()
        report(missing)
        if not missing:
            return watches
        for problem in missing if missing != reported else ():
            log.error("%s", problem)
        reported = missing
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
    return None


async def serves(cluster: KubernetesClient, kind: ResourceKind, namespaces: Sequence[str]) -> bool:
    """Whether the API server serves the kind.

    Any error other than "not found" counts as yes: :func:`wait_for_prerequisites` then reports the problem.
    """
    try:
        await _list(cluster, WatchStream(kind, namespaces[0] if namespaces else None))
    except NotFound:
        return False
    except ClusterError:
        return True
    return True


async def _problem(cluster: KubernetesClient, watch: WatchStream) -> str | None:
    try:
        await _list(cluster, watch)
    except NotFound:
        return f"the API server does not serve {_full_name(watch.kind)}: {_source(watch.kind)}"
    except Rejected as error:
        return f"{watch} cannot be listed: {error}"
    except ClusterError as error:
        return f"{watch} cannot be read from the API server: {error}"
    return None


async def _list(cluster: KubernetesClient, watch: WatchStream) -> None:
    """Lists one page of metadata. With a selector that matches nothing, the API server would read all objects."""
    await anext(cluster.pages(watch.kind, watch.namespace, metadata_only=True), None)


def _full_name(kind: ResourceKind) -> str:
    return f"{kind.plural}.{kind.version}.{kind.group}" if kind.group else kind.plural


def _source(kind: ResourceKind) -> str:
    if kind.group == JOBSETS.group:
        return "install JobSet (https://jobset.sigs.k8s.io) 0.8 or newer"
    return "install the CRDs of the finetune-operator chart"
