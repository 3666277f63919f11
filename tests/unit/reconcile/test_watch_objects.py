"""The parsers of listings and watch lines."""

import json
from typing import Any

import pytest

from finetune_operator.cluster.port import JOBS, PODS, ResourceKind
from finetune_operator.reconcile.watch_objects import parse_line, parse_page

CONDITION = {"type": "Finished", "status": "True"}


def read(kind: ResourceKind, found: dict[str, Any]) -> Any:
    event = parse_line(kind, json.dumps({"type": "MODIFIED", "object": found}).encode())
    assert (event.type, event.version) == ("MODIFIED", 7)
    return event.object


def test_of_a_job_metadata_are_reduced_and_spec_and_status_kept() -> None:
    kept = {
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
            "labels": {
                "kueue.x-k8s.io/queue-name": "q",
                "kueue.x-k8s.io/priority-class": "high",
                **{f"label-{number:02d}": "v" * 63 for number in range(62)},
            },
        },
        "spec": {"model": {"uri": "gs://m"}},
        "status": {"conditions": [CONDITION]},
    }
    whole = json.loads(json.dumps(kept))
    whole["metadata"] |= {
        "finalizers": ["any"],
        "managedFields": [{"fieldsV1": {"f:metadata": {}}}],
        "ownerReferences": [{"uid": "x"}],
        "annotations": {"any": "{"},
    }
    # The first labels in the order of their keys are kept, and those of the queue in any case.
    whole["metadata"]["labels"]["team"] = "ml"
    assert read(JOBS, whole) == kept


def test_an_error_has_a_status_in_place_of_version_and_object() -> None:
    status = {"kind": "Status", "metadata": {}, "status": "Failure", "code": 410}
    event = parse_line(PODS, json.dumps({"type": "ERROR", "object": status}).encode())
    assert (event.type, event.version, event.object) == ("ERROR", None, status)


@pytest.mark.parametrize("token", [None, "", "c"])
def test_a_page_names_its_version_and_where_the_next_one_begins(token: str | None) -> None:
    metadata = {"resourceVersion": "9", "remainingItemCount": 3} | (
        {} if token is None else {"continue": token}
    )
    page = parse_page(PODS, json.dumps({"metadata": metadata, "items": None}).encode())
    assert (page.version, page.token, page.last, page.items) == (9, token or "", not token, [])


def test_what_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError, match="EOF while parsing"):
        parse_line(PODS, b'{"type":')


@pytest.mark.parametrize("depth", [150, 250, 100_000])
def test_an_object_may_be_nested_as_deep_as_its_writer_likes(depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    metadata = '{"name":"a","resourceVersion":"7"}'
    line = f'{{"type":"ADDED","object":{{"metadata":{metadata},"spec":{{"volumes":{deep}}}}}}}'
    found = parse_line(PODS, line.encode()).object
    assert found["metadata"]["name"] == "a"


@pytest.mark.parametrize("field", [b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
def test_managed_fields_may_contain_bytes_that_are_not_utf_8(field: bytes) -> None:
    """The API server takes them over from the client that creates a pod; no tenant may stop the watch of pods."""
    fields = b'[{"fieldsV1":{"f:' + field + b'":{}}}]'
    metadata = b'{"name":"a","resourceVersion":"7","managedFields":' + fields + b"}"
    assert parse_line(PODS, b'{"type":"ADDED","object":{"metadata":' + metadata + b"}}").version == 7
    page = b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":' + metadata + b"}]}"
    assert [each["metadata"]["name"] for each in parse_page(PODS, page).items] == ["a"]
