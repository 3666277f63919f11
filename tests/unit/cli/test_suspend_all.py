"""``finetune suspend --all``: which jobs it selects, what it says of them, and what one failure leaves undone."""

from typing import Any

import pytest

from finetune_contract import Stage
from finetune_operator.cli.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.suspend_all import LiveJob, consequences, live_jobs, suspend_all
from finetune_operator.cluster.port import NotFound, Unavailable
from tests.unit.cli.fake_api import FakeApi
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
    """Stands in for the connection."""

    def __init__(self, **faults: Exception) -> None:
        self.faults, self.done = faults, list[tuple[str | None, str]]()

    async def edit(self, name: str, patch: Any, *, namespace: str | None = None) -> Any:
        if name in self.faults:
            raise self.faults[name]
        assert patch == {"spec": {"suspend": True}}
        self.done.append((namespace, name))


async def test_it_prints_the_commands_that_resume_what_it_has_suspended() -> None:
    edits, written = Edits(gone=NotFound("gone")), list[str]()
    jobs = [live("b", None, "team-b"), live("gone", None), live("a", Stage.TRAIN), live("c", None)]
    await suspend_all(edits, jobs, write=written.append)  # type: ignore[arg-type]
    assert written == [
        "3 jobs suspended. To resume them:",
        "finetune resume -n team-a a c",
        "finetune resume -n team-b b",
    ]


async def test_a_job_that_cannot_be_edited_keeps_no_other_from_being_suspended() -> None:
    edits, written = Edits(bad=Unavailable("the API server is away")), list[str]()
    with pytest.raises(
        CliError, match=r"1 of 2 jobs were not suspended. The first: team-a/bad: the API server"
    ):
        await suspend_all(edits, [live("bad", None), live("good", None)], write=written.append)  # type: ignore[arg-type]
    assert edits.done == [("team-a", "good")]
    assert written[0] == "1 job suspended. To resume them:"


@pytest.mark.parametrize(
    "words", [[], ["job", "--all"], ["job", "-A"], ["job", "-l", "team=nlp"], ["-A"]], ids=" ".join
)
def test_names_and_all_exclude_each_other(words: list[str]) -> None:
    done = finetune("suspend", *words)
    assert done.exit_code == 2
