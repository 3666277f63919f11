"""Other releases of the chart that serve the same namespaces, or that have the same ClusterRole.

Two operators of one namespace would act on the same jobs. ClusterRoles have no namespace, so two releases of one name
in two namespaces replace each other's role and binding.

Every release says in annotations of its ClusterRole, which no tenant can write, what it serves and which release it is.
The role's name is no proof of that: Kustomize's namePrefix and nameSuffix change it. Helm compares what releases serve,
but a chart that is rendered without a cluster, as Argo CD does, compares nothing.
"""

import logging
from collections.abc import Sequence

from finetune_operator.cluster.port import CLUSTER_ROLES, ClusterError, KubernetesClient
from finetune_operator.cluster.releases import EVERY, release_of, served_namespaces
from finetune_operator.objects import Object

log = logging.getLogger(__name__)

_OPERATORS = {"app.kubernetes.io/component": "operator"}


async def earlier_releases(
    cluster: KubernetesClient, own_namespace: str, own_name: str, namespaces: Sequence[str]
) -> tuple[str, ...]:
    """Returns a sentence for each release that has served one of the namespaces for longer.

    Of two releases only the one that came later waits. If the own ClusterRole belongs to a release of another
    namespace, there is one sentence, about that. If the ClusterRoles cannot be read, there is no sentence: the right to
    it may be missing where the chart does not create the roles. ``namespaces`` is empty for all.
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
    release = f"{own_namespace}/{own_name}"
    own = next((role for role in roles if release_of(role) == release), None)
    # The role of an earlier chart has its release's name alone.
    own = own or next((role for role in roles if _name(role) == own_name), None)
    if own is not None and release_of(own) not in {"", release}:
        problem = (
            f'ClusterRole "{own_name}" belongs to release {release_of(own)}, not to {release}: give one of them '
            "another name, or fullnameOverride, because each replaces the other's role and binding"
        )
        return (problem,)
    mine = frozenset(namespaces) or frozenset({EVERY})
    return tuple(
        f'the release with ClusterRole "{_name(role)}" serves {shared} already: remove the namespace from one of the '
        "releases, because both would act on the same jobs"
        for role in roles
        if role is not own and release_of(role) != release  # a new prefix leaves the old role behind
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
