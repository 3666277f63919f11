"""An interrupted upload never appears complete, and files of other owners are not changed."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from finetune_contract import ExitCode
from finetune_storage.files import FileStore
from finetune_storage.google import GoogleStore
from finetune_trainer.errors import StageError
from finetune_trainer.export.marker import UploadOwner
from finetune_trainer.export.publish import MANIFEST, MARKER, publish, write_manifest
from finetune_trainer.storage import RETRIES, StorageClient

OWNER = UploadOwner(job="team/bot", uid="1", run_folder="gs://artifacts/team/bot-1", attempt="1.0-a")
OTHER = UploadOwner(job="team/other", uid="2", run_folder="gs://artifacts/team/other-2", attempt="1.0-b")


class CutOffError(Exception):
    """Simulates the end of the process."""


class Recording(FileStore):
    """Records every change to storage, and can raise CutOffError before one of them."""

    def __init__(self, die_before: int | None = None) -> None:
        super().__init__()
        self.changes: list[str] = []
        self._die_before = die_before

    def _note(self, what: str, uri: str) -> None:
        if self._die_before is not None and len(self.changes) >= self._die_before:
            raise CutOffError
        self.changes.append(f"{what} {Path(uri).name}")

    def write(self, uri: str, content: bytes, content_type: str = "") -> None:
        self._note("write", uri)
        super().write(uri, content, content_type)

    def create(self, uri: str, content: bytes, content_type: str = "") -> bool:
        self._note("create", uri)
        return super().create(uri, content, content_type)

    def replace(self, uri: str, content: bytes, content_type: str, version: str) -> bool:
        self._note("replace", uri)
        return super().replace(uri, content, content_type, version)

    def upload(self, source: Path, uri: str) -> None:
        self._note("upload", uri)
        super().upload(source, uri)

    def delete(self, uri: str) -> None:
        self._note("delete", uri)
        super().delete(uri)


def store(backend: FileStore) -> StorageClient:
    return StorageClient(local=backend, gcs=GoogleStore(RETRIES))


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
    result = publish(model("a", "z.json"), f"file://{tmp_path}/to", "HuggingFace", store(backend), OWNER)
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
    publish(old, uri, "HuggingFace", store(FileStore()), OWNER)
    try:
        publish(new, uri, "HuggingFace", store(Recording(die_before)), OWNER)
    except CutOffError:
        if looks_whole(target):
            assert is_whole(target, old) or is_whole(target, new)
        else:
            assert (target / MARKER).is_file()
    publish(new, uri, "HuggingFace", store(FileStore()), OWNER)
    assert is_whole(target, new)
    assert not (target / "only-old.json").exists()
    assert not (target / MARKER).exists()


def test_the_same_export_twice_is_the_same(model: Callable[..., Path], tmp_path: Path) -> None:
    folder, uri = model("a"), f"file://{tmp_path}/to"
    first, second = (publish(folder, uri, "HuggingFace", store(FileStore()), OWNER) for _ in range(2))
    assert first == second


def test_other_peoples_files_are_refused_and_left_alone(model: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "to"
    target.mkdir()
    (target / "thesis.pdf").write_text("mine")
    with pytest.raises(StageError) as caught:
        publish(model("a"), f"file://{target}", "HuggingFace", store(FileStore()), OWNER)
    assert caught.value.code is ExitCode.BAD_REQUEST
    assert caught.value.actual == "thesis.pdf"
    assert [p.name for p in target.iterdir()] == ["thesis.pdf"]


def test_a_file_that_was_put_beside_an_export_stays(model: Callable[..., Path], tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/to"
    publish(model("old"), uri, "HuggingFace", store(FileStore()), OWNER)
    (tmp_path / "to" / "notes.txt").write_text("mine")
    publish(model("new"), uri, "HuggingFace", store(FileStore()), OWNER)
    assert (tmp_path / "to" / "notes.txt").read_text() == "mine"


def interrupted(folder: Path, uri: str, *, after: int) -> None:
    """Starts an upload that ends before the change with this number."""
    with pytest.raises(CutOffError):
        publish(folder, uri, "HuggingFace", store(Recording(after)), OWNER)
    assert store(FileStore()).exists(f"{uri}/{MARKER}")


@pytest.mark.parametrize("older", [False, True], ids=["empty", "over an older model"])
def test_after_an_interrupted_upload_only_its_own_files_are_replaced(
    model: Callable[..., Path], tmp_path: Path, older: bool
) -> None:
    uri, target = f"file://{tmp_path}/team", tmp_path / "team"
    local = store(FileStore())
    first, second = model("first", "only-first.json"), model("second")
    if older:
        publish(model("old", "only-old.json"), uri, "HuggingFace", local, OWNER)
    interrupted(first, uri, after=5 if older else 3)
    publish(second, f"{uri}/other", "HuggingFace", local, OWNER)
    for name in ("notes/results.csv", "adapter_config.json", "items/_METADATA"):
        local.write(f"{uri}/{name}", "mine")
    publish(model("third"), uri, "HuggingFace", local, OWNER)
    assert is_whole(target / "other", second)
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()) == [
        "adapter_config.json", "config.json", "items/_METADATA", "manifest.json", "model.safetensors",
        "notes/results.csv", "other/config.json", "other/manifest.json", "other/model.safetensors",
    ]  # fmt: skip
    assert (target / "items/_METADATA").read_text() == "mine"


@pytest.mark.parametrize("name", ["notes.txt", "shards/model.safetensors"])
def test_a_file_beside_an_export_is_not_replaced_by_one_of_its_name(
    model: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    uri, local = f"file://{tmp_path}/to", store(FileStore())
    old, new = model("old"), model("new")
    publish(old, uri, "HuggingFace", local, OWNER)
    local.write(f"{uri}/{name}", "mine")
    (new / name).parent.mkdir(exist_ok=True)
    (new / name).write_text("new")
    write_manifest(new, "HuggingFace")
    with pytest.raises(StageError) as caught:
        publish(new, uri, "HuggingFace", local, OWNER)
    assert (caught.value.reason, caught.value.actual) == ("DestinationNotEmpty", name)
    assert local.read(f"{uri}/{name}") == b"mine"
    assert is_whole(tmp_path / "to", old)


@pytest.mark.parametrize("marker", ["", "{}", "[1]", '{"names": 3}', "[" * 100_000])
def test_a_marker_that_names_no_job_is_refused(
    model: Callable[..., Path], tmp_path: Path, marker: str
) -> None:
    uri, local = f"file://{tmp_path}/to", store(FileStore())
    local.write(f"{uri}/{MARKER}", marker)
    local.write(f"{uri}/thesis.pdf", "mine")
    with pytest.raises(StageError) as caught:
        publish(model("new"), uri, "HuggingFace", local, OWNER)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "DestinationInUse")
    assert f"delete {uri}/{MARKER}" in caught.value.fix
    assert {path.name for path in (tmp_path / "to").iterdir()} == {MARKER, "thesis.pdf"}


@pytest.mark.parametrize("older", [False, True], ids=["empty", "over an older model"])
def test_another_jobs_interrupted_upload_is_refused_and_kept(
    model: Callable[..., Path], tmp_path: Path, older: bool
) -> None:
    uri, target, local = f"file://{tmp_path}/to", tmp_path / "to", store(FileStore())
    first = model("first")
    if older:
        publish(model("old"), uri, "HuggingFace", local, OTHER)
    interrupted(first, uri, after=4 if older else 2)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(StageError) as caught:
        publish(model("second"), uri, "HuggingFace", local, OTHER)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "DestinationInUse")
    assert "team/bot (uid 1)" in caught.value.actual
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    resumed = OTHER.model_copy(update={"run_folder": OWNER.run_folder})
    publish(first, uri, "HuggingFace", local, resumed)
    assert is_whole(target, first)


class Meanwhile(Recording):
    """Calls ``what`` before the change with this number."""

    def __init__(self, number: int, what: Callable[[], object]) -> None:
        super().__init__()
        self._number, self._what = number, what

    def _note(self, what: str, uri: str) -> None:
        if len(self.changes) == self._number:
            self._number = -1
            self._what()
        super()._note(what, uri)


def quietly(call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with suppress(StageError, CutOffError):
            call()

    return run


@pytest.mark.parametrize("theirs", ["another job", "another attempt", "another job that removed the marker"])
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("die_before", [2, 3, 100])
def test_of_two_uploads_at_once_none_leaves_a_mixture_that_looks_whole(
    model: Callable[..., Path], tmp_path: Path, theirs: str, number: int, die_before: int
) -> None:
    uri, target, local = f"file://{tmp_path}/to", tmp_path / "to", store(FileStore())
    ours, other = model("ours"), model("other")
    owner = OWNER.model_copy(update={"attempt": "2.0-c"}) if theirs == "another attempt" else OTHER

    def second() -> None:
        if theirs.endswith("marker"):
            local.delete(f"{uri}/{MARKER}")
        publish(other, uri, "HuggingFace", store(Recording(die_before)), owner)

    quietly(lambda: publish(ours, uri, "HuggingFace", store(Meanwhile(number, quietly(second))), OWNER))()
    if (target / MANIFEST).is_file() and not (target / MARKER).is_file():
        assert is_whole(target, ours) or is_whole(target, other)


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json"])
@pytest.mark.parametrize("removed", [False, True], ids=["replaced", "removed"])
def test_a_file_that_changes_at_the_destination_is_named_and_no_manifest_is_written(
    model: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, removed: bool
) -> None:
    uri, target = f"file://{tmp_path}/to", tmp_path / "to"
    upload = FileStore.upload

    def then_changed(self: FileStore, source: Path, uri: str) -> None:
        upload(self, source, uri)
        if source.name == changed:
            (target / changed).unlink() if removed else (target / changed).write_text("other")

    monkeypatch.setattr(FileStore, "upload", then_changed)
    with pytest.raises(StageError) as caught:
        publish(model("a"), uri, "HuggingFace", store(FileStore()), OWNER)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "DestinationChanged")
    assert changed in caught.value.actual
    assert not (target / MANIFEST).exists()
    assert (target / MARKER).exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": []}', "[" * 200_000], ids=range(5))
def test_a_manifest_of_something_else_is_another_persons_file(
    model: Callable[..., Path], tmp_path: Path, content: str
) -> None:
    uri, local = f"file://{tmp_path}/to", store(FileStore())
    local.write(f"{uri}/{MANIFEST}", content)
    with pytest.raises(StageError) as caught:
        publish(model("a"), uri, "HuggingFace", local, OWNER)
    assert (caught.value.reason, caught.value.actual) == ("DestinationNotEmpty", MANIFEST)
    assert local.read(f"{uri}/{MANIFEST}") == content.encode()
