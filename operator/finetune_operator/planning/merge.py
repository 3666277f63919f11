"""Built-in defaults < profile defaults < job. Plain JSON in, plain JSON out; nothing is changed in place.

Profile locks need no layer of their own: a job that sets a locked path to another value is refused
(:mod:`.policy`), so what remains is what the layers below say.
"""

from collections.abc import Mapping
from typing import Any

#: What stands where neither job nor profile says anything. The descriptions in the CRD repeat these.
BUILT_IN: Mapping[str, Any] = {
    "cache": "Use",
    "resources": {"controller": "McJAX", "slices": 1},
    "checkpointing": {"everySteps": 100, "everySeconds": 600, "keep": {"last": 2}},
    "recovery": {"maxPreemptions": 100, "maxInfrastructureRetries": 5, "maxUserRetries": 0},
    "preRunningDeadlineSeconds": 7200,
    "hangPolicy": {"startupSeconds": 1800, "noStepSeconds": 900},
    "preflight": {"dataset": "Full", "memory": "Compile", "exportProof": True},
    "evaluation": {"baseline": True, "maxExamples": 500, "generation": {"maxNewTokens": 128}},
    "export": {"formats": ["HuggingFace"], "dtype": "BF16"},
    "datasets": {"shuffle": True, "maxSeqLength": 1024},
    "method": {"type": "SFT"},
    "hyperparameters": {
        "gradientAccumulationSteps": 1,
        "schedule": "Cosine",
        "weightDecay": 0,
        "maxGradNorm": 1,
        "optimizer": "AdamW",
        "seed": 42,
        "computePrecision": "BF16",
    },
}

#: Members that exclude each other, by section. Each inner tuple is one way to say the same thing.
UNIONS: Mapping[str, tuple[tuple[tuple[str, ...], ...], ...]] = {
    "hyperparameters": (
        (("epochs",), ("steps",)),
        (("globalBatchSize",), ("perDeviceBatchSize",)),
        (("warmupRatio",), ("warmupSteps",)),
    ),
    "resources": ((("tpu",), ("accelerator", "topology")),),
}


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win: maps merge key by key, lists and scalars replace, one union member drops the others."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _overlay(merged, layer, ())
    return merged


def _overlay(base: Mapping[str, Any], top: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    merged = dict(base)
    for group in UNIONS.get(".".join(path), ()):
        chosen = [member for member in group if any(top.get(name) is not None for name in member)]
        if chosen:
            for member in group:
                for name in member:
                    if member not in chosen:
                        merged.pop(name, None)
    for name, value in top.items():
        below = merged.get(name)
        if value is None:
            continue
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[name] = _overlay(below, value, (*path, name))
        else:
            merged[name] = value
    return merged


def lookup(document: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, or None."""
    value: Any = document
    for name in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
