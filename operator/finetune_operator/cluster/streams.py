"""Responses of the API server that do not end by themselves: logs, and the changes of a collection."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

import aiohttp

from finetune_operator.cluster.api_server_client import ApiServerClient
from finetune_operator.cluster.port import Unavailable
from finetune_operator.cluster.requests import Query, error_from
from finetune_operator.objects import Object

#: Bytes of a line of a response: an object has at most 1.5 MiB in etcd, and a log may have no line end at all.
_LINE_BYTES = 8 * 2**20
#: Seconds after which the server ends a watch. A bookmark per minute shows in between that the connection is alive.
_WATCH_SECONDS = 290
SILENCE_SECONDS = 100


class StreamingClient(ApiServerClient):
    """Also reads responses line by line."""

    async def lines(self, path: str, query: Query, silence: float | None) -> AsyncGenerator[bytes]:
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
            raise Unavailable(f"GET {path}: {str(error) or 'no response in time'}") from error
        finally:
            if answer is not None:
                # A watch has no regular end: a graceful close may outlive the loop.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()
                answer.close()

    async def changes(self, path: str, query: Query, version: str) -> AsyncGenerator[tuple[str, Object]]:
        """Yields the type (ADDED, MODIFIED or DELETED) and the object of each change after a version of a collection.

        Ends when the server ends the watch: after five minutes, or because it no longer knows the version. Raises
        ClusterError.
        """
        watch = [
            *query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(_WATCH_SECONDS)),
            ("resourceVersion", version),
        ]
        async with aclosing(self.lines(path, watch, SILENCE_SECONDS)) as lines:
            async for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    return  # The connection broke inside a line.
                if event["type"] == "ERROR":
                    return  # The resource version expired (410) or the server shuts down.
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
