"""Sizes of the parts of a model that CPU stages hold in memory, from the names and shapes of its tensors."""

import math
import re
from collections import Counter

from finetune_contract import ModelSizes
from finetune_trainer.families.plan import ModelPlan

_LAYER = re.compile(r"\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.\d+\.")


def sizes(plan: ModelPlan, *, weights_bytes: int = 0) -> ModelSizes:
    """Returns the model's sizes.

    ``weights_bytes`` is the total size of the source's weight files; 0 if it is unknown or none are fetched.
    """
    pieces: Counter[str] = Counter()
    stacks: Counter[tuple[str, int]] = Counter()
    blocks: Counter[int] = Counter()
    width = 0
    for name, shape in plan.tensors().items():
        size = math.prod(shape)
        pieces[_EXPERT.sub(".experts.", name)] += size
        layer = _LAYER.search(name)
        if layer is None:
            continue
        block, place = divmod(int(layer[1]), plan.block_layers)
        stacks[_EXPERT.sub(".experts.", _LAYER.sub(".layers.", name)), place] += size
        blocks[block] += size
        if len(shape) == 2 and name.split(".")[-2] in plan.lora_modules:
            width += sum(shape)
    return ModelSizes(
        largest_piece=max(pieces.values()),
        largest_stack=max(stacks.values()),
        largest_block=max(blocks.values()),
        lora_width=width,
        weights_bytes=weights_bytes,
    )
