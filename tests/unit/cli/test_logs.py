"""``finetune logs``: live pods, several hosts, following, and what was kept."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import Stage
from finetune_contract.log_line import log_line
from finetune_operator.artifacts.port import NAMES_LIMIT, RECORD_LIMIT, ObjectTooLarge, StorageUnavailable
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.logs import LogSelection, show_logs
from tests.unit.cli.fake_api import FakeApi

JOBS = Path(__file__).parent / "jobs"
FOLDER = "gs://ft-artifacts/team-a/quickstart-5b0f3f3c"


class Kept:
    """A store that holds kept logs."""

    def __init__(self, logs: dict[str, bytes] | None = None, *, reachable: bool = True) -> None:
        self._logs = logs or {}
        self._reachable = reachable

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        if not self._reachable:
            raise StorageUnavailable(uri, "no response in time")
        content = self._logs.get(uri)
        if content is not None and len(content) > limit:
            raise ObjectTooLarge(uri, limit)
        return content

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        raise NotImplementedError

    async def write(self, uri: str, content: bytes) -> None:
        raise NotImplementedError


def job(phase: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((JOBS / f"{phase}.yaml").read_text())
    return loaded


def pod(stage: Stage, attempt: int = 1, host: int = 0, state: str = "running") -> dict[str, Any]:
    return {
        "metadata": {
            "name": f"quickstart-{stage.short}-{attempt}-slice-0-{host}-abcde",
            "labels": {
                "tpu-finetune.dev/job-uid": "5b0f3f3c-8f6c-4d0e-9d58-0c7d8a4f9a11",
                "tpu-finetune.dev/stage": stage.value,
                "tpu-finetune.dev/attempt": str(attempt),
                "jobset.sigs.k8s.io/jobset-name": f"quickstart-{stage.short}-{attempt}",
            },
        },
        "status": {"containerStatuses": [{"state": {state: {}}}]},
    }


async def add(api: FakeApi, *pods: dict[str, Any]) -> None:
    for added in pods:
        name = added["metadata"]["name"]
        api.logs[name] = f"hello from {name}\nbye\n"
        await api.put("pods", added)


async def logs(
    connection: Connection,
    selection: LogSelection | None = None,
    *,
    follow: bool = False,
    store: Kept | None = None,
) -> list[str]:
    lines: list[str] = []
    await show_logs(
        connection,
        "quickstart",
        selection or LogSelection(),
        follow=follow,
        store=store or Kept(),
        write=lines.append,
    )
    return lines


async def test_the_last_attempt_of_the_last_stage_is_shown(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.PREFLIGHT, state="terminated"), pod(Stage.TRAIN, 1), pod(Stage.TRAIN, 2))
    assert await logs(connection) == ["hello from quickstart-train-2-slice-0-0-abcde", "bye"]


async def test_lines_for_cloud_logging_are_shown_as_text(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    line = log_line(
        severity="ERROR",
        time=datetime(2026, 11, 21, 12, tzinfo=UTC),
        logger="absl",
        message="first\n\x1b[2Jsecond",
        labels={},
    )
    trained = pod(Stage.TRAIN)
    await api.put("pods", trained)
    api.logs[trained["metadata"]["name"]] = f"printed\n{line}\n"
    shown = await logs(connection)
    assert shown[0] == "printed"
    assert shown[1].startswith("2026-11-21 12:00:00,000 E absl: first\n")
    assert "\x1b" not in shown[1]


async def test_stage_and_attempt_can_be_chosen(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.PREFLIGHT, state="terminated"), pod(Stage.TRAIN, 1), pod(Stage.TRAIN, 2))
    shown = await logs(connection, LogSelection(stage=Stage.TRAIN, attempt=1))
    assert shown[0] == "hello from quickstart-train-1-slice-0-0-abcde"
    assert (await logs(connection, LogSelection(stage=Stage.PREFLIGHT)))[0].startswith(
        "hello from quickstart-prep-1"
    )


async def test_lines_of_several_hosts_say_whose_they_are(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.TRAIN, host=1), pod(Stage.TRAIN, host=0))
    shown = await logs(connection)
    assert [line.split(" | ")[0] for line in shown] == ["slice-0-0", "slice-0-0", "slice-0-1", "slice-0-1"]


async def test_pods_that_have_not_started_have_no_log(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.TRAIN, state="waiting"))
    kept = Kept({f"{FOLDER}/attempts/train-1/log-tail.txt": b"kept\n"})
    assert await logs(connection, store=kept) == ["kept"]


async def test_without_pods_the_kept_log_is_shown(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("succeeded"))
    kept = Kept(
        {
            f"{FOLDER}/attempts/export-1/log-tail.txt": b"exported\n",
            f"{FOLDER}/attempts/prep-1/log-tail.txt": b"checked\n",
        }
    )
    assert await logs(connection, store=kept) == ["exported"]
    assert await logs(connection, LogSelection(stage=Stage.PREFLIGHT), store=kept) == ["checked"]
    assert await logs(connection, follow=True, store=kept) == ["exported"]


async def test_a_kept_log_may_be_larger_than_a_record(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("succeeded"))
    uri = f"{FOLDER}/attempts/export-1/log-tail.txt"
    kept = Kept({uri: b"x" * (2 * RECORD_LIMIT)})
    assert await logs(connection, store=kept) == ["x" * (2 * RECORD_LIMIT)]
    with pytest.raises(
        CliError, match=r"not readable\. gs://.*log-tail.txt cannot be read: the file is larger"
    ):
        await logs(connection, store=Kept({uri: b"x" * (32 * RECORD_LIMIT)}))


@pytest.mark.parametrize(
    ("phase", "selection", "store", "told"),
    [
        ("succeeded", LogSelection(), Kept(), "there is no stored log at gs://ft-artifacts"),
        (
            "succeeded",
            LogSelection(),
            Kept(reachable=False),
            "not readable\\. The store does not respond: .*no response in time",
        ),
        ("pending", LogSelection(), Kept(), "has no pods and no run folder yet"),
        (
            "running",
            LogSelection(stage=Stage.EXPORT),
            Kept(),
            "Export of quickstart has not run. Stages that ran: Preflight, Train",
        ),
    ],
)
async def test_what_cannot_be_shown_is_explained(
    api: FakeApi, connection: Connection, phase: str, selection: LogSelection, store: Kept, told: str
) -> None:
    await api.put("finetunejobs", job(phase))
    with pytest.raises(CliError, match=told):
        await logs(connection, selection, store=store)


async def test_following_shows_stage_after_stage_until_the_job_ends(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.TRAIN))
    following = asyncio.create_task(logs(connection, follow=True))
    await api.watched("pods")
    await api.watched("finetunejobs")
    await add(api, pod(Stage.EVALUATE, state="waiting"))
    await add(api, pod(Stage.EVALUATE))
    await api.logs_read("quickstart-eval-1-slice-0-0-abcde")
    await api.put("finetunejobs", job("succeeded"))
    shown = await following
    assert [line for line in shown if line.startswith("===")] == [
        "=== Train quickstart-train-1",
        "=== Evaluate quickstart-eval-1",
    ]
    assert "hello from quickstart-eval-1-slice-0-0-abcde" in shown


async def test_following_ends_when_nothing_reads_the_output(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.TRAIN))

    def write(line: str) -> None:
        if line.startswith("hello"):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await show_logs(connection, "quickstart", LogSelection(), follow=True, store=Kept(), write=write)


async def test_colors_and_control_characters_of_a_log_are_not_shown(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.TRAIN))
    (name,) = api.logs
    api.logs[name] = "\x1b[32mINFO\x1b[0m step 1\t2\x1b]0;title\x07\n"
    (line,) = await logs(connection)
    assert line.startswith("INFO step 1\t2")
    assert not {"\x1b", "\x07"} & set(line)


async def test_following_one_stage_ends_with_the_stage(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", job("running"))
    await add(api, pod(Stage.TRAIN))
    following = asyncio.create_task(logs(connection, LogSelection(stage=Stage.TRAIN), follow=True))
    await api.logs_read("quickstart-train-1-slice-0-0-abcde")
    done = job("running")
    done["status"]["stages"][2]["phase"] = "Succeeded"
    await api.watched("finetunejobs")
    await api.put("finetunejobs", done)
    assert (await following)[0] == "=== Train quickstart-train-1"
