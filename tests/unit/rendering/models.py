"""Published models as preflight reports them, and as much of a plan as decides memory and scratch space."""

from types import SimpleNamespace
from typing import Any

from finetune_contract import ModelIdentity, ModelSizes


def model(
    parameters: int,
    piece: int,
    stack: int = 0,
    block: int = 0,
    width: int = 0,
    weights: int | None = None,
) -> ModelIdentity:
    """``weights``: bytes of the source's files; None: bfloat16."""
    return ModelIdentity(
        source="acme/model", revision="1", architecture="LlamaForCausalLM", parameters=parameters,
        maxtext_model="llama3.1-8b", layout="scanned/float32",
        sizes=ModelSizes(
            largest_piece=piece, largest_stack=stack, largest_block=block, lora_width=width,
            weights_bytes=2 * parameters if weights is None else weights,
        ),
    )  # fmt: skip


MODELS = {
    "Llama-3.1-8B": model(8_030_261_248, 525_336_576, 1_879_048_192, 218_112_000, 2_621_440),
    "Llama-3.1-70B": model(70_553_706_496, 1_050_673_152, 18_790_481_920, 855_654_400, 12_943_360),
    "Qwen3-14B": model(14_768_307_200, 777_912_320, 3_565_158_400, 330_301_696, 4_730_880),
    "Qwen3-30B-A3B": model(30_532_122_624, 311_164_928, 9_663_676_416, 623_120_640, 835_584),
    "Qwen3-235B-A22B": model(235_093_634_560, 805_306_368, 75_698_798_592, 2_487_758_080, 3_465_216),
    "gemma-3-27b": model(27_009_346_304, 1_409_630_208, 1_271_660_544, 2_477_391_360, 7_094_784, 54_864_812_256),
    "Mixtral-8x7B": model(46_702_792_704, 469_762_048, 15_032_385_536, 1_451_270_144, 851_968),
    "DeepSeek-V2-Lite": model(15_706_484_224, 209_715_200, 4_798_283_776, 584_847_872, 444_096),
}  # fmt: skip


def planned(
    rank: int | None = None,
    content: str = "Merged",
    *,
    uri: str | None = None,
    source: str | None = None,
    orbax: bool = False,
    dtype: str = "BF16",
    fsdp: int = 4,
    max_memory: str | None = None,
    max_ephemeral_storage: str | None = None,
) -> Any:
    """``uri``: of the base model; ``source``: the same in MaxText's format; None for both: from the hub."""
    return SimpleNamespace(
        cpu_pool=SimpleNamespace(max_memory=max_memory, max_ephemeral_storage=max_ephemeral_storage),
        method=SimpleNamespace(lora=rank and SimpleNamespace(rank=rank)),
        export=SimpleNamespace(content=content, orbax=orbax, dtype=dtype),
        model=SimpleNamespace(orbax=source, uri=uri),
        mesh=SimpleNamespace(fsdp=fsdp, tensor=1),
    )
