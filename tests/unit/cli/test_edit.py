"""``finetune suspend``, ``resume``, ``retry`` and ``cancel``: what they edit, and what they refuse."""

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import Stage
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.jobs.edit import (
    cancel_jobs,
    consequences,
    jobs_to_cancel,
    resume_jobs,
    retry_jobs,
    suspend_jobs,
)
from finetune_operator.cluster.port import Rejected
from tests.unit.cli.fake_api import FakeApi, serve

JOBS = Path(__file__).parent / "jobs"


def job(phase: str, name: str = "quickstart", **spec: object) -> dict[str, Any]:
    loaded: dict[str, Any] = copy.deepcopy(yaml.safe_load((JOBS / f"{phase}.yaml").read_text()))
    loaded["metadata"]["name"] = name
    loaded["spec"] |= spec
    return loaded


@pytest.fixture
async def connection(api: FakeApi) -> AsyncIterator[Connection]:
    async with serve(api) as configuration:
        configuration.client_session_kwargs = {"headers": [("Impersonate-User", "alice")]}
        connection = Connection(configuration, "team-a")
        yield connection
        await connection.close()


@pytest.fixture
def written() -> list[str]:
    return []


async def test_a_running_job_is_suspended_under_the_name_of_the_impersonated_user(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    await api.put("finetunejobs", job("running"))
    await suspend_jobs(connection, ["quickstart"], write=written.append)
    assert api.edits == [("quickstart", {"spec": {"suspend": True}}, "alice")]
    assert written == [
        "finetunejob.tpu-finetune.dev/quickstart suspended: a stage that runs saves and ends first"
    ]


@pytest.mark.parametrize("verb", [suspend_jobs, resume_jobs])
async def test_a_job_that_is_in_the_state_already_is_not_edited(
    api: FakeApi, connection: Connection, verb: Any, written: list[str]
) -> None:
    await api.put("finetunejobs", job("running", suspend=verb is suspend_jobs))
    await verb(connection, ["quickstart"], write=written.append)
    assert api.edits == []
    assert len(written) == 1


async def test_no_job_is_suspended_if_one_of_them_has_ended(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    await api.put("finetunejobs", job("running"))
    await api.put("finetunejobs", job("failed", "other"))
    with pytest.raises(CliError, match=r"other has ended \(Failed\)"):
        await suspend_jobs(connection, ["quickstart", "other"], write=written.append)
    assert (api.edits, written) == ([], [])


async def test_a_suspended_job_is_resumed(api: FakeApi, connection: Connection, written: list[str]) -> None:
    await api.put("finetunejobs", job("suspended", suspend=True))
    await resume_jobs(connection, ["quickstart"], write=written.append)
    assert [patch for _, patch, _ in api.edits] == [{"spec": {"suspend": False}}]


async def test_a_job_that_something_else_suspends_says_what(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    await api.put("finetunejobs", job("suspended", suspend=False))
    with pytest.raises(CliError, match=r"not suspended by spec\.suspend: ."):
        await resume_jobs(connection, ["quickstart"], write=written.append)


@pytest.fixture
async def suspended(api: FakeApi) -> None:
    """Suspended jobs a, b and c, and cancelled, which is cancelled as well."""
    for name in "abc":
        await api.put("finetunejobs", job("suspended", name, suspend=True))
    await api.put("finetunejobs", job("suspended", "cancelled", suspend=True, cancel=True))


@pytest.mark.parametrize(
    ("name", "reason"), [("deleted", 'no FineTuneJob "deleted"'), ("cancelled", "cannot be resumed")]
)
@pytest.mark.usefixtures("suspended")
async def test_a_job_that_cannot_be_resumed_keeps_no_other_from_being_resumed(
    api: FakeApi, connection: Connection, written: list[str], name: str, reason: str
) -> None:
    with pytest.raises(CliError, match=reason) as error:
        await resume_jobs(connection, ["a", name, "c"], write=written.append)
    assert error.value.code == 1
    assert error.value.fix
    assert [edited for edited, *_ in api.edits] == ["a", "c"]
    assert len(written) == 2


@pytest.mark.usefixtures("suspended")
async def test_all_jobs_that_cannot_be_resumed_are_reported_each_with_its_reason(
    api: FakeApi, connection: Connection, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = connection.edit

    async def b_is_refused(name: str, patch: Any) -> Any:
        if name == "b":
            raise Rejected("a webhook denied it")
        return await edit(name, patch)

    monkeypatch.setattr(connection, "edit", b_is_refused)
    with pytest.raises(CliError, match=r"^3 of 5 jobs were not resumed:") as error:
        await resume_jobs(connection, ["deleted", "a", "cancelled", "b", "c"], write=written.append)
    _, *reasons = str(error.value).splitlines()
    assert [each.split(":")[0].strip() for each in reasons] == ["deleted", "cancelled", "b"]
    assert "spec.resumeFrom.runFolder" in reasons[1]
    assert "a webhook denied it" in reasons[2]
    assert [edited for edited, *_ in api.edits] == ["a", "c"]


@pytest.mark.parametrize(
    ("given", "done", "stage", "expected"),
    [
        (None, None, None, {"generation": 1, "fromStage": None}),
        ({"generation": 3, "fromStage": "Evaluate"}, 3, None, {"generation": 4, "fromStage": None}),
        # a manifest that was applied again without its retry
        (None, 5, Stage.EXPORT, {"generation": 6, "fromStage": "Export"}),
    ],
)
async def test_a_retry_has_a_number_that_was_never_used(
    api: FakeApi,
    connection: Connection,
    written: list[str],
    given: object,
    done: int | None,
    stage: Stage | None,
    expected: object,
) -> None:
    failed = job("failed", retry=given)
    failed["status"]["retryGeneration"] = done
    await api.put("finetunejobs", failed)
    await retry_jobs(connection, ["quickstart"], stage, write=written.append)
    assert [patch["spec"]["retry"] for _, patch, _ in api.edits] == [expected]
    assert written[0].startswith("finetunejob.tpu-finetune.dev/quickstart retries from ")


@pytest.mark.parametrize(
    ("phase", "stage", "reason"),
    [
        ("running", None, "has not ended"),
        ("running", Stage.EXPORT, "has not ended"),
        ("succeeded", None, "has not failed"),
    ],
)
async def test_a_retry_of_a_job_without_failure_is_refused(
    api: FakeApi, connection: Connection, written: list[str], phase: str, stage: Stage | None, reason: str
) -> None:
    await api.put("finetunejobs", job(phase))
    with pytest.raises(CliError, match=reason):
        await retry_jobs(connection, ["quickstart"], stage, write=written.append)
    assert api.edits == []


async def test_a_stage_of_a_job_that_succeeded_can_be_repeated(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    await api.put("finetunejobs", job("succeeded"))
    await retry_jobs(connection, ["quickstart"], Stage.EVALUATE, write=written.append)
    assert len(api.edits) == 1


async def test_a_retry_does_not_overwrite_an_edit_that_it_has_not_seen(
    api: FakeApi, connection: Connection, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.put("finetunejobs", job("failed"))
    read = connection.job

    async def then_edited(name: str) -> Any:
        found = copy.deepcopy(await read(name))
        await api.put("finetunejobs", job("failed"))
        return found

    monkeypatch.setattr(connection, "job", then_edited)
    with pytest.raises(CliError, match="changed meanwhile"):
        await retry_jobs(connection, ["quickstart"], None, write=written.append)
    assert written == []


# --- cancel

CANCELLED = "finetunejob.tpu-finetune.dev/quickstart cancelled"


async def cancel(connection: Connection, *names: str, write: Any) -> None:
    jobs = await jobs_to_cancel(connection, names, write=write)
    await cancel_jobs(connection, jobs, write=write)


async def test_cancelling_says_what_happens_and_how_to_continue(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    training = job("running")
    await api.put("finetunejobs", training)
    await cancel(connection, "quickstart", "quickstart", write=written.append)
    assert api.edits == [("quickstart", {"spec": {"cancel": True}}, "alice")]
    assert written == [
        f"{CANCELLED}: Train saves a checkpoint and stops, its slice is freed, and the job ends",
        f"  continue it in another job with spec.resumeFrom.runFolder: {training['status']['resolved']['runFolder']}",
    ]


@pytest.mark.parametrize(
    ("phase", "stage", "told"),
    [
        ("running", "Evaluate", "Evaluate stops, its slice is freed, and the job ends."),
        ("running", "Convert", "Convert stops, and the job ends."),
        ("running", "Novel", "nothing of it runs, and the job ends."),
        ("provisioning", "Train", "nothing of it runs, and the job ends."),
        ("suspended", "Train", "nothing of it runs, and the job ends."),
        ("pending", None, "nothing of it runs, and the job ends."),
    ],
)
def test_what_a_cancellation_does_depends_on_the_stage(phase: str, stage: str | None, told: str) -> None:
    described = job(phase)
    if stage:
        described["status"]["stage"] = stage
    for each in described["status"].get("stages", ()):
        each["phase"] = "Running" if phase == "running" and each["name"] == stage else "Pending"
    first, last = consequences([described])
    assert first == f"quickstart ({phase.capitalize()}): {told}"
    assert "cannot be taken back" in last
    assert "finetune suspend" in last


async def test_jobs_that_have_ended_are_reported_and_the_others_cancelled(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    await api.put("finetunejobs", job("running"))
    await api.put("finetunejobs", job("succeeded", "other"))
    await cancel(connection, "other", "quickstart", write=written.append)
    assert [name for name, *_ in api.edits] == ["quickstart"]
    assert written[0] == (
        "finetunejob.tpu-finetune.dev/other has ended (Succeeded), so there is nothing to cancel"
    )
    assert written[1].startswith(CANCELLED)


async def test_no_job_is_cancelled_if_one_of_them_does_not_exist(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    await api.put("finetunejobs", job("running"))
    await api.put("finetunejobs", job("succeeded", "other"))
    with pytest.raises(CliError, match="no FineTuneJob"):
        await cancel(connection, "other", "quickstart", "third", write=written.append)
    assert (api.edits, written) == ([], [])


def ended_as_cancelled() -> dict[str, Any]:
    cancelled = job("failed", cancel=True)
    cancelled["status"]["failure"] |= {"reason": "Cancelled", "class": "User"}
    return cancelled


@pytest.mark.parametrize("make", [lambda: job("running", cancel=True), ended_as_cancelled])
async def test_a_job_is_cancelled_once(
    api: FakeApi, connection: Connection, written: list[str], make: Any
) -> None:
    await api.put("finetunejobs", make())
    await cancel(connection, "quickstart", write=written.append)
    assert api.edits == []
    assert written == ["finetunejob.tpu-finetune.dev/quickstart is cancelled already"]


async def test_a_job_that_ends_during_the_question_is_reported(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    await api.put("finetunejobs", job("running"))
    jobs = await jobs_to_cancel(connection, ["quickstart"], write=written.append)
    await api.put("finetunejobs", job("succeeded"))
    await cancel_jobs(connection, jobs, write=written.append)
    assert written == [
        "finetunejob.tpu-finetune.dev/quickstart had ended meanwhile (Succeeded), so cancelling it has no effect"
    ]


async def test_a_cluster_that_drops_the_field_is_reported(
    api: FakeApi, connection: Connection, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.put("finetunejobs", job("running"))

    async def pruned(name: str, patch: Any) -> Any:
        return job("running", name)

    monkeypatch.setattr(connection, "edit", pruned)
    with pytest.raises(CliError, match=r"have no spec\.cancel, so quickstart was not cancelled"):
        await cancel(connection, "quickstart", write=written.append)
    assert written == []


async def test_control_characters_of_a_status_are_not_printed(
    api: FakeApi, connection: Connection, written: list[str]
) -> None:
    hostile = job("running")
    hostile["status"]["resolved"]["runFolder"] = "gs://a/\x1b[2Jb\nfinetune"
    await api.put("finetunejobs", hostile)
    await cancel(connection, "quickstart", write=written.append)
    assert written[1].endswith("spec.resumeFrom.runFolder: gs://a/[2Jb finetune")


@pytest.mark.parametrize(
    ("verb", "phase"),
    [
        (suspend_jobs, "running"),
        (resume_jobs, "suspended"),
        (lambda connection, names, write: retry_jobs(connection, names, None, write=write), "failed"),
    ],
)
async def test_a_cancelled_job_takes_no_other_command(
    api: FakeApi, connection: Connection, written: list[str], verb: Any, phase: str
) -> None:
    await api.put("finetunejobs", job(phase, cancel=True, suspend=phase == "suspended"))
    with pytest.raises(CliError, match="quickstart is cancelled"):
        await verb(connection, ["quickstart"], write=written.append)
    assert (api.edits, written) == ([], [])
