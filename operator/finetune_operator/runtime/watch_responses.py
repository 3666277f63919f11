"""Contents of HTTP responses that kopf gets in place of the API server's: without objects."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from finetune_operator.reconcile.watch_objects import ListPage, WatchLine


async def read_body(response: aiohttp.ClientResponse, limit: int | None) -> bytearray | None:
    """Returns the body of a response, or None if it exceeds ``limit`` bytes."""
    text = bytearray()
    async for chunk in response.content.iter_any():
        text += chunk
        if limit is not None and len(text) > limit:
            # Closed, not drained: the rest of the response is not read.
            response.close()
            return None
    return text


class _Content:
    """Replaces a response's content: kopf reads from it, and aiohttp notifies it when the connection is closed."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def exception(self) -> BaseException | None:
        return self._content.exception()

    def set_exception(self, *error: Any) -> None:
        self._content.set_exception(*error)


class Lines(_Content):
    """The lines of a watch, each replaced by what ``replace`` returns."""

    def __init__(self, content: aiohttp.StreamReader, replace: Callable[[bytearray], bytes]) -> None:
        super().__init__(content)
        self._replace = replace

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        begun = bytearray()
        async for chunk in self._content.iter_any():
            first, *others = chunk.split(b"\n")
            begun += first
            for other in others:
                if begun:
                    yield self._replace(begun) + b"\n"
                begun = bytearray(other)
        # An incomplete last line was cut off with the connection. The next watch starts with that event.


class Body(_Content):
    """One page of a listing, or all lines of a watch."""

    def __init__(self, content: aiohttp.StreamReader, text: bytes) -> None:
        super().__init__(content)
        self._text = text

    async def read(self) -> bytes:
        return self._text

    async def iter_chunked(self, _size: int) -> AsyncIterator[bytes]:
        yield self._text


def empty_page(page: ListPage) -> bytes:
    metadata = {"resourceVersion": str(page.version), "continue": page.token}
    return json.dumps({"metadata": metadata, "items": []}).encode()


def bookmark(event: WatchLine) -> bytes:
    """Returns a bookmark at the event's version, from which kopf continues after the end of the watch."""
    metadata = {"resourceVersion": str(event.version)}
    return json.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}}).encode()
