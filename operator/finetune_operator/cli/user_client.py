"""The API server's client with what only people need."""

from collections.abc import AsyncIterator, Sequence

import aiohttp
from kubernetes.aio.client import Configuration

from finetune_operator.cluster.api_server_client import ApiServerClient
from finetune_operator.cluster.port import JOBS, Object, ResourceKind, Unavailable
from finetune_operator.cluster.requests import Query, Request, error_from

#: In ``metadata.managedFields`` of what a command has edited.
_FIELD_MANAGER = "finetune"
#: Bytes of a line of a response: an object has at most 1.5 MiB in etcd, and a log may have no line end at all.
_LINE_BYTES = 8 * 2**20


class UserClient(ApiServerClient):
    """Merges edits into a spec, takes label selectors as kubectl does, and streams."""

    def renew(self, configuration: Configuration) -> None:
        """Uses the tokens of ``configuration`` from now on."""
        self._configuration.api_key = configuration.api_key

    def selected(
        self, kind: ResourceKind, namespace: str | None, selector: str | None
    ) -> AsyncIterator[Sequence[Object]]:
        """Yields pages of the objects with matching labels; of all without a selector."""
        selectors = [("labelSelector", selector)] if selector else []
        return self._pages(kind, namespace, selectors)

    async def merge(self, namespace: str, name: str, patch: Object) -> Object:
        """Merges ``patch`` into a job. Raises Conflict if it names an outdated resourceVersion."""
        manager = [("fieldManager", _FIELD_MANAGER)]
        return await self._call(Request("patch", JOBS, namespace, name, query=manager, body=patch))

    async def lines(self, path: str, query: Query, silence: float | None) -> AsyncIterator[bytes]:
        """Yields the response to one GET by line, without line ends; a longer line than 8 MiB in parts.

        Raises ClusterError, also after ``silence`` seconds without a byte. None: there is no such limit.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence)
        answer: aiohttp.ClientResponse | None = None
        try:
            answer = await self._open("GET", path, query, timeout, headers={"Accept": "*/*"})
            if answer.status >= 400:
                raise error_from(answer.status, f"GET {path}", await answer.read())
            # aiohttp's readline rejects lines above 2 MiB, and an object in a watch may be larger.
            rest = bytearray()
            async for chunk in answer.content.iter_any():
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
                answer.close()


def _reason(error: Exception) -> str:
    return str(error) or "no response in time"
