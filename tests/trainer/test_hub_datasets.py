"""Datasets on the hub: the files of a configuration and split, which of them are fetched, and what is refused."""

import gzip
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from huggingface_hub import constants
from pyarrow import parquet

from finetune_contract import DatasetSpec, ExitCode, HubRef
from finetune_trainer.data.schema import DatasetSchema, open_rows
from finetune_trainer.data.sources import LocatedSource, open_source
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.example import Conversation
from tests.doubles.hub import FakeHub

REPO = "acme/chats"
PATH = "spec.datasets.train[0]"


def row(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]}


def jsonl(*texts: str) -> str:
    return "".join(json.dumps(row(text)) + "\n" for text in texts)


def columns(*rows: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), out)
    return out.getvalue()


def opened(tmp_path: Path, *, revision: str = "main", repo: str = REPO, **fields: Any) -> LocatedSource:
    reference = HubRef(repo=repo, revision=revision)
    spec = DatasetSpec(path=PATH, name="train-0", hugging_face=reference, **fields)
    return open_source(spec, open_store(), tmp_path / "scratch")


def answers(source: LocatedSource) -> list[str]:
    schema, rows = open_rows(source, DatasetSchema)
    examples = map(schema.example, rows)
    return [example.messages[-1]["content"] for example in examples if isinstance(example, Conversation)]


def refusal(tmp_path: Path, **fields: Any) -> StageError:
    with pytest.raises(StageError) as caught:
        answers(opened(tmp_path, **fields))
    return caught.value


def push(hub: FakeHub, files: Mapping[str, bytes | str], **options: Any) -> str:
    return hub.push(REPO, files, kind="dataset", **options)


def readme(*configs: str) -> str:
    return "---\nconfigs:\n" + "".join(f"- {config}\n" for config in configs) + "---\n# Chats\n"


# --- what is read -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "fields", "expected"),
    [
        ({"train.jsonl": jsonl("a", "b")}, {}, ["a", "b"]),
        ({"data/train.json": json.dumps([row("a")])}, {}, ["a"]),
        ({"rows.jsonl": jsonl("a")}, {}, ["a"]),
        ({"train.jsonl": jsonl("a"), "test.jsonl": jsonl("t")}, {"split": "test"}, ["t"]),
        ({"data/train-00000-of-00002.parquet": columns(row("a")), "data/train-00001-of-00002.parquet": columns(row("b"))},
         {}, ["a", "b"]),
        ({"README.md": readme("{config_name: en, data_files: [{split: sft, path: en/*.jsonl}]}",
                              "{config_name: de, data_files: [{split: sft, path: de/*.jsonl}]}"),
          "en/x.jsonl": jsonl("yes"), "de/x.jsonl": jsonl("ja")}, {"config": "de", "split": "sft"}, ["ja"]),
        ({"README.md": readme("{config_name: en, data_files: en.jsonl}", "{config_name: de, data_files: de.jsonl, default: true}"),
          "en.jsonl": jsonl("yes"), "de.jsonl": jsonl("ja")}, {}, ["ja"]),
    ],
    ids=["jsonl", "json", "one file", "split", "parquet shards", "config and split", "default config"],
)  # fmt: skip
def test_rows_of_a_configuration_and_split_are_read(
    hub: FakeHub, tmp_path: Path, files: dict[str, str], fields: dict[str, str], expected: Sequence[str]
) -> None:
    commit = push(hub, files)
    source = opened(tmp_path, **fields)
    assert source.revision == commit
    assert f"{REPO}@{commit}" in source.uri
    assert answers(source) == expected


LINES = b'{"text": "a"}\n'


@pytest.mark.parametrize(
    ("files", "fields"),
    [
        ({"train.csv": "id,text\n1,a\n"}, {}),
        ({"data/train.tsv": "id\ttext\n1\ta\n"}, {}),
        ({"train.txt": "a\n"}, {}),
        ({"train.txt": "a\n---\n"}, {"separator": "\n---\n"}),
        ({"train.jsonl.gz": gzip.compress(LINES)}, {}),
        ({"train.jsonl.zst": pyarrow.Codec("zstd").compress(LINES, asbytes=True)}, {}),
        ({"train.ndjson": LINES}, {}),
        ({"README.md": readme('{config_name: default, data_files: a.csv, sep: ";"}'), "a.csv": "id;text\n1;a\n"}, {}),
        ({"README.md": readme('{config_name: default, data_files: a.csv, delimiter: "|"}'), "a.csv": "id|text\n1|a\n"}, {}),
        ({"README.md": readme("{config_name: en, data_dir: en}", "{config_name: de, data_dir: de}"),
          "en/train.jsonl": '{"text": "b"}', "de/train.jsonl": LINES}, {"config": "de"}),
    ],
    ids=["csv", "tsv", "text", "separated text", "gzip", "zstd", "ndjson", "separator", "delimiter", "folder of a config"],
)  # fmt: skip
def test_files_of_every_kind_are_read(
    hub: FakeHub, tmp_path: Path, files: dict[str, bytes | str], fields: dict[str, str]
) -> None:
    push(hub, files)
    assert [item.value["text"] for item in opened(tmp_path, **fields).rows()] == ["a"]


