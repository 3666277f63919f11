"""``finetune watch``: what is printed, when it ends and with which exit code."""

import asyncio
import copy
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console, Group

from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs import status_view
from finetune_operator.cli.jobs.watch import TransitionPrinter, watch_job
from tests.unit.cli.fake_api import FakeApi

NOW = datetime(2026, 11, 21, 12, 5, tzinfo=UTC)
JOBS = Path(__file__).parent / "jobs"


def job(phase: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((JOBS / f"{phase}.yaml").read_text())
    return loaded


def at_step(step: int) -> dict[str, Any]:
    running = job("running")
    running["status"]["progress"] |= {"step": step, "stepText": f"{step}/60"}
    return running


async def watch(connection: Connection, *, terminal: bool = False) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=120, force_terminal=terminal, color_system=None)
    code = await watch_job(connection, "quickstart", console, clock=lambda: NOW)
    output = console.file
    assert isinstance(output, io.StringIO)
    return code, output.getvalue()


@pytest.mark.parametrize(("phase", "code"), [("succeeded", 0), ("planned", 0), ("failed", 1)])
async def test_a_finished_job_is_reported_and_decides_the_exit_code(
    api: FakeApi, connection: Connection, phase: str, code: int
) -> None:
    await api.put("finetunejobs", job(phase))
    ended, output = await watch(connection)
    assert ended == code
    assert phase.capitalize() in output
    if phase == "failed":
        assert "Fix         Map it: roleMap: {bot: assistant}." in output


@pytest.mark.parametrize("terminal", [True, False])
async def test_the_whole_way_of_a_job(api: FakeApi, connection: Connection, terminal: bool) -> None:
    await api.put("finetunejobs", job("pending"))
    watching = asyncio.create_task(watch(connection, terminal=terminal))
    await api.watched("finetunejobs")
    for state in (job("validating"), job("provisioning"), at_step(12), at_step(30), job("succeeded")):
        await api.put("finetunejobs", state)
    code, output = await watching
    assert code == 0
    assert "loss" in output.lower()
    assert "gs://ft-artifacts/team-a/quickstart-5b0f3f3c/export/model" in output
    if not terminal:
        assert "▶ Train" in output
        assert "30/60" in output
        assert "… WaitingForCapacity for 3 min 00 s: 0/3 nodes are available" in output


async def test_a_restart_of_the_server_is_survived(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    watching = asyncio.create_task(watch(connection))
    await api.watched("finetunejobs")
    api.refuse = 503
    api.break_watches()
    while api.refuse:
        await asyncio.sleep(0)
        if not api._watches:
            await api.put("finetunejobs", job("succeeded"))  # no reader hears of it
            api.refuse = None
    code, _ = await watching
    assert code == 0


async def test_history_that_is_gone_leads_to_a_new_list(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    watching = asyncio.create_task(watch(connection))
    await api.watched("finetunejobs")
    api.send("finetunejobs", {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "200"}}})
    api.objects["finetunejobs", "quickstart"] = job("succeeded")
    api.send("finetunejobs", {"type": "ERROR", "object": {"kind": "Status", "code": 410}})
    code, _ = await watching
    assert code == 0
    assert len(api.lists) == 2
    assert "metadata.name%3Dquickstart" in api.lists[0] or "metadata.name=quickstart" in api.lists[0]


async def test_a_status_of_an_older_generation_does_not_end_the_watch(
    api: FakeApi, connection: Connection
) -> None:
    stale = job("succeeded")
    stale["metadata"]["generation"] = 2
    await api.put("finetunejobs", stale)
    watching = asyncio.create_task(watch(connection))
    await api.watched("finetunejobs")
    assert not watching.done()
    fresh = copy.deepcopy(stale)
    fresh["status"]["observedGeneration"] = 2
    await api.put("finetunejobs", fresh)
    assert (await watching)[0] == 0


