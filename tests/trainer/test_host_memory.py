"""What the operator requests for the stages on CPU is enough, however many layers a model has."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from finetune_contract import host_memory

ROOT = Path(__file__).parents[2]
LAYERS = (4, 40)
WORKS = ("convert", "proof", "BF16", "FP32", "trained", "adapter", "orbax")
#: Bytes by which the same work differs from one run to the next.
NOISE = 80 * 2**20
#: Bytes that stay behind for each array that is written: MaxText's own format has arrays of single layers, nine each.
ARRAY, ARRAYS = 400 * 2**10, 9

type Measured = dict[str, Any]


def run(folder: Path, *options: str, group: Path | None = None) -> list[Measured]:
    """The measurement as a program of its own. ``group``: the control group that its process enters."""
    enter = [] if group is None else ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', group / "cgroup.procs"]
    done = subprocess.run(
        [*enter, sys.executable, "-m", "tests.trainer.host_memory", folder, *options],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-4000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def needed(found: Measured, work: str) -> int:
    """What the operator requests for it, in bytes."""
    held: int = host_memory.PIECE * found["piece"]
    if work == "adapter":
        adapter = found["adapter"]
        held = max(held + host_memory.ADAPTER_HELD * adapter, host_memory.ADAPTER_WRITTEN * adapter)
    return host_memory.FIXED + held


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    """Of two models that differ in their number of layers."""
    layers = ("--layers", *map(str, LAYERS))
    return run(tmp_path_factory.mktemp("memory"), *layers, "--lower-bounds")


@pytest.mark.parametrize("work", WORKS)
def test_more_layers_take_no_more_memory(measured: list[Measured], work: str) -> None:
    few, many = measured
    stacked = 4 * (many["stack"] - few["stack"])
    assert stacked > 1.5 * NOISE, "a parameter of all layers in float32 would show"
    rise = (many["most"][work] - many["before"]) - (few["most"][work] - few["before"])
    if work == "adapter":
        rise -= host_memory.ADAPTER_WRITTEN * (many["adapter"] - few["adapter"])
    if work == "orbax":
        rise -= ARRAY * ARRAYS * (many["layers"] - few["layers"])
    print(f"{work}: {rise / 2**20:.0f} MiB more for {stacked / 2**20:.0f} MiB of a further stack")
    assert rise <= NOISE


@pytest.mark.parametrize("work", WORKS)
def test_a_stage_takes_no_more_memory_than_the_operator_requests_for_it(
    measured: list[Measured], work: str
) -> None:
    for found in measured:
        assert found["most"][work] <= needed(found, work)


class Limit:
    """A control group with a limit of memory, which a process enters."""

    def __init__(self, size: int) -> None:
        """Raises ``OSError`` where groups cannot be made here."""
        root = Path("/sys/fs/cgroup")
        first = (root / "memory").is_dir()  # version 1 has a tree for each controller
        self.folder = (root / "memory" if first else root) / f"finetune-test-{uuid4().hex[:8]}"
        self._peak = "memory.max_usage_in_bytes" if first else "memory.peak"
        self.folder.mkdir()
        try:
            (self.folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(size))
        except OSError:
            self.remove()
            raise

    @property
    def peak(self) -> int:
        return int((self.folder / self._peak).read_text())

    def remove(self) -> None:
        self.folder.rmdir()


def test_a_large_tensor_is_converted_and_proven_under_a_limit_of_what_the_operator_requests(
    tmp_path: Path,
) -> None:
    """With the bounds of production. The kernel counts cached pages of files, too, and ends what exceeds the limit."""
    vocabulary, hidden = 65536, 512
    size = host_memory.FIXED + host_memory.PIECE * vocabulary * hidden
    try:
        limit = Limit(size)
    except OSError as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    try:
        (found,) = run(
            tmp_path, "--vocab", str(vocabulary), "--hidden", str(hidden), "--exports", group=limit.folder
        )
        print(f"{limit.peak / 2**30:.2f} GiB with files, of {size / 2**30:.2f}")
    finally:
        limit.remove()
    assert found["piece"] == vocabulary * hidden
    assert max(found["most"].values()) <= size
