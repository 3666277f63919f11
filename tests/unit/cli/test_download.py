"""``finetune download``: whole, interrupted and resumed, against hostile folders, and what it says when it cannot."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from finetune_operator.artifacts.port import (
    NAMES_LIMIT,
    RECORD_LIMIT,
    BucketMissing,
    ObjectTooLarge,
    StorageDenied,
    StorageError,
    StorageUnauthenticated,
    StorageUnavailable,
)
from finetune_operator.artifacts.shared_store import SharedStore
from finetune_operator.cli.commands import app
from finetune_operator.cli.results import download as download_module
from finetune_operator.cli.results.target_folder import TargetFolder
from tests.unit.cli.exported import (
    ADAPTER,
    FILES,
    contents,
    manifest_of,
    write_manifest,
    write_record,
    write_run,
)

PART = 1000


class Watched:
    """The files of this machine, with the parts that are read; ``fault`` is called before each."""

    def __init__(self, fault: Callable[[str, int], None] = lambda _uri, _start: None) -> None:
        self.parts: list[tuple[str, int, int]] = []
        """Name, start and size of each part."""
        self._fault = fault
        self._files = SharedStore()

    async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
        return await self._files.read(uri, limit=limit)

    async def read_part(self, uri: str, *, start: int, size: int) -> bytes | None:
        self._fault(uri, start)
        self.parts.append((uri.rpartition("/")[2], start, size))
        return await self._files.read_part(uri, start=start, size=size)

    async def list(self, uri: str, *, limit: int = NAMES_LIMIT) -> Sequence[str]:
        raise NotImplementedError

    async def write(self, uri: str, content: bytes) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "_PART", PART)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Watched], Watched]:
    """Makes the commands use a store."""

    def replace(store: Watched) -> Watched:
        monkeypatch.setattr(download_module, "caller_store", lambda: store)
        return store

    return replace


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder with an exported model."""
    return write_run(tmp_path / "team-a" / "bot-0badcafe", {"model": FILES})


def download(run: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["download", "--run", f"file://{run}", *map(str, arguments)])


def is_complete(folder: Path, run: Path, name: str = "model") -> bool:
    return contents(folder) == contents(run / "export" / name)


def is_refused(done: Result, message: str) -> bool:
    """Whether the command failed with two lines that contain this message."""
    lines = done.stderr.splitlines()
    assert done.exit_code == 1, done.output
    assert lines[0].startswith("Error: ")
    assert lines[-1].startswith(("Fix:   ", "Error: "))
    assert len(lines) <= 2
    return message in done.stderr


def test_the_model_is_fetched_whole_and_its_folder_printed(run: Path, tmp_path: Path) -> None:
    done = download(run, "--to", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{tmp_path / 'out'}\n"
    assert "4 files, 25.1 KiB; every SHA-256 is that of the export's manifest." in done.stderr
    assert f"vllm serve {tmp_path / 'out'}" in done.stderr
    assert is_complete(tmp_path / "out", run)


def test_the_default_folder_is_named_after_run_and_export(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert download(run).stdout == "bot-0badcafe-model\n"
    assert is_complete(tmp_path / "bot-0badcafe-model", run)


def test_each_export_can_be_chosen_and_the_most_important_is_the_default(tmp_path: Path) -> None:
    adapter = {
        "adapter_config.json": json.dumps(dict(ADAPTER)).encode(),
        "adapter_model.safetensors": b"x",
    }
    orbax = {"items/_METADATA": b"{}", "README.md": b"flags"}
    both = write_run(tmp_path / "a" / "run-1", {"orbax": orbax, "adapter": adapter})
    assert download(both, "--to", tmp_path / "default").exit_code == 0
    assert is_complete(tmp_path / "default", both, "adapter")
    done = download(both, "--what", "orbax", "--to", tmp_path / "orbax")
    assert is_complete(tmp_path / "orbax", both, "orbax")
    assert "load_parameters_path" in done.stderr
    assert is_refused(
        download(both, "--what", "model", "--to", tmp_path / "x"),
        "run-1 exported adapter and orbax, not model.",
    )


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({}, "vllm serve Qwen/Qwen3-0.6B "),
        ({"r": 24}, " --max-lora-rank 32 "),
        ({"base_model_name_or_path": "x; rm -rf ~"}, "vllm serve BASE_MODEL "),
        ({"peft_type": "XLORA"}, "vllm serve BASE_MODEL "),
    ],
)
def test_an_adapter_s_commands_name_its_base_only_if_it_is_a_repository(
    tmp_path: Path, config: dict[str, object], shown: str
) -> None:
    files = {"adapter_config.json": json.dumps({**ADAPTER, **config}).encode()}
    run = write_run(tmp_path / "run", {"adapter": files})
    assert shown in download(run, "--to", tmp_path / "out").stderr


