"""Stage requests for tests."""

from pathlib import Path
from typing import Any

from finetune_contract import HyperparametersSpec, MethodSpec, StageRequest
from finetune_trainer.methods import method_class

_NUMBERS = {
    "gradient_accumulation_steps": 1, "schedule": "Cosine", "weight_decay": 0.0, "max_grad_norm": 1.0,
    "optimizer": "AdamW", "seed": 42, "compute_precision": "BF16", "weight_precision": "FP32",
}  # fmt: skip


def method(changes: Any = None) -> MethodSpec:
    """Returns SFT, or the method in ``changes``; options that it omits have values that suit short rows."""
    document = {"type": "SFT", **dict(changes or {})}
    example = method_class(document["type"]).example(64, None).spec
    made: MethodSpec = type(example).model_validate({**dict(example), **document}, extra="forbid")
    return made


def hyperparameters(**changes: Any) -> HyperparametersSpec:
    """Returns one step of 8 rows, except for ``changes``."""
    length = {} if "epochs" in changes else {"steps": 1}
    rows = {"global_batch_size": 8, "learning_rate": 1.0}
    return HyperparametersSpec.model_validate({**_NUMBERS, **rows, **length, **changes}, extra="forbid")


def request(root: Path, stage: str, run: str = "run", **changes: Any) -> StageRequest:
    """Returns a request for the folders that ``Stages`` has: ``models/qwen3``, ``data/*.jsonl``.

    ``changes`` replaces top-level fields, or single keys where both values are dicts.
    """
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
            "shuffle": True,
            "packing": False,
            "check": "Full",
        },
        "use_cache": "Use",
        "export_proof": True,
        "method": {},
        "hyperparameters": {
            **_NUMBERS,
            "steps": 20,
            "global_batch_size": 8,
            "learning_rate": 1e-2,
            "compute_precision": "FP32",
        },
        "mesh": {"hosts": 1, "chips_per_host": 1, "fsdp": 1},
        "checkpointing": {"every_steps": 10, "keep_last": 2},
        "evaluation": {
            "prompts": ["What is the capital of France?"],
            "baseline": True,
            "max_new_tokens": 16,
            "temperature": 0.0,
            "top_k": 0,
        },
        "export": {"content": "Merged", "dtype": "BF16"},
    }
    for name, value in changes.items():
        base[name] = (
            {**base[name], **value} if isinstance(value, dict) and isinstance(base.get(name), dict) else value
        )
    base["method"] = method(base["method"])
    return StageRequest.model_validate(base, extra="forbid")
