"""SIGKILL while a stage writes: incomplete files never count as complete, and the next attempt succeeds."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.gcs import client_environment
from finetune_contract import ConvertOutcome, ExitCode, ExportOutcome, Outcome, PreflightOutcome, StageResult
from finetune_trainer.export.publish import MANIFEST
from finetune_trainer.storage import StorageClient, open_store
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of

_FINALIZE = "orbax.checkpoint._src.path.atomicity:{}.finalize"
#: The last call before a conversion is committed, by the way in which each kind of storage commits it.
WHOLE = {
    "file": _FINALIZE.format("AtomicRenameTemporaryPath"),
    "gs": _FINALIZE.format("CommitFileTemporaryPath"),
}


class Place:
    """A folder in one of the two kinds of storage, and the stages that use it."""

    def __init__(self, stages: Stages, root: str, server: str) -> None:
        self.root, self.store = root, open_store()
        self._stages, self._server = stages, server

    def run(self, stage: str, run: str, *, fault: Any = (), **changes: Any) -> StageResult | None:
        """Runs a stage; returns None if it was killed."""
        made = request(self._stages.root, stage, run, **changes)
        running = self._stages.start(
            fault=fault, FINETUNE_REQUEST=made.to_json(), **client_environment(self._server)
        )
        code = running.wait()
        result = result_of(made)
        assert (code == -9) == (result is None), running.log[-4000:]
        return result


@pytest.fixture
def place(stages: Stages, root: str, server: str) -> Place:
    return Place(stages, root, server)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("in the middle of a tensor's layers", marks=pytest.mark.thorough),
        "just before it is whole",
    ],
)
def test_a_conversion_that_was_killed_is_no_model(place: Place, tmp_path: Path, moment: str) -> None:
    kind = "file" if place.root.startswith("file") else "gs"
    fault = (
        ("killed_at", "finetune_trainer.conversion.streaming:_finite", 5)
        if "middle" in moment
        else ("killed_at", WHOLE[kind])
    )
    run, changes = f"killed/{tmp_path.name}", {"cache": place.root, "export_proof": False}
    assert place.run("Convert", run, fault=fault, **changes) is None
    left = [entry.uri for entry in place.store.entries(f"{place.root}/convert")]
    assert left or "middle" in moment
    assert not [uri for uri in left if uri.endswith(("manifest.json", "commit_success.txt"))]

    entry = next((uri.partition("/0")[0] for uri in left), place.root)
    load = place.run("Train", run, converted=f"{entry}/0/items", hyperparameters={"steps": 1}, **changes)
    assert load is not None
    assert load.failure is not None
    assert (load.failure.code, load.failure.reason) == (ExitCode.INPUT_MISSING, "ConvertedModelUnreadable")

    found = place.run("Preflight", run, **changes)
    assert found is not None
    assert isinstance(found.details, PreflightOutcome), found.failure
    assert found.details.conversion is not None
    assert found.details.conversion.result == "Miss"
    again = place.run("Convert", run, attempt=2, **changes)
    assert again is not None
    assert isinstance(again.details, ConvertOutcome), again.failure
    assert not again.details.reused


@pytest.fixture(scope="module")
def trained(stages: Stages, converted: str) -> str:
    """The run name of a short training."""
    assert stages.run("Train", "killed/trained", converted=converted, hyperparameters={"steps": 1},
                      checkpointing={"every_steps": 1}).outcome is Outcome.SUCCEEDED  # fmt: skip
    return "killed/trained"


@pytest.mark.parametrize(
    ("name", "call"),
    [("upload", 1), ("upload", 4), ("delete", 3)],
    ids=["before the files", "between the files", "before the config is removed"],
)
def test_an_export_that_was_killed_is_no_model(
    place: Place, trained: str, tmp_path: Path, name: str, call: int
) -> None:
    """This also holds if the export replaces an older one."""
    backend = "files:FileStore" if place.root.startswith("file") else "google:GoogleStore"
    changes: dict[str, Any] = {
        "train_step": 1, "export": {"destinations": [{"path": "spec.export.destinations[0]", "uri": place.root}]},
    }  # fmt: skip
    assert place.run("Export", trained, **changes) is not None
    # the address excludes the copy in the run folder, which is written first
    fault = ("killed_at", f"finetune_storage.{backend}.{name}", call, place.root)
    assert place.run("Export", trained, attempt=2, fault=fault, **changes) is None
    names = {entry.uri.removeprefix(f"{place.root}/") for entry in place.store.entries(place.root)}
    assert not {MANIFEST, "config.json"} & names or whole(place.store, place.root)
    done = place.run("Export", trained, attempt=3, **changes)
    assert done is not None
    assert isinstance(done.details, ExportOutcome), done.failure
    assert whole(place.store, place.root)


def whole(store: StorageClient, uri: str) -> bool:
    """Whether the folder contains the files that its manifest lists."""
    listed = json.loads(
        store.read_or_none(f"{uri}/{MANIFEST}") or b'{"files": [{"path": "none", "size": 0}]}'
    )
    sizes = {entry.uri.removeprefix(f"{uri}/"): entry.size for entry in store.entries(uri)}
    return all(sizes.get(each["path"]) == each["size"] for each in listed["files"])
