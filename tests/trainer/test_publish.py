"""An upload that was cut off never looks whole, and nobody else's files are touched."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.export.publish import MANIFEST, MARKER, publish, write_manifest
from finetune_trainer.storage import Store
from finetune_trainer.storage.gcs import GcsBackend
from finetune_trainer.storage.local import LocalBackend


class CutOffError(Exception):
    """The process died here."""


class Recording(LocalBackend):
    """Counts every change to storage and can die before one of them."""

    def __init__(self, die_before: int | None = None) -> None:
        self.changes: list[str] = []
        self._die_before = die_before

    def _note(self, what: str, uri: str) -> None:
        if self._die_before is not None and len(self.changes) >= self._die_before:
            raise CutOffError
        self.changes.append(f"{what} {Path(uri).name}")

    def write(self, uri: str, data: bytes, content_type: str) -> None:
        self._note("write", uri)
        super().write(uri, data, content_type)

    def upload(self, source: Path, uri: str) -> None:
        self._note("upload", uri)
        super().upload(source, uri)

    def delete(self, uri: str) -> None:
        self._note("delete", uri)
        super().delete(uri)


def store(backend: LocalBackend) -> Store:
    return Store(local=backend, gcs=GcsBackend())


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, *files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in ("config.json", "model.safetensors", *files):
            (folder / file).write_text(f"{name} {file}")
        write_manifest(folder, "HuggingFace")
        return folder

    return make


def looks_whole(target: Path) -> bool:
    return (target / MANIFEST).is_file() or (target / "config.json").is_file()


def is_whole(target: Path, source: Path) -> bool:
    return all(
        (target / entry["path"]).is_file()
        and (target / entry["path"]).read_bytes() == (source / entry["path"]).read_bytes()
        for entry in json.loads((source / MANIFEST).read_text())["files"]
    )


def test_every_file_is_in_the_manifest_with_size_and_checksum(model: Callable[..., Path]) -> None:
    folder = model("a")
    listed = json.loads((folder / MANIFEST).read_text())
    assert [(e["path"], e["size"], len(e["sha256"])) for e in listed["files"]] == [
        ("config.json", 13, 64),
        ("model.safetensors", 19, 64),
    ]


def test_config_and_manifest_come_last(model: Callable[..., Path], tmp_path: Path) -> None:
    backend = Recording()
    result = publish(model("a", "z.json"), f"file://{tmp_path}/to", "HuggingFace", store(backend))
    uploads = [change for change in backend.changes if change.startswith("upload")]
    assert uploads[-2:] == ["upload config.json", "upload manifest.json"]
    assert sorted(p.name for p in (tmp_path / "to").iterdir()) == [
        "config.json", "manifest.json", "model.safetensors", "z.json",
    ]  # fmt: skip
    assert result.digest.startswith("sha256:")
    assert result.size_bytes == 13 + 19 + 8


@pytest.mark.parametrize("die_before", range(12))
def test_a_death_at_any_moment_leaves_nothing_that_looks_whole_and_is_not(
    model: Callable[..., Path], tmp_path: Path, die_before: int
) -> None:
    target, uri = tmp_path / "to", f"file://{tmp_path}/to"
    old, new = model("old", "only-old.json"), model("new", "only-new.json")
    publish(old, uri, "HuggingFace", store(LocalBackend()))
    try:
        publish(new, uri, "HuggingFace", store(Recording(die_before)))
    except CutOffError:
        if looks_whole(target):
            assert is_whole(target, old) or is_whole(target, new)
        else:
            assert (target / MARKER).is_file()
    publish(new, uri, "HuggingFace", store(LocalBackend()))
    assert is_whole(target, new)
    assert not (target / "only-old.json").exists()
    assert not (target / MARKER).exists()


def test_the_same_export_twice_is_the_same(model: Callable[..., Path], tmp_path: Path) -> None:
    folder, uri = model("a"), f"file://{tmp_path}/to"
    first, second = (publish(folder, uri, "HuggingFace", store(LocalBackend())) for _ in range(2))
    assert first == second


def test_other_peoples_files_are_refused_and_left_alone(model: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "to"
    target.mkdir()
    (target / "thesis.pdf").write_text("mine")
    with pytest.raises(StageError) as caught:
        publish(model("a"), f"file://{target}", "HuggingFace", store(LocalBackend()))
    assert caught.value.code is ExitCode.BAD_REQUEST
    assert caught.value.saw == "thesis.pdf"
    assert [p.name for p in target.iterdir()] == ["thesis.pdf"]


def test_a_file_that_was_put_beside_an_export_stays(model: Callable[..., Path], tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/to"
    publish(model("old"), uri, "HuggingFace", store(LocalBackend()))
    (tmp_path / "to" / "notes.txt").write_text("mine")
    publish(model("new"), uri, "HuggingFace", store(LocalBackend()))
    assert (tmp_path / "to" / "notes.txt").read_text() == "mine"
