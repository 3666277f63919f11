"""The recorded memory of compiled steps is what the pinned compiler reports."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.memory_cases import cases, compile_arguments, model_config

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["j10", "j14"])
def test_a_step_compiles_to_its_recorded_memory(name: str, libtpu: Path, tmp_path: Path) -> None:
    (case,) = (each for each in cases()["judge"] if each["name"] == name)
    (tmp_path / "config.json").write_text(json.dumps(model_config(case["model"])))
    # the flags are the operator's, whose dependencies are not installed here
    catalogue = runpy.run_path(str(ROOT / "operator/finetune_operator/catalog/xla_flags.py"))
    flags = catalogue["default_libtpu_args"](case["slice"].partition(":")[0])
    done = subprocess.run(
        [
            Path(sys.executable).with_name("finetune-stage"), "compile", "--model", tmp_path,
            *compile_arguments(case),
        ],
        env=os.environ | {"TPU_LIBRARY_PATH": str(libtpu), "LIBTPU_INIT_ARGS": " ".join(flags)},
        check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    found, recorded = json.loads(done.stdout), case["compiled"]
    assert found["peak_bytes"] == pytest.approx(recorded["peak"], rel=0.01), (
        "python -m tests.bench.memory --again compiles all cases"
    )
    assert found["arguments_bytes"] == pytest.approx(recorded["arguments"], rel=0.01)
