"""Ten thousand jobs in a namespace: commands read them page by page, and keep little of each."""

import json
import tracemalloc
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml

from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.costs import CostQuery, day_named, show_costs
from finetune_operator.cli.jobs.listing import show_list
from finetune_operator.cli.ledger import ledger_store
from tests.unit.cli.fake_api import FakeApi
from tests.unit.cli.test_list_and_wait import NOW

NUMBER = 10_000
PAGE, PAGE_OF_NAMES = 100, 500
RUNNING: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "jobs" / "running.yaml").read_text())


def fill(api: FakeApi, status: dict[str, Any], **metadata: Any) -> None:
    for number in range(NUMBER):
        name = f"bot-{number:05}"
        identity = {**RUNNING["metadata"], "name": name, "uid": f"uid-{number}", **metadata}
        found = {**RUNNING, "metadata": identity, "status": status}
        api.objects["finetunejobs", name] = found


@pytest.fixture
def many(api: FakeApi) -> FakeApi:
    fill(api, {"observedGeneration": 1, "phase": "Running", "stage": "Train"})
    return api


def pages(api: FakeApi) -> list[int]:
    """The limit of each listing."""
    return [int(parse_qs(query)["limit"][0]) for query in api.lists]


async def test_the_table_has_them_all_and_was_read_in_pages(many: FakeApi, connection: Connection) -> None:
    lines: list[str] = []
    await show_list(connection, everywhere=False, selector=None, output=None, write=lines.append, now=NOW)
    assert len(lines) == NUMBER + 1
    assert pages(many) == [PAGE] * (NUMBER // PAGE)


@pytest.mark.parametrize("output", ["json", "yaml", "name"])
async def test_other_formats_are_one_document(many: FakeApi, connection: Connection, output: str) -> None:
    for name in [name for _, name in many.objects][1000:]:
        del many.objects["finetunejobs", name]
    written: list[str] = []
    await show_list(connection, everywhere=True, selector=None, output=output, write=written.append)
    (text,) = written
    if output == "name":
        assert len(text.splitlines()) == 1000
    else:
        assert len((json.loads if output == "json" else yaml.safe_load)(text)["items"]) == 1000


async def test_a_name_that_does_not_exist_reads_names_alone(many: FakeApi, connection: Connection) -> None:
    with pytest.raises(CliError) as error:
        await connection.job("bot-0500")
    assert error.value.fix.startswith("Did you mean bot-0")
    assert pages(many) == [PAGE_OF_NAMES] * (NUMBER // PAGE_OF_NAMES)


async def test_a_completion_reads_names_alone(many: FakeApi, connection: Connection) -> None:
    assert len([name async for name in connection.names()]) == NUMBER
    assert pages(many) == [PAGE_OF_NAMES] * (NUMBER // PAGE_OF_NAMES)


async def test_an_existing_job_needs_no_listing(many: FakeApi, connection: Connection) -> None:
    assert (await connection.job("bot-00007"))["metadata"]["name"] == "bot-00007"
    assert many.lists == []


@pytest.mark.slow
async def test_neither_list_nor_costs_holds_the_jobs(api: FakeApi, connection: Connection) -> None:
    """The jobs have 60 MB of JSON; what is kept of them is a fraction."""
    used = {"activeTime": {"asOf": "2026-11-21T12:04:58Z"}, "cost": {"chipHours": "0.5"}}
    fill(api, RUNNING["status"] | used, annotations={"note": "x" * 4096})
    query = CostQuery(by="namespace", since=day_named("30d", NOW.date()), until=NOW.date())
    tracemalloc.start()
    try:
        lines: list[str] = []
        await show_list(connection, everywhere=False, selector=None, output=None, write=lines.append, now=NOW)
        await show_costs(connection, ledger_store(), "finetune-system", False, query, lines.append)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert any(line.split()[:2] == ["TOTAL", str(NUMBER)] for line in lines), lines[-3:]
    assert peak < 40 * 2**20
