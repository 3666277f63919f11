"""MaxText's own catalogue of models, which only the user's statement is compared with (``model.maxtextModel``)."""

import difflib
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.families.plan import Family, ModelPlan

_WHERE = "model.maxtextModel"
_DECODER = re.compile(r"^decoder_block: *[\"']?(\w+)", re.MULTILINE)
#: What the catalogue calls the decoder of each family. A Mistral is computed as a Llama.
_DECODERS: Mapping[Family, tuple[str, ...]] = {
    Family.LLAMA: ("llama2", "mistral"),
    Family.MIXTRAL: ("mixtral",),
    Family.QWEN3: ("qwen3",),
    Family.QWEN3_MOE: ("qwen3_moe",),
    Family.GEMMA2: ("gemma2",),
    Family.GEMMA3: ("gemma3",),
}


def require_family(stated: str, plan: ModelPlan) -> None:
    """Raises ``StageError`` 64 where the catalogue has no such model, or one of another family than config.json's.
    Sizes are always config.json's."""
    names = _names()
    if stated not in names:
        close = difflib.get_close_matches(stated, names, n=3)
        raise _wrong(
            "MaxText knows no such model", stated, f"such as {', '.join(close or [plan.model_name])}"
        )
    found = _DECODER.search((_folder() / f"{stated}.yml").read_text(encoding="utf-8"))
    decoder = found[1] if found else "of no decoder"
    if decoder not in _DECODERS[plan.family]:
        raise _wrong(
            "config.json is of another family", f"{stated} ({decoder})", f"a model like {plan.model_name}"
        )


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _folder().glob("*.yml")))


def _folder() -> Path:
    """Found without importing MaxText, which takes 15 s."""
    found = find_spec("maxtext")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "configs" / "models"


def _wrong(what: str, saw: str, expected: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "MaxTextModelMismatch", what, where=_WHERE, saw=saw, expected=expected,
        fix="Correct model.maxtextModel, or leave it out where the model has a config.json.",
    )  # fmt: skip
