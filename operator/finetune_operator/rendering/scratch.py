"""Scratch space of the CPU stages: the ephemeral storage that their pods request, as a pure function."""

from collections.abc import Iterable, Iterator, Mapping
from math import floor
from typing import Any

from finetune_contract import ModelIdentity, ModelSizes, Stage
from finetune_contract.text_model import VALUE_BYTES
from finetune_operator.planning import Plan
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.memory import CpuPoolTooSmall, sizes_of
from finetune_operator.rendering.quantities import gib

#: GiB for logs, library caches, the tokenizer, data samples and file system overhead.
_FIXED_GIB = 8
#: GiB of a limit above the request, for what the hub client keeps of uploads, which depends on its release.
_SPARE_GIB = 16
#: Bytes per value of the export's dtypes.
_FLOAT32 = 4


def scratch_gib(plan: Plan, stage: Stage, model: ModelIdentity | None) -> int:
    """Returns the scratch request of the stage's pod in GiB. Before preflight the model is unknown (None) and empty.

    Raises CpuPoolTooSmall.
    """
    cpu = STAGES[stage].cpu
    if cpu is not None and cpu.scratch_gib is not None:
        limit = _most_gib(plan)
        return cpu.scratch_gib if limit is None else min(cpu.scratch_gib, floor(limit))
    require_scratch(plan, (stage,), model)
    return needed_scratch_gib(plan, stage, model)


def pool_remarks(profile: Mapping[str, Any]) -> Iterator[str]:
    """Yields a remark for each limit in the profile's spec below the default request of Preflight."""
    pool, requested = profile.get("cpuPool", {}), STAGES[Stage.PREFLIGHT].cpu
    assert requested is not None, "Preflight runs on CPU"
    for name, usual in (
        ("maxMemory", requested.memory_gib),
        ("maxEphemeralStorage", requested.scratch_gib),
    ):
        if usual is not None and name in pool and gib(pool[name]) < usual:
            yield (
                f"spec.cpuPool.{name}: {pool[name]} is less than the {usual}Gi that Preflight requests where nothing "
                "limits it, so it may be killed or evicted: offer larger CPU nodes."
            )


def needed_scratch_gib(plan: Plan, stage: Stage, model: ModelIdentity | None) -> int:
    """Returns the GiB that a stage needs whose disk depends on the model, whatever the profile's nodes have."""
    sizes = sizes_of(model)
    if stage is Stage.CONVERT:
        # The forward pass of the proof reads a block's arrays from files.
        written = _fetched_to_convert(plan, model, sizes) + _FLOAT32 * sizes.largest_block
    else:
        written = _fetched_to_export(plan, model, sizes) + _exported(plan, model, sizes)
    return _FIXED_GIB - (-written // 2**30)


def require_scratch(plan: Plan, stages: Iterable[Stage], model: ModelIdentity | None) -> None:
    """Raises CpuPoolTooSmall if any of ``stages`` exceeds ``cpuPool.maxEphemeralStorage``; the error names all."""
    limit = _most_gib(plan)
    needed = {
        stage: needed_scratch_gib(plan, stage, model) for stage in stages if STAGES[stage].sized_by_model
    }
    failing = {stage: size for stage, size in needed.items() if limit is not None and size > limit}
    if failing:
        most = max(failing.values())
        raise CpuPoolTooSmall(
            f"{' and '.join(f'{stage} needs {size} GiB' for stage, size in failing.items())} of scratch space, and the "
            f"profile's cpuPool.maxEphemeralStorage is {plan.cpu_pool.max_ephemeral_storage}.",
            stage=next(iter(failing)),
            fix=f"Create the job under a profile whose CPU nodes leave a pod {most} GiB of disk: "
            f"cpuPool.maxEphemeralStorage {most}Gi.",
        )


def _most_gib(plan: Plan) -> float | None:
    given = plan.cpu_pool.max_ephemeral_storage
    return None if given is None else gib(given)


def scratch_limit_gib(stage: Stage, request: int) -> int | None:
    """Returns the scratch limit in GiB for that request; None if the stage has no limit."""
    cpu = STAGES[stage].cpu
    return request + _SPARE_GIB if cpu is not None and cpu.limits_scratch else None


def _fetched_to_convert(plan: Plan, model: ModelIdentity | None, sizes: ModelSizes) -> int:
    """Returns the bytes of the source's weight files that are downloaded."""
    if model is None or plan.model.orbax is not None or _readable_in_place(plan):
        return 0
    return sizes.weights_bytes or _FLOAT32 * model.parameters


def _fetched_to_export(plan: Plan, model: ModelIdentity | None, sizes: ModelSizes) -> int:
    """Returns the bytes downloaded of the weights that training starts from.

    All of them if an adapter is merged, those that training does not change (a vision part) after full fine-tuning, and
    none if only an adapter is exported.
    """
    merged = plan.method.lora is not None and plan.export.content != "Adapter"
    if model is None or (plan.method.lora is not None and not merged) or _readable_in_place(plan):
        return 0
    if plan.model.orbax is not None:
        return _FLOAT32 * model.parameters if merged else 0  # written as tensors in float32
    weights = sizes.weights_bytes or _FLOAT32 * model.parameters
    if merged:
        return weights
    foreign = _foreign(model, sizes)
    # Parts of a bucket's files can be fetched; files of the hub are fetched whole.
    return foreign if plan.model.uri is not None or foreign == 0 else weights


def _readable_in_place(plan: Plan) -> bool:
    return plan.model.uri is not None and plan.model.uri.startswith("file://")


def _foreign(model: ModelIdentity, sizes: ModelSizes) -> int:
    """Returns the bytes of the source's weights beyond two per parameter: a vision part.

    For a source in float32, the result is larger than that.
    """
    return max(0, sizes.weights_bytes - 2 * model.parameters)


def _exported(plan: Plan, model: ModelIdentity | None, sizes: ModelSizes) -> int:
    if model is None:
        return 0
    parameters, lora, export = model.parameters, plan.method.lora, plan.export
    item, written = VALUE_BYTES[export.dtype], 0
    if lora is None or plan.model.orbax is not None:
        # A stacked array, which is converted layer by layer.
        written += _FLOAT32 * sizes.largest_stack
    if lora is not None:
        written += item * lora.rank * sizes.lora_width
    if lora is None or export.content != "Adapter":
        # The model, with the vision part of the source, which takes at least two bytes per parameter.
        written += item * parameters + _foreign(model, sizes)
    if export.orbax:
        written += item * parameters
    return written
