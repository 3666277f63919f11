"""What ``finetune doctor`` reads of a cluster and finds. What the caller may not read is unknown, never missing."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cluster.port import (
    CLUSTER_ROLES,
    DEPLOYMENTS,
    JOBS,
    JOBSETS,
    LOCAL_QUEUES,
    NODES,
    PODS,
    PROFILES,
    QUOTAS,
    SERVICE_ACCOUNTS,
    NotFound,
    Rejected,
    ResourceKind,
)
from finetune_operator.objects import Object
from finetune_operator.planning import serves

type Listing = Sequence[Object] | None
"""None: the caller may not read them."""


class State(StrEnum):
    """Result of one check."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """The caller may not read it, or the cluster cannot show it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    check: "Check"
    state: State
    message: str
    fix: str = ""
    """The command that mends it, or that shows what is unknown. Empty if nothing is to be done."""


type Findings = Iterator[Finding]


class Check(StrEnum):
    """What is checked, in the order in which it should be mended."""

    CRDS = "crds"
    OPERATOR = "operator"
    JOBSET = "jobset"
    PROFILES = "profiles"
    ACCOUNTS = "accounts"
    QUEUES = "queues"
    NODES = "nodes"
    QUOTAS = "quotas"
    RIGHTS = "rights"
    STORAGE = "storage"
    IMAGES = "images"

    def ok(self, message: str) -> Finding:
        return Finding(self, State.OK, message)

    def missing(self, message: str, fix: str) -> Finding:
        return Finding(self, State.MISSING, message, fix)

    def unknown(self, message: str, fix: str = "") -> Finding:
        return Finding(self, State.UNKNOWN, message, fix)


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """Something that a user of a namespace needs to be allowed."""

    verb: str
    resource: str
    """As kubectl writes it."""
    use: str
    """Commands that need it."""


#: Each with its kind and its subresource. Profiles are objects of the cluster, the others of the namespace.
_RIGHTS: Mapping[Right, tuple[ResourceKind, str]] = {
    Right("list", "finetuneprofiles", "finetune profiles"): (PROFILES, ""),
    Right("create", "finetunejobs", "kubectl apply"): (JOBS, ""),
    Right("list", "finetunejobs", "finetune list"): (JOBS, ""),
    Right("watch", "finetunejobs", "finetune watch"): (JOBS, ""),
    Right("patch", "finetunejobs", "finetune suspend, retry, cancel"): (JOBS, ""),
    Right("delete", "finetunejobs", "kubectl delete"): (JOBS, ""),
    Right("list", "pods", "finetune logs"): (PODS, ""),
    Right("get", "pods/log", "finetune logs"): (PODS, "log"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An installation, as the caller sees it from a namespace."""

    namespace: str
    operator_namespace: str
    served: Mapping[ResourceKind, bool]
    operators: Listing
    """Deployments of the operator."""
    operator_roles: Listing
    """ClusterRoles of all releases of the chart, whose annotation names the namespaces that each serves."""
    profiles: Listing
    accounts: Listing
    """ServiceAccounts of the namespace."""
    queues: Listing
    """LocalQueues of the namespace; empty without Kueue."""
    quotas: Listing
    nodes: Listing
    rights: Mapping[Right, bool]

    @property
    def serving(self) -> Sequence[Object]:
        """The profiles that serve the namespace."""
        return [each for each in self.profiles or () if serves(each, self.namespace)]


async def read_setup(connection: Connection, operator_namespace: str) -> Setup:
    """Reads what the checks need. Raises ClusterError if the cluster does not respond or refuses everything."""
    kinds = (JOBS, PROFILES, JOBSETS, LOCAL_QUEUES)
    served = dict(zip(kinds, await asyncio.gather(*map(connection.served, kinds)), strict=True))

    async def listed(
        kind: ResourceKind, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Listing:
        try:
            return await connection.list(kind, namespace, labels=labels)
        except NotFound:
            return ()
        except Rejected as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return None

    namespace = connection.namespace
    lists = {
        "operators": listed(DEPLOYMENTS, operator_namespace, {"app.kubernetes.io/name": "finetune-operator"}),
        "operator_roles": listed(CLUSTER_ROLES, labels={"app.kubernetes.io/component": "operator"}),
        "profiles": listed(PROFILES),
        "accounts": listed(SERVICE_ACCOUNTS, namespace),
        "queues": listed(LOCAL_QUEUES, namespace),
        "quotas": listed(QUOTAS, namespace),
        "nodes": listed(NODES),
    }
    found = dict(zip(lists, await asyncio.gather(*lists.values()), strict=True))
    allowed = await asyncio.gather(*(
        connection.may(right.verb, kind, subresource, everywhere=kind is PROFILES)
        for right, (kind, subresource) in _RIGHTS.items()
    ))  # fmt: skip
    return Setup(
        namespace=namespace,
        operator_namespace=operator_namespace,
        served=served,
        rights=dict(zip(_RIGHTS, allowed, strict=True)),
        **found,
    )
