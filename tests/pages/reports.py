"""Reports under test: of jobs in several states, of a long run, and of hostile records."""

from dataclasses import replace
from typing import Any

from finetune_contract import EvaluatedRow, Stage
from finetune_operator.cli.results.report import report_page
from finetune_operator.results.records import AttemptRecords, RunRecords
from finetune_operator.results.report.build import report_of
from tests.pages.hostile import HOSTILE
from tests.unit.comparison.runs import FOLDER, progress, results, row, rows, run
from tests.unit.report.records import (
    NOW,
    data_report,
    export,
    failure,
    finished,
    finished_status,
    manifest,
    metrics,
    only,
    sample,
)

#: The contract's records cannot hold halves of surrogate pairs; objects of the API can.
_IN_RECORDS = [text for text in HOSTILE if "\ud800" not in text]
_FAILURE = {
    "class": "User",
    "reason": "DatasetSchemaMismatch",
    "stage": "Preflight",
    "attempt": 1,
    "message": 'spec.datasets.train[0], row 41: role "bot" is not one of system, user, assistant, tool.',
    "suggestion": "Map it: roleMap: {bot: assistant}.",
    "evidence": 'Traceback (most recent call last):\n  File "data.py", line 7\nDataError: role "bot"',
    "logsURI": f"{FOLDER}/attempts/prep-1/log-tail.txt",
}
_GATES = [
    {"metric": "loss", "value": 1.5, "op": "LessOrEqual", "threshold": 1.4, "passed": False},
    {"metric": "faq/exact_match", "value": 0.7, "op": "GreaterOrEqual", "threshold": 0.6, "passed": True},
]


def page(records: RunRecords) -> str:
    return report_page(report_of(records, NOW))


def report_finished() -> str:
    """A job with everything: an interruption, gates, answers, files."""
    measured = rows(200, seed=1, gain=0.2, right=0.7)
    answered = [
        sample("How do I reset my password?", "I do not know.", "Open Settings, then Security, then Reset."),
        sample("Write a function.", "No.", "def add(a: int, b: int) -> int:\n    return a + b\n"),
        sample("Can I return it?", "Yes, within 14 days.", "Yes, within 30 days, with the receipt."),
    ]
    done = run(
        measured=measured,
        evaluation=results(measured, gates=_GATES),
        samples=answered,
        run_folder=FOLDER,
        status=finished_status(summary="Succeeded in 25 min: loss 2.30 before, 1.80 after."),
        metadata={
            "uid": "0b5e3a52-8f6c-4d0e-9d58-0c7d8a4f9a11",
            "labels": {"team": "nlp", "cost-center": "4711"},
        },
        spec={"model": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}}, "method": {"type": "SFT"}},
    )
    return page(finished(run=done))


def report_running() -> str:
    stages = [
        {"name": "Preflight", "phase": "Succeeded", "startTime": "2026-11-20T12:40:00Z",
         "completionTime": "2026-11-20T12:44:00Z"},
        {"name": "Train", "phase": "Running", "jobSet": "support-bot-train-1", "startTime": "2026-11-20T12:45:00Z"},
    ]  # fmt: skip
    status = finished_status(
        phase="Running", stages=stages, startTime="2026-11-20T12:39:00Z", completionTime=None, attempts=None,
        checkpoints=None, summary="Training: step 120 of 600, loss 2.1, 8-10 min left.",
    )  # fmt: skip
    live = run(status=status, evaluation=None, progress=progress(120), run_folder=FOLDER)
    return page(replace(live, metrics=metrics(120), data=data_report()))


def report_queued() -> str:
    waiting = {
        "reason": "WaitingForQuota",
        "since": "2026-11-20T12:40:00Z",
        "message": "insufficient unused quota for google.com/tpu in flavor spot, 4 more needed.",
    }
    status = {"phase": "Queued", "summary": "Waiting for quota of queue team-tpu.", "waiting": waiting}
    return page(only(status=status))


def report_failed() -> str:
    return page(only(status={"phase": "Failed", "summary": "Failed in Preflight.", "failure": _FAILURE}))


def report_long() -> str:
    """A diverging run of 20,000 steps with 64 attempts, thousands of files and unreadable records."""
    losses = metrics(20_000)
    values = losses.column("loss").values
    for step in range(15_000, 20_000, 3):
        values[step] = float("nan") if step % 2 else 1e300
    interrupted = [
        AttemptRecords(
            stage=Stage.TRAIN,
            number=1,
            restart=number,
            failure=failure(message="The node was reclaimed. " * 20),
        )
        for number in range(64)
    ]
    return page(
        finished(
            metrics=losses,
            attempts=interrupted,
            manifests={"model": manifest(2000, digest="c" * 64)},
            unreadable=[f"{FOLDER}/evaluate/rows.jsonl is not read: it has more than 500,000 lines."],
        )
    )


def report_hostile() -> str:
    """Every text that a tenant writes is hostile."""
    every = " ".join(HOSTILE)
    document: dict[str, Any] = dict.fromkeys(
        ("class", "reason", "stage", "message", "suggestion", "evidence", "logsURI"), every
    )
    status = finished_status(
        phase=every, summary=every, failure=document, waiting={"reason": every, "message": every},
        resolved={"resources": {text: text for text in HOSTILE} | {"tpu": every}},
    )  # fmt: skip
    measured = [row_of(number, text) for text in _IN_RECORDS for number in range(2)]
    records = finished(
        run=run(
            every,
            measured,
            evaluation=None,
            namespace=every,
            run_folder=f"gs://artifacts/{every}",
            samples=[sample(text, text, f"{text} and {text}") for text in _IN_RECORDS],
            status=status,
            spec={text: [text] for text in HOSTILE},
            metadata={"uid": every, "labels": {text: text for text in HOSTILE}},
        ),
        data=data_report(
            remarks=[{"level": "Note", "text": text} for text in _IN_RECORDS],
            samples=[
                {
                    "dataset": text,
                    "row": text,
                    "tokens": 2,
                    "trained": 1,
                    "pieces": [[True, text], [False, text]],
                }
                for text in HOSTILE
            ],
        ),
        export=export(name=" ".join(_IN_RECORDS)[:900]),
        unreadable=list(HOSTILE),
    )
    return page(records)


def row_of(number: int, text: str) -> EvaluatedRow:
    score = {text[:64]: float(number)}
    return row(f"{number} {text!a}", kind="Dataset", name=text, scores=score, base_scores=score)
