"""Settings of PEFT LoRA adapters that change what the adapter computes: unsupported ones are refused."""

import math
from collections.abc import Mapping
from typing import Any

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError

#: Settings of adapter_config.json that mean another product than ``alpha / r * B @ A`` of one rank, other base weights,
#: or more weights than the pairs of modules.
_OTHER = (
    "use_rslora",
    "use_dora",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "lora_bias",
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "use_qalora",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
    "velora_config",
)
#: Initializations of the pairs that leave the base weights as they are. An adapter that began with another one (PiSSA,
#: OLoRA, CorDA, LoftQ, LoRA-GA) belongs to a base that PEFT has changed.
_INITIAL = (None, True, False, "gaussian", "orthogonal", "eva")


def require_plain(config: Mapping[str, Any], where: str) -> tuple[int, float]:
    """Rank and alpha of a plain LoRA adapter's configuration. ``where`` is its address.

    Raises ``StageError`` 64 for another kind of adapter, ValueError or KeyError if rank or alpha are missing.
    """
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    if rank < 1 or not math.isfinite(alpha):
        raise ValueError(f"r {rank}, lora_alpha {alpha}")
    if config.get("peft_type", "LORA") != "LORA":
        raise _refused(where, "peft_type", config["peft_type"])
    if config.get("bias", "none") != "none":
        raise _refused(where, "bias", config["bias"])
    if config.get("init_lora_weights") not in _INITIAL:
        raise _refused(where, "init_lora_weights", config["init_lora_weights"])
    for name in _OTHER:
        if config.get(name):
            raise _refused(where, name, config[name])
    return rank, alpha


def _refused(where: str, name: str, value: object) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST,
        "AdapterUnsupported",
        "this kind of adapter cannot be merged here",
        where=f"{where}/adapter_config.json: {name}",
        actual=str(value)[:200],
        expected="a plain LoRA adapter: alpha / r * B @ A, of one rank and alpha",
        fix="Merge it with PEFT (merge_and_unload) if PEFT merges this kind, and evaluate the merged model.",
    )
