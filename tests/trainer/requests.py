"""Stage requests for tests."""

from pathlib import Path
from typing import Any

from finetune_contract import StageRequest


def request(root: Path, stage: str, run: str = "run", **changes: Any) -> StageRequest:
    """A request on the folders that ``chain`` makes: ``models/qwen3``, ``data/*.jsonl``. ``changes`` replaces top-level
    parts; where both are dicts, single keys."""
    base: dict[str, Any] = {
        "job": {"namespace": "team-a", "name": "tiny", "uid": "0123456789abcdef"},
        "stage": stage,
        "attempt": 1,
        "run_folder": f"file://{root}/{run}",
        "cache": f"file://{root}/cache",
        "model": {"uri": f"file://{root}/models/qwen3"},
        "data": {
            "train": [
                {
                    "path": "spec.datasets.train[0]",
                    "name": "train-0",
                    "uri": f"file://{root}/data/train.jsonl",
                }
            ],
            "validation": [
                {
                    "path": "spec.datasets.validation[0]",
                    "name": "faq",
                    "uri": f"file://{root}/data/eval.jsonl",
                }
            ],
            "max_seq_length": 64,
        },
        "method": {},
        "hyperparameters": {
            "steps": 20,
            "global_batch_size": 8,
            "learning_rate": 1e-2,
            "compute_precision": "FP32",
        },
        "mesh": {"hosts": 1, "chips_per_host": 1, "fsdp": 1},
        "checkpointing": {"every_steps": 10, "keep_last": 2},
        "evaluation": {"prompts": ["What is the capital of France?"], "max_new_tokens": 16},
        "export": {"content": "Merged", "dtype": "BF16"},
    }
    for name, value in changes.items():
        base[name] = (
            {**base[name], **value} if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        )
    return StageRequest.model_validate(base, extra="forbid")
