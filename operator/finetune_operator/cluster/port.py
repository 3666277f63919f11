"""What the reconciler asks of Kubernetes. Objects are plain dicts as the API server sends them."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

type Object = Mapping[str, Any]
type Keep = Callable[[Object], Object | None]
"""What is needed of an object; None: nothing."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A resource as the URL names it."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str

    @property
    def prefix(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"


JOBS = ResourceKind("tpu-finetune.dev", "v1alpha1", "finetunejobs")
PROFILES = ResourceKind("tpu-finetune.dev", "v1alpha1", "finetuneprofiles")
JOBSETS = ResourceKind("jobset.x-k8s.io", "v1alpha2", "jobsets")
PODS = ResourceKind("", "v1", "pods")
CONFIG_MAPS = ResourceKind("", "v1", "configmaps")
NODES = ResourceKind("", "v1", "nodes")
EVENTS = ResourceKind("", "v1", "events")
#: Kueue's; there may be none.
WORKLOADS = ResourceKind("kueue.x-k8s.io", "v1beta2", "workloads")
LEASES = ResourceKind("coordination.k8s.io", "v1", "leases")


class ClusterError(Exception):
    """The API server could not be asked, or refused. Base of those below."""

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        """Seconds the server asked us to wait (429, 503), or None."""


class NotFound(ClusterError):
    """404: it does not exist (now)."""


class Conflict(ClusterError):
    """409: someone else was faster; observe again."""


class AlreadyExists(Conflict):
    """409 to a creation, and the name is taken. (A quota that changes meanwhile is a Conflict, too.)"""


class Rejected(ClusterError):
    """400, 403, 422: asking again the same way will not help. The message is the server's."""


class ResponseTooLarge(Rejected):
    """The answer, or all pages of a listing together, have more than this process may hold."""


class Unavailable(ClusterError):
    """429, 5xx, timeouts, broken connections, after the adapter's own retries."""


class KubernetesClient(Protocol):
    """Every call has a deadline, retries what is safe to retry and raises only :class:`ClusterError`."""

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Object:
        """The live object. Raises NotFound."""
        ...

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Mapping[str, str | frozenset[str]] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> Sequence[Object]:
        """Live objects by labels, each of which has that value or one of those, and by the fields that the server lets
        one select by; every page. NotFound where the server does not know the kind."""
        ...

    def pages(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Mapping[str, str | frozenset[str]] | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[Sequence[Object]]:
        """The same, page by page, so that a large collection is never held as a whole.

        It is complete only when it ends without an error. ``metadata_only``: objects have nothing but ``metadata``.
        """
        ...

    def kept(
        self,
        kind: ResourceKind,
        namespace: str | None,
        *,
        labels: Mapping[str, str | frozenset[str]] | None = None,
        fields: Mapping[str, str] | None = None,
        keep: Keep,
    ) -> AsyncIterator[Sequence[Object]]:
        """What ``keep`` leaves of each page of a listing whose objects tenants have made: the rest of a page is let go
        before anything else is done. TooLarge where all pages have more than one listing may read."""
        ...

    async def apply(self, kind: ResourceKind, manifest: Object) -> Object:
        """Server-side apply with our field manager, forced."""
        ...

    async def create(self, kind: ResourceKind, manifest: Object) -> Object:
        """Create; Conflict when the name is taken."""
        ...

    async def patch_status(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        status: Object,
        *,
        resource_version: str | None,
    ) -> Object:
        """Replace ``status`` whole (keys that are absent are removed). Conflict when the object moved on."""
        ...

    async def delete(
        self, kind: ResourceKind, namespace: str | None, name: str, *, uid: str, foreground: bool
    ) -> None:
        """Delete that very object; gone already is fine."""
        ...
