"""Prerequisites of watching: the CRDs, permission to list their objects, and no other operator for them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from finetune_operator.cluster.port import (
    JOBS,
    JOBSETS,
    PODS,
    PROFILES,
    WORKLOADS,
    ClusterError,
    KubernetesClient,
    NotFound,
    Rejected,
    WatchStream,
)
from finetune_operator.runtime.other_releases import earlier_releases

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


def watches(namespaces: Sequence[str], *, kueue: bool) -> tuple[WatchStream, ...]:
    """Returns the required watch streams; profiles are cluster-scoped. ``kueue``: whether to watch Workloads, too."""
    scopes = namespaces or (None,)
    kinds = (JOBS, JOBSETS, PODS, *((WORKLOADS,) if kueue else ()))
    return (*(WatchStream(kind, scope) for kind in kinds for scope in scopes), WatchStream(PROFILES, None))


async def check_prerequisites(
    cluster: KubernetesClient, namespaces: Sequence[str], *, own_namespace: str, own_name: str
) -> Prerequisites:
    """Tries to list every kind to watch, and looks for other releases that serve one of the namespaces
    (:func:`.other_releases.earlier_releases`). Workloads are watched unless the API server says that it does not serve
    them: a refusal in one namespace says nothing about the kind, and any other error is one to report.
    """
    wanted = watches(namespaces, kueue=True)
    problems = {watch: error for watch in wanted if (error := await _problem(cluster, watch))}
    if any(watch.kind is WORKLOADS and isinstance(error, NotFound) for watch, error in problems.items()):
        wanted = watches(namespaces, kueue=False)
        problems = {watch: error for watch, error in problems.items() if watch in wanted}
    texts = {watch: _text(watch, error) for watch, error in problems.items()}
    broken = {watch.namespace for watch in problems}
    whole = {watch.namespace for watch in wanted} - broken - {None}
    missing: tuple[str, ...]
    if whole and None not in broken and all(isinstance(error, Rejected) for error in problems.values()):
        missing, refused = (), texts
    else:
        missing, refused = tuple(texts.values()), {}
    missing = missing or await earlier_releases(cluster, own_namespace, own_name, namespaces)
    return Prerequisites(wanted, missing, refused)


async def wait_for_prerequisites(check: Callable[[], Awaitable[Prerequisites]], stop: asyncio.Event) -> bool:
    """Waits until the profiles and all kinds of one namespace at least can be listed and nothing conflicts.

    ``check`` calls :func:`check_prerequisites`. Returns False if ``stop`` is set first.
    """
    reported: tuple[str, ...] = ()
    while not stop.is_set():
        found = await check()
        if not found.missing:
            return True
        for problem in found.missing if found.missing != reported else ():
            log.error("%s", problem)
        reported = found.missing
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
    return False


async def _problem(cluster: KubernetesClient, watch: WatchStream) -> ClusterError | None:
    """Lists one page of metadata. With a selector that matches nothing, the API server would read all objects."""
    try:
        await anext(cluster.pages(watch.kind, watch.namespace, metadata_only=True), None)
    except ClusterError as error:
        return error
    return None


def _text(watch: WatchStream, error: ClusterError) -> str:
    kind = watch.kind
    if isinstance(error, NotFound):
        source = (
            "JobSet (https://jobset.sigs.k8s.io) 0.8 or newer"
            if kind.group == JOBSETS.group
            else "the CRDs of the finetune-operator chart"
        )
        full_name = f"{kind.plural}.{kind.version}.{kind.group}" if kind.group else kind.plural
        return f"the API server does not serve {full_name}: install {source}"
    if isinstance(error, Rejected):
        return f"{watch} cannot be listed: {error}"
    return f"{watch} cannot be read from the API server: {error}"
