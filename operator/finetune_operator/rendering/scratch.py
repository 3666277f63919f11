"""Scratch space of the stages on CPU: what their pods request of a node's ephemeral storage, a pure function."""

from collections.abc import Iterable, Iterator, Mapping
from math import floor
from typing import Any

from finetune_contract import ModelIdentity, ModelSizes, Stage
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering.memory import CpuPoolTooSmall, sizes_of
from finetune_operator.rendering.quantities import gib

#: For logs, the caches of libraries, the tokenizer, samples of the data, and what file systems add.
_FIXED_GIB = 8
#: Of a limit above the request: for what the hub's client keeps of uploads, which its release decides.
_SPARE_GIB = 16
#: Bytes of a value by the names of the export's dtypes.
_ITEM = {"BF16": 2, "FP32": 4}
_FLOAT32 = 4


def scratch_gib(plan: Plan, stage: Stage, findings: Findings) -> int:
    """What the stage's pod requests, GiB. Before preflight the model is unknown, and nothing stands for it.

    Raises CpuPoolTooSmall.
    """
    cpu = STAGES[stage].cpu
    if cpu is not None and cpu.scratch_gib is not None:
        limit = _most_gib(plan)
        return cpu.scratch_gib if limit is None else min(cpu.scratch_gib, floor(limit))
    model = findings.preflight.model if findings.preflight else None
    require_scratch(plan, (stage,), model)
    return needed_scratch_gib(plan, stage, model)


def pool_remarks(profile: Mapping[str, Any]) -> Iterator[str]:
    """What a profile's spec gives to Preflight, where that is less than it requests otherwise."""
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
    """What a stage needs whose disk depends on the model, whatever the profile's nodes have."""
    sizes = sizes_of(model)
    if stage is Stage.CONVERT:
        # The proof's forward pass reads a block's arrays from files.
        written = _fetched_to_convert(plan, model, sizes) + _FLOAT32 * sizes.largest_block
    else:
        written = _fetched_to_export(plan, model, sizes) + _exported(plan, model, sizes)
    return _FIXED_GIB - (-written // 2**30)


def require_scratch(plan: Plan, stages: Iterable[Stage], model: ModelIdentity | None) -> None:
    """Raises CpuPoolTooSmall, which names all of ``stages`` that need more than ``cpuPool.maxEphemeralStorage``."""
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
    """The limit beside that request, GiB. None: no limit."""
    cpu = STAGES[stage].cpu
    return request + _SPARE_GIB if cpu is not None and cpu.limits_scratch else None


def _fetched_to_convert(plan: Plan, model: ModelIdentity | None, sizes: ModelSizes) -> int:
    """The source's weight files."""
    if model is None or plan.model.orbax is not None or _readable_in_place(plan):
        return 0
    return sizes.weights_bytes or _FLOAT32 * model.parameters


def _fetched_to_export(plan: Plan, model: ModelIdentity | None, sizes: ModelSizes) -> int:
    """Of the weights that training starts from: all where an adapter is merged into them, those that training left
    alone (a vision part) after full fine-tuning, none for an adapter alone."""
    merged = plan.method.lora is not None and plan.export.content != "Adapter"
    if model is None or (plan.method.lora is not None and not merged) or _readable_in_place(plan):
        return 0
    if plan.model.orbax is not None:
        return _FLOAT32 * model.parameters if merged else 0  # written as tensors in float32
    weights = sizes.weights_bytes or _FLOAT32 * model.parameters
    if merged or model.sizes is None:
        return weights
    foreign = _foreign(model, sizes)
    # Of a bucket's files parts are fetched, of the hub's whole files.
    return foreign if plan.model.uri is not None or foreign == 0 else weights


def _readable_in_place(plan: Plan) -> bool:
    return plan.model.uri is not None and plan.model.uri.startswith("file://")


def _foreign(model: ModelIdentity, sizes: ModelSizes) -> int:
    """Bytes of the source's weights beyond two for each parameter: a vision part. Of a source in float32 they are
    more than that."""
    return max(0, sizes.weights_bytes - 2 * model.parameters)


def _exported(plan: Plan, model: ModelIdentity | None, sizes: ModelSizes) -> int:
    if model is None:
        return 0
    parameters, lora, export = model.parameters, plan.method.lora, plan.export
    item, written = _ITEM[export.dtype], 0
    if lora is None or plan.model.orbax is not None:
        # A stacked array, turned into one layer after the other.
        written += _FLOAT32 * sizes.largest_stack
    if lora is not None:
        written += item * lora.rank * sizes.lora_width
    if lora is None or export.content != "Adapter":
        # The model, with the vision part that the source has beside it in at least two bytes a parameter.
        written += item * parameters + _foreign(model, sizes)
    if export.orbax:
        written += item * parameters
    return written
