"""``finetune compare``: what it reads, what it prints, and its errors."""

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel
from rich.console import Console
from typer.testing import CliRunner, Result

from finetune_contract import EvaluatedRow, RunFolder
from finetune_operator.artifacts.port import RECORD_LIMIT, StorageDenied
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cli.commands import app
from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results.compare import comparison_of, records_of
from finetune_operator.cli.results.compare_text import print_comparison
from finetune_operator.cli.results.run_folder import run_records
from finetune_operator.results.records import RunRecords
from tests import snapshots
from tests.unit.cli.fake_api import FakeApi
from tests.unit.comparison.runs import preflight, progress, request, results, row, rows, samples, status
from tests.unit.report.records import metrics_content

ROOT = Path(__file__).parents[3]
PAGES = Path(__file__).parent / "comparisons"
ESCAPE = "\x1b[31m\u202e\x9b31m"


def written(folder: Path, measured: Sequence[EvaluatedRow] = (), **records: Any) -> str:
    """Writes the records of a run; returns the folder's URI.

    Args:
        folder: the run folder.
        measured: the evaluated rows.
        records: further records by the name of their place in :class:`RunFolder`; None for none.
    """
    layout = RunFolder(f"file://{folder}")
    given: dict[str, Any] = {
        "preflight_report": preflight(),
        "progress": progress(),
        "evaluation_results": results(measured) if measured and "evaluation_results" not in records else None,
        "evaluation_rows": list(measured) or None,
        "evaluation_samples": None,
        "request": request(),
        "status": recorded(folder.name),
    } | records
    for name, record in given.items():
        uri = layout.request("eval", 1) if name == "request" else getattr(layout, name)
        path = Path(uri.removeprefix("file://"))
        if record is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content(record))
    (folder / "attempts" / "eval-1" / "result.json").write_text("{}") if given["request"] else None
    return layout.uri


