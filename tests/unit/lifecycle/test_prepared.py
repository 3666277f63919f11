"""What the status tells of data that were prepared before."""

from typing import Any

from finetune_contract import BenchmarkReport, DataCacheUse, DatasetReport, ModelIdentity, PreflightOutcome
from finetune_operator.lifecycle.conditions import data_found
from finetune_operator.lifecycle.data_cache import data_cache
from finetune_operator.lifecycle.resolved import dataset_status, resolved_status
from finetune_operator.planning import Findings, admit
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
        source="gs://m", revision="1", architecture="A", parameters=1, maxtext_model="m", layout="l"
    )
    return PreflightOutcome(
        model=model, train=list(reports) or [report()], steps=1, fingerprint="f", fingerprint_inputs={},
        report="gs://r/data.html", **fields,
    )  # fmt: skip


def test_a_stage_hits_only_where_every_source_was_there() -> None:
    assert data_cache(found()) is None
    assert data_cache(found(prepared=[HIT])) == {
        "result": "Hit", "fingerprint": "f1", "sourceURI": "gs://c/1", "sizeBytes": 10, "savedSeconds": "2.5",
    }  # fmt: skip
    told = data_cache(found(prepared=[HIT, MISS]))
    assert told is not None
    assert (told["result"], told["fingerprint"], told["sizeBytes"]) == ("Miss", "f2", 15)
    assert told["missBecause"] == [
        "spec.datasets.train[1]: maxSeqLength: 128 -> 64", "spec.datasets.train[1]: tokenizer: a -> b",
    ]  # fmt: skip


def test_the_condition_says_what_was_read_and_the_first_thing_worth_a_look() -> None:
    assert data_found(found()) == "10 training rows with 100 tokens were read and checked."
    told = data_found(found(report(), report(), warnings=["faq: 3 rows stand in chats, too.", "more"]))
    assert told == (
        "20 training rows of 2 sources with 200 tokens were read and checked. faq: 3 rows stand in chats, too."
    )
    assert data_found(found(report(checked="Sample"))).startswith("The first 10 training rows")
    assert "no row was read" in data_found(found(report(checked="Off", rows=0, tokens=0, format="")))


def test_what_is_evaluated_on_is_told_like_what_is_trained_on() -> None:
    benchmark = BenchmarkReport(path="p", name="mmlu_anatomy", uri="hf://d", revision="abc", rows=135)
    plan = admit(job(), [profile()]).plan
    faq = report(name="faq")
    told = resolved_status(plan, Findings(preflight=found(evaluation=[faq], benchmarks=[benchmark])))
    assert [each["name"] for each in told["datasets"]] == ["chats", "faq"]
    assert told["benchmarks"] == [{"name": "mmlu_anatomy", "revision": "abc", "rows": 135}]
    assert "benchmarks" not in resolved_status(plan, Findings(preflight=found()))


def test_only_what_was_counted_is_told_as_a_count() -> None:
    told = dataset_status(report(weight=2.0, sequences=5, epoch_sequences=7, truncated_rows=1), "gs://r")
    assert (told["rows"], told["truncatedPercent"], told["sequences"], told["epochSequences"]) == (
        10,
        "10",
        5,
        7,
    )
    assert "rows" not in dataset_status(report(checked="Sample"), "gs://r")
    assert "format" not in dataset_status(report(checked="Off", format=""), "gs://r")
    of_messages = dataset_status(report(format="PromptCompletion of messages"), "gs://r")
    assert of_messages["format"] == "PromptCompletion"
