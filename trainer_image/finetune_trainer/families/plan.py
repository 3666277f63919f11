"""The plan of a model: its config.json translated into MaxText's settings and tensor shapes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from finetune_contract.exit_codes import ExitCode
from finetune_contract.text_model import MLP_MODULES, TextModel
from finetune_trainer.errors import StageError


class Family(StrEnum):
    """Models that share MaxText's decoder block and tensor names."""

    LLAMA = "llama"
    MIXTRAL = "mixtral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3-moe"
    GEMMA2 = "gemma2"
    GEMMA3 = "gemma3"
    DEEPSEEK2 = "deepseek2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """The frequency scaling of Llama 3.1 and 3.2 (transformers' rope type ``llama3``)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


#: Mixtral's own names of router and experts.
_MIXTRAL: Mapping[str, str] = {
    "mlp.gate": "block_sparse_moe.gate",
    "mlp.experts.gate_proj": "block_sparse_moe.experts.w1",
    "mlp.experts.up_proj": "block_sparse_moe.experts.w3",
    "mlp.experts.down_proj": "block_sparse_moe.experts.w2",
}
#: Hugging Face module name -> last part of MaxText's module path, the same for all families.
LORA_MODULES: Mapping[str, str] = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "kv_a_proj_with_mqa": "wkv_a",
    "kv_b_proj": "wkv_b",
    "o_proj": "out",
    "gate_proj": "wi_0",
    "up_proj": "wi_1",
    "down_proj": "wo",
}


@dataclass(frozen=True, kw_only=True)
class ModelPlan(TextModel):
    """Everything that config.json determines, resolved.

    ``model_name`` only selects MaxText's code path and tensor names: ``overrides`` replaces every number of that
    catalogue entry. Values for which MaxText has no setting have fields of their own (``folded_query_scalar``,
    ``llama3_scaling``, ``linear_scaling``), which ``engine`` and ``conversion`` apply.
    """

    family: Family
    model_name: str
    overrides: Mapping[str, object]
    context_length: int
    context_field: str = "max_position_embeddings"
    """The key of config.json that sets ``context_length``."""
    folded_query_scalar: float | None = None
    """Conversion divides the query weights by its square root. None if MaxText scales queries at run time."""
    embedding_scale: float = 1.0
    """Factor by which conversion multiplies the embedding table (Gemma: sqrt(hidden size))."""
    norm_offset: float = 0.0
    """Value that conversion adds to the norms' weights (Gemma: 1)."""
    llama3_scaling: Llama3Scaling | None = None
    linear_scaling: float = 1.0
    """Linear RoPE factor of a Llama model, for which MaxText has no setting."""

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the text model's weights as in a plain ``…ForCausalLM`` checkpoint."""
        named: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size),
            "model.norm.weight": (self.hidden_size,),
        }
        own = _MIXTRAL if self.family is Family.MIXTRAL else {}
        for number in range(self.layers):
            for name, shape in self.layer(number).items():
                place = f"model.layers.{number}.{own.get(name, name)}"
                if len(shape) == 3:
                    module, _, projection = place.rpartition(".")
                    named |= {f"{module}.{each}.{projection}.weight": shape[1:] for each in range(shape[0])}
                else:
                    named[place if place.endswith(".bias") else f"{place}.weight"] = shape
        if not self.tied_embeddings:
            named["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return named

    def settings(self) -> dict[str, object]:
        """Settings for ``pyconfig.initialize(argv, **settings)``; the caller adds dtypes and layer scanning."""
        return {"model_name": self.model_name, "override_model_config": True, **self.overrides}

    def arguments(self) -> list[str]:
        """``settings`` as command-line arguments for MaxText."""
        return [f"{key}={_word(value)}" for key, value in self.settings().items()]

    def lora_module_path(self, target_modules: Sequence[str] | None = None) -> str:
        """MaxText's regular expression for the modules to adapt.

        ``target_modules`` are Hugging Face names; None selects all of ``lora_modules``. Raises ``StageError`` 64 for
        an empty list or a module that LoRA cannot adapt.
        """
        chosen = self.lora_modules if target_modules is None else tuple(dict.fromkeys(target_modules))
        unknown = [name for name in chosen if name not in self.lora_modules]
        if unknown or not chosen:
            raise StageError(
                ExitCode.BAD_REQUEST,
                "UnknownLoraModule",
                "LoRA can adapt the linear layers of attention and MLP only"
                if self.experts is None
                else "in a mixture of experts, LoRA can adapt the linear layers of attention only",
                where="spec.method.lora.targetModules",
                actual=", ".join(unknown) or "an empty list",
                expected=f"some of {', '.join(self.lora_modules)}",
                fix="Choose modules from that list, or remove targetModules to adapt them all.",
            )
        return module_path(chosen)


def module_path(modules: Iterable[str]) -> str:
    """MaxText's regular expression for these modules of every layer. ``modules`` are keys of ``LORA_MODULES``."""
    chosen = tuple(modules)
    attention = [LORA_MODULES[name] for name in chosen if name not in MLP_MODULES]
    mlp = [LORA_MODULES[name] for name in chosen if name in MLP_MODULES]
    parts = []
    if attention:
        parts.append(rf"self_attention[a-z_]*/({'|'.join(attention)})")
    if mlp:
        parts.append(rf"mlp[a-z_]*/({'|'.join(mlp)})")
    return f"decoder/.*({'|'.join(parts)})"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list) else str(value)
