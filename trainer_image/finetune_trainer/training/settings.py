"""Translates a stage request to MaxText's settings: parallelism, batch, optimizer, schedule, precision. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from finetune_contract import ExitCode, HyperparametersSpec, MeshSpec, StageRequest
from finetune_trainer.checkpoints.layout import layout_for
from finetune_trainer.engine import widths
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of

_DTYPES = {"BF16": "bfloat16", "FP32": "float32"}
#: Block sizes for NF4, in elements that share a scale, in order of preference: first that of the QLoRA paper, then
#: smaller ones for narrow models.
_NF4_BLOCKS = (64, 32, 16)
#: Name of MaxText's run below the run folder: contract.RunFolder.train.
RUN_NAME = "train"


def settings(
    request: StageRequest, plan: ModelPlan, *, steps: int, platform: str, output: str
) -> dict[str, Any]:
    """All settings that the request determines, except ``engineOverrides``.

    ``output`` is the run folder as MaxText spells it, ``platform`` is JAX's name of the devices (tpu, cpu).
    """
    h = request.hyperparameters
    on_cpu = platform == "cpu"
    return {
        "run_name": RUN_NAME,
        "base_output_directory": output,
        "steps": steps,
        "max_target_length": widths.of_rows(request),
        "packing": request.data.packing,
        "hardware": "cpu" if on_cpu else "tpu",
        "attention": "dot_product" if on_cpu else "autoselected",
        "dtype": _DTYPES[h.compute_precision],
        "weight_dtype": _DTYPES[h.weight_precision],
        **_products(request),
        # rows of one forward pass: MaxText does not know of the accumulation
        "per_device_batch_size": per_device_batch_size(h, request.mesh),
        "init_weights_seed": h.seed,
        "enable_dropout": False,
        "log_config": False,  # 880 lines; the request is in the attempt's record
        # MaxText refuses runs with a larger fraction of unsharded parameters than this. The plan chose this mesh.
        "sharding_tolerance": 1.0,
        "gcs_metrics": False,
        **parallelism(request.mesh, on_cpu=on_cpu),
        **controller(request.mesh),
        **optimizer(h, steps),
        **_lora(request, plan),
    }


def _products(request: StageRequest) -> dict[str, Any]:
    """Precision of matrix products. By default a TPU rounds float32 operands to bfloat16."""
    exact = request.hyperparameters.compute_precision == "FP32"
    return {
        "matmul_precision": "highest" if exact else "default",
        "logits_dot_in_fp32": exact or method_of(request.method).exact_logits,
    }


def parallelism(mesh: MeshSpec, *, on_cpu: bool) -> dict[str, int]:
    """Mesh axes inside a slice (ICI) and across slices (DCN).

    Slices split the data axis; CPU devices have no slices. Raises ``StageError`` 64 when they do not divide it.
    """
    slices = 1 if on_cpu else mesh.slices
    if mesh.data % slices:
        raise StageError(
            ExitCode.BAD_REQUEST, "MeshNotDivisible", "data parallelism must be a multiple of the slices",
            where="spec.resources.parallelism.data", actual=str(mesh.data), expected=f"a multiple of {slices}",
            fix=f"Set data: {slices}.",
        )  # fmt: skip
    inside = (mesh.data // slices, mesh.fsdp, mesh.tensor)
    return {
        # On a 4x4 topology, axes of 8 and 2 take parts of the same row. JAX splits physical axes only where it has to.
        "allow_split_physical_axes": not on_cpu and sum(size > 1 for size in inside) > 1,
        "dcn_data_parallelism": slices,
        "ici_data_parallelism": mesh.data // slices,
        "ici_fsdp_parallelism": mesh.fsdp,
        "ici_tensor_parallelism": mesh.tensor,
    }


def controller(mesh: MeshSpec) -> dict[str, bool]:
    """Settings for the controller, and for the layout in which it reads and writes checkpoints."""
    return {"enable_single_controller": mesh.controller == "Pathways", **layout_for(mesh).settings()}


def per_device_batch_size(h: HyperparametersSpec, mesh: MeshSpec) -> float:
    """Returns the rows per device and forward pass; below 1 if devices share a row under tensor parallelism.

    Raises ``StageError`` 64 if the global batch does not divide evenly.
    """
    passes = h.gradient_accumulation_steps
    unit = passes * mesh.data * mesh.fsdp
    if h.global_batch_size % unit:
        lower = h.global_batch_size // unit * unit
        nearest = f"{lower} or {lower + unit}" if lower else str(unit)
        accumulated = f", in {passes} forward passes" if passes > 1 else ""
        raise StageError(
            ExitCode.BAD_REQUEST, "BatchNotDivisible", "the batch does not divide evenly among the devices",
            where="spec.hyperparameters.globalBatchSize", actual=str(h.global_batch_size),
            expected=f"a multiple of {unit} (data {mesh.data} x fsdp {mesh.fsdp}{accumulated})", fix=f"Use {nearest}.",
        )  # fmt: skip
    return h.global_batch_size / (unit * mesh.tensor)


def optimizer(h: HyperparametersSpec, steps: int) -> dict[str, Any]:
    """Optimizer and learning rate.

    The schedule's length is explicit, so that nothing later can stretch it. It is one step longer than the training, so
    that the rate reaches 0 after the last step, as in transformers, and not at it.
    """
    return {
        "opt_type": h.optimizer.lower(),
        "adam_weight_decay": h.weight_decay,
        "adamw_mask": ["norm", "bias", "scale"],  # decay applies to matrices only, as is common
        "gradient_clipping_threshold": h.max_grad_norm,
        "learning_rate": h.learning_rate,
        "learning_rate_schedule_steps": steps + 1,
        "learning_rate_final_fraction": 0.0,
        **_schedule(h, steps),
    }


def warmup_steps(h: HyperparametersSpec, steps: int) -> int:
    """Number of linear warm-up steps from 0. A ratio leaves at least the last step at the full learning rate."""
    if h.warmup_steps is not None:
        return min(h.warmup_steps, steps)
    return min(math.ceil(round((h.warmup_ratio or 0.0) * steps, 9)), steps - 1)


def _schedule(h: HyperparametersSpec, steps: int) -> dict[str, Any]:
    warmup, length = warmup_steps(h, steps), steps + 1
    shape: dict[str, Any] = {"warmup_steps_fraction": _fraction(warmup, length)}
    if h.schedule == "Cosine":
        return shape | {"lr_schedule_type": "cosine"}
    # MaxText's warmup-stable-decay is linear if all of it is decay, and constant if none is.
    decay = length - warmup if h.schedule == "Linear" else 0
    return shape | {
        "lr_schedule_type": "wsd",
        "wsd_decay_style": "linear",
        "wsd_decay_steps_fraction": _fraction(decay, length),
    }


def _fraction(part: int, whole: int) -> float:
    """The smallest fraction that MaxText's ``int(whole * fraction)`` turns back into ``part``.

    The fractions of warm-up and decay together must not exceed 1.
    """
    fraction = part / whole
    return fraction if int(whole * fraction) == part else math.nextafter(fraction, 1.0)


def _lora(request: StageRequest, plan: ModelPlan) -> Mapping[str, Any]:
    lora = request.method.lora
    if lora is None:
        return {}
    return {
        "mu_dtype": "float32",  # not the frozen base's dtype: an adapter's moments are as precise as the adapter
        "lora": {
            "enable_lora": True,
            "lora_rank": lora.rank,
            "lora_alpha": lora.alpha,
            "lora_module_path": plan.lora_module_path(lora.target_modules),
            **_quantization(lora.quantization, plan),
        },
    }


def _quantization(kind: str | None, plan: ModelPlan) -> Mapping[str, Any]:
    """LoRA quantization settings; empty if ``kind`` is None.

    INT8 has a scale per output, NF4 one per block of inputs, of the largest block size that fits. Raises ``StageError``
    64 if the model cannot be quantized that way.
    """
    if kind is not None and plan.experts is not None:
        raise StageError(
            ExitCode.BAD_REQUEST, "QuantizationDoesNotFit",
            "experts, which make up nearly all of the model, cannot be quantized",
            where="spec.method.lora.quantization", actual=kind,
            expected="None for a mixture of experts", fix="Remove it.",
        )  # fmt: skip
    if kind != "NF4":
        return {} if kind is None else {"lora_weight_qtype": "int8"}
    inputs = {
        "hidden_size": plan.hidden_size, "intermediate_size": plan.intermediate_size, "head_dim": plan.head_dim,
    }  # fmt: skip
    for block in _NF4_BLOCKS:
        if not any(size % block for size in inputs.values()):
            return {"lora_weight_qtype": "nf4", "lora_tile_size": block}
    raise StageError(
        ExitCode.BAD_REQUEST, "QuantizationDoesNotFit", "the model's dimensions cannot be divided into blocks for NF4",
        where="spec.method.lora.quantization", actual=", ".join(f"{name} {size}" for name, size in inputs.items()),
        expected=f"multiples of {_NF4_BLOCKS[-1]}", fix="Use INT8, which needs no blocks, or remove it.",
    )  # fmt: skip
