"""The estimate of a step's memory for the cases of ``tests/memory_cases.json``."""

import math

from finetune_contract import LoraSpec, MeshSpec
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.estimate.step_memory import StepMemory, TrainStep, step_memory
from tests.memory_cases import Case, model_config


def train_step(case: Case) -> TrainStep:
    """Returns the step as ``finetune-stage compile`` builds it: of a pair's row, half is the answer."""
    devices = math.prod(map(int, case["slice"].partition(":")[2].split("x")))
    slices, tensor = case.get("slices", 1), case.get("tensor", 1)
    method, rank = case.get("method", "SFT"), case.get("lora")
    pairs = method != "SFT"
    rows = (2 if pairs else 1) * case["batch"] / case.get("accumulation", 1)
    return TrainStep(
        model=ModelShape.of(model_config(case["model"])),
        mesh=MeshSpec(
            hosts=1, chips_per_host=devices, slices=slices, data=slices, fsdp=devices // tensor, tensor=tensor
        ),
        rows=rows / (devices * slices),
        width=case["length"],
        scored=case["length"] // 2 if pairs else case["length"],
        lora=LoraSpec(rank=rank, alpha=2.0 * rank, quantization=case.get("quantization")) if rank else None,
        pairs=pairs,
        reference=method == "DPO" and not rank,
        moments=2,
        accumulated="accumulation" in case,
        weight_bytes=2 if rank else 4,
        value_bytes=2,
    )


def estimated(case: Case) -> StepMemory:
    return step_memory(train_step(case), case["remat"], case.get("pieces", 1))


def relative_error(case: Case) -> float:
    """The estimate's error, relative to the compiler's peak; negative if the estimate is below."""
    return float(estimated(case).peak / case["compiled"]["peak"] - 1)
