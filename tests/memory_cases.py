"""Train steps that the TPU compiler has compiled, and the memory that it reports: ``memory_cases.json``.

The estimate of ``finetune plan`` was fitted to those of ``fit``, and is held to those of ``judge``, which were chosen
before. ``python -m tests.bench.memory`` compiles them. Bytes of a case are those on one device; those of a case with a
``source`` were recorded there in GiB with two decimals.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

type Case = Mapping[str, Any]

DATA = Path(__file__).with_name("memory_cases.json")
_PUBLISHED = Path(__file__).with_name("trainer") / "published.json"
#: Models that differ from a published configuration in sizes alone.
_RESIZED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Llama-3.1-8B": ("Llama-3.2-1B-Instruct", {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "head_dim": 128,
        "tie_word_embeddings": False,
    }),
    "Llama-3.1-70B": ("Llama-3.2-1B-Instruct", {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "head_dim": 128, "tie_word_embeddings": False,
    }),
    "Qwen3-8B": ("Qwen3-0.6B", {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False,
    }),
    "Qwen3-14B": ("Qwen3-0.6B", {
        "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40,
        "tie_word_embeddings": False,
    }),
    "gemma-2-9b": ("gemma-2-2b-it", {
        "hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
        "num_key_value_heads": 8,
    }),
    "gemma-3-12b-it": ("gemma-3-1b-it", {
        "hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, "num_attention_heads": 16,
        "num_key_value_heads": 8, "vocab_size": 262208,
    }),
}  # fmt: skip
_OPTIONS = (
    "slice", "slices", "batch", "length", "method", "lora", "quantization", "tensor", "accumulation"
)  # fmt: skip
_OFFLOAD = ("remat_policy=custom", "decoder_layer_input=offload")


def cases() -> dict[str, list[dict[str, Any]]]:
    """Returns the cases of ``fit`` and of ``judge``; one that is not compiled yet has no ``compiled``."""
    read: dict[str, list[dict[str, Any]]] = json.loads(DATA.read_text())
    return read


def model_config(name: str) -> dict[str, Any]:
    """Returns the config.json of a case's model."""
    base, sizes = _RESIZED.get(name, (name, {}))
    return {**json.loads(_PUBLISHED.read_text())[base]["config"], **sizes}


def compile_arguments(case: Case) -> Iterator[str]:
    """Yields the options of ``finetune-stage compile``, without the model's folder."""
    for option in _OPTIONS:
        if option in case:
            yield from (f"--{option}", str(case[option]))
    remat = _OFFLOAD if case["remat"] == "offload" else (f"remat_policy={case['remat']}",)
    tiled = (f"num_vocab_tiling={case['pieces']}",) if "pieces" in case else ()
    for setting in (*remat, *tiled):
        yield from ("--set", setting)


def described(case: Case) -> str:
    """Returns the case in words: model, method, slice, rows, settings."""
    lora = f", LoRA {case['lora']}" if "lora" in case else ", full"
    quantized = f" on {case['quantization']}" if "quantization" in case else ""
    slices = f"{case['slices']} x " if "slices" in case else ""
    more = [f"{name} {case[name]}" for name in ("tensor", "accumulation") if name in case]
    pieces = [f"{case['pieces']} pieces"] if "pieces" in case else []
    settings = ", ".join([case["remat"], *pieces, *more])
    return (
        f"{case['model']}, {case.get('method', 'SFT')}{lora}{quantized} | {slices}{case['slice']} "
        f"| {case['batch']} x {case['length']} | {settings}"
    )


def record(done: Case, result: Mapping[str, Any]) -> None:
    """Adds a result to the data file, which may have been edited since ``done`` was read."""
    now = cases()
    for case in (each for part in now.values() for each in part):
        if {**case, "compiled": None} == {**done, "compiled": None}:
            case["compiled"] = dict(result)
    parts = (
        f' "{part}": [\n' + ",\n".join(f"  {json.dumps(case)}" for case in rows) + "\n ]"
        for part, rows in now.items()
    )
    DATA.write_text("{\n" + ",\n".join(parts) + "\n}\n")
