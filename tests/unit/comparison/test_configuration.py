"""Settings that differ, by their path in the spec."""

from typing import Any

import pytest

from finetune_operator.results.comparison.configuration import setting_differences
from tests.unit.comparison.runs import preflight, request, run, status


def differences(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[str | None]]:
    found = setting_differences({"A": run(**first), "B": run(**second)})
    return {each.path: list(each.values.values()) for each in found}


@pytest.mark.parametrize(
    ("changes", "path", "values"),
    [
        ({"hyperparameters__learning_rate": 1e-4}, "hyperparameters.learningRate", ["0.0002", "0.0001"]),
        ({"data__max_seq_length": 2048}, "datasets.maxSeqLength", ["1024", "2048"]),
        ({"data__shuffle": False}, "datasets.shuffle", ["true", "false"]),
        ({"data__chat_template": "{{ x }}"}, "datasets.chatTemplate.inline", [None, "{{ x }}"]),
        ({"method__lora__rank": 8}, "method.lora.rank", ["16", "8"]),
        ({"evaluation__max_new_tokens": 64}, "evaluation.generation.maxNewTokens", ["128", "64"]),
        ({"evaluation__datasets": []}, "evaluation.datasets", None),
        ({"checkpointing__keep_last": 3}, "checkpointing.keep.last", ["2", "3"]),
        ({"engine_overrides": {"remat_policy": "full"}}, "engineOverrides.remat_policy", [None, "full"]),
        ({"tuning": {"remat_policy": "full"}}, "tuning.remat_policy", [None, "full"]),
        (
            {"model__hugging_face__revision": "main"},
            "model.huggingFace.revision",
            ["c1899de289a04d12100db370d81485cdf75e47ca", "main"],
        ),
    ],
)
def test_a_setting_is_named_by_its_path_in_the_spec(
    changes: dict[str, Any], path: str, values: list[str | None] | None
) -> None:
    found = differences({}, {"request": request(**changes)})
    assert all(each.startswith(path) for each in found)
    assert found
    if values is not None:
        assert found == {path: values}


def test_an_entry_of_a_list_is_named_by_its_name() -> None:
    train = [
        {"path": "spec.datasets.train[0]", "name": "chats", "uri": "gs://data/chats-2.jsonl"},
        {"path": "spec.datasets.train[1]", "name": "faq", "uri": "gs://data/faq.jsonl"},
    ]
    found = differences({}, {"request": request(data__train=train)})
    assert found == {
        "datasets.train[chats].uri": ["gs://data/chats.jsonl", "gs://data/chats-2.jsonl"],
        "datasets.train[faq].format": [None, "Auto"],
        "datasets.train[faq].name": [None, "faq"],
        "datasets.train[faq].split": [None, "train"],
        "datasets.train[faq].uri": [None, "gs://data/faq.jsonl"],
    }


def test_what_identifies_an_attempt_is_no_setting() -> None:
    other = request(
        job__uid="1", job__name="other", attempt=3, run_folder="gs://x/y", cache="gs://x/c", fingerprint="f",
        stage="Train", train_step=100, converted="gs://x/c/items", use_cache="Off",
    )  # fmt: skip
    assert differences({}, {"request": other}) == {}


def test_facts_of_data_and_slice_are_compared() -> None:
    slow = status(resolved={"resources": {"tpu": "v6e-4", "capacity": "OnDemand", "why": "no Spot"}})
    found = differences({}, {"preflight": preflight(rows=4700, dropped_rows=100), "status": slow})
    assert found == {
        "resolved.datasets.train[chats].rows": ["4800", "4700"],
        "resolved.datasets.train[chats].droppedRows": ["0", "100"],
        "resolved.resources.capacity": ["Spot", "OnDemand"],
    }


def test_facts_that_one_run_does_not_have_are_no_differences() -> None:
    assert differences({}, {"preflight": None, "status": {}}) == {}


def test_specs_are_compared_as_written_if_a_run_has_started_nothing() -> None:
    first = {
        "model": {"huggingFace": {"repo": "acme/m"}},
        "suspend": True,
        "cancel": True,
        "evaluation": {"prompts": ["a", "b"]},
    }
    second = {"model": {"huggingFace": {"repo": "acme/n"}}, "evaluation": {"prompts": ["a"]}}
    assert differences({"spec": first}, {"spec": second, "request": None}) == {
        "model.huggingFace.repo": ["acme/m", "acme/n"],
        "evaluation.prompts": ["a, b", "a"],
    }


def test_long_texts_that_end_differently_differ() -> None:
    template = "{{ messages }}" * 100
    found = differences(
        {"request": request(data__chat_template=f"{template}a")},
        {"request": request(data__chat_template=f"{template}b")},
    )
    ((path, (first, second)),) = found.items()
    assert path == "datasets.chatTemplate.inline"
    assert first is not None
    assert second is not None
    assert first != second
    assert first.startswith("{{ messages }}")
    assert "1,401 characters" in first
    assert len(first) < 160


def test_a_hostile_spec_is_compared_to_a_bounded_depth() -> None:
    deep: dict[str, Any] = {}
    place = deep
    for _ in range(900):
        place["x"] = {}
        place = place["x"]
    place["x"] = 1
    hostile = {"deep": deep, "list": [[[]]], "names": [{"name": 1}, {"name": 1}], "long" * 999: 1}
    found = differences({"spec": {"a": 1}, "request": None}, {"spec": hostile, "request": None})
    assert found["a"] == ["1", None]
    assert max(map(len, found)) <= 256
