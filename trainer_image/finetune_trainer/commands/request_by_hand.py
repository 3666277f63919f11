"""A stage request for a command that runs without a job: every section, of which the command sets what it needs."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import StageRequest

type Section = Mapping[str, Any]

#: Values that every request must have but that no such command depends on.
_DEFAULTS: Mapping[str, Section] = {
    "data": {"shuffle": False, "packing": False, "check": "Full"},
    "hyperparameters": {
        "steps": 1, "gradient_accumulation_steps": 1, "learning_rate": 1e-5, "schedule": "Constant",
        "weight_decay": 0.0, "max_grad_norm": 1.0, "optimizer": "AdamW", "seed": 42, "compute_precision": "BF16",
        "weight_precision": "FP32",
    },
    "evaluation": {"baseline": False, "max_new_tokens": 1, "temperature": 0.0, "top_k": 0},
}  # fmt: skip


def request_by_hand(stage: str, scratch: object, **parts: Any) -> StageRequest:
    """Returns a request for a stage that no job runs, for commands that a person runs.

    ``parts`` are sections of the request. Those of data, hyperparameters and evaluation are completed with
    ``_DEFAULTS``; the others replace the default section. ``scratch`` is a folder on this machine for run folder and
    cache. Raises ``pydantic.ValidationError`` for a part that is missing or unknown.
    """
    return StageRequest.model_validate(
        {
            "job": {"namespace": "", "name": "by-hand", "uid": "by-hand"},
            "stage": stage,
            "attempt": 1,
            "run_folder": f"file://{scratch}/run",
            "cache": f"file://{scratch}/cache",
            "use_cache": "Off",
            "checkpointing": {"every_steps": 1, "keep_last": 1},
            "export": {"content": "Merged", "dtype": "BF16"},
            "export_proof": False,
            **parts,
            **{name: {**defaults, **parts.get(name, {})} for name, defaults in _DEFAULTS.items()},
        },
        extra="forbid",
    )
