"""The losses of a training are those of MaxText's own program on the same batches: to the last digit, or for DPO up to
float32 rounding.

This covers what MaxText itself supports, but not gradient accumulation (which fails there), NF4 (whose blocks of
attention's output are within heads here) and ORPO (whose odds use the mean over tokens here)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devcluster.fixtures.chat_data import write_data
from finetune_contract import ConvertOutcome, DpoMethod, Outcome, StageRequest
from finetune_trainer import families
from finetune_trainer.data.batches import TrainBatches
from finetune_trainer.engine import maxtext
from finetune_trainer.process.processes import Processes
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import engine_path, open_store
from finetune_trainer.training.settings import settings
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request
from tests.trainer.stages import Stages

pytestmark = pytest.mark.thorough

STEPS = 8
LORA = {"rank": 4, "alpha": 8.0}
METHODS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"lora": LORA},
    "int8": {"lora": {**LORA, "quantization": "INT8"}},
    "dpo": {"type": "DPO", "max_prompt_length": 32, "beta": 0.2, "label_smoothing": 0.1},
}


@pytest.fixture(scope="module")
def model(stages: Stages) -> str:
    # with tied embeddings, MaxText rounds the table for the logits to bfloat16 even if it computes in float32
    write_model(stages.root / "models" / "untied", TinyModelSpec(tied=False))
    for form in ("messages", "preference"):
        write_data(stages.root / "data" / form, train=64, form=form)
    return f"file://{stages.root}/models/untied"


@pytest.fixture(scope="module")
def items(stages: Stages, model: str) -> str:
    made = stages.run("Convert", "untied", model={"uri": model})
    assert isinstance(made.details, ConvertOutcome), made.failure
    return made.details.manifest.items


def asked(stages: Stages, name: str, model: str, items: str) -> StageRequest:
    method = METHODS[name]
    form = "preference" if method.get("type") == "DPO" else "messages"
    source = {
        "path": "spec.datasets.train[0]",
        "name": "rows",
        "uri": f"file://{stages.root}/data/{form}/train.jsonl",
    }
    return request(
        stages.root, "Train", f"wrapped-{name}", method=method, model={"uri": model}, converted=items,
        data={"train": [source], "validation": []}, evaluation={"prompts": []},
        hyperparameters={"steps": STEPS, "warmup_steps": 2, "learning_rate": 3e-3, "weight_decay": 0.01},
    )  # fmt: skip


def batches(made: StageRequest, scratch: Path) -> Path:
    context = StageContext(
        request=made, store=open_store(), processes=Processes(count=1, index=0),
        stopper=None, scratch=scratch,  # type: ignore[arg-type]  # nothing here is stopped
    )  # fmt: skip
    h = made.hyperparameters
    rows = TrainBatches(
        rows=context.training_data().rows, batch_size=h.global_batch_size, seed=h.seed, shuffle=True
    )
    arrays = {f"{step}/{name}": array for step in range(STEPS) for name, array in rows.batch(step).items()}
    path = scratch / "batches.npz"
    np.savez(path, **arrays)
    return path


def arguments(made: StageRequest, model: Path, items: str, out: Path) -> list[str]:
    """Returns MaxText's command line for the same training."""
    plan = families.read(model)
    chosen = settings(made, plan, steps=STEPS, platform="cpu", output=str(out))
    lora = chosen.pop("lora", {})
    chosen |= {f"lora.{name}": value for name, value in lora.items()}
    file = maxtext.SFT
    if isinstance(dpo := made.method, DpoMethod):
        file = maxtext.CONFIGS / "post_train" / "dpo.yml"
        chosen |= {
            "dpo.dpo_beta": dpo.beta, "dpo.dpo_label_smoothing": dpo.label_smoothing,
            "dpo.max_prompt_length": dpo.max_prompt_length,
        }  # fmt: skip
    chosen |= {
        "load_parameters_path": engine_path(items), "tokenizer_path": model, "enable_goodput_recording": False,
        "monitor_goodput": False, "skip_jax_distributed_system": True, "checkpoint_period": 1000, "eval_interval": 1000,
        "scan_layers": True,
    }  # fmt: skip
    words = [
        f"{name}={json.dumps(value) if isinstance(value, list) else value}" for name, value in chosen.items()
    ]
    return [str(file), *plan.arguments(), *words]


def test_losses_are_bare_maxtexts(stages: Stages, model: str, items: str, tmp_path: Path) -> None:
    runs = []
    for name, method in METHODS.items():
        made = asked(stages, name, model, items)
        (scratch := tmp_path / name).mkdir()
        runs.append(
            {
                "program": "dpo" if method.get("type") == "DPO" else "sft",
                "arguments": arguments(made, Path(engine_path(model)), items, scratch / "out"),
                "batches": str(batches(made, scratch)),
                "steps": STEPS,
            }
        )
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    with (tmp_path / "log").open("w") as log:
        bare = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.bare", tmp_path / "runs.json"],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=Path(__file__).parents[2], env={**os.environ},
        )  # fmt: skip
    ours = {}
    for name in METHODS:
        made = asked(stages, name, model, items)
        result = stages.run(
            "Train", f"wrapped-{name}", **{key: getattr(made, key) for key in ("method", "converted", "model")},
            data=made.data, hyperparameters=made.hyperparameters, evaluation=made.evaluation,
        )  # fmt: skip
        assert result.outcome is Outcome.SUCCEEDED, result.failure
        ours[name] = [float(loss) for loss in stages.losses(f"wrapped-{name}").values()]
    told, _ = bare.communicate()
    assert bare.returncode == 0, (tmp_path / "log").read_text()[-4000:]
    theirs = dict(zip(METHODS, json.loads(told.splitlines()[-1]), strict=True))
    assert {name: len(losses) for name, losses in ours.items()} == dict.fromkeys(METHODS, STEPS)
    # DPO's loss uses differences of log-probabilities, which the two programs round differently
    assert ours.pop("dpo") == pytest.approx(theirs.pop("dpo"), rel=1e-5)
    assert ours == theirs
