"""Defaults for what neither the job nor the profile sets. They are defined only here.

The descriptions of the API repeat them ("Default: 42."), and a test compares the two. ``BUILT_IN`` is the layer below
the profile's defaults when a spec is merged. The other tables hold defaults that cannot be merged, since they depend on
the method or on the presence of a section.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from finetune_operator.objects import Object

BUILT_IN: Object = {
    "cache": "Use",
    "resources": {"controller": "McJAX", "slices": 1},
    "checkpointing": {"everySteps": 100, "everySeconds": 600, "keep": {"last": 2}},
    "recovery": {"maxPreemptions": 100, "maxInfrastructureRetries": 5, "maxUserRetries": 0},
    "preRunningDeadlineSeconds": 7200,
    "hangPolicy": {"startupSeconds": 1800, "noStepSeconds": 900},
    "preflight": {"dataset": "Full", "memory": "Compile", "exportProof": True},
    "evaluation": {"baseline": True, "maxExamples": 500, "generation": {"maxNewTokens": 128}},
    "export": {"formats": ["HuggingFace"], "dtype": "BF16"},
    "datasets": {"shuffle": True, "dedupe": "Off", "maxSeqLength": 1024},
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodDefaults:
    """Defaults of one method."""

    learning_rate: float
    """Learning rate of full fine-tuning."""
    lora_learning_rate: float
    options: Object
    """Options of the method in the spec, by field name."""


METHODS: Mapping[str, MethodDefaults] = {
    "SFT": MethodDefaults(learning_rate=2e-5, lora_learning_rate=2e-4, options={"trainOnPrompt": False}),
    # DPO moves away from its reference within few steps: MaxText's own default.
    "DPO": MethodDefaults(
        learning_rate=5e-7,
        lora_learning_rate=5e-6,
        options={"beta": 0.1, "labelSmoothing": 0},
    ),
    "ORPO": MethodDefaults(learning_rate=8e-6, lora_learning_rate=8e-5, options={"lambda": 0.1}),
}
LORA: Object = {"rank": 16, "quantization": "None"}
#: ``epochs`` applies only if ``steps`` is not set either, and ``warmupRatio`` only if ``warmupSteps`` is not.
HYPERPARAMETERS: Object = {"epochs": 1, "warmupRatio": 0.03}
#: Precision of the weights in memory: of trained weights, and of the frozen base under LoRA.
WEIGHT_PRECISION, LORA_WEIGHT_PRECISION = "FP32", "BF16"
#: Rows per optimizer step, or the number of devices if that is larger.
GLOBAL_BATCH = 8
HUB: Object = {"revision": "main"}
DATASET: Object = {"split": "train", "format": "Auto"}
GENERATION: Object = {"temperature": 0, "topK": 0}
PROFILING: Object = {"steps": 5}
SMOKE: Object = {"steps": 5, "examples": 64}
EXPORT: Object = {"content": "Merged", "onGateFailure": "Skip"}
HUB_DESTINATION: Object = {"private": True}
CONSTRAINT_MODE = "Strict"
FLAVOR: Object = {"maxSlices": 1}
#: spec.hangPolicy.stageSeconds: several times what the largest models take. Evaluate holds a slice meanwhile; on CPU,
#: downloads dominate.
EVALUATE_SECONDS = 6 * 3600
CPU_STAGE_SECONDS = 24 * 3600
#: spec.hangPolicy.refusedPodsSeconds: the processes that run end by themselves after 300 s without the others.
REFUSED_PODS_SECONDS = 120
