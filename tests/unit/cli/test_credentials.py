"""Credentials that expire while a command waits: they are renewed, or the command ends."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from kubernetes.aio.client import Configuration

from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cluster.connect import UnknownContext, user_context
from finetune_operator.cluster.port import JOBS, Unavailable
from tests.unit.cli.fake_api import FakeApi, serve
from tests.unit.cli.stand_in import kubeconfig
from tests.unit.cli.test_logs import job


async def at_once(_seconds: float) -> None:
    await asyncio.sleep(0)


async def test_expired_credentials_are_renewed(api: FakeApi) -> None:
    await api.put("finetunejobs", job("running"))
    api.refuse = 401

    async def renew() -> Configuration:
        api.refuse = None
        new = Configuration()
        new.api_key = {"BearerToken": "new"}
        return new

    problems: list[str | None] = []
    async with serve(api) as configuration:
        connection = Connection(configuration, "team-a", renew=renew, sleep=at_once)
        async with aclosing(connection.follow(JOBS, name="quickstart", trouble=problems.append)) as states:
            assert "quickstart" in await anext(states)
        await connection.close()
        assert configuration.api_key == {"BearerToken": "new"}
    assert [bool(each) for each in problems] == [True, False]


async def test_credentials_that_stay_refused_end_the_command(api: FakeApi) -> None:
    api.refuse = 401
    renewed = 0

    async def renew() -> Configuration:
        nonlocal renewed
        renewed += 1
        return Configuration()

    async with serve(api) as configuration:
        connection = Connection(configuration, "team-a", renew=renew, sleep=at_once)
        with pytest.raises(Unavailable, match="401"):
            async for _ in connection.follow(JOBS, name="quickstart"):
                pass
        await connection.close()
    assert renewed == 5


async def test_a_log_is_read_with_renewed_credentials(api: FakeApi) -> None:
    api.logs["pod"] = "step 1\n"
    tokens: list[str] = []

    async def renew() -> Configuration:
        new = Configuration()
        new.api_key = {"BearerToken": "Bearer new"}
        return new

    @web.middleware
    async def expired(request: web.Request, handler: Handler) -> web.StreamResponse:
        tokens.append(request.headers.get("Authorization", ""))
        if tokens[-1] != "Bearer new":
            return web.json_response({"message": "expired"}, status=401)
        return await handler(request)

    async with serve(api, [expired]) as configuration:
        connection = Connection(configuration, "team-a", renew=renew, sleep=at_once)
        assert [line async for line in connection.log("pod", follow=True)] == ["step 1"]
        await connection.close()
    assert tokens == ["", "Bearer new"]


async def test_the_namespace_is_that_of_the_chosen_context(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("http://127.0.0.1:1").replace("current-context: test\n", ""))
    assert (await user_context(str(path), "test")).namespace == "team-a"


async def test_an_unknown_context_comes_with_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("http://127.0.0.1:1"))
    with pytest.raises(UnknownContext, match='has no context "tset"') as error:
        await user_context(str(path), "tset")
    assert error.value.known == ["test"]
