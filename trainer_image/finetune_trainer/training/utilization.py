"""The shortest possible time of a step, from which model FLOPs utilization (MFU) is computed."""

from collections.abc import Sequence

from finetune_contract import PreferenceMethod, StageRequest
from finetune_trainer.engine import widths
from finetune_trainer.engine.chips import peak_flops
from finetune_trainer.families import ModelPlan
from finetune_trainer.training.flops import step_flops


def ideal_step_seconds(plan: ModelPlan, request: StageRequest, device_kinds: Sequence[str]) -> float | None:
    """Seconds of the model's own arithmetic on all devices at their published bfloat16 rate.

    None if a rate is not known. Recomputation by remat does not count; padding does, as it is computed.
    ``device_kinds``: JAX's names of the devices.
    """
    rates = [peak_flops(kind) for kind in device_kinds]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    method, batch = request.method, request.hyperparameters.global_batch_size
    rows = 2 * batch if isinstance(method, PreferenceMethod) else batch
    return step_flops(plan, method, rows=rows, length=widths.of_rows(request)) / sum(known)