def test_only_the_files_of_the_split_are_fetched(hub: FakeHub, tmp_path: Path) -> None:
    push(
        hub,
        {
            "README.md": "# Chats",
            "train.jsonl": jsonl("a"),
            "test.jsonl": jsonl("t"),
            "big.bin": b"x",
            "notes.txt": "x",
        },
    )
    answers(opened(tmp_path))
    assert hub.requested_files(REPO) == {"README.md", "train.jsonl"}


def test_a_branch_that_moved_does_not_change_what_was_pinned(hub: FakeHub, tmp_path: Path) -> None:
    pinned = push(hub, {"train.jsonl": jsonl("first")})
    assert opened(tmp_path).revision == pinned
    push(hub, {"train.jsonl": jsonl("second")})
    assert answers(opened(tmp_path, revision=pinned)) == ["first"]
    assert answers(opened(tmp_path)) == ["second"]


def test_columns_and_roles_are_mapped_and_the_first_rows_taken(hub: FakeHub, tmp_path: Path) -> None:
    rows = [{"chat": [{"role": "bot", "content": str(number)}]} for number in range(5)]
    push(hub, {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    source = opened(tmp_path, columns={"messages": "chat"}, role_map={"bot": "assistant"}, max_examples=2)
    assert answers(source) == ["0", "1"]


def test_keys_that_a_columnar_file_had_to_fill_are_no_keys(hub: FakeHub, tmp_path: Path) -> None:
    # Llama's template, for example, treats a message with tool_calls as a call, even if the value is null
    called = {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}
    push(hub, {"train.parquet": columns({"messages": [called]}, row("a"))})
    schema, rows = open_rows(opened(tmp_path), DatasetSchema)
    with_call, plain = map(schema.example, rows)
    assert isinstance(with_call, Conversation)
    assert isinstance(plain, Conversation)
    assert "tool_calls" in with_call.messages[0]
    assert plain.messages == row("a")["messages"]


def test_a_filled_cache_is_enough(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hub" / f"datasets--{REPO.replace('/', '--')}"
    commit = "c0ffee" + "0" * 34
    (folder / "snapshots" / commit / "data").mkdir(parents=True)
    (folder / "snapshots" / commit / "data/train.jsonl").write_text(jsonl("a"))
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision in ("main", commit):
        source = opened(tmp_path, revision=revision)
        assert (source.revision, answers(source)) == (commit, ["a"])
    assert hub.seen == []


# --- what is refused --------------------------------------------------------------------------------------------------

TWO = {
    "README.md": readme("{config_name: en, data_files: en.jsonl}", "{config_name: de, data_files: de.jsonl}"),
    "en.jsonl": jsonl("yes"),
    "de.jsonl": jsonl("ja"),
}


@pytest.mark.parametrize(
    ("files", "fields", "field", "known"),
    [
        (
            {"train.jsonl": jsonl("a"), "test.jsonl": jsonl("t")},
            {"split": "train_sft"},
            "split",
            "train, test",
        ),
        (TWO, {"config": "fr"}, "config", "en, de"),
        (TWO, {}, "config", "en, de"),
        ({"train.jsonl": jsonl("a")}, {"config": "fr"}, "config", "default"),
    ],
    ids=["split", "config", "none of several", "config of a plain dataset"],
)
def test_a_name_that_is_not_there_is_reported_with_those_that_are(
    hub: FakeHub, tmp_path: Path, files: dict[str, str], fields: dict[str, str], field: str, known: str
) -> None:
    push(hub, files)
    error = refusal(tmp_path, **fields)
    assert (error.code, error.reason) == (ExitCode.INPUT_MISSING, "DatasetMissing")
    assert error.where == f"{PATH}.huggingFace.{field}"
    assert error.expected == f"one of {known}"


def test_a_dataset_that_is_not_there_is_reported(hub: FakeHub, tmp_path: Path) -> None:
    push(hub, {"train.jsonl": jsonl("a")})
    missing = refusal(tmp_path, repo="acme/chatz")
    assert (missing.code, missing.reason) == (ExitCode.INPUT_MISSING, "HubRepositoryMissing")
    assert missing.where == f"{PATH}.huggingFace"
    revision = refusal(tmp_path, revision="v2")
    assert (revision.code, revision.reason) == (ExitCode.INPUT_MISSING, "HubRevisionMissing")
    assert "main" in revision.expected


def test_a_gated_dataset_is_reported_with_its_page(hub: FakeHub, tmp_path: Path) -> None:
    push(hub, {"train.jsonl": jsonl("a")}, gated="auto")
    error = refusal(tmp_path)
    assert (error.code, error.reason) == (ExitCode.PERMISSION_DENIED, "HubAccessDenied")
    assert f"{hub.address}/datasets/{REPO}" in error.fix


def test_a_program_that_makes_a_dataset_is_never_run(hub: FakeHub, tmp_path: Path) -> None:
    push(hub, {"chats.py": "raise SystemExit('ran')", "train.jsonl": jsonl("a")})
    error = refusal(tmp_path)
    assert (error.code, error.reason) == (ExitCode.BAD_DATA, "HubDatasetUnreadable")
    assert "never run" in str(error)
    assert "refs/convert/parquet" in error.fix
    assert hub.requested_files(REPO) == set()


def test_the_parquet_copy_that_the_hub_keeps_can_be_named(hub: FakeHub, tmp_path: Path) -> None:
    push(hub, {"chats.py": "raise SystemExit('ran')"})
    push(hub, {"default/train/0000.parquet": columns(row("a"))}, to="refs/convert/parquet")
    assert answers(opened(tmp_path, revision="refs/convert/parquet")) == ["a"]


@pytest.mark.parametrize(
    ("files", "actual"),
    [
        ({"train.xml": "<a/>"}, "acme/chats"),
        ({"README.md": "# empty"}, "acme/chats"),
        ({"all.zip": b"no zip"}, "all.zip"),
        (
            {"README.md": readme("{config_name: default, data_files: a.json, field: rows}"), "a.json": "{}"},
            "field",
        ),
        ({"README.md": "---\nconfigs: 1\n---\n", "train.jsonl": jsonl("a")}, "acme/chats"),
        ({"README.md": "---\n: [\n---\n", "train.jsonl": jsonl("a")}, "acme/chats"),
    ],
    ids=[
        "xml",
        "no data",
        "archive",
        "unsupported way of reading",
        "wrong configs",
        "README that is no YAML",
    ],
)
def test_what_cannot_be_read_is_reported_with_what_can(
    hub: FakeHub, tmp_path: Path, files: dict[str, str], actual: str
) -> None:
    push(hub, files)
    error = refusal(tmp_path)
    assert (error.code, error.reason) == (ExitCode.BAD_DATA, "HubDatasetUnreadable")
    assert actual in error.actual
    assert str(tmp_path) not in str(error)
    assert "JSON lines" in error.fix


def test_a_bad_row_is_reported_with_its_file_and_line(hub: FakeHub, tmp_path: Path) -> None:
    commit = push(hub, {"data/train-0.jsonl": jsonl("a"), "data/train-1.jsonl": jsonl("b") + "{broken\n"})
    error = refusal(tmp_path)
    assert (error.code, error.reason) == (ExitCode.BAD_DATA, "DatasetNotJson")
    assert error.where == f"{PATH}, train-1.jsonl row 2"
    assert f"hf://datasets/{REPO}@{commit}/data/train-1.jsonl" in error.fix


def test_a_file_that_is_not_whole_is_reported(hub: FakeHub, tmp_path: Path) -> None:
    push(hub, {"train.parquet": columns(row("a"))[:-9]})
    error = refusal(tmp_path)
    assert (error.code, error.reason) == (ExitCode.BAD_DATA, "UnreadableFile")
    assert error.where == f"{PATH}.huggingFace"


def test_names_that_would_leave_the_folder_are_left_out(hub: FakeHub, tmp_path: Path) -> None:
    push(hub, {"../train.jsonl": jsonl("x"), "/train-1.jsonl": jsonl("x"), "train.jsonl": jsonl("a")})
    assert answers(opened(tmp_path)) == ["a"]
    assert hub.requested_files(REPO) == {"train.jsonl"}
