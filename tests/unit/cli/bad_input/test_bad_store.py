"""Every command that reads a run folder, with a store that is away, and with garbage in the folder."""

from pathlib import Path

import pytest

from finetune_operator.artifacts.port import StorageUnavailable
from finetune_operator.artifacts.shared_store import SharedStore
from tests.unit.cli.bad_input.rows import DONE, OTHER, CommandRow
from tests.unit.cli.bad_input.runs import ESCAPE, of_a_store, refused, run
from tests.unit.cli.stand_in import StandIn


@of_a_store
def test_a_store_that_is_away(
    row: CommandRow, folder: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_store: SharedStore, uri: str, **_limits: int) -> None:
        raise StorageUnavailable(uri, "connection refused")

    for call in ("read", "read_part", "list"):
        monkeypatch.setattr(SharedStore, call, away)
    done = run(row.arguments(folder, server.kubeconfig))
    refused(done, "connection refused", "Fix:")
    assert not (folder / "to").exists()


GARBAGE = {
    "bytes": b"\x00\xff\xfe" * 1000,
    "nothing": b"",
    "half a record": b'{"version": 3, "files": [{"path": "a"',
    "another record": b'{"version": 3, "job": 5, "artifacts": [], "rows": {}}\n',
    "deep": b"[" * 100_000,
    "infinite": b'{"version": 1e999, "loss": NaN}',
    "control characters": ESCAPE.encode() + b"\r\x07\n",
}


@pytest.mark.parametrize("case", GARBAGE)
@of_a_store
def test_a_run_folder_with_garbage(row: CommandRow, case: str, folder: Path, server: StandIn) -> None:
    found = [file for name in (DONE, OTHER) for file in (folder / name).rglob("*") if file.is_file()]
    for file in found:
        file.write_bytes(GARBAGE[case])
    (folder / "ledger" / "record.json").write_bytes(GARBAGE[case])
    done = run(row.arguments(folder, server.kubeconfig))
    if done.code:
        assert done.stderr.startswith("Error: "), done
        assert done.stderr.count("Error: ") == 1, done
    assert "\x1b" not in done.stdout + done.stderr
    assert not (folder / "to" / "manifest.json").exists()


@of_a_store
def test_a_run_folder_with_folders_in_place_of_files(row: CommandRow, folder: Path, server: StandIn) -> None:
    for name in (DONE, OTHER):
        for file in [each for each in (folder / name).rglob("*") if each.is_file()]:
            file.unlink()
            file.mkdir()
    done = run(row.arguments(folder, server.kubeconfig))
    if done.code:
        assert done.stderr.count("Error: ") == 1, done
    assert not (folder / "to" / "manifest.json").exists()
