"""``finetune suspend --all``: which jobs it selects, what it says of them, and the commands that resume them."""

import asyncio
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.suspend_all import (
    LiveJob,
    consequences,
    live_jobs,
    resume_commands,
    suspend_all,
)
from finetune_operator.cluster.port import NotFound, Unavailable
from tests.unit.cli.fake_api import FakeApi
from tests.unit.cli.stand_in import stand_in
from tests.unit.cli.test_edit import job
from tests.unit.cli.test_main import finetune


def live(name: str, stage: Stage | None, namespace: str = "team-a") -> LiveJob:
    return LiveJob(namespace=namespace, name=name, stage=stage)


async def test_jobs_that_have_ended_or_are_suspended_or_cancelled_are_left_out(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", job("running", "trains"))
    await api.put("finetunejobs", job("failed", "ended"))
    await api.put("finetunejobs", job("running", "suspended", suspend=True))
    await api.put("finetunejobs", job("running", "cancelled", cancel=True))
    assert await live_jobs(connection, everywhere=False, selector=None) == [live("trains", Stage.TRAIN)]


async def test_a_training_is_not_hidden_by_a_field_that_does_not_stop_it(
    api: FakeApi, connection: Connection
) -> None:
    """planOnly may be set while it runs."""
    await api.put("finetunejobs", job("running", "trains", planOnly=True))
    assert await live_jobs(connection, everywhere=False, selector=None) == [live("trains", Stage.TRAIN)]


async def test_jobs_that_hold_a_slice_come_first(api: FakeApi, connection: Connection) -> None:
    for name in ("b", "c"):
        await api.put("finetunejobs", job("running", name))
    checked = job("running", "a")
    checked["status"]["stage"] = "Preflight"
    await api.put("finetunejobs", checked)
    found = await live_jobs(connection, everywhere=True, selector=None)
    assert [each.name for each in found] == ["b", "c", "a"]


def test_it_says_what_the_jobs_lose() -> None:
    jobs = [
        live("a", Stage.TRAIN),
        live("b", Stage.TRAIN, "team-b"),
        live("c", Stage.EVALUATE),
        live("d", None),
    ]
    assert list(consequences(jobs)) == [
        "4 jobs in 2 namespaces would be suspended:",
        "  2 in training, which saves a checkpoint and continues from it later",
        "  1 in another stage, which begins again later",
        "  1 of which nothing runs, which lose their place in a queue",
    ]


class Edits:
    """Stands in for the connection: edits of ``faults`` fail, and that of ``silent`` takes effect without response."""

    options: Sequence[str] = ()

    def __init__(self, silent: str = "", **faults: Exception) -> None:
        self.silent, self.faults = silent, faults
        self.done = list[tuple[str | None, str]]()
        self.waits = asyncio.Event()

    async def edit(self, name: str, patch: Any, *, namespace: str | None = None) -> Any:
        if name in self.faults:
            raise self.faults[name]
        assert patch == {"spec": {"suspend": True}}
        self.done.append((namespace, name))
        if name == self.silent:
            self.waits.set()
            await asyncio.Event().wait()


class Output:
    """Both streams of the command, and what was edited when its last command was written."""

    def __init__(self, edits: Edits) -> None:
        self.edits = edits
        self.commands, self.reports, self.edited_before = list[str](), list[str](), list[Any]()

    def write(self, line: str) -> None:
        self.commands.append(line)
        self.edited_before = list(self.edits.done)

    async def of(self, jobs: Sequence[LiveJob]) -> None:
        await suspend_all(self.edits, jobs, write=self.write, report=self.reports.append)  # type: ignore[arg-type]


async def test_the_commands_that_resume_the_jobs_are_written_before_the_first_is_edited() -> None:
    output = Output(Edits(gone=NotFound("gone")))
    await output.of([live("b", None, "team-b"), live("gone", None), live("a", Stage.TRAIN), live("c", None)])
    assert output.commands == ["finetune resume -n team-a a c gone", "finetune resume -n team-b b"]
    assert output.edited_before == []
    assert len(output.edits.done) == 3
    assert output.reports[-1] == "3 jobs suspended."


async def test_a_job_that_cannot_be_edited_keeps_no_other_from_being_suspended() -> None:
    output = Output(Edits(bad=Unavailable("the API server is away")))
    with pytest.raises(
        CliError, match=r"edit of 1 of 2 jobs failed. The first: team-a/bad: the API"
    ) as error:
        await output.of([live("bad", None), live("good", None)])
    assert ">>" in error.value.fix
    assert output.edits.done == [("team-a", "good")]
    assert output.commands == ["finetune resume -n team-a bad good"]
    assert output.reports[-1] == "1 job suspended."


async def test_an_interruption_loses_no_job_that_was_suspended() -> None:
    output = Output(Edits("silent"))
    running = asyncio.create_task(output.of([live(name, None) for name in ("a", "b", "silent")]))
    await output.edits.waits.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(output.edits.done) == 3
    assert output.commands == ["finetune resume -n team-a a b silent"]


async def test_without_a_job_no_command_is_written() -> None:
    output = Output(Edits())
    await output.of([])
    assert (output.commands, output.reports) == ([], ["0 jobs suspended."])


def test_a_command_resumes_at_most_a_hundred_jobs_of_one_namespace() -> None:
    jobs = [live(f"job-{number}", None, f"team-{number % 2}") for number in range(402)]
    commands = [shlex.split(each) for each in resume_commands(jobs, ["--context", "the prod", "--as", "sre"])]
    assert [len(each[8:]) for each in commands] == [100, 100, 1] * 2
    assert {tuple(each[:8]) for each in commands} == {
        ("finetune", "resume", "--context", "the prod", "--as", "sre", "-n", namespace)
        for namespace in ("team-0", "team-1")
    }
    assert {name for each in commands for name in each[8:]} == {each.name for each in jobs}


@pytest.mark.parametrize("context", [[], ["--context", "test"]], ids=" ".join)
def test_standard_output_is_a_script_that_resumes_the_jobs_in_the_same_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with stand_in(tmp_path) as server:
        for name in ("a", "b"):
            server.put("finetunejobs", job("running", name))
        done = finetune("suspend", "--all", "--kubeconfig", "kubeconfig", "--as", "sre", *context)
        assert done.exit_code == 0, done.output
        (line,) = done.stdout.splitlines()
        assert shlex.split(line)[2:] == [
            *("--kubeconfig", str(tmp_path / "kubeconfig"), "--context", "test", "--as", "sre"),
            *("-n", "team-a", "a", "b"),
        ]
        server.kubeconfig.write_text(
            server.kubeconfig.read_text().replace("current-context: test", "current-context: other")
        )
        monkeypatch.chdir("/")
        assert finetune(*shlex.split(line)[1:]).exit_code == 0
        assert [each["spec"]["suspend"] for each in server.api.objects.values()] == [False, False]


@pytest.mark.parametrize(
    "words", [[], ["job", "--all"], ["job", "-A"], ["job", "-l", "team=nlp"], ["-A"]], ids=" ".join
)
def test_names_and_all_exclude_each_other(words: list[str]) -> None:
    done = finetune("suspend", *words)
    assert done.exit_code == 2
