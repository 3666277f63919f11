"""Computes the logits of model folders with transformers, which has an environment of its own."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


class Reference:
    """One process for many folders, since starting torch takes longer than computing all tiny models."""

    def __init__(self, folders: Mapping[str, Path], rows: Sequence[Sequence[int]], scratch: Path) -> None:
        """Starts the process in the background; ``logits`` waits for its end."""
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch, self._rows = scratch, len(rows)
        (scratch / "rows.json").write_text(json.dumps(rows))
        environment = subprocess.run(
            [ROOT / "trainer_image/install.sh", "reference"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        pairs = [str(part) for name, path in folders.items() for part in (path, scratch / f"{name}.npz")]
        with (scratch / "log").open("w") as log:
            self._process = subprocess.Popen(
                [
                    f"{environment}/bin/python",
                    ROOT / "trainer_image/reference/logits.py",
                    scratch / "rows.json",
                    *pairs,
                ],
                stdout=log,
                stderr=log,
            )

    def logits(self, name: str) -> list[np.ndarray]:
        """Returns the logits of each row, float32 ``[len(row), vocabulary]``."""
        if self._process.wait() != 0:
            raise AssertionError((self._scratch / "log").read_text()[-4000:])
        arrays = np.load(self._scratch / f"{name}.npz")
        return [arrays[f"row{i}"] for i in range(self._rows)]

    def close(self) -> None:
        """Stops the process if it still runs."""
        self._process.kill()
        self._process.wait()


def difference(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """Returns the largest absolute difference."""
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))
