"""Host memory of the stages on CPU, from the size of the model."""

import re
from math import ceil

from finetune_contract import Stage
from finetune_operator.planning import Findings, Plan

#: Bytes per parameter that a stage holds at once, and its slack. Conversion keeps one float32 copy while it reads
#: the source lazily; export holds what was trained and what it writes.
_FACTORS = {Stage.CONVERT: 1.3 * 4, Stage.EXPORT: (4 + 2 + 2) * 1.1}
_SLACK_GIB = 8
_PREFLIGHT_GIB = 8
#: More is no model, but a record gone wrong: the pod then asks for what no node has, and says so.
_MOST_PARAMETERS = 10**15
#: Sizes that node types come in, GiB.
_SIZES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 1024, 1408, 1952, 3844, 5888)
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class CpuPoolTooSmall(ValueError):
    """The stage needs more memory than the profile's CPU nodes have."""


def cpu_memory_gib(plan: Plan, stage: Stage, findings: Findings) -> int:
    """Memory of the stage's pod, GiB. Raises CpuPoolTooSmall.

    Before preflight the model's size is unknown, and the smallest size stands for it.
    """
    limit = _gib(plan.cpu_pool.max_memory) if plan.cpu_pool.max_memory else None
    if stage is Stage.PREFLIGHT:
        return _PREFLIGHT_GIB if limit is None else min(_PREFLIGHT_GIB, int(limit))
    parameters = min(findings.preflight.model.parameters, _MOST_PARAMETERS) if findings.preflight else 0
    needed = parameters * _FACTORS[stage] / 2**30 + _SLACK_GIB
    size = next((size for size in _SIZES if size >= needed), ceil(needed))
    if limit is None or size <= limit:
        return size
    if needed > limit:
        raise CpuPoolTooSmall(
            f"stage {stage} of a model with {parameters / 1e9:.1f} billion parameters needs about "
            f"{ceil(needed)} GiB of memory, and the profile's cpuPool.maxMemory is {plan.cpu_pool.max_memory}. "
            "Give the profile larger CPU nodes."
        )
    return int(limit)


def _gib(quantity: str) -> float:
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", quantity)
    assert match is not None, "the profile's schema admits quantities only"
    return float(match[1]) * _UNITS[match[2]] / 2**30
