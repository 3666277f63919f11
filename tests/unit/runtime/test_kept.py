"""The parser of listings and watch events keeps only the fields that kopf and the event handlers read."""

import json
from typing import Any

import pytest

from finetune_operator.runtime.projection import project_event, project_list

CONDITION = {"type": "Finished", "status": "True"}


def event(found: dict[str, Any], kind: str = "MODIFIED") -> bytes:
    return json.dumps({"type": kind, "object": found}).encode()


def kept(found: dict[str, Any]) -> dict[str, Any]:
    told = json.loads(project_event(event(found)))
    assert told["type"] == "MODIFIED"
    result: dict[str, Any] = told["object"]
    return result


def test_what_is_read_of_a_job_is_kept_and_nothing_else() -> None:
    read = {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {
            "name": "demo",
            "namespace": "team",
            "uid": "u",
            "resourceVersion": "7",
            "generation": 2,
            "creationTimestamp": "2026-11-21T12:00:00Z",
            "deletionTimestamp": "2026-11-21T13:00:00Z",
            "labels": {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "high"},
        },
        "status": {"conditions": [CONDITION], "resolved": {"profile": {"name": "local"}}},
    }
    whole = json.loads(json.dumps(read))
    whole["spec"] = {"model": {"uri": "gs://m"}}
    whole["metadata"] |= {
        "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"],
        "managedFields": [{"fieldsV1": {"f:metadata": {}}}],
        "ownerReferences": [{"uid": "x"}],
    }
    whole["metadata"]["labels"]["team"] = "ml"
    whole["metadata"]["annotations"] = {"kopf.zalando.org/last-handled-configuration": "{"}
    whole["status"]["summary"] = "x"
    whole["status"]["conditions"] = [{**CONDITION, "message": "x"}, {"type": "Other", "status": "True"}]
    found = kept(whole)
    assert found["metadata"].pop("annotations") == {}
    assert found["metadata"].pop("ownerReferences") == []
    assert found == read


def test_a_child_keeps_whose_it_is() -> None:
    labels = {"tpu-finetune.dev/job": "demo", "tpu-finetune.dev/job-uid": "u"}
    owner = {"apiVersion": "v1", "kind": "JobSet", "name": "x", "uid": "o", "controller": True}
    others = [{"apiVersion": "v1", "kind": "Pod", "name": f"p{n}", "uid": str(n)} for n in range(3)]
    found = kept({"metadata": {"name": "c", "labels": labels, "ownerReferences": [*others, owner]}})
    assert found["metadata"]["labels"] == labels
    assert found["metadata"]["ownerReferences"] == [{"uid": "o", "controller": True}]


def test_lists_without_end_are_cut() -> None:
    found = kept({"metadata": {}, "status": {"conditions": [CONDITION] * 1000}})
    assert len(found["status"]["conditions"]) < 10


@pytest.mark.parametrize(
    "line",
    [
        {
            "type": "BOOKMARK",
            "object": {
                "kind": "Pod",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "12", "creationTimestamp": None},
                "spec": {"containers": None},
                "status": {},
            },
        },
        {
            "type": "ERROR",
            "object": {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Failure",
                "message": "too old resource version",
                "reason": "Expired",
                "code": 410,
            },
        },
    ],
)
def test_what_kopf_continues_by_is_kept(line: dict[str, Any]) -> None:
    expected = json.loads(json.dumps(line))
    expected["object"].pop("spec", None)
    assert json.loads(project_event(json.dumps(line).encode())) == expected


@pytest.mark.parametrize("items", [None, []])
def test_an_empty_page(items: object) -> None:
    page = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items}
    assert json.loads(project_list(json.dumps(page).encode())) == {**page, "items": []}


def test_a_page_says_where_the_next_one_begins() -> None:
    metadata = {"resourceVersion": "9", "continue": "c", "remainingItemCount": 3}
    page = {"metadata": metadata, "items": [{"metadata": {"name": "a", "finalizers": ["x"]}}]}
    assert json.loads(project_list(json.dumps(page).encode())) == {
        "metadata": {"resourceVersion": "9", "continue": "c"},
        "items": [{"metadata": {"name": "a"}}],
    }


def test_what_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="Invalid JSON"):
        project_event(b'{"type":')


@pytest.mark.parametrize("depth", [150, 250, 100_000])
def test_an_object_may_be_nested_as_deep_as_its_writer_likes(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    line = f'{{"type":"ADDED","object":{{"metadata":{{"name":"a"}},"spec":{deep}}}}}'
    assert json.loads(project_event(line.encode()))["object"] == {"metadata": {"name": "a"}}