async def test_a_deleted_job_ends_the_watch_with_an_error(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    watching = asyncio.create_task(watch(connection))
    await api.watched("finetunejobs")
    await api.delete("finetunejobs", "quickstart")
    with pytest.raises(CliError, match="was deleted"):
        await watching


async def test_an_unknown_job_lists_close_names(api: FakeApi, connection: Connection) -> None:
    other = job("running")
    other["metadata"]["name"] = "quickstart-2"
    await api.put("finetunejobs", other)
    with pytest.raises(CliError) as raised:
        await watch(connection)
    assert raised.value.message == 'There is no FineTuneJob "quickstart" in namespace team-a.'
    assert raised.value.fix == "Did you mean quickstart-2?"


async def test_an_empty_name_is_that_of_no_job(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    with pytest.raises(CliError, match='no FineTuneJob ""') as raised:
        await connection.job("")
    assert raised.value.fix == "Available: quickstart."


def test_each_thing_that_happened_is_reported_once() -> None:
    chronicle = TransitionPrinter()
    first, second = (list(chronicle.news(job("validating"), NOW)) for _ in range(2))
    assert [line[:12].strip() for line in first] == ["5 min 00 s"] * 2
    preflight, waiting = (line[14:] for line in first)
    assert preflight == "▶ Preflight attempt 2"
    assert waiting.startswith("… WaitingForInput for 4 min 30 s: spec.datasets.train[0].uri: gs://")
    assert second == []


def test_a_job_that_is_refused_says_why_though_it_waits_for_nothing() -> None:
    refused = job("validating")
    del refused["status"]["waiting"]
    told = list(TransitionPrinter().news(refused, NOW))
    assert told[-1][14:].startswith("! InputMissing: spec.datasets.train[0].uri")


def test_stages_that_were_not_reached_are_not_reported() -> None:
    told = [line[14:] for line in TransitionPrinter().news(job("failed"), NOW)]
    assert told == ["✗ Preflight 10 s        DatasetSchemaMismatch"]


def test_training_is_reported_in_strides_and_again_after_a_step_back() -> None:
    chronicle = TransitionPrinter()
    told = []
    for step in (1, 2, 3, 4, 30, 31, 10):
        told += [step for line in chronicle.news(at_step(step), NOW) if f"{step}/60" in line]
    assert told == [3, 30, 10]


def converting(done: int, doing: str = "converting the weights", **more: Any) -> dict[str, Any]:
    """A job whose conversion has written so many of 37 tensors."""
    running = job("running")
    progress = {
        "doing": doing, "done": done, "total": 37, "unit": "tensors",
        "doneBytes": round(done / 37 * 6.2 * 2**30), "totalBytes": round(6.2 * 2**30),
        "since": "2026-11-21T12:03:00Z", "lastUpdateTime": "2026-11-21T12:04:50Z", **more,
    }  # fmt: skip
    running["status"]["stage"] = "Convert"
    begun = {"phase": "Running", "attempt": 1, "startTime": "2026-11-21T12:03:00Z", "progress": progress}
    running["status"]["stages"] = [
        {"name": "Preflight", "phase": "Skipped", "reason": "NotReached"},
        {"name": "Convert", **begun},
        *({"name": name, "phase": "Pending"} for name in ("Train", "Evaluate", "Export")),
    ]
    return running


def test_what_a_stage_does_is_reported_once_and_at_each_quarter() -> None:
    chronicle = TransitionPrinter()
    told = []
    for done in (0, 1, 5, 12, 13, 30, 37):
        told += [line.strip() for line in chronicle.news(converting(done), NOW) if "tensors" in line]
    proof = list(chronicle.news(converting(0, "comparing", since="2026-11-21T12:04:00Z"), NOW))
    assert [line.split()[4] for line in told] == ["0/37", "12/37", "30/37"]
    assert told[1] == "5 min 00 s              12/37 tensors  2.0 of 6.2 GiB  converting the weights"
    assert [line.rpartition("  ")[2] for line in proof] == ["comparing"]


def test_a_terminal_of_40_columns_has_the_counts_in_the_line_of_the_stage() -> None:
    console = Console(file=io.StringIO(), width=40, color_system=None)
    console.print(Group(*status_view.status_lines(converting(12), NOW)))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    at = next(number for number, line in enumerate(lines) if "Convert" in line)
    assert max(map(len, lines)) <= 40
    assert lines[at].rstrip().endswith("12/37 tensors")
    assert lines[at + 1].startswith("2.0 of 6.2 GiB")