def test_a_second_call_verifies_and_fetches_nothing(
    run: Path, tmp_path: Path, use: Callable[[Watched], Watched]
) -> None:
    download(run, "--to", tmp_path / "out")
    store = use(Watched())
    again = download(run, "--to", tmp_path / "out")
    assert again.exit_code == 0
    assert store.parts == []


@pytest.mark.parametrize("at", [0, PART, 3 * PART, 25 * PART])
def test_an_interrupted_download_continues_where_it_stopped(
    run: Path, tmp_path: Path, use: Callable[[Watched], Watched], at: int
) -> None:
    def fail(uri: str, start: int) -> None:
        if uri.endswith("model.safetensors") and start >= at:
            raise StorageUnavailable(uri, "connection reset")

    use(Watched(fail))
    broken = download(run, "--to", tmp_path / "out")
    assert is_refused(broken, "model.safetensors: connection reset")
    out = tmp_path / "out"
    assert not (out / "model.safetensors").exists()
    assert not (out / "manifest.json").exists()
    left = (out / "model.safetensors.partial").stat().st_size
    assert left == at
    store = use(Watched())
    assert download(run, "--to", out).exit_code == 0
    starts = [start for name, start, _ in store.parts if name == "model.safetensors"]
    assert starts == list(range(at, len(FILES["model.safetensors"]), PART))
    assert is_complete(out, run)


def test_after_ctrl_c_the_next_call_continues(
    run: Path, tmp_path: Path, use: Callable[[Watched], Watched]
) -> None:
    def interrupt(uri: str, start: int) -> None:
        if start >= 5 * PART:
            raise KeyboardInterrupt

    use(Watched(interrupt))
    done = download(run, "--to", tmp_path / "out")
    assert (done.exit_code, done.stderr) == (130, "Interrupted; the same command continues.\n")
    assert 0 < (tmp_path / "out/model.safetensors.partial").stat().st_size <= 5 * PART
    store = use(Watched())
    assert download(run, "--to", tmp_path / "out").exit_code == 0
    assert min(start for name, start, _ in store.parts if name == "model.safetensors") > 0
    assert is_complete(tmp_path / "out", run)


@pytest.mark.parametrize("left", [b"of another export", b"x" * 100_000, FILES["model.safetensors"]])
def test_what_a_partial_file_holds_is_verified(run: Path, tmp_path: Path, left: bytes) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors.partial").write_bytes(left)
    assert download(run, "--to", out).exit_code == 0
    assert is_complete(out, run)


@pytest.mark.parametrize(
    "content",
    [b"y" + FILES["model.safetensors"][1:], FILES["model.safetensors"][:-1], b""],
    ids=["changed", "shorter", "empty"],
)
def test_a_file_that_is_not_the_listed_one_is_not_kept(run: Path, tmp_path: Path, content: bytes) -> None:
    (run / "export/model/model.safetensors").write_bytes(content)
    done = download(run, "--to", tmp_path / "out")
    assert is_refused(done, "model.safetensors is not the file that its manifest lists")
    assert not [
        name for name in contents(tmp_path / "out") if "model.safetensors" in name or "manifest" in name
    ]


