"""How the status reports data that was prepared before."""

from typing import Any

from finetune_contract import BenchmarkReport, DataCacheUse, DatasetReport, ModelIdentity, PreflightOutcome
from finetune_operator.lifecycle.status.conditions import data_found
from finetune_operator.lifecycle.status.resolved import dataset_status, resolved_status
from finetune_operator.lifecycle.status.stage_status import data_cache
from finetune_operator.planning import Findings, admit
from tests.stage_outcomes import sizes
from tests.unit.lifecycle.world import job, profile

HIT = DataCacheUse(
    path="spec.datasets.train[0]",
    result="Hit",
    fingerprint="f1",
    uri="gs://c/1",
    size_bytes=10,
    saved_seconds=2.5,
)
MISS = DataCacheUse(
    path="spec.datasets.train[1]", result="Miss", fingerprint="f2", uri="gs://c/2", size_bytes=5,
    miss_because=["maxSeqLength: 128 -> 64", "tokenizer: a -> b"],
)  # fmt: skip


def report(**fields: Any) -> DatasetReport:
    base = {"path": "p", "name": "chats", "uri": "gs://d", "revision": "r", "format": "Messages", "rows": 10}
    return DatasetReport.model_validate({**base, "tokens": 100, "trained_tokens": 50, **fields})


def found(*reports: DatasetReport, **fields: Any) -> PreflightOutcome:
    model = ModelIdentity(
        source="gs://m", revision="1", architecture="A", parameters=1, maxtext_model="m", layout="l",
        sizes=sizes(1),
    )  # fmt: skip
    return PreflightOutcome(
        model=model, train=list(reports) or [report()], steps=1, max_seq_length=512, row_width=512,
        fingerprint="f", fingerprint_inputs={},
        report="gs://r/data.html", **fields,
    )  # fmt: skip


def test_a_stage_is_a_hit_only_if_every_source_was_prepared() -> None:
    assert data_cache(found()) is None
    hit = data_cache(found(prepared=[HIT]))
    assert hit is not None
    assert hit.to_document() == {
        "result": "Hit", "fingerprint": "f1", "sourceURI": "gs://c/1", "sizeBytes": 10, "savedSeconds": "2.5",
    }  # fmt: skip
    reported = data_cache(found(prepared=[HIT, MISS]))
    assert reported is not None
    assert (reported.result, reported.fingerprint, reported.size_bytes) == ("Miss", "f2", 15)
    assert reported.miss_because == (
        "spec.datasets.train[1]: maxSeqLength: 128 -> 64", "spec.datasets.train[1]: tokenizer: a -> b",
    )  # fmt: skip


def test_the_condition_reports_the_data_and_the_first_warning() -> None:
    assert data_found(found()) == "10 training rows with 100 tokens were read and checked."
    reported = data_found(found(report(), report(), warnings=["faq: 3 rows stand in chats, too.", "more"]))
    assert reported == (
        "20 training rows of 2 sources with 200 tokens were read and checked. faq: 3 rows stand in chats, too."
    )
    assert data_found(found(report(checked="Sample"))).startswith("The first 10 training rows")
    assert "no row was read" in data_found(found(report(checked="Off", rows=0, tokens=0, format="")))


def test_evaluation_data_is_reported_like_training_data() -> None:
    benchmark = BenchmarkReport(path="p", name="mmlu_anatomy", uri="hf://d", revision="abc", rows=135)
    plan = admit(job(), [profile()]).plan
    faq = report(name="faq")
    findings = Findings(preflight=found(evaluation=[faq], benchmarks=[benchmark]))
    reported = resolved_status(plan, findings)
    assert [each.name for each in reported.datasets or ()] == ["chats", "faq"]
    benchmarks = [each.to_document() for each in reported.benchmarks or ()]
    assert benchmarks == [{"name": "mmlu_anatomy", "revision": "abc", "rows": 135}]
    assert resolved_status(plan, Findings(preflight=found())).benchmarks is None


def test_only_counted_values_are_reported_as_counts() -> None:
    reported = dataset_status(report(weight=2.0, sequences=5, epoch_sequences=7, truncated_rows=1), "gs://r")
    assert (reported.rows, reported.truncated_percent, reported.sequences, reported.epoch_sequences) == (
        10,
        "10",
        5,
        7,
    )
    assert dataset_status(report(checked="Sample"), "gs://r").rows is None
    assert dataset_status(report(checked="Off", format=""), "gs://r").format is None
    of_messages = dataset_status(report(format="PromptCompletion of messages"), "gs://r")
    assert of_messages.format == "PromptCompletion"
