"""MistralForCausalLM, which runs on MaxText's llama2 block: its Mistral block has no entry in its conversion tables.

Sources: transformers' MistralConfig; MaxText's llama2 block.
"""

from dataclasses import replace

from finetune_trainer.families import llama
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import ModelPlan

#: MistralConfig's default sliding window in tokens; an explicit null disables the window.
_WINDOW = 4096


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Returns the plan of a Mistral model.

    The context length is limited to the sliding window, within which the window has no effect.
    """
    made = llama.plan(config, architecture)
    window = config.optional_number("sliding_window", _WINDOW)
    if window is None or window >= made.context_length:
        return made
    return replace(made, context_length=int(window), context_field="sliding_window")
