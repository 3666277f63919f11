"""A fake API server, and a connection to it that does not wait."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from finetune_operator.cli.connect.connection import Connection
from tests.unit.cli.fake_api import FakeApi, serve


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def connection(api: FakeApi) -> AsyncIterator[Connection]:
    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    async with serve(api) as configuration:
        connection = Connection(configuration, "team-a", sleep=at_once)
        yield connection
        await connection.close()
