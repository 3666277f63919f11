"""The API server's client with what only people need."""

from collections.abc import AsyncIterator, Sequence

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTResponse

from finetune_operator.cluster.api_server_client import ApiServerClient, error_from
from finetune_operator.cluster.port import JOBS, Object, ResourceKind, Unavailable

type Query = Sequence[tuple[str, str]]

#: In ``metadata.managedFields`` of what a command has edited.
_FIELD_MANAGER = "finetune"
#: Bytes of a line of a response: an object has at most 1.5 MiB in etcd, and a log may have no line end at all.
_LINE_BYTES = 8 * 2**20


class UserClient(ApiServerClient):
    """Merges edits into a spec, takes label selectors as kubectl does, and streams."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self._configuration = configuration

    def renew(self, configuration: Configuration) -> None:
        """Uses the tokens of ``configuration`` from now on."""
        self._configuration.api_key = configuration.api_key

    def selected(
        self, kind: ResourceKind, namespace: str | None, selector: str | None
    ) -> AsyncIterator[Sequence[Object]]:
        """Yields pages of the objects with matching labels; of all without a selector."""
        selectors = [("labelSelector", selector)] if selector else []
        return self._page_items(kind, namespace, selectors, "application/json")

    async def merge(self, namespace: str, name: str, patch: Object) -> Object:
        """Merges ``patch`` into a job. Raises Conflict if it names an outdated resourceVersion."""
        return await self._call(
            "patch",
            JOBS,
            namespace,
            name,
            query=[("fieldManager", _FIELD_MANAGER)],
            body=patch,
            content_type="application/merge-patch+json",
        )

    async def lines(self, path: str, query: Query, silence: float | None) -> AsyncIterator[bytes]:
        """Yields the response to one GET by line, without line ends; a longer line than 8 MiB in parts.

        Raises ClusterError, also after ``silence`` seconds without a byte. None: there is no such limit.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence)
        answer: RESTResponse | None = None
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                "GET",
                path,
                query_params=list(query),
                header_params={"Accept": "*/*"},
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(method, url, header_params=headers, _request_timeout=timeout)
            if answer.status >= 400:
                content = await answer.read()  # type: ignore[no-untyped-call]
                raise error_from(answer.status, method, path, content, None)
            # aiohttp's readline rejects lines above 2 MiB, and an object in a watch may be larger.
            rest = bytearray()
            async for chunk in answer.response.content.iter_any():
                rest += chunk
                if b"\n" in chunk:
                    *whole, last = rest.split(b"\n")
                    for line in whole:
                        yield bytes(line)
                    rest = last
                elif len(rest) > _LINE_BYTES:
                    yield bytes(rest)
                    rest = bytearray()
            if rest:
                yield bytes(rest)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"GET {path}: {_reason(error)}") from error
        finally:
            if answer is not None:
                answer.response.close()


def _reason(error: Exception) -> str:
    return str(error) or "no response in time"
