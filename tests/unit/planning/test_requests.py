"""Stage requests with the results of earlier stages."""

from typing import Any

import pytest

from finetune_contract import DatasetReport, ModelIdentity, PreflightOutcome, Stage, StageRequest
from finetune_operator.planning import Findings, admit, stage_request
from tests.stage_outcomes import sizes
from tests.unit.lifecycle.world import job, profile

MODEL, WORDS, TRAIN, VALIDATION = (character * 40 for character in "abcd")
ON_HUB: dict[str, Any] = {
    "model": {
        "huggingFace": {"repo": "acme/tiny", "revision": "v1"},
        "tokenizer": {"huggingFace": {"repo": "acme/words"}},
    },
    "datasets": {
        "train": [{"huggingFace": {"repo": "acme/chats", "split": "train_sft"}}],
        "validation": [{"huggingFace": {"repo": "acme/chats", "split": "test_sft", "revision": "next"}}],
    },
}
ELSEWHERE: dict[str, Any] = {"model": {"uri": "gs://models/tiny", "tokenizer": {"uri": "gs://models/words"}}}


def report(kind: str, revision: str) -> DatasetReport:
    return DatasetReport(
        path=f"spec.datasets.{kind}[0]", name=f"{kind}-0", uri="…", revision=revision, format="Messages", rows=10,
        tokens=100, trained_tokens=50,
    )  # fmt: skip


FOUND = PreflightOutcome(
    model=ModelIdentity(
        source="acme/tiny", revision=MODEL, tokenizer_revision=WORDS, architecture="Qwen3ForCausalLM",
        parameters=1, maxtext_model="qwen3-0.6b", layout="scanned/float32", sizes=sizes(1),
    ),
    train=[report("train", TRAIN)], validation=[report("validation", VALIDATION)], steps=10,
    max_seq_length=512, row_width=512, fingerprint="f", fingerprint_inputs={}, report="gs://a/report.json",
)  # fmt: skip


def request(stage: Stage, spec: dict[str, Any], found: PreflightOutcome | None = FOUND) -> StageRequest:
    return stage_request(admit(job(**spec), [profile()]).plan, stage, 1, Findings(preflight=found))


def revisions(request: StageRequest) -> list[str]:
    sources = [request.model, request.model.tokenizer, *request.data.train, *request.data.validation]
    return [source.hugging_face.revision for source in sources if source and source.hugging_face]


def test_preflights_request_has_the_branches_and_tags_of_the_spec() -> None:
    assert revisions(request(Stage.PREFLIGHT, ON_HUB, None)) == ["v1", "main", "main", "next"]


@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN, Stage.EVALUATE, Stage.EXPORT])
def test_later_requests_have_the_commits_that_preflight_resolved(stage: Stage) -> None:
    received = request(stage, ON_HUB)
    assert revisions(received) == [MODEL, WORDS, TRAIN, VALIDATION]
    assert [source.split for source in (*received.data.train, *received.data.validation)] == [
        "train_sft",
        "test_sft",
    ]


@pytest.mark.parametrize("stage", [Stage.CONVERT, Stage.TRAIN, Stage.EVALUATE, Stage.EXPORT])
def test_later_requests_have_the_digests_of_folders_and_files(stage: Stage) -> None:
    found = FOUND.model_copy(
        update={"model": FOUND.model.model_copy(update={"tokenizer_revision": None}), "validation": []}
    )
    first, received = request(Stage.PREFLIGHT, ELSEWHERE, None), request(stage, ELSEWHERE, found)
    assert received.model == first.model.model_copy(update={"digest": MODEL})
    assert received.data.train == [first.data.train[0].model_copy(update={"digest": TRAIN})]
    assert received.data.validation == first.data.validation


@pytest.mark.parametrize("own", [False, True], ids=["beside the weights", "in a folder of its own"])
def test_later_requests_have_the_tokenizer_of_a_folder(own: bool) -> None:
    spec: dict[str, Any] = {"model": {"uri": "gs://models/tiny"}}
    received = request(Stage.TRAIN, ELSEWHERE if own else spec).model
    assert received.tokenizer_digest == (None if own else WORDS)
    assert (received.tokenizer.tokenizer_digest if received.tokenizer else None) == (WORDS if own else None)


@pytest.mark.parametrize(
    ("own", "length", "requested"),
    [({}, 1024, False), ({"maxSeqLength": 4096}, 4096, True), ({"maxSeqLength": 1024}, 1024, True)],
    ids=["default", "the job's", "the job's, equal to the default"],
)
def test_requests_say_whether_the_job_sets_the_sequence_length(
    own: dict[str, Any], length: int, requested: bool
) -> None:
    spec = {"datasets": {"train": [{"uri": "gs://data/chat.jsonl"}], **own}}
    plan = admit(job(**spec), [profile()]).plan
    data = stage_request(plan, Stage.PREFLIGHT, 1, Findings()).data
    assert (data.max_seq_length, data.max_seq_length_explicit) == (length, requested)
