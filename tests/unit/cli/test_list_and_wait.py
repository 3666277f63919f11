"""``finetune list``, ``wait`` and ``status -o``: what is printed, and exit codes."""

import asyncio
import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import pytest
import yaml

from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import WRONG_ARGUMENT, CliError
from finetune_operator.cli.jobs.listing import show_list, show_status
from finetune_operator.cli.jobs.wait import TIMED_OUT, seconds_of, wait_for
from finetune_operator.cluster.port import Unavailable
from tests.unit.cli.fake_api import FakeApi

NOW = datetime(2026, 11, 21, 12, 5, tzinfo=UTC)
JOBS = Path(__file__).parent / "jobs"


def job(phase: str, name: str = "quickstart") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((JOBS / f"{phase}.yaml").read_text())
    loaded["metadata"]["name"] = name
    return loaded


async def listed(connection: Connection, **options: Any) -> list[str]:
    written: list[str] = []
    given = {"everywhere": False, "selector": None, "output": None} | options
    await show_list(connection, write=written.append, now=NOW, **given)
    return "\n".join(written).split("\n")


async def test_each_job_is_one_line_whatever_its_status(api: FakeApi, connection: Connection) -> None:
    for path in sorted(JOBS.glob("*.yaml")):
        await api.put("finetunejobs", job(path.stem, path.stem))
    new = job("running", "new") | {"status": None}
    await api.put("finetunejobs", new)
    hostile = job("running", "hostile")
    hostile["status"]["summary"] = "two\nlines \x1b[31m"
    await api.put("finetunejobs", hostile)
    lines = await listed(connection, output="wide", everywhere=True)
    assert lines[0].split() == [
        "NAMESPACE", "NAME", "PHASE", "STAGE", "STEP", "ETA", "COST", "AGE", "TPU", "MODEL", "SUMMARY",
    ]  # fmt: skip
    assert len(lines) == len(api.objects) + 1
    (running,) = (line for line in lines if line.split()[1] == "running")
    assert running.split()[2:6] == ["Running", "Train", "12/60", "1-2m"]
    (unseen,) = (line for line in lines if line.split()[1] == "new")
    assert unseen.split()[2:6] == ["Pending", "-", "-", "-"]
    assert not any("\x1b" in line for line in lines)


async def test_the_selector_and_the_namespace_go_to_the_api_server(
    api: FakeApi, connection: Connection
) -> None:
    lines = await listed(connection, selector="team in (a,b),!old")
    assert lines == ["No jobs in namespace team-a with labels team in (a,b),!old."]
    assert parse_qs(api.lists[-1])["labelSelector"] == ["team in (a,b),!old"]


async def test_machine_readable_formats_are_those_of_kubectl(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    assert await listed(connection, output="name") == ["finetunejob.tpu-finetune.dev/quickstart"]
    as_json = json.loads("\n".join(await listed(connection, output="json")))
    as_yaml = yaml.safe_load("\n".join(await listed(connection, output="yaml")))
    assert as_json == as_yaml
    assert (as_json["kind"], len(as_json["items"])) == ("List", 1)
    written: list[str] = []
    await show_status(connection, "quickstart", "json", written.append)
    assert json.loads(written[0]) == as_json["items"][0]


async def test_an_empty_list_has_no_names(api: FakeApi, connection: Connection) -> None:
    written: list[str] = []
    await show_list(connection, everywhere=False, selector=None, output="name", write=written.append)
    assert written == []


# --- wait


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("1h30m", 5400), ("2d", 172800)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "10 s", "1h 30m", "5w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="is not a duration"):
        seconds_of(text)


async def waited(connection: Connection, *names: str, seconds: float | None = None) -> tuple[int, list[str]]:
    written: list[str] = []
    return await wait_for(connection, names, seconds=seconds, write=written.append), written


@pytest.mark.parametrize(("last", "code"), [("succeeded", 0), ("failed", 1)])
async def test_it_waits_for_all_and_one_failure_decides(
    api: FakeApi, connection: Connection, last: str, code: int
) -> None:
    await api.put("finetunejobs", job("planned", "first"))
    await api.put("finetunejobs", job("running", "second"))
    waiting = asyncio.create_task(waited(connection, "first", "second", "second"))
    await api.watched("finetunejobs", 1)
    assert not waiting.done()
    await api.put("finetunejobs", job(last, "second"))
    ended, written = await waiting
    assert ended == code
    # Each job is watched on its own, so either may be written first.
    assert sorted(line.split(":")[0] for line in written) == ["first Planned", f"second {last.capitalize()}"]


async def test_a_timeout_names_what_has_not_ended(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("succeeded", "first"))
    await api.put("finetunejobs", job("running", "second"))
    code, written = await waited(connection, "second", "first", seconds=0.5)
    assert code == TIMED_OUT
    assert written[-1] == "second has not ended after 0.5 s: Running"


class Silent:
    """A connection whose requests take for ever, and raise ``error`` when they are cancelled."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def job(self, _name: str) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._error is None:
                raise
            raise self._error from None


@pytest.mark.parametrize("error", [None, Unavailable("no response"), TimeoutError()])
async def test_the_timeout_includes_the_first_requests_and_decides_the_exit_code(
    error: Exception | None,
) -> None:
    code, written = await waited(cast("Connection", Silent(error)), "first", seconds=0.01)
    assert (code, written) == (
        TIMED_OUT, ["first has not ended after 0.01 s: the cluster has not responded"]
    )  # fmt: skip


async def test_a_request_that_times_out_is_no_timeout_of_the_command() -> None:
    class Slow(Silent):
        async def job(self, _name: str) -> Any:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        await waited(cast("Connection", Slow(None)), "first")


async def test_a_job_that_was_edited_has_not_ended(api: FakeApi, connection: Connection) -> None:
    edited = job("failed")
    edited["metadata"]["generation"] = 2
    await api.put("finetunejobs", edited)
    waiting = asyncio.create_task(waited(connection, "quickstart"))
    await api.watched("finetunejobs")
    assert not waiting.done()
    current = copy.deepcopy(edited)
    current["status"]["observedGeneration"] = 2
    await api.put("finetunejobs", current)
    assert (await waiting)[0] == 1


async def test_a_job_that_is_deleted_ends_the_wait_with_an_error(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", job("running", "first"))
    await api.put("finetunejobs", job("running", "second"))
    waiting = asyncio.create_task(waited(connection, "first", "second"))
    await api.watched("finetunejobs", 2)
    await api.delete("finetunejobs", "first")
    with pytest.raises(CliError, match="first was deleted"):
        await waiting


def test_a_timeout_that_is_no_duration_is_a_wrong_argument() -> None:
    with pytest.raises(CliError, match="is not a duration") as error:
        seconds_of("banana")
    assert error.value.code == WRONG_ARGUMENT


async def test_a_name_that_does_not_exist_is_an_error_at_once(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running", "first"))
    with pytest.raises(CliError) as error:
        await waited(connection, "first", "frist")
    assert error.value.fix == "Did you mean first?"
