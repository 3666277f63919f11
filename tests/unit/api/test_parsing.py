"""Stored objects become models, or an error with the path of what is wrong; nothing else happens."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_operator.api import (
    CachePolicy,
    FineTuneJobSpec,
    InvalidObject,
    MethodType,
    ProfileDefaults,
    field_paths,
    number_paths,
    parse_job,
    parse_merged,
    parse_profile,
)
from tests.unit.api.documents import JOB, PROFILE, job, profile


def test_a_minimal_job_is_read() -> None:
    parsed = parse_job(JOB)
    assert parsed.metadata.name == "support-bot"
    assert parsed.spec.model.hugging_face is not None
    assert parsed.spec.model.hugging_face.repo == "Qwen/Qwen3-0.6B"
    assert parsed.spec.method.type is MethodType.SFT
    assert parsed.spec.suspend is False


def test_what_the_user_left_out_is_none_so_that_a_profile_can_say_it() -> None:
    spec = parse_job(JOB).spec
    assert spec.hyperparameters is None
    assert spec.cache is None
    assert spec.datasets.shuffle is None
    assert spec.method.lora is not None
    assert spec.method.lora.alpha is None


def test_a_whole_number_may_be_written_as_a_float() -> None:
    hyperparameters = parse_job(job(hyperparameters={"epochs": 2.0})).spec.hyperparameters
    assert hyperparameters is not None
    assert hyperparameters.epochs == 2


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
@pytest.mark.parametrize("path", ["hyperparameters.seed", "method.type", "model.huggingFace.repo"])
def test_a_large_integer_is_shown_as_it_is_written(path: str, number: int) -> None:
    document = job()
    *above, last = path.split(".")
    section = document["spec"]
    for name in above:
        section = section.setdefault(name, {})
    section[last] = number
    with pytest.raises(InvalidObject) as raised:
        parse_job(document)
    assert str(number) in next(each.message for each in raised.value.faults if each.path == f"spec.{path}")


def test_documents_survive_the_models_unchanged() -> None:
    document = job(cache="Refresh", engineOverrides={"remat_policy": "full"}, suspend=True)
    spec = parse_job(document).spec
    assert spec.cache is CachePolicy.REFRESH
    defaulted = {"cancel": None, "planOnly": None}
    assert spec.to_document() | defaulted == document["spec"] | defaulted


def _train(**source: Any) -> dict[str, Any]:
    return {"train": [{"uri": "gs://team-a/a.jsonl"} | source]}


BAD_JOBS: list[tuple[dict[str, Any], str, str]] = [
    (job(modell={}), "spec.modell", "did you mean model?"),
    (job(plan_only=True), "spec.plan_only", "did you mean planOnly?"),
    (job(hyperparameters={"learningrate": "1"}), "spec.hyperparameters.learningrate", "learningRate"),
    (job(model=None), "spec.model", "required"),
    (job(datasets={}), "spec.datasets.train", "required"),
    (job(datasets={"train": []}), "spec.datasets.train", "must not be empty"),
    (job(datasets=_train(weight=0)), "spec.datasets.train[0].weight", "must be above 0"),
    (job(datasets=_train(weight="heavy")), "spec.datasets.train[0].weight", 'must be a number, not "heavy"'),
    (job(datasets=_train(roleMap={"bot": "robot"})), "spec.datasets.train[0].roleMap.bot", "assistant"),
    (job(datasets=_train(columns={"promt": "q"})), "spec.datasets.train[0].columns.promt", "prompt"),
    (
        job(hyperparameters={"epochs": "2"}),
        "spec.hyperparameters.epochs",
        '"2" is text; write 2 without quotes',
    ),
    (job(hyperparameters={"epochs": True}), "spec.hyperparameters.epochs", "integer"),
    (job(hyperparameters={"epochs": 1.5}), "spec.hyperparameters.epochs", "integer"),
    (job(hyperparameters={"epochs": 0}), "spec.hyperparameters.epochs", "1"),
    (job(hyperparameters={"epochs": 1, "steps": 1}), "spec.hyperparameters", "epochs or steps"),
    (job(hyperparameters={"epochs": None}), "spec.hyperparameters.epochs", "null"),
    (job(method={"type": "GRPO"}), "spec.method.type", "SFT"),
    (job(method={"type": "SFT", "dpo": {}}), "spec.method", "type: DPO"),
    (job(evaluation={"datasets": [{"name": "a", "uri": "gs://a/b"}] * 2}), "spec.evaluation.datasets", "'a'"),
    (job(suspend="false"), "spec.suspend", "boolean"),
    (JOB | {"kind": "Job"}, "kind", "FineTuneJob"),
    (JOB | {"metadata": {"name": "a" * 29}}, "metadata.name", "28"),
    (JOB | {"metadata": {"name": "1a"}}, "metadata.name", "begin with a letter"),
    (JOB | {"metadata": None}, "metadata", ""),
    ({}, "metadata", "required"),
]


@pytest.mark.parametrize(("document", "path", "said"), BAD_JOBS)
def test_a_bad_job_is_refused_with_the_path(document: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(InvalidObject) as caught:
        parse_job(document)
    faults = {fault.path: fault.message for fault in caught.value.faults}
    assert path in faults
    assert said in faults[path]


@pytest.mark.parametrize(
    ("document", "path", "fix"),
    [
        (job(evaluation={"benchmarks": ["mmlu"]}), "spec.evaluation.benchmarks[0]", "Write {name: mmlu}."),
        (job(evaluation={"benchmarks": ["a: b"]}), "spec.evaluation.benchmarks[0]", "Write {name: …}."),
        (job(model={"huggingFace": "Qwen/Qwen3-8B"}), "spec.model.huggingFace", "Write {repo: Qwen/Qwen3-8B}."),
        (job(model="Qwen/Qwen3-8B"), "spec.model", ""),
        (job(evaluation={"benchmarks": [3]}), "spec.evaluation.benchmarks[0]", ""),
    ],
)  # fmt: skip
def test_a_text_in_place_of_an_object_that_needs_one_text_is_refused_with_the_objects_form(
    document: dict[str, Any], path: str, fix: str
) -> None:
    with pytest.raises(InvalidObject) as caught:
        parse_job(document)
    assert {fault.path: fault.fix for fault in caught.value.faults} == {path: fix}


def test_a_list_whose_items_are_wrong_is_not_reported_as_empty() -> None:
    with pytest.raises(InvalidObject) as caught:
        parse_job(job(datasets={"train": [{"uri": "gs://bucket/a//b"}]}))
    assert [fault.path for fault in caught.value.faults] == ["spec.datasets.train[0].uri"]


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(InvalidObject) as caught:
        parse_job(job(modell={}, cache="Maybe", hyperparameters={"seed": -1}))
    assert {fault.path for fault in caught.value.faults} == {
        "spec.modell",
        "spec.cache",
        "spec.hyperparameters.seed",
    }
    assert caught.value.path == caught.value.faults[0].path


def test_a_profile_is_read_and_a_bad_one_refused() -> None:
    assert parse_profile(PROFILE).spec.flavors[0].name == "ondemand"
    with pytest.raises(InvalidObject, match="flavors"):
        parse_profile(profile(flavors=[]))
    with pytest.raises(InvalidObject, match="a priority needs a queue"):
        parse_profile(profile(queue={"priorityClass": "low"}))
    priced = PROFILE["spec"]["flavors"][0] | {"chipHourPrice": 1.20}
    with pytest.raises(InvalidObject, match="currency"):
        parse_profile(profile(flavors=[priced]))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("parse", [parse_job, parse_profile])
@given(spec=_json, metadata=_json)
def test_parsing_is_total(parse: Callable[[Any], object], spec: Any, metadata: Any) -> None:
    for document in (
        spec,
        {"metadata": metadata, "spec": spec},
        {**JOB, "spec": {**JOB["spec"], "model": spec}},
    ):
        with suppress(InvalidObject):
            parse(document)


def test_field_paths_are_what_a_profile_may_name() -> None:
    known = field_paths(FineTuneJobSpec)
    assert {"hyperparameters", "hyperparameters.epochs", "resources.controller", "datasets.train"} <= known
    assert "hyperparameters.epoch" not in known
    assert "datasets.train.weight" not in known, "there are as many as datasets"
    numbers = number_paths(FineTuneJobSpec)
    assert {"hyperparameters.epochs", "hyperparameters.learningRate", "datasets.maxSeqLength"} <= numbers
    assert not {"hyperparameters", "hyperparameters.optimizer", "resources.tpu", "suspend"} & numbers
    assert {path.partition(".")[0] for path in field_paths(ProfileDefaults)} == {
        "hyperparameters",
        "resources",
        "checkpointing",
        "recovery",
        "hangPolicy",
        "preflight",
        "evaluation",
        "export",
    }


# --- documents that consist of validated objects


def merged(**sections: Any) -> dict[str, Any]:
    return {**JOB["spec"], **sections}


def test_a_merged_document_may_violate_rules_between_fields() -> None:
    spec = parse_merged(FineTuneJobSpec, merged(hyperparameters={"epochs": 1, "steps": 2}))
    assert spec.hyperparameters is not None
    assert (spec.hyperparameters.epochs, spec.hyperparameters.steps) == (1, 2)


def test_a_merged_document_may_come_from_an_older_schema() -> None:
    given = {"learningRate": 2e-5, "steps": 10.0, "dropped": {"field": True}}
    spec = parse_merged(FineTuneJobSpec, merged(hyperparameters=given, former=None))
    assert spec.hyperparameters is not None
    assert (spec.hyperparameters.learning_rate, spec.hyperparameters.steps) == (2e-5, 10)


def test_a_fault_in_a_merged_document_has_its_path() -> None:
    with pytest.raises(InvalidObject) as caught:
        parse_merged(FineTuneJobSpec, merged(hyperparameters={"learningRate": "fast", "steps": "many"}))
    assert [fault.path for fault in caught.value.faults] == [
        "hyperparameters.steps",
        "hyperparameters.learningRate",
    ]
