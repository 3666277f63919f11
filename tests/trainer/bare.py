"""MaxText's own training programs on given batches, without any of our code.

    python -m tests.trainer.bare SETTINGS.json

SETTINGS.json contains a list of runs: ``program`` (sft, dpo), ``arguments`` (MaxText's command line, the settings file
first), ``batches`` (an npz of arrays ``<step>/<name>``), ``steps``. Prints a JSON list of the losses of each.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


class FixedBatchHooks:
    """MaxText's data hooks, with batches that were computed before."""

    def __init__(self, path: str, steps: int) -> None:
        self._arrays, self._steps = np.load(path), steps
        self.train_data_iterator: list[Any] = []
        self.eval_data_iterator = None

    def load_next_train_batch(self, trainer: Any) -> dict[str, Any] | None:
        step = trainer.train_steps
        if step == self._steps:
            return None
        prefix = f"{step}/"
        self.train_batch = {
            name.removeprefix(prefix): self._arrays[name]
            for name in self._arrays.files
            if name.startswith(prefix)
        }
        return self.train_batch

    def load_next_eval_batch(self, trainer: Any) -> None:
        return None


def losses(program: str, arguments: list[str], batches: str, steps: int) -> list[float]:
    from maxtext.configs import pyconfig
    from maxtext.trainers.post_train.dpo import train_dpo
    from maxtext.trainers.post_train.sft import train_sft
    from tunix.sft import peft_trainer

    found: list[float] = []
    module = {"sft": train_sft, "dpo": train_dpo}[program]
    kind = "SFTDataHooks" if program == "sft" else "DPODataHooks"
    setattr(module.hooks, kind, lambda *_: FixedBatchHooks(batches, steps))
    write = peft_trainer.PeftTrainer._write_metrics

    def noted(self: Any, buffer: Any) -> None:
        found.append(float(buffer.loss))
        write(self, buffer)

    peft_trainer.PeftTrainer._write_metrics = noted
    try:
        module.train(pyconfig.initialize_pydantic(["bare", *arguments]))
    finally:
        peft_trainer.PeftTrainer._write_metrics = write
    return found


if __name__ == "__main__":
    import pathwaysutils

    pathwaysutils.initialize()
    print(json.dumps([losses(**run) for run in json.loads(Path(sys.argv[1]).read_text())]))
