"""The API server's client with what only people need."""

from collections.abc import AsyncIterator, Sequence

from kubernetes.aio.client import Configuration

from finetune_operator.cluster.api_server_client import ApiServerClient
from finetune_operator.cluster.port import Object, ResourceKind

#: In ``metadata.managedFields`` of what a command has edited.
_FIELD_MANAGER = "finetune"


class UserClient(ApiServerClient):
    """Impersonates another user, merges edits into a spec, and takes label selectors as kubectl does.

    Args:
        configuration: the API server and the credentials.
        user: whom to impersonate; None: no other user.
    """

    def __init__(self, configuration: Configuration, user: str | None) -> None:
        super().__init__(configuration)
        if user:
            self._api.set_default_header("Impersonate-User", user)  # type: ignore[no-untyped-call]

    def selected(
        self, kind: ResourceKind, namespace: str | None, selector: str | None
    ) -> AsyncIterator[Sequence[Object]]:
        """Yields pages of the objects with matching labels; of all without a selector."""
        selectors = [("labelSelector", selector)] if selector else []
        return self._page_items(kind, namespace, selectors, "application/json")

    async def merge(self, kind: ResourceKind, namespace: str, name: str, patch: Object) -> Object:
        """Merges ``patch`` into the object. Raises Conflict if it names an outdated resourceVersion."""
        return await self._call(
            "patch",
            kind,
            namespace,
            name,
            query=[("fieldManager", _FIELD_MANAGER)],
            body=patch,
            content_type="application/merge-patch+json",
        )
