"""The memory that the operator requests for stages on CPU is sufficient for models with any number of layers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from finetune_contract import host_memory

#: The measurements take minutes, and change with the pinned libraries rather than with the code.
pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
LAYERS = (4, 40)
WORKS = ("convert", "proof", "BF16", "FP32", "trained", "adapter", "orbax")
#: Variation in bytes between two runs of the same operation.
NOISE = 80 * 2**20
#: Bytes that are not released for each written array: in MaxText's own format a layer has nine arrays of its own.
ARRAY, ARRAYS = 400 * 2**10, 9

type Measured = dict[str, Any]


def run(folder: Path, *options: str, group: Path | None = None) -> list[Measured]:
    """Runs the measurement as a separate program. ``group``: the cgroup that its process joins."""
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
    """Returns the memory that the operator requests for the operation, in bytes."""
    held: int = host_memory.PIECE * found["piece"]
    if work == "adapter":
        adapter = found["adapter"]
        held = max(held + host_memory.ADAPTER_HELD * adapter, host_memory.ADAPTER_WRITTEN * adapter)
    return host_memory.FIXED + held


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Measured]:
    """Measurements of two models that differ in their number of layers."""
    layers = ("--layers", *map(str, LAYERS))
    return run(tmp_path_factory.mktemp("memory"), *layers, "--lower-bounds")


@pytest.mark.parametrize("work", WORKS)
def test_more_layers_take_no_more_memory(measured: list[Measured], work: str) -> None:
    few, many = measured
    stacked = 4 * (many["stack"] - few["stack"])
    assert stacked > 1.5 * NOISE, "a float32 stack of all layers would be visible"
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
    """A cgroup with a memory limit, which a process can join."""

    def __init__(self, size: int) -> None:
        """Raises ``OSError`` if cgroups cannot be created on this machine."""
        root = Path("/sys/fs/cgroup")
        first = (root / "memory").is_dir()  # cgroup v1 has a hierarchy for each controller
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
    """The bounds are those of production.

    The kernel also counts the cached pages of files, and kills a process that exceeds the limit.
    """
    vocabulary, hidden = 65536, 512
    size = host_memory.FIXED + host_memory.PIECE * vocabulary * hidden
    try:
        limit = Limit(size)
    except OSError as error:
        pytest.skip(f"no cgroup with a memory limit can be created here: {error}")
    try:
        (found,) = run(
            tmp_path, "--vocab", str(vocabulary), "--hidden", str(hidden), "--exports", group=limit.folder
        )
        print(f"{limit.peak / 2**30:.2f} GiB with files, of {size / 2**30:.2f}")
    finally:
        limit.remove()
    assert found["piece"] == vocabulary * hidden
    assert max(found["most"].values()) <= size
