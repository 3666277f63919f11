"""``finetune-stage access``: what an account may do with folders, with a store that denies some of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from finetune_storage.errors import ObjectMissing, StorageDenied
from finetune_storage.files import FileStore
from finetune_trainer.commands import access as access_cli
from finetune_trainer.storage import StorageClient


class Denying(FileStore):
    """Local files; calls of the given methods are denied, or their folder does not exist."""

    def __init__(self, *denied: str, missing: bool = False) -> None:
        super().__init__()
        self._denied = denied
        self._missing = missing

    def __getattribute__(self, name: str) -> Any:
        if name in object.__getattribute__(self, "_denied"):
            absent = object.__getattribute__(self, "_missing")

            def refuse(uri: str, *_: object) -> None:
                raise ObjectMissing(uri) if absent else StorageDenied(uri, f"no {name}")

            return refuse
        return object.__getattribute__(self, name)


def faults(folder: Path, *denied: str, missing: bool = False) -> list[tuple[str, str]]:
    (folder / "read").mkdir(exist_ok=True)
    (folder / "read" / "rows.jsonl").write_text("{}")
    (folder / "write").mkdir(exist_ok=True)
    local = Denying(*denied, missing=missing)
    found = access_cli.examine(
        StorageClient(local=local, gcs=local),
        read=[f"file://{folder}/read"],
        write=[f"file://{folder}/write"],
    )
    return [(fault.right, fault.reason) for fault in found]


@pytest.mark.parametrize(
    ("denied", "expected"),
    [
        ((), []),
        (("require_bucket",), [("bucket", "StoragePermissionDenied")]),
        (("entries",), [("read", "StoragePermissionDenied")]),
        (("read_part",), [("read", "StoragePermissionDenied")]),
        (("write",), [("write", "StoragePermissionDenied")]),
        (("read",), [("write", "StoragePermissionDenied")]),
        (("delete",), [("write", "StoragePermissionDenied")]),
    ],
    ids=str,
)
def test_each_right_that_is_missing_is_a_fault_of_its_own(
    tmp_path: Path, denied: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    assert faults(tmp_path, *denied) == expected
    if "delete" not in denied:
        assert list((tmp_path / "write").iterdir()) == []


def test_a_bucket_that_does_not_exist_is_missing(tmp_path: Path) -> None:
    assert faults(tmp_path, "require_bucket", missing=True) == [("bucket", "InputMissing")]


def test_a_folder_without_files_is_no_fault(tmp_path: Path) -> None:
    local = FileStore()
    store = StorageClient(local=local, gcs=local)
    assert not list(access_cli.examine(store, read=[f"file://{tmp_path}/none"], write=[]))


def test_the_termination_message_is_the_result_and_stays_within_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = tmp_path / "message"
    folders = [f"file://{tmp_path}/{'x' * 800}{number}" for number in range(64)]
    store = StorageClient(local=Denying("entries"), gcs=Denying("entries"))
    monkeypatch.setattr(access_cli, "open_store", lambda: store)
    code = access_cli.main(
        [part for folder in folders for part in ("--read", folder)],
        {"TERMINATION_MESSAGE_PATH": str(message)},
    )
    assert code == 77
    assert len(message.read_bytes()) <= 4096
    report = json.loads(message.read_text())
    assert report["faults"][0]["uri"] == folders[0]
    assert json.loads(capsys.readouterr().out) == report
