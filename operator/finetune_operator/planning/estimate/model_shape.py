"""Sizes of a model, from its config.json. Pure.

The trainer reads the same sizes from it, and decides what it can train; here only sizes are of interest.
``tests/trainer/golden/model_sizes.json`` holds both to the same numbers for published models.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from finetune_contract.text_model import Architecture, MLAConfig, MoEConfig, TextModel, architectures

#: Far above any published model; they bound the work that a file can cause.
_MOST_LAYERS, _MOST_EXPERTS, _LARGEST = 1000, 1024, 2**31 - 1
#: The bytes of so many parameters are within the contract's bound of a size.
_MOST_PARAMETERS = 10**15
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class UnknownModelShape(ValueError):
    """The sizes of a model cannot be read from its config.json. The message names the key."""


@dataclass(frozen=True, kw_only=True)
class ModelShape(TextModel):
    """A text model as far as its sizes are concerned."""

    dtype_bytes: int | None
    """Bytes per parameter of the published weights. None if the file does not say, or if they have further parts."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Reads a parsed config.json. Raises UnknownModelShape."""
        names = config.get("architectures")
        name = names[0] if isinstance(names, list) and len(names) == 1 else None
        known = architectures().get(name) if isinstance(name, str) else None
        if known is None:
            raise UnknownModelShape(
                f"architectures: {str(names)[:80]} is not supported: expected one of {', '.join(architectures())}"
            )
        read = _Reader(config, known)
        heads, hidden = read.size("num_attention_heads"), read.size("hidden_size")
        layers = read.size("num_hidden_layers", most=_MOST_LAYERS)
        latent = read.latent() if "kv_lora_rank" in known.defaults else None
        shape = cls(
            architecture=str(name),
            hidden_size=hidden,
            intermediate_size=read.size("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=read.size("num_key_value_heads", heads),
            head_dim=latent.nope_dim + latent.rope_dim
            if latent
            else read.size("head_dim", max(1, hidden // heads)),
            vocab_size=read.size("vocab_size"),
            tied_embeddings=read.flag("tie_word_embeddings", known.tied_embeddings),
            experts=read.experts(known.experts_key, known.expert_width_key, layers)
            if known.experts_key
            else None,
            latent=latent,
            dtype_bytes=None if known.text_config else read.dtype_bytes,
        )
        if shape.parameters > _MOST_PARAMETERS:
            raise UnknownModelShape(
                f"the sizes make {shape.parameters:.1e} parameters, expected at most {_MOST_PARAMETERS:.0e}"
            )
        return shape

    @property
    def weights_bytes(self) -> int:
        """Bytes of the published weights; 0 if they are not known."""
        return (self.dtype_bytes or 0) * self.parameters

    @property
    def block_parameters(self) -> int:
        """Number of parameters of the last layers that are scanned as one block."""
        return self.block_layers * sum(map(math.prod, self.layer(self.layers - 1).values()))

    @property
    def softcapped(self) -> bool:
        """Whether the logits are bounded by a tanh."""
        return self.architecture == "Gemma2ForCausalLM"


class _Reader:
    """Sizes of a config.json, with transformers' defaults; null counts as absent."""

    def __init__(self, config: Mapping[str, Any], known: Architecture) -> None:
        values = config.get("text_config") if known.text_config else config
        if not isinstance(values, Mapping):
            raise UnknownModelShape("text_config: expected an object")
        self._values: Mapping[str, object] = values
        self._defaults = known.defaults

    def size(self, name: str, otherwise: int | None = None, *, least: int = 1, most: int = _LARGEST) -> int:
        value = self._values.get(name)
        if value is None:
            value = self._defaults.get(name, otherwise)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value <= most  # First: larger integers cannot be converted.
            or value != int(value)
        ):
            raise UnknownModelShape(f"{name}: {str(value)[:40]}, expected an integer from {least} to {most}")
        return int(value)

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self._values.get(name)
        return otherwise if value is None else value is True

    @property
    def dtype_bytes(self) -> int | None:
        names = (self._values.get(key) for key in ("dtype", "torch_dtype"))
        return next(
            (_DTYPE_BYTES[name] for name in names if isinstance(name, str) and name in _DTYPE_BYTES), None
        )

    def latent(self) -> MLAConfig:
        return MLAConfig(
            rank=self.size("kv_lora_rank"),
            nope_dim=self.size("qk_nope_head_dim"),
            rope_dim=self.size("qk_rope_head_dim"),
            value_dim=self.size("v_head_dim"),
        )

    def experts(self, key: str, width_key: str, layers: int) -> MoEConfig:
        deepseek = "n_shared_experts" in self._defaults
        number = self.size(key, least=2, most=_MOST_EXPERTS)
        return MoEConfig(
            number=number,
            chosen=self.size("num_experts_per_tok", most=number),
            width=self.size(width_key),
            # Other architectures do not read these keys.
            shared=self.size("n_shared_experts", least=0, most=_MOST_EXPERTS) if deepseek else 0,
            dense_layers=self.size("first_k_dense_replace", 0, least=0, most=layers) if deepseek else 0,
        )
