"""``finetune report``: what the page shows, what it reads, where it is written, and its errors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from finetune_contract import RunFolder, Stage
from finetune_operator.artifacts.port import RECORD_LIMIT, StorageDenied
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cli.commands import app
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results.report import report_page
from finetune_operator.cli.results.run_folder import run_records
from tests.pages.hostile import HOSTILE
from tests.pages.reports import report_hostile
from tests.unit.cli.fake_api import FakeApi
from tests.unit.cli.reported import Page, job, lines, manifest_digest, place, write_records
from tests.unit.comparison.runs import progress, row
from tests.unit.report.records import data_report, failure, finished, metrics_lines, reported, result, sample

JOBS = Path(__file__).parent / "jobs"
ALL = [
    "summary", "evaluation", "answers", "training", "usage", "stages", "attempts", "data", "files", "configuration",
]  # fmt: skip
#: Bytes of a page: of the largest jobs that are usual, and of hostile records.
MOST_BYTES, MOST_HOSTILE_BYTES = 2_000_000, 8_000_000


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def page(uri: str) -> Page:
    done = report("--run", uri, "-o", "-")
    assert done.exit_code == 0, done.output
    return Page(done.stdout)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder for a run."""
    return tmp_path / "support-bot"


# --- what the page shows


def test_a_finished_run_has_all_parts(folder: Path) -> None:
    found = page(write_records(folder))
    assert found.sections == ALL
    assert found.unbalanced == []
    assert "Succeeded" in found.text("head")
    assert "0.0000 → 0.5000" not in found.text("summary")


def test_the_numbers_of_the_records_are_on_the_page(folder: Path) -> None:
    found = page(write_records(folder, progress=progress().model_copy(update={"mfu": 0.4127})))
    for section, shown in (
        ("summary", "Steps 600 of 600"),
        ("summary", "Cost 2.40 USD"),
        ("evaluation", "faq/exact_match 20 rows, higher is better"),
        ("answers", "Open Settings and choose Security."),
        ("training", "training loss: 600 values of nats per token, from 3 at step 1 to 0.005 at 600"),
        ("training", "500 ms (median), 95 % within 500 ms, the slowest 500 ms"),
        ("training", "Trained tokens per second 2,000, 500 per chip"),
        ("training", "MFU 41.27 % of the chips' published rate, in the last steps"),
        ("usage", "Train: training 10 min 00 s, 40 %"),
        ("usage", "Train: training 0.6667 1.333 USD"),
        ("usage", "Train: lost: steps that were repeated 20 s, 1 %"),
        ("usage", "Train: lost: steps that were repeated 0.02222 0.04444 USD"),
        ("usage", "all 1.2 2.40 USD"),
        ("stages", "Train Succeeded 2026-11-20 12:00:00 18 min 05 s"),
        ("attempts", "4 in all, 1 ended by preemption."),
        ("attempts", "Train 1 Failed, Preempted, class Preemption, on tpu-7 It ended: Preempted."),
        ("attempts", "ran 6 min 40 s, queued 30 s, waited for nodes 1 min 00 s 0 to 310, 10 repeated later"),
        ("data", "Every row was read. Sequences of at most 1,024 tokens, packed; 600 steps of 8 sequences"),
        ("data", "Rows truncated 12: row 41, row 77"),
        ("files", f"sha256:{manifest_digest()}"),
        ("files", "has this digest"),
        ("configuration", "hyperparameters.learningRate 0.0002"),
    ):
        assert shown in found.text(section), section


def test_words_that_only_the_tuned_model_says_are_marked(folder: Path) -> None:
    uri = write_records(
        folder, evaluation_samples=lines([sample("When?", "Within 14 days.", "Within 30 days.")])
    )
    done = report("--run", uri, "-o", "-")
    assert "<span>Within </span><ins>30 </ins><span>days.</span>" in done.stdout


