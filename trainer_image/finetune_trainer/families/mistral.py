"""MistralForCausalLM. Sources: transformers' MistralConfig; MaxText's llama2 block, of which Mistral is a case.

MaxText's own Mistral block has no entry in its conversion tables.
"""

from dataclasses import replace

from finetune_trainer.families import common, llama
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import ModelPlan

DEFAULTS = common.ConfigDefaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=None,
    context_length=131072,
    tied_embeddings=False,
)
#: MistralConfig's, where the key is absent; null means none.
_WINDOW = 4096


def plan(config: Fields, architecture: str) -> ModelPlan:
    """Sequences no longer than the sliding window never meet it: that is the length to tune at."""
    made = llama.plan(config, architecture, DEFAULTS)
    window = config.optional_number("sliding_window", _WINDOW)
    if window is None or window >= made.context_length:
        return made
    return replace(made, context_length=int(window), context_field="sliding_window")
