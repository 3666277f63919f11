"""Translates a model's config.json into MaxText settings. Pure, and importable without JAX.

Any size of a supported architecture works: numbers and switches come from the file, never from a catalogue. Every key
that affects the model's function is either mapped or rejected. Keys that transformers' class for the architecture does
not read cannot affect it and are ignored.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.families import (
    deepseek2,
    gemma2,
    gemma3,
    llama,
    mistral,
    mixtral,
    qwen2,
    qwen3,
    qwen3_moe,
)
from finetune_trainer.families.fields import Fields
from finetune_trainer.families.plan import Family, Llama3Scaling, ModelPlan

__all__ = ["SUPPORTED", "Family", "Llama3Scaling", "ModelPlan", "read", "read_config", "resolve"]

_RESOLVERS: Mapping[str, Callable[[Fields, str], ModelPlan]] = {
    "LlamaForCausalLM": llama.plan,
    "MistralForCausalLM": mistral.plan,
    "MixtralForCausalLM": mixtral.plan,
    "Qwen2ForCausalLM": qwen2.plan,
    "Qwen3ForCausalLM": qwen3.plan,
    "Qwen3MoeForCausalLM": qwen3_moe.plan,
    "DeepseekV2ForCausalLM": deepseek2.plan,
    "Gemma2ForCausalLM": gemma2.plan,
    "Gemma3ForCausalLM": gemma3.plan,
    "Gemma3ForConditionalGeneration": lambda fields, name: gemma3.plan(gemma3.text_config(fields), name),
}
#: Maximum nesting depth of config.json. Later readers of the file, such as transformers, may parse it recursively.
_DEEPEST = 32
SUPPORTED = tuple(_RESOLVERS)


def resolve(config: Mapping[str, object], *, where: str = "config.json") -> ModelPlan:
    """Returns the plan for a parsed config.json.

    Raises ``StageError`` 64 with the field, the value found and the value expected if the model is not supported.
    """
    fields = Fields(config, where)
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else None
    if not isinstance(name, str) or name not in _RESOLVERS:
        raise StageError(
            ExitCode.BAD_REQUEST,
            "UnsupportedArchitecture",
            "this model's architecture is not supported",
            where=f"{where}: architectures",
            actual=repr(architectures) if architectures is not None else "nothing",
            expected=f"one of {', '.join(SUPPORTED)}",
            fix="Choose a model of a supported architecture.",
        )
    return _RESOLVERS[name](fields, name)


def read_config(folder: Path, *, where: str = "") -> dict[str, object]:
    """Parses ``folder/config.json``. ``where`` is the folder's address for error messages; empty for ``folder`` itself.

    Raises ``StageError`` 66 if the file does not exist, 64 if it is not a JSON object or is nested too deeply.
    """
    path = folder / "config.json"
    shown = f"{where or folder}/config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StageError(
            ExitCode.INPUT_MISSING,
            "NotAModelFolder",
            "the file does not exist",
            where=shown,
            expected="a folder in Hugging Face format",
            fix="Point the model at a folder with config.json, safetensors and tokenizer files.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise StageError(
            ExitCode.BAD_REQUEST,
            "InvalidModelConfig",
            "the file is not valid JSON",
            where=shown,
            actual=str(error),
            expected="a JSON object",
            fix="Copy the model's config.json again.",
        ) from None
    if _is_deeper(config, _DEEPEST):
        raise StageError(
            ExitCode.BAD_REQUEST,
            "InvalidModelConfig",
            "the file is nested too deeply",
            where=shown,
            actual=f"more than {_DEEPEST} levels of objects and lists",
            expected="the few levels of a model's settings",
            fix="Copy the model's config.json again.",
        )
    if not isinstance(config, dict):
        raise StageError(
            ExitCode.BAD_REQUEST,
            "InvalidModelConfig",
            "the file does not contain an object",
            where=shown,
            actual=type(config).__name__,
            expected="a JSON object",
            fix="Copy the model's config.json again.",
        )
    return config


def _is_deeper(value: object, limit: int) -> bool:
    """Whether objects and lists are nested more than ``limit`` levels deep."""
    level = [value]
    for _ in range(limit):
        level = [
            child
            for each in level
            if isinstance(each, (dict, list))
            for child in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, (dict, list)) for each in level)


def read(folder: Path, *, where: str = "") -> ModelPlan:
    """Returns the plan for the model in a local folder. Raises as :func:`read_config` and :func:`resolve` do."""
    return resolve(read_config(folder, where=where), where=f"{where or folder}/config.json")