def test_a_page_loads_nothing_and_runs_nothing(folder: Path) -> None:
    found = page(write_records(folder))
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & found.tags
    attributes = [(name, value) for _, given in found.elements for name, value in given.items()]
    assert not [name for name, _ in attributes if name in {"src", "srcset", "style"} or name.startswith("on")]
    assert all(str(value).startswith("#") for name, value in attributes if name == "href")
    identifiers = [value for name, value in attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert {str(value)[1:] for name, value in attributes if name == "href"} <= set(identifiers)


@pytest.mark.parametrize("name", sorted(path.stem for path in JOBS.glob("*.yaml")))
async def test_a_job_in_any_phase_has_a_page(
    name: str, api: FakeApi, connection: Connection, tmp_path: Path
) -> None:
    document = yaml.safe_load((JOBS / f"{name}.yaml").read_text())
    if resolved := (document.get("status") or {}).get("resolved"):
        resolved["runFolder"] = f"file://{tmp_path}/nothing-there"
    await api.put("finetunejobs", document)
    records = await run_records("quickstart", connection, SharedStore(), whole=True)
    found = Page(report_page(reported(records)))
    assert found.unbalanced == []
    assert "missing" in found.sections
    status = document.get("status") or {}
    assert str(status.get("phase", "no status")) in found.text("head")
    assert status.get("summary", "") in found.text("head")
    if failure := status.get("failure"):
        assert failure["message"] in found.text("failure")
        assert f"What to change: {failure['suggestion']}" in found.text("failure")
    if waiting := status.get("waiting"):
        assert waiting["message"] in found.text("head") + found.text("failure")


def test_a_run_that_has_not_ended_has_a_page_of_what_there_is(folder: Path) -> None:
    found = page(write_records(folder, status=None, evaluation_results=None, evaluation_rows=None))
    assert "Status: there is no status.json" in found.text("missing")
    assert "training" in found.sections


def test_a_folder_that_was_changed_after_the_export_is_recognized(folder: Path) -> None:
    uri = write_records(folder)
    (folder / "export" / "model" / "manifest.json").write_text(
        (folder / "export" / "model" / "manifest.json").read_text() + "\n"
    )
    assert "has another digest: it was changed after the export" in page(uri).text("files")


# --- hostile records


#: Files of JSON cannot contain halves of surrogate pairs.
WRITTEN = [text for text in HOSTILE if "\ud800" not in text]


@pytest.mark.parametrize("hostile", WRITTEN)
def test_texts_of_records_are_never_markup(folder: Path, hostile: str) -> None:
    document = job(
        hostile,
        summary=hostile,
        phase="Failed",
        failure=dict.fromkeys(
            ("class", "reason", "stage", "message", "suggestion", "evidence", "logsURI"), hostile
        ),
        waiting={"reason": hostile, "message": hostile},
    )
    document["metadata"] |= {"labels": {hostile: hostile}, "uid": hostile}
    document["spec"] = {hostile: hostile}
    measured = [row(number, 1.0, base=2.0, name=hostile, scores={hostile: 1.0}) for number in range(20)]
    uri = write_records(
        folder,
        status={"job": document},
        evaluation_rows=lines(measured),
        evaluation_samples=lines([sample(hostile, hostile, f"{hostile} and more")]),
        metrics=b"".join(
            json.dumps(each | {hostile: 1.0}, ensure_ascii=True).encode() + b"\n" for each in metrics_lines(5)
        ),
        data_report=data_report(
            job=hostile,
            remarks=[{"level": "Problem", "text": hostile}],
            samples=[
                {"dataset": hostile, "row": hostile, "tokens": 1, "trained": 1, "pieces": [[True, hostile]]}
            ],
        ),
    )
    place(RunFolder(uri).failure("train", 1), failure(message=hostile, fix=hostile))
    usual = page(write_records(folder.with_name("usual")))
    found = page(uri)
    assert found.unbalanced == []
    assert found.tags - usual.tags <= {"pre"}
    assert not [
        name for _, given in found.elements for name in given if name.startswith("on") or name == "style"
    ]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", found.text("head"))


def test_a_page_of_hostile_texts_alone_is_one_page() -> None:
    text = report_hostile()
    text.encode()
    found = Page(text)
    assert found.unbalanced == []
    assert not {"script", "iframe", "img", "form", "base", "link", "button"} & found.tags
    assert [tag for tag, _ in found.elements].count("h1") == 1


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("metrics", b"garbage\n" * 3, "metrics.jsonl: lines that are not valid records are left out: 3 (line 1: "),
        ("metrics", b"{}\n" * 500_002, "metrics.jsonl is not read: it has more than 500,000 lines"),
        ("data_report", b"[" * 100_000, "data.json is not a valid record"),
        ("data_report", b" " * (8 * 2**20 + 1), "data.json is not read: the file is larger than"),
        ("export_manifest", b"{}", "export/manifest.json is not a valid record: artifacts: Field required"),
        ("status", b"[]", "status.json is not the record of a job"),
        ("evaluation_rows", b"garbage\n", "rows.jsonl: lines that are not valid records are left out: 1"),
        ("progress", b" " * RECORD_LIMIT, "progress.json is not read"),
    ],
)  # fmt: skip
def test_a_record_that_is_unreadable_is_named_and_left_out(
    folder: Path, name: str, content: bytes, problem: str
) -> None:
    assert problem in page(write_records(folder, **{name: content})).text("missing")


def test_times_that_no_calendar_has_are_left_out(folder: Path) -> None:
    uri = write_records(folder)
    record = json.loads(result(Stage.TRAIN).to_json()) | {"started": "0001-01-01T00:00:00+23:59"}
    place(RunFolder(uri).result("train", 1, 1), record)
    assert "Train 1.1 Succeeded" in page(uri).text("attempts")


def test_numbers_of_records_that_are_not_finite_are_shown_as_such(folder: Path) -> None:
    report_of_data = json.loads(data_report().to_json())
    report_of_data["epochs_shown"] = "Infinity"
    source = report_of_data["train"][0]["report"]
    source |= {"epoch_sequences": 10, "sequences": 10, "weight": "NaN"}
    measured = json.loads(progress().to_json()) | {"mfu": 1.7e308, "tokens_per_second": "-Infinity"}
    found = page(write_records(folder, data_report=report_of_data, progress=measured))
    assert "which is inf epochs of 2,400" in found.text("data")
    assert "10 of 10 sequences, weight nan" in found.text("data")
    assert "MFU inf %" in found.text("training")


