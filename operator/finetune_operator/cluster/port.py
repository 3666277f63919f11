"""Port to the Kubernetes API for the reconciler. Objects are plain dicts, as the API server sends them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from finetune_operator.objects import Object

type Labels = Mapping[str, str | frozenset[str] | None]
"""Label selector: a label has this value, or one of these values; None: it exists."""
type Keep[T] = Callable[[Object], T | None]
"""Returns what is needed of an object, or None if nothing of it is needed."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource, as request URLs name it."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str

    @property
    def prefix(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the path in the URL of an object, or of a collection in one namespace or in all."""
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
        rest = "".join(f"/{quote(part, safe='')}" for part in (name, subresource) if part)
        return f"{self.prefix}{scope}/{self.plural}{rest}"


JOBS = ResourceKind("tpu-finetune.dev", "v1alpha1", "finetunejobs")
PROFILES = ResourceKind("tpu-finetune.dev", "v1alpha1", "finetuneprofiles")
JOBSETS = ResourceKind("jobset.x-k8s.io", "v1alpha2", "jobsets")
PODS = ResourceKind("", "v1", "pods")
CONFIG_MAPS = ResourceKind("", "v1", "configmaps")
NODES = ResourceKind("", "v1", "nodes")
EVENTS = ResourceKind("", "v1", "events")
CLUSTER_ROLES = ResourceKind("rbac.authorization.k8s.io", "v1", "clusterroles")
#: Kueue's Workloads; the kind is absent where Kueue is not installed.
WORKLOADS = ResourceKind("kueue.x-k8s.io", "v1beta2", "workloads")
#: Read by people's commands alone.
DEPLOYMENTS = ResourceKind("apps", "v1", "deployments")
LEASES = ResourceKind("coordination.k8s.io", "v1", "leases")
SERVICE_ACCOUNTS = ResourceKind("", "v1", "serviceaccounts")
QUOTAS = ResourceKind("", "v1", "resourcequotas")
LOCAL_QUEUES = ResourceKind("kueue.x-k8s.io", "v1beta2", "localqueues")
#: Asks the API server what the caller may do.
ACCESS_REVIEWS = ResourceKind("authorization.k8s.io", "v1", "selfsubjectaccessreviews")


@dataclass(frozen=True, slots=True)
class WatchStream:
    """One stream: a kind, in one namespace or in all."""

    kind: ResourceKind
    namespace: str | None

    @property
    def path(self) -> str:
        """Path of its requests in the URL."""
        return self.kind.path(self.namespace)

    def __str__(self) -> str:
        return f"{self.kind.plural} in {self.namespace}" if self.namespace else self.kind.plural


class ClusterError(Exception):
    """The API server could not be reached, or refused the request. Base class of the errors below."""

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds to wait before the next request, as the server requires (429, 503); None if it names none."""


class NotFound(ClusterError):
    """404: the object does not exist."""


class Conflict(ClusterError):
    """409: another writer changed the object first; observe again."""


class AlreadyExists(Conflict):
    """409 on creation because the name is taken. (A quota that changes during creation is a plain Conflict.)"""


class Rejected(ClusterError):
    """400, 403, 422: the same request will fail again. The message is the server's."""


class ResponseTooLarge(Rejected):
    """The response, or all pages of a listing together, exceed the limits of this process."""


class Unavailable(ClusterError):
    """429, 5xx, timeouts and broken connections that remain after the adapter's own retries."""


class NotLeading(Unavailable):
    """The write was not sent, because this process may no longer hold the Lease."""


class KubernetesClient(Protocol):
    """Every call has a deadline, retries what is safe to retry and raises only :class:`ClusterError`."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object:
        """Returns the live object. Raises NotFound."""
        ...

    def pages(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[Object]]:
        """Yields all live objects with these labels page by page, so that a large collection is never held as a whole.

        The listing is complete only if the iterator ends without an error. With ``metadata_only``, objects have only
        ``metadata``. Raises NotFound if the server does not know the kind.
        """
        ...

    def kept[T](
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Labels | None = None,
        fields: Mapping[str, str] | None = None,
        keep: Keep[T],
    ) -> AsyncIterator[Sequence[T]]:
        """Yields what ``keep`` returns for the objects of each page of a listing, for objects that tenants create.

        The rest of a page is released before anything else happens. Only fields that the server supports in field
        selectors can be used. Raises NotFound if the server does not know the kind, and ResponseTooLarge if all pages
        together exceed what one listing may read.
        """
        ...

    async def apply(self, kind: ResourceKind, manifest: Object) -> Object:
        """Server-side apply with the operator's field manager, forced."""
        ...

    async def create(self, kind: ResourceKind, manifest: Object) -> Object:
        """Creates the object. Raises AlreadyExists if the name is taken."""
        ...

    async def patch_status(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        status: Object,
        *,
        resource_version: str | None,
        uid: str | None = None,
    ) -> Object:
        """Replaces the whole ``status`` (absent keys are removed).

        Raises Conflict if the object has changed, by its ``resource_version``. Without that only its ``uid`` is
        compared, and Rejected is raised: others who write the object all the time do not prevent it.
        """
        ...

    async def delete(
        self, kind: ResourceKind, namespace: str | None, name: str, *, uid: str, foreground: bool
    ) -> Object | None:
        """Deletes the object with this uid. Does nothing if it is already gone.

        Returns the object if it stays until its dependents or finalizers are gone.
        """
        ...
