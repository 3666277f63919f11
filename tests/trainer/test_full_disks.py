"""A full disk where a stage writes: every writer reports an error that names the cause."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from devcluster.gcs import client_environment
from finetune_contract import ExitCode, Outcome
from finetune_trainer.storage import open_store
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of
from tests.trainer.stores import BUCKET

pytestmark = pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode != 0,
    reason="a process on this machine cannot mount a disk of its own",
)
SIZE = 64 * 1024
#: Less than the few bytes that Evaluate fetches.
TINY = 8 * 1024


@pytest.fixture(scope="module")
def trained(stages: Stages, converted: str) -> str:
    """The run name of a short training."""
    steps = {"hyperparameters": {"steps": 1}, "checkpointing": {"every_steps": 1}}
    assert stages.run("Train", "full/trained", converted=converted, **steps).outcome is Outcome.SUCCEEDED
    return "full/trained"


@pytest.mark.parametrize(
    ("stage", "what"),
    [
        ("Convert", "the cache"),
        ("Convert", "scratch, where the model is fetched"),
        ("Export", "scratch"),
        ("Export", "the destination"),
        ("Train", "scratch, where the tokenizer is fetched"),
        ("Evaluate", "scratch, where the tokenizer is fetched"),
    ],
)
def test_no_space_is_reported_as_that(
    stages: Stages,
    server: str,
    trained: str,
    converted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    what: str,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    changes: dict[str, Any] = {"use_cache": "Off"} | (
        {"converted": converted} if stage in ("Train", "Evaluate") else {}
    )
    environment = dict(client_environment(server))
    if what == "the cache":
        changes |= {"cache": f"file://{tmp_path}/disk/cache", "use_cache": "Refresh"}
    elif what == "the destination":
        copies = [{"path": "spec.export.destinations[0]", "uri": f"file://{tmp_path}/disk/model"}]
        changes["export"] = {"destinations": copies}
    else:
        environment["TMPDIR"] = f"{tmp_path}/disk"
    if "fetched" in what:
        uri = f"gs://{BUCKET}/{tmp_path.name}"
        open_store().upload_folder(stages.root / "models/qwen3", uri)
        changes["model"] = {"uri": uri}
    (tmp_path / "disk").mkdir()
    run = trained if stage in ("Evaluate", "Export") else f"full/{tmp_path.name}"
    made = request(stages.root, stage, run, attempt=len(what), train_step=1, **changes)
    fault = ("small_disk_at", f"{tmp_path}/disk", TINY if stage == "Evaluate" else SIZE)
    running = stages.start(fault=fault, FINETUNE_REQUEST=made.to_json(), **environment)
    running.wait()
    result = result_of(made)
    assert result is not None, running.log[-4000:]
    assert result.failure is not None
    assert (result.failure.code, result.failure.reason) == (ExitCode.OUT_OF_MEMORY, "DiskFull"), (
        result.failure.message
    )
    assert f"{tmp_path}/disk" in result.failure.message
    assert result.failure.fix


_FILL = """
import sys
import numpy as np
from finetune_trainer.checkpoints.memmap import memmap_array
try:
    with open(sys.argv[1] + "/file", "w+b") as file:
        memmap_array(file, np.dtype(np.float32), (1024, 1024))[:] = 1.0
except OSError as error:
    print(error)
"""


def test_a_file_that_is_mapped_has_its_space_before_it_is_written(tmp_path: Path) -> None:
    """Otherwise a full disk ends the process with a signal."""
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size={SIZE} tmpfs "$1" && exec "$2" -c "$3" "$1"', "sh",
         tmp_path, sys.executable, _FILL],
        check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