def test_garbage_in_the_folder_of_attempts_is_ignored(folder: Path) -> None:
    uri = write_records(folder)
    for name in ("train-x", "train-1.x", "other-1", "train-99999999999", "../x", "train-2"):
        place(f"{uri}/attempts/{name}/result.json", b"garbage")
    place(f"{uri}/attempts/train-3/failure.json", b"\xff")
    found = page(uri)
    assert "Train 2 no record of its end" in found.text("attempts")
    assert found.text("missing").count("is not a valid record") == 2


@pytest.mark.slow
def test_the_page_of_a_long_run_is_small(folder: Path) -> None:
    """100,000 steps, 10,000 rows and 64 attempts."""
    content = "".join(json.dumps(line) + "\n" for line in metrics_lines(100_000)).encode()
    measured = [
        row(number, 1.0 + number % 7, base=9.0, scores={"exact_match": 1.0}) for number in range(10_000)
    ]
    uri = write_records(
        folder,
        metrics=content,
        evaluation_rows=lines(measured),
        evaluation_samples=lines(
            sample(f"{number} " + "p" * 500, "b" * 500, "t" * 500) for number in range(1000)
        ),
    )
    for number in range(64):
        place(RunFolder(uri).failure("train", 1, number), failure(message="m" * 500))
    done = report("--run", uri, "-o", "-")
    assert done.exit_code == 0
    assert len(done.stdout.encode()) < MOST_BYTES
    found = Page(done.stdout)
    assert "100,000 values of nats per token, from 3 at step 1" in found.text("training")
    assert "Train 1.63" in found.text("attempts")


def test_the_page_of_hostile_records_is_bounded() -> None:
    text = "&" * 10_000
    many = {"report": finished().preflight.train[0].model_dump() | {"name": text, "uri": text}}  # type: ignore[union-attr]
    many |= {"found": [{"kind": text, "count": 1, "first": [text] * 20}] * 20}
    records = finished(
        data=data_report(
            train=[many] * 40, validation=[many] * 40, remarks=[{"level": "Note", "text": text}] * 500
        )
    )
    assert len(report_page(reported(records))) < MOST_HOSTILE_BYTES


# --- where it is written


def test_the_page_is_written_to_a_file_that_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = write_records(folder)
    monkeypatch.chdir(tmp_path)
    done = report("--run", f"{uri}/")
    assert (done.exit_code, done.stdout) == (0, "support-bot-report.html\n")
    assert Page((tmp_path / "support-bot-report.html").read_text()).sections == ALL
    assert not list(tmp_path.glob(".*"))


def test_an_existing_file_is_replaced_with_force_only(folder: Path, tmp_path: Path) -> None:
    uri, file = write_records(folder), tmp_path / "page.html"
    file.write_text("mine")
    done = report("--run", uri, "-o", file)
    assert (done.exit_code, file.read_text()) == (1, "mine")
    assert "page.html exists already." in done.stderr
    assert "--force" in done.stderr
    assert report("--run", uri, "-o", file, "--force").exit_code == 0
    assert file.read_text().lstrip().startswith("<!doctype html>")


def test_a_file_that_cannot_be_written_is_an_error(folder: Path, tmp_path: Path) -> None:
    done = report("--run", write_records(folder), "-o", tmp_path / "none" / "page.html")
    assert done.exit_code == 1
    assert "No such file or directory" in done.stderr


def test_nothing_is_written_if_the_run_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    done = report("--run", f"file://{folder}", "-o", tmp_path / "page.html")
    assert done.exit_code == 1
    assert f"There is no run folder at file://{folder}." in done.stderr
    assert not list(tmp_path.iterdir())


# --- errors


@pytest.mark.parametrize("arguments", [[], ["a", "--run", "gs://b/c"], ["--run", "x"], ["--run", "gs://b"]])
def test_wrong_arguments_have_exit_code_2(arguments: list[str]) -> None:
    done = report(*arguments)
    assert done.exit_code == 2
    assert "Traceback" not in done.output


async def test_a_job_that_does_not_exist_has_similar_names_and_the_way_for_deleted_ones(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", {"metadata": {"name": "support-bot"}, "spec": {}})
    with pytest.raises(CliError, match='no FineTuneJob "suport-bot"') as error:
        await run_records("suport-bot", connection, SharedStore())
    assert error.value.fix == (
        "Did you mean support-bot? The run folder of a deleted job is still there: give it with --run URI."
    )


def test_a_store_that_refuses_is_explained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(SharedStore):
        async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
            raise StorageDenied(uri, "403")

    monkeypatch.setattr("finetune_operator.cli.connect.store.caller_store", Refusing)
    done = report("--run", f"file://{folder}", "-o", "-")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be read: 403" in done.stderr


def test_ctrl_c_leaves_no_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    uri = write_records(folder)
    monkeypatch.setattr("finetune_operator.cli.results.report.report_page", interrupted)
    done = report("--run", uri, "-o", tmp_path / "page.html")
    assert done.exit_code == 130
    assert list(tmp_path.iterdir()) == [folder]
