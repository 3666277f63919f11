"""MaxText's configuration for a request: base file, the model's settings, the request's, then the user's overrides."""

from typing import Any

from finetune_trainer import engine
from finetune_trainer.conversion import engine_path
from finetune_trainer.families import ModelPlan
from finetune_trainer.stages.context import Context
from finetune_trainer.training import overrides
from finetune_trainer.training.settings import settings


def training_config(
    context: Context, plan: ModelPlan, *, steps: int, parameters: str, adapter: str | None = None
) -> Any:
    """For the train and evaluate stages. ``parameters`` and ``adapter`` are addresses as MaxText spells them."""
    import jax
    from maxtext.configs.types import MaxTextConfig

    request = context.request
    made = settings(
        request, plan, steps=steps, platform=jax.default_backend(), output=engine_path(context.folder.uri)
    )
    chosen = overrides.parse(request.engine_overrides, plan.settings(), MaxTextConfig)
    if adapter is not None:
        # Only training holds the base quantized: what is judged is what will be exported.
        whole = {"lora_weight_qtype": None, "lora_tile_size": None}
        made["lora"] = {**made["lora"], **whole, "lora_restore_path": adapter}
    return engine.configure(plan, engine.SFT, **{**made, **chosen, "load_parameters_path": parameters})
