"""What ``finetune plan`` says about the memory of the stages on CPU, as far as the model's size is known offline."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune_contract import Stage
from finetune_operator.planning import Plan
from finetune_operator.rendering.memory import (
    SIZED_STAGES,
    CpuPoolTooSmall,
    memory_wanted,
    most_parameters,
    require_cpu_memory,
)

#: ``8B``, ``0.6B``, ``135M``, ``8x7B`` as words of a model's name; not ``A3B``, the active part of a mixture.
_SIZE = re.compile(
    r"(?<![A-Za-z0-9.])(?:(\d{1,3})x)?(\d{1,4}(?:\.\d{1,3})?)([bm])(?![A-Za-z0-9])", re.IGNORECASE
)
_SCALE = {"b": 10**9, "m": 10**6}
#: Experts share attention and embeddings: Mixtral-8x7B has 46.7 billion parameters, 8x22B 140.6.
_EXPERTS_SHARE = 0.83


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Of the plan's stages on CPU whose memory grows with the model."""

    parameters: int | None
    """None: nothing tells the model's size before Preflight reads it."""
    known_from: str
    """``status`` (what an earlier look found), ``name`` (about), or empty."""
    requests: Mapping[Stage, int]
    """GiB; empty where the size is not known."""
    largest: int | None
    """Parameters of the largest model that fits; None: the profile sets no limit."""
    refusal: CpuPoolTooSmall | None
    """Why the job would fail after Preflight, if it would."""


def host_memory(plan: Plan, job: Mapping[str, Any]) -> HostMemory:
    """``job``: the manifest, with the status where it was read from a cluster."""
    stages = [stage for stage in SIZED_STAGES if stage in plan.stages]
    parameters, known_from = _of_status(job, plan.model.address), "status"
    if parameters is None:
        parameters, known_from = by_name(plan.model.address), "name"
    refusal = None
    if parameters is not None:
        try:
            require_cpu_memory(plan, stages, parameters)
        except CpuPoolTooSmall as error:
            refusal = error
    fitting = [most for stage in stages if (most := most_parameters(plan, stage)) is not None]
    return HostMemory(
        parameters=parameters,
        known_from=known_from if parameters is not None else "",
        requests={} if parameters is None else {s: memory_wanted(plan, s, parameters) for s in stages},
        largest=min(fitting, default=None),
        refusal=refusal,
    )


def by_name(address: str) -> int | None:
    """The parameters that a model's name speaks of: ``Qwen/Qwen3-14B``. None where it names no size."""
    sizes = (
        float(number) * (int(copies) * _EXPERTS_SHARE if copies else 1) * _SCALE[unit.lower()]
        for copies, number, unit in _SIZE.findall(address.rstrip("/").rpartition("/")[2])
    )
    return int(max(sizes, default=0)) or None


def _of_status(job: Mapping[str, Any], address: str) -> int | None:
    found: Any = job.get("status")
    for key in ("resolved", "model"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or found.get("source") != address:
        return None
    parameters = found.get("parameters")
    return parameters if isinstance(parameters, int) and not isinstance(parameters, bool) else None


def facts(memory: HostMemory) -> dict[str, Any]:
    """For programs."""
    told: dict[str, Any] = {stage.lower(): f"{size}Gi" for stage, size in memory.requests.items()}
    if memory.parameters is not None:
        told |= {"parameters": memory.parameters, "knownFrom": memory.known_from}
    if memory.largest is not None:
        told["largestModel"] = memory.largest
    if memory.refusal is not None:
        told |= {"reason": "CpuPoolTooSmall", "message": f"{memory.refusal} {memory.refusal.fix}"}
    return told


def text(memory: HostMemory) -> str:
    """For people."""
    if memory.parameters is None:
        most = (
            ""
            if memory.largest is None
            else f"; cpuPool.maxMemory holds models of up to {memory.largest / 1e9:.1f} billion parameters"
        )
        return f"by the model's size, which Preflight reads{most}"
    source = "by the model's name" if memory.known_from == "name" else "as the status says"
    asked = ", ".join(f"{stage} {size}Gi" for stage, size in memory.requests.items())
    return f"{asked} for {memory.parameters / 1e9:.1f} billion parameters, {source}"


def problem(memory: HostMemory) -> str:
    """Why the job would fail after Preflight; empty: as far as is known it would not."""
    refusal = memory.refusal
    return f"CpuPoolTooSmall, found by Preflight: {refusal} {refusal.fix}" if refusal else ""