def recorded(name: str, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """The operator's record of a job that has ended."""
    return {
        "written": "2026-11-20T12:26:00Z",
        "job": {
            "metadata": {"name": name, "namespace": "team-a", "uid": "0b5e3a52"},
            "spec": {},
            "status": status() if state is None else state,
        },
    }


def content(record: Any) -> bytes:
    match record:
        case bytes():
            return record
        case BaseModel():
            return str(record.to_json()).encode()  # type: ignore[attr-defined]
        case list():
            return b"".join(each.to_json().encode() + b"\n" for each in record)
    return json.dumps(record).encode()


def compare(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


async def read(uri: str) -> RunRecords:
    return await run_records(uri, None, SharedStore())


def page(runs: Sequence[RunRecords], *, width: int | None = None, color: bool = False) -> str:
    """The printed page: in a pipe, or on a terminal of ``width`` columns."""
    console = Console(
        file=io.StringIO(),
        force_terminal=width is not None,
        width=width,
        color_system="standard" if color else None,
    )
    print_comparison(comparison_of(runs, common=False, samples=2), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """URIs of three runs: the second is better, the third no different."""
    answers = [
        ("Open Settings and choose Security.", "Yes.", "Within 14 days."),
        ("Open Settings, then Security, then Reset.", "Yes.", "Within 30 days, with the receipt."),
        ("Open Settings and choose Security.", "No.", "Within 14 days."),
    ]
    slower = status(cost={"chipHours": "1.9", "amount": "5.13"}, activeTime={"seconds": 1800})
    return [
        written(tmp_path / "support-bot", rows(200, seed=1), evaluation_samples=samples(*answers[0])),
        written(
            tmp_path / "support-bot-2",
            rows(200, seed=2, gain=0.1, right=0.8),
            evaluation_samples=samples(*answers[1]),
            request=request(hyperparameters__learning_rate=1e-4, method__lora__rank=32),
            status=recorded("support-bot-2", slower),
        ),
        written(
            tmp_path / "support-bot-3",
            rows(200, seed=3, right=0.52),
            evaluation_samples=samples(*answers[2]),
            request=request(hyperparameters__seed=7),
        ),
    ]


# --- what is printed


def test_two_runs_as_text(three: list[str]) -> None:
    done = compare(*three[:2])
    assert done.exit_code == 0, done.output
    snapshots.check(PAGES / "two.txt", done.stdout)


def test_three_runs_as_text(three: list[str]) -> None:
    done = compare(*three, "--samples", 1)
    assert done.exit_code == 0, done.output
    snapshots.check(PAGES / "three.txt", done.stdout)


def test_two_runs_as_json(three: list[str], tmp_path: Path) -> None:
    done = compare(*three[:2], "-o", "json")
    assert done.exit_code == 0, done.output
    snapshots.check(PAGES / "two.json", done.stdout.replace(str(tmp_path), "/runs"))
    schema = json.loads((ROOT / "docs" / "reference" / "comparison.schema.json").read_text())
    jsonschema.validate(json.loads(done.stdout), schema)


async def test_a_terminal_of_40_columns(three: list[str]) -> None:
    runs = [await read(uri) for uri in three[:2]]
    text = page(runs, width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert not any(line.endswith(" ") for line in text.splitlines())
    snapshots.check(PAGES / "narrow.txt", text)


async def test_a_terminal_with_colors_needs_no_markers(three: list[str]) -> None:
    runs = [await read(uri) for uri in three[:2]]
    assert "{+30 days, with the receipt.+}" in page(runs, width=200)
    colored = page(runs, width=200, color=True)
    assert "{+" not in colored
    assert "-]" not in colored
    assert "\x1b[32m30 days, with the receipt." in colored


def test_the_output_is_the_same_each_time(three: list[str]) -> None:
    assert compare(*three).stdout == compare(*three).stdout


def test_step_times_and_throughput_are_compared(tmp_path: Path) -> None:
    resources = {"tpu": "v6e-4", "chips": 4}
    shown = recorded("run", status(resolved={"resources": resources}))
    fast = progress().model_copy(update={"mfu": 0.4})
    runs = [
        written(tmp_path / "a", metrics=metrics_content(20), progress=fast, status=shown),
        written(tmp_path / "b", metrics=metrics_content(20, seconds=0.25), status=shown),
        written(tmp_path / "c", status=shown),
    ]
    done = compare(*runs)
    assert "step time (p50, p95): A 500 ms, 500 ms, B 250 ms, 250 ms, C unknown\n" in done.stdout
    assert "trained tokens per second per chip: A 500, B 1,000, C unknown\n" in done.stdout
    assert "MFU of the last steps: A 40 %, B unknown, C unknown\n" in done.stdout
    found = json.loads(compare(*runs, "-o", "json").stdout)["jobs"][1]["throughput"]
    assert (found["medianStepSeconds"], found["tokensPerSecondPerChip"]) == (0.25, 1000)


def test_a_run_is_identical_to_its_copy(three: list[str], tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "support-bot", tmp_path / "copy")
    done = compare(three[0], f"file://{tmp_path}/copy")
    assert "+0.0000 [+0.0000, +0.0000]  identical to A on each of the 200 rows" in done.stdout
    assert "Configuration and data: what differs\nnothing" in done.stdout


def test_values_that_are_not_finite_are_valid_json(tmp_path: Path) -> None:
    diverged = [row(at, float("nan"), base=20.0) for at in range(12)]
    first = written(tmp_path / "a", [row(at, 10.0, base=20.0) for at in range(12)])
    second = written(tmp_path / "b", diverged, progress=progress(loss=float("inf")))
    done = compare(first, second, "-o", "json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    jsonschema.validate(
        found, json.loads((ROOT / "docs" / "reference" / "comparison.schema.json").read_text())
    )
    assert found["metrics"][0]["values"][1]["value"] == "NaN"
    assert found["jobs"][1]["trainingLoss"] == "Infinity"
    assert "not comparable with A (12 values are not a finite number)" in compare(first, second).stdout


# --- what is read


@pytest.mark.parametrize("again", ["", "/"])
def test_one_run_folder_is_not_compared_with_itself(three: list[str], again: str) -> None:
    done = compare(three[0], three[1], f"{three[0]}{again}")
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"support-bot is named twice: {three[0]}." in done.stderr


@pytest.mark.parametrize(
    "order", [("first", "second"), ("second", "first"), ("first", "uri"), ("uri", "second")]
)
async def test_a_job_is_not_compared_with_its_continuation(
    three: list[str], api: FakeApi, connection: Connection, order: tuple[str, str], tmp_path: Path
) -> None:
    resumes = {"resumeFrom": {"runFolder": three[0]}}
    specs: dict[str, dict[str, Any]] = {"first": {}, "second": resumes}
    for name, spec in specs.items():
        live = {
            "apiVersion": "tpu-finetune.dev/v1alpha1",
            "kind": "FineTuneJob",
            "metadata": {"name": name, "namespace": "team-a"},
            "spec": spec,
            "status": status(resolved={"runFolder": f"{three[0]}/"}),
        }
        await api.put("finetunejobs", live)
    names = (
        ["first", "second"] if "uri" not in order else [{"uri": three[0]}.get(each, each) for each in order]
    )
    with pytest.raises(CliError) as refused:
        await records_of(names, connection, SharedStore())
    assert three[0] in refused.value.message
    if "uri" not in order:
        assert refused.value.message.startswith(
            "second continues the run folder of first, whose records it replaces"
        )


async def test_jobs_and_run_folders_are_mixed(
    three: list[str], api: FakeApi, connection: Connection, tmp_path: Path
) -> None:
    live = {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "live", "namespace": "team-a"},
        "spec": {},
        "status": status(phase="Running", resolved={"runFolder": three[1]}),
    }
    await api.put("finetunejobs", live)
    found = [await run_records(name, connection, SharedStore()) for name in ("live", three[0])]
    assert [(each.name, each.live, each.status["phase"]) for each in found] == [
        ("live", True, "Running"),
        ("support-bot", False, "Succeeded"),
    ]
    assert len(found[0].rows) == 400


async def test_a_job_without_a_run_folder_has_no_records(api: FakeApi, connection: Connection) -> None:
    await api.put("finetunejobs", {"metadata": {"name": "new"}, "spec": {}})
    found = await run_records("new", connection, SharedStore())
    assert (found.name, found.run_folder, found.evaluated) == ("new", None, False)


async def test_a_job_that_does_not_exist_has_similar_names_and_the_way_for_deleted_ones(
    api: FakeApi, connection: Connection
) -> None:
    await api.put("finetunejobs", {"metadata": {"name": "support-bot"}, "spec": {}})
    with pytest.raises(CliError, match='no FineTuneJob "suport-bot"') as error:
        await records_of(["suport-bot"], connection, SharedStore())
    assert error.value.fix.startswith("Did you mean support-bot? A deleted job is compared by the URI")


async def test_the_settings_are_those_of_the_evaluation_that_has_a_result(tmp_path: Path) -> None:
    uri = written(tmp_path / "run", rows(12, seed=1))
    for attempt, tokens in (("eval-2", 64), ("export-1", 32), ("train-3.1", 16), ("eval-x", 8)):
        place = tmp_path / "run" / "attempts" / attempt
        place.mkdir(parents=True)
        (place / "request.json").write_text(request(evaluation__max_new_tokens=tokens).to_json())
    found = await read(uri)
    assert found.request is not None
    assert found.request.evaluation.max_new_tokens == 128
    (tmp_path / "run" / "attempts" / "eval-2" / "result.json").write_text("{}")
    found = await read(uri)
    assert found.request is not None
    assert found.request.evaluation.max_new_tokens == 64


@pytest.mark.parametrize(
    ("name", "record", "problem"),
    [
        ("evaluation_results", b"garbage", "results.json is not a valid record: the document: Invalid JSON"),
        ("evaluation_results", b'{"kind": "Train"}', "results.json is not a valid record: kind: Input should be"),
        ("evaluation_results", b" " * (RECORD_LIMIT + 1), "results.json is not read: the file is larger than"),
        ("preflight_report", b"[]", "report.json is not a valid record"),
        ("progress", b"{}", "progress.json is not a valid record: attempt: Field required"),
        ("request", b"\xff", "request.json is not a valid record"),
        ("status", b"[" * 100_000, "status.json is not the record of a job"),
        ("status", b'{"job": []}', "status.json is not the record of a job"),
        ("status", b'{"job": {"metadata": {"name": "\\ud800"}}}', "status.json is not the record of a job"),
        ("evaluation_samples", b"x\n" * 3, "samples.jsonl: lines that are not valid records are left out: 3 (line 1: "),
        ("evaluation_rows", row(1, 1.0).to_json().encode() + b"\nx\n{}\n",
         "rows.jsonl: lines that are not valid records are left out: 2 (line 2: Invalid JSON"),
        ("evaluation_rows", b"\n" * 500_001, "rows.jsonl is not read: it has more than 500,000 lines"),
    ],
)  # fmt: skip
async def test_an_unreadable_record_is_reported_and_left_out(
    tmp_path: Path, name: str, record: bytes, problem: str
) -> None:
    found = await read(written(tmp_path / "run", rows(12, seed=1), **{name: record}))
    assert [problem in each for each in found.unreadable] == [True]
    assert found.name == "run"


def test_rows_that_are_all_garbage_are_an_error(tmp_path: Path) -> None:
    uri = written(tmp_path / "run", rows(12, seed=1), evaluation_rows=b"garbage\n{}\n")
    done = compare(uri, uri)
    assert done.exit_code == 1
    assert "none of its 2 lines is a valid record (line 1: Invalid JSON" in done.stderr
    assert "Traceback" not in done.output


async def test_a_linked_file_is_not_followed(tmp_path: Path) -> None:
    uri = written(tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_text(row(1, 1.0).to_json())
    place = tmp_path / "run" / "evaluate" / "rows.jsonl"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(secret)
    assert not (await read(uri)).rows


# --- errors


def test_a_folder_without_records_is_no_run_folder(tmp_path: Path, three: list[str]) -> None:
    done = compare(three[0], f"file://{tmp_path}/none")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: There is no run folder at file://{tmp_path}/none.\nFix:   ")


def test_a_run_of_which_there_is_one_record_is_compared(tmp_path: Path, three: list[str]) -> None:
    nothing = dict.fromkeys(("preflight_report", "request", "status"))
    done = compare(three[0], written(tmp_path / "old", **nothing))
    assert done.exit_code == 0, done.output
    assert "B  old: no status" in done.stdout
    assert "B has no evaluation" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["only-one"], "takes 2 to 10 jobs or run folders, got 1"),
        (["a"] * 11, "takes 2 to 10 jobs or run folders, got 11"),
        (["https://host/run", "b"], "is not the URI of a run folder"),
        (["gs://bucket", "b"], "is not the URI of a run folder"),
        (["file://relative", "b"], "is not the URI of a run folder"),
        (["a", "b", "--samples", "-1"], "greater than or equal to 0"),
        (["a", "b", "-o", "yaml"], "is not one of"),
    ],
)
def test_wrong_arguments_have_exit_code_2(arguments: list[str], message: str) -> None:
    done = compare(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


def test_different_rows_are_refused_and_common_ones_compared(tmp_path: Path) -> None:
    first = written(tmp_path / "a", rows(20, seed=1))
    second = written(tmp_path / "b", rows(21, seed=2))
    done = compare(first, second)
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "Error: The evaluations measure different rows: Validation validation-0: 20 in all, "
    )
    assert "Fix:   --common compares the 40 rows that all have." in done.stderr
    done = compare(first, second, "--common")
    assert done.exit_code == 0
    assert "Only the 40 rows that all have are compared; rows left out: 2 of B." in done.stdout


async def test_a_store_that_refuses_is_an_error(three: list[str]) -> None:
    class Denied(SharedStore):
        async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
            raise StorageDenied(uri, "no role")

    with pytest.raises(CliError, match=r"file://.* cannot be read: no role") as error:
        await run_records(three[0], None, Denied())
    assert "as a user that may read this folder" in error.value.fix


def test_without_a_cluster_a_name_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, three: list[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = compare("some-job", three[0])
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    assert compare(*three[:2]).exit_code == 0, "URIs need no cluster"


def test_ctrl_c_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, three: list[str]) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("finetune_operator.cli.results.compare.compared", interrupted)
    done = compare(*three[:2])
    assert (done.exit_code, done.output) == (130, "")


def test_control_characters_of_records_do_not_reach_the_terminal(tmp_path: Path) -> None:
    name = f"faq{ESCAPE}"
    hostile = [
        row(at, kind="Dataset", name=name, scores={f"m{ESCAPE}": float(at % 2)}, base_scores={})
        for at in range(12)
    ]
    found = []
    for label in ("a", "b"):
        answers = samples(f"{label}{ESCAPE} x", prompt=f"p{ESCAPE}")
        shown = status(phase=f"P{ESCAPE}", resolved={"resources": {f"tpu{ESCAPE}": f"{label}{ESCAPE}"}})
        found.append(
            written(
                tmp_path / label,
                hostile,
                evaluation_results=None,
                evaluation_samples=[each.model_copy(update={"dataset": name}) for each in answers],
                status=recorded(f"{label}{ESCAPE}", shown),
                request=request(hyperparameters__seed=1 if label == "a" else 2),
            )
        )
    for output in ("text", "json"):
        done = compare(*found, "-o", output)
        assert done.exit_code == 0, done.output
        assert all(each.isprintable() or each == "\n" for each in done.stdout)
    more = [*hostile, row("x", kind="Dataset", name=name, scores={})]
    with_more = written(tmp_path / "c", more, evaluation_results=None)
    refused = compare(found[0], with_more)
    assert refused.exit_code == 1
    assert all(each.isprintable() or each == "\n" for each in refused.stderr)
