"""Prerequisites of watching: the CRDs, permission to list their objects, and no other operator for them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Prerequisites:
    """What one check has found."""

    watches: tuple[WatchStream, ...]
    """The streams to watch."""
    missing: tuple[str, ...] = ()
    """A sentence for each problem without whose solution no namespace can be served."""
    refused: Mapping[WatchStream, str] = field(default_factory=dict)
    """A sentence for each stream that is refused in some namespaces, while all others can be served."""


async def check_prerequisites(
    cluster: KubernetesClient,
    wanted: Callable[[], Awaitable[tuple[WatchStream, ...]]],
    conflicts: Callable[[], Awaitable[tuple[str, ...]]],
) -> Prerequisites:
    """Tries to list every kind to watch, and looks for what conflicts.

    Args:
        cluster: client of the API server.
        wanted: returns the streams to watch; it may depend on what the cluster serves.
        conflicts: returns a sentence for each reason why another operator must end first.
    """
    watches = await wanted()
    problems = {watch: error for watch in watches if (error := await _problem(cluster, watch))}
    texts = {watch: _text(watch, error) for watch, error in problems.items()}
    broken = {watch.namespace for watch in problems}
    whole = {watch.namespace for watch in watches} - broken - {None}
    if whole and None not in broken and all(isinstance(error, Rejected) for error in problems.values()):
        return Prerequisites(watches, await conflicts(), texts)
    return Prerequisites(watches, tuple(texts.values()) or await conflicts())


async def wait_for_prerequisites(
    check: Callable[[], Awaitable[Prerequisites]],
    stop: asyncio.Event,
    report: Callable[[tuple[str, ...]], None],
) -> Prerequisites | None:
    """Waits until the profiles and all kinds of one namespace at least can be listed and nothing conflicts.

    Returns what the last check has found, or None if ``stop`` is set first.

    Args:
        check: calls :func:`check_prerequisites`.
        stop: ends the wait.
        report: called with a sentence for each problem, after each attempt.
    """
    reported: tuple[str, ...] = ()
    while not stop.is_set():
        found = await check()
        report(found.missing)
        if not found.missing:
            return found
        for problem in found.missing if found.missing != reported else ():
            log.error("%s", problem)
        reported = found.missing
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
    return None


async def serves(cluster: KubernetesClient, kind: ResourceKind, namespaces: Sequence[str]) -> bool:
    """Whether the API server serves the kind.

    Any error other than "not found" counts as yes: :func:`check_prerequisites` then reports the problem. A refusal in
    one namespace says nothing about the kind, so the next one is tried.
    """
    for namespace in namespaces or (None,):
        error = await _problem(cluster, WatchStream(kind, namespace))
        if not isinstance(error, Rejected):
            return not isinstance(error, NotFound)
    return True


async def _problem(cluster: KubernetesClient, watch: WatchStream) -> ClusterError | None:
    try:
        await _list(cluster, watch)
    except ClusterError as error:
        return error
    return None


def _text(watch: WatchStream, error: ClusterError) -> str:
    if isinstance(error, NotFound):
        return f"the API server does not serve {_full_name(watch.kind)}: {_source(watch.kind)}"
    if isinstance(error, Rejected):
        return f"{watch} cannot be listed: {error}"
    return f"{watch} cannot be read from the API server: {error}"


async def _list(cluster: KubernetesClient, watch: WatchStream) -> None:
    """Lists one page of metadata. With a selector that matches nothing, the API server would read all objects."""
    await anext(cluster.pages(watch.kind, watch.namespace, metadata_only=True), None)


def _full_name(kind: ResourceKind) -> str:
    return f"{kind.plural}.{kind.version}.{kind.group}" if kind.group else kind.plural


def _source(kind: ResourceKind) -> str:
    if kind.group == JOBSETS.group:
        return "install JobSet (https://jobset.sigs.k8s.io) 0.8 or newer"
    return "install the CRDs of the finetune-operator chart"
