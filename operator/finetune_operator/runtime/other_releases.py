"""Other releases of the chart that serve the same namespaces: two operators would act on the same jobs.

Every release says in an annotation of its ClusterRole, which no tenant can write, what it serves. Helm compares them,
but a chart that is rendered without a cluster, as Argo CD does, compares nothing.
"""

import logging
from collections.abc import Sequence

from finetune_operator.cluster.port import CLUSTER_ROLES, ClusterError, KubernetesClient, Object
from finetune_operator.cluster.releases import EVERY, served_namespaces

log = logging.getLogger(__name__)

_OPERATORS = {"app.kubernetes.io/component": "operator"}


async def earlier_releases(
    cluster: KubernetesClient, own_role: str, namespaces: Sequence[str]
) -> tuple[str, ...]:
    """Returns a sentence for each release that has served one of the namespaces for longer.

    Of two releases only the one that came later waits. If the ClusterRoles cannot be read, there is no sentence: the
    right to it may be missing where the chart does not create the roles.

    Args:
        cluster: client of the API server.
        own_role: name of the ClusterRole of the operator's own release.
        namespaces: namespaces that the operator serves; empty for all.
    """
    try:
        roles = [
            role
            async for page in cluster.pages(CLUSTER_ROLES, None, labels=_OPERATORS, metadata_only=True)
            for role in page
            if served_namespaces(role)
        ]
    except ClusterError as error:
        log.warning("other releases that serve the same namespaces are not noticed: %s", error)
        return ()
    own = next((role for role in roles if _name(role) == own_role), None)
    mine = frozenset(namespaces) or frozenset({EVERY})
    return tuple(
        f'the release with ClusterRole "{_name(role)}" serves {shared} already: remove the namespace from one of the '
        "releases, because both would act on the same jobs"
        for role in roles
        if role is not own
        if own is None or _age(role) < _age(own)
        if (shared := _shared(mine, served_namespaces(role)))
    )


def _shared(mine: frozenset[str], theirs: frozenset[str]) -> str:
    """Returns the namespaces that both serve, as text; empty if there are none."""
    if EVERY in mine and EVERY in theirs:
        return "every namespace"
    if EVERY in mine or EVERY in theirs:
        return ", ".join(sorted((mine | theirs) - {EVERY}))
    return ", ".join(sorted(mine & theirs))


def _name(role: Object) -> str:
    return str(role["metadata"]["name"])


def _age(role: Object) -> tuple[str, str]:
    """Orders roles by their creation; those of one second by name."""
    return str(role["metadata"].get("creationTimestamp", "")), _name(role)
