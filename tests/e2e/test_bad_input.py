"""User errors are reported with file, row and fix before any TPU is used; jobs continue once an input exists."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.user_client import UserClient, condition, finetune_job, message, reason


def _rows(count: int) -> list[str]:
    turn = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    return [json.dumps({"messages": turn})] * count


def _bad_role() -> bytes:
    rows = _rows(60)
    rows[40] = json.dumps(
        {"messages": [{"role": "user", "content": "hi"}, {"role": "oracle", "content": "hello"}]}
    )
    return "\n".join(rows).encode()


def _broken_json() -> bytes:
    rows = _rows(20)
    rows[6] = '{"messages": ['
    return "\n".join(rows).encode()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("bad-role", _bad_role(), ["row 41", '"oracle"', "roleMap"]),
        ("broken-json", _broken_json(), ["row 7", "JSON"]),
        ("empty", b"", ["empty"]),
    ],
)
def test_corrupt_data_fails_in_preflight_with_file_row_and_fix(
    bench: UserClient, name: str, content: bytes, told: list[str]
) -> None:
    uri = f"gs://ft-data.invalid/{bench.namespace}/{name}.jsonl"
    bench.write(uri, content)
    bench.apply(finetune_job(name, datasets={"train": [{"uri": uri}], "maxSeqLength": 64}))
    job = bench.finish(name)

    failure = job["status"]["failure"]
    assert (failure["stage"], failure["class"]) == ("Preflight", "User")
    for words in [*told, "spec.datasets.train[0]"]:
        assert words in failure["message"], failure
    assert failure["suggestion"]
    assert uri in failure["message"] + failure.get("evidence", ""), failure
    assert not bench.list("jobsets", job=name, stage="Train")
    events = json.loads(bench.kubectl("get", "events", "-o", "json"))["items"]
    assert not [e for e in events if "-train-" in e["involvedObject"]["name"]]


MISSING: list[tuple[str, dict[str, Any], str]] = [
    (
        "no-data",
        {"datasets": {"train": [{"uri": "gs://ft-data.invalid/{ns}/later.jsonl"}], "maxSeqLength": 64}},
        "{ns}/later.jsonl",
    ),
    ("no-model", {"model": {"uri": "gs://ft-models.invalid/{ns}/later"}}, "{ns}/later"),
]


@pytest.mark.parametrize(("name", "spec", "named"), MISSING)
def test_a_missing_input_is_named_and_the_job_recovers_when_it_appears(
    bench: UserClient, name: str, spec: dict[str, Any], named: str, tiny_model: Path
) -> None:
    filled = json.loads(json.dumps(spec).replace("{ns}", bench.namespace))
    bench.apply(finetune_job(name, **filled))
    waiting = bench.wait(name, lambda job: condition(job, "DataReady") == "False")

    assert named.replace("{ns}", bench.namespace) in message(waiting, "DataReady")
    assert waiting["status"]["phase"] == "Validating"
    assert condition(waiting, "Finished") == "False"

    if name == "no-data":
        bench.write(f"gs://ft-data.invalid/{bench.namespace}/later.jsonl", "\n".join(_rows(40)).encode())
    else:
        bench.upload(tiny_model, f"gs://ft-models.invalid/{bench.namespace}/later")
    bench.succeed(name)


def test_a_folder_that_is_no_model_is_refused_with_what_was_found(bench: UserClient) -> None:
    bench.write(f"gs://ft-models.invalid/{bench.namespace}/notes/readme.txt", b"not a model")
    bench.apply(finetune_job("no-config", model={"uri": f"gs://ft-models.invalid/{bench.namespace}/notes"}))
    job = bench.wait(
        "no-config",
        lambda job: condition(job, "DataReady") == "False" or condition(job, "Finished") == "True",
    )

    text = json.dumps(job["status"])
    assert "config.json" in text
    assert f"gs://ft-models.invalid/{bench.namespace}/notes" in text


def test_a_missing_profile_is_named_and_the_job_continues_when_it_appears(bench: UserClient) -> None:
    profile = f"late-{bench.namespace}"
    bench.apply(finetune_job("late-profile", profileRef={"name": profile}))
    waiting = bench.wait("late-profile", lambda job: condition(job, "Valid") == "False")
    assert profile in message(waiting, "Valid")
    assert reason(waiting, "Valid") == "ProfileNotFound"

    try:
        bench.apply_profile(profile)
        bench.wait("late-profile", lambda job: condition(job, "Valid") == "True")
    finally:
        bench.delete("finetuneprofile", profile)
    # The profile is deleted while the job runs; the job continues with its stored plan.
    bench.succeed("late-profile")


def test_a_missing_secret_is_named_and_the_job_continues_when_it_appears(bench: UserClient) -> None:
    bench.apply(finetune_job("late-secret", huggingFaceTokenSecretRef={"name": "hub", "key": "token"}))
    waiting = bench.wait("late-secret", lambda job: condition(job, "Valid") == "False")
    assert "hub" in message(waiting, "Valid")
    assert condition(waiting, "Finished") == "False"

    bench.kubectl("create", "secret", "generic", "hub", "--from-literal=token=canary-5f1d")
    job = bench.succeed("late-secret")
    assert "canary-5f1d" not in json.dumps(job)
    for attempt in ("prep-1", "conv-1", "train-1", "eval-1", "export-1"):
        tail = bench.read(f"{job['status']['resolved']['runFolder']}/attempts/{attempt}/log-tail.txt") or b""
        assert b"canary-5f1d" not in tail