def test_a_file_that_is_missing_in_the_store_is_named(run: Path, tmp_path: Path) -> None:
    (run / "export/model/serving/gpu.yaml").unlink()
    done = download(run, "--to", tmp_path / "out")
    assert is_refused(done, "export/model/serving/gpu.yaml does not exist, but its manifest lists it.")


@pytest.mark.parametrize("name", ["../stolen", "/tmp/stolen", "a/../../stolen", "a\0b", "..\\stolen"])
def test_a_manifest_with_a_name_outside_writes_nothing(run: Path, tmp_path: Path, name: str) -> None:
    write_manifest(run, "model", manifest_of({"config.json": b"{}", name: b"x"}))
    write_record(run, {"model": None})
    done = download(run, "--to", tmp_path / "dir" / "out")
    assert is_refused(done, "cannot be used: it names a file")
    assert not (tmp_path / "dir").exists()


def test_a_manifest_other_than_the_reported_one_is_refused(run: Path, tmp_path: Path) -> None:
    write_manifest(run, "model", manifest_of({"config.json": b"{}"}))
    assert is_refused(download(run, "--to", tmp_path / "out"), "is not the one that bot-0badcafe reported")


def test_a_manifest_that_is_too_large_is_refused(run: Path, tmp_path: Path) -> None:
    with (run / "export/model/manifest.json").open("wb") as sparse:
        sparse.truncate(2**40)
    assert is_refused(
        download(run, "--to", tmp_path / "out"), "the file is larger than the limit of 8,388,608 bytes"
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "holds no finished export: there is no export/manifest.json."),
        (b"", "is not the record of an export."),
        (b"[" * 100_000, "is not the record of an export."),
        (b'{"kind": "Export", "artifacts": [], "manifest": "gs://a/b"}', "names no folder."),
    ],
)
def test_a_run_folder_without_a_record_of_an_export_is_refused(
    run: Path, tmp_path: Path, record: bytes | None, message: str
) -> None:
    place = run / "export/manifest.json"
    place.unlink() if record is None else place.write_bytes(record)
    assert is_refused(download(run, "--to", tmp_path / "out"), message)


def test_an_export_without_its_manifest_is_incomplete(run: Path, tmp_path: Path) -> None:
    (run / "export/model/manifest.json").unlink()
    assert is_refused(
        download(run, "--to", tmp_path / "out"), "The export is incomplete: there is no file://"
    )


@pytest.mark.parametrize("force", [(), ("--force",)])
@pytest.mark.parametrize(
    "link", ["model.safetensors", "model.safetensors.partial", "serving", "manifest.json", "serving/gpu.yaml"]
)
@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_the_folder_is_never_written_through(
    run: Path, tmp_path: Path, link: str, force: tuple[str, ...], there: bool
) -> None:
    out, outside = tmp_path / "out", tmp_path / "outside"
    (out / link).parent.mkdir(parents=True)
    if there and link == "serving":
        outside.mkdir()
    elif there:
        outside.write_bytes(b"mine")
    (out / link).symlink_to(outside)
    done = download(run, "--to", out, *force)
    assert is_refused(done, "is a link")
    if not there:
        assert not outside.exists()
    elif link == "serving":
        assert list(outside.iterdir()) == []
    else:
        assert outside.read_bytes() == b"mine"


def test_a_partial_file_that_is_another_file_s_second_name_is_not_written(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "mine").write_bytes(b"mine")
    os.link(tmp_path / "mine", tmp_path / "out" / "model.safetensors.partial")
    assert is_refused(download(run, "--to", tmp_path / "out", "--force"), "is a link")
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_the_folder_itself_may_be_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    assert download(run, "--to", tmp_path / "out").exit_code == 0
    assert is_complete(tmp_path / "disk", run)


