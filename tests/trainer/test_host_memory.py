"""What the operator requests for the stages on CPU is enough: :mod:`finetune_contract.host_memory`, measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finetune_contract import host_memory

ROOT = Path(__file__).parents[2]
#: Work -> bytes per parameter, and bytes that do not grow with the model, which are part of the operator's slack.
LIMITS = {
    "convert": (host_memory.CONVERT, 0),
    "proof": (host_memory.CONVERT, 0.7e9),
    "BF16": (host_memory.EXPORT, 0),
    "FP32": (host_memory.EXPORT, 0),
    "orbax": (host_memory.EXPORT_WITH_ORBAX, 0),
    # The adapter has 2 % of this small model's parameters.
    "adapter": (host_memory.EXPORT_MERGED + 0.02 * host_memory.ADAPTER, 0),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@pytest.mark.parametrize("work", LIMITS)
def test_a_stage_takes_no_more_memory_than_the_operator_requests_for_it(folder: Path, work: str) -> None:
    """In this order: the others start from what was converted."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.trainer.host_memory", folder, work],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    taken, parameters = map(int, done.stdout.splitlines()[-1].split())
    each, fixed = LIMITS[work]
    print(f"{work}: {taken / parameters:.2f} bytes per parameter")
    assert taken <= each * parameters + fixed