@pytest.mark.parametrize("name", ["notes.txt", "serving/notes.txt", "model.safetensors.index.json"])
def test_a_file_of_others_is_kept_and_needs_force(run: Path, tmp_path: Path, name: str) -> None:
    place = tmp_path / "out" / name
    place.parent.mkdir(parents=True)
    place.write_bytes(b"mine")
    assert is_refused(
        download(run, "--to", tmp_path / "out"), f"contains {name}, which is not a file of this export."
    )
    assert contents(tmp_path / "out") == {name: b"mine"}
    assert download(run, "--to", tmp_path / "out", "--force").exit_code == 0
    assert contents(tmp_path / "out") == contents(run / "export/model") | {name: b"mine"}


@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
def test_a_file_with_other_content_is_replaced_only_with_force(run: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_bytes(b"mine")
    assert is_refused(download(run, "--to", out), f"{name} has other content than this export's {name}.")
    assert contents(out) == {name: b"mine"}
    assert download(run, "--to", out, "--force").exit_code == 0
    assert is_complete(out, run)


def test_a_file_in_place_of_the_folder_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert is_refused(download(run, "--to", tmp_path / "out"), "is not a folder")


def test_a_disk_without_room_is_reported_before_anything_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: shutil._ntuple_diskusage(100, 90, 10))  # type: ignore[attr-defined]
    done = download(run, "--to", tmp_path / "out")
    assert is_refused(done, "more, and its disk has 10 B free.")
    assert not (tmp_path / "out").exists()


def test_a_disk_that_fills_up_is_one_line(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "out/model.safetensors.partial")

    monkeypatch.setattr(TargetFolder, "writing", full)
    done = download(run, "--to", tmp_path / "out")
    assert is_refused(done, "out/model.safetensors.partial: No space left on device")
    assert "Free space and run the command again; it continues." in done.stderr


def test_a_folder_that_cannot_be_made_is_one_line(run: Path) -> None:
    assert is_refused(download(run, "--to", "/dev/null/out"), "/dev/null/out: Not a directory")


@pytest.mark.parametrize(
    ("error", "message", "fix"),
    [
        (StorageUnauthenticated("gs://b/x", "no usable Google credentials: none\nfound"),
         "gs://b/x cannot be read: no usable Google credentials: none found", "gcloud auth application-default login"),
        (StorageDenied("gs://b/x", "you may not"), "gs://b/x cannot be read: you may not",
         "roles/storage.objectViewer"),
        (StorageDenied("file:///x", "Permission denied"), "file:///x cannot be read", "as a user that may read"),
        (BucketMissing("gs://b/x", "b"), "gs://b/x: bucket b does not exist", "Check the bucket's name"),
        (StorageUnavailable("gs://b/x", "no response within 120 s"), "does not respond: gs://b/x: no resp", "network"),
        (StorageError("gs://b/x", "odd \x1b[2J"), "gs://b/x cannot be read: odd [2J", ""),
        (ObjectTooLarge("gs://b/x", 5), "larger than the limit of 5 bytes", ""),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_the_store_refuses_is_one_line_with_a_fix(
    run: Path, tmp_path: Path, use: Callable[[Watched], Watched], error: StorageError, message: str, fix: str
) -> None:
    class Refusing(Watched):
        async def read(self, uri: str, *, limit: int = RECORD_LIMIT) -> bytes | None:
            raise error

    use(Refusing())
    done = download(run, "--to", tmp_path / "out")
    assert is_refused(done, message)
    assert fix in done.stderr
    assert "\x1b[2J" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("bot", "--run", "gs://a/b"),
        ("--run", "./folder"),
        ("--run", "gs://bucket"),
        ("--run", "s3://a/b"),
        ("--run", "gs://a/../b"),
        ("--run", "gs://a/b", "--what", "pickle"),
        ("",),
        ("--run", ""),
    ],
)
def test_arguments_that_name_no_run_are_refused_with_code_2(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["download", *arguments])
    assert done.exit_code == 2
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", ["try", "report"])
def test_an_empty_name_is_refused_by_every_command_on_one_run(command: str) -> None:
    done = CliRunner().invoke(app, [command, ""])
    assert done.exit_code == 2
    assert "give either the NAME" in done.output
