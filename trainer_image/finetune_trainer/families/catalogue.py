"""MaxText's catalogue of models, used only to check the model that the user states in ``model.maxtextModel``."""

import difflib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.families.plan import ModelPlan

_WHERE = "spec.model.maxtextModel"
_DECODER = re.compile(r"^decoder_block: *[\"']?(\w+)", re.MULTILINE)
#: Decoder blocks that count as the same family: Mistral models run on the Llama block.
_ALIKE = frozenset({"llama2", "mistral"})


def require_family(stated: str, plan: ModelPlan) -> None:
    """Raises ``StageError`` 64 if the catalogue lacks the model or its family differs from that of config.json.

    Only families are compared; sizes always come from config.json.
    """
    names = _names()
    if stated not in names:
        close = difflib.get_close_matches(stated, names, n=3)
        raise _wrong(
            "MaxText does not have this model", stated, f"such as {', '.join(close or [plan.model_name])}"
        )
    asked, ours = _decoder(stated), _decoder(plan.model_name)
    if asked != ours and not {asked, ours} <= _ALIKE:
        raise _wrong(
            "config.json belongs to another family",
            f"{stated} ({asked})",
            f"a model like {plan.model_name} ({ours})",
        )


def _decoder(name: str) -> str:
    found = _DECODER.search((_folder() / f"{name}.yml").read_text(encoding="utf-8"))
    return found[1] if found else ""


@cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _folder().glob("*.yml")))


def _folder() -> Path:
    """The catalogue's folder, found without importing MaxText, which takes 15 s."""
    found = find_spec("maxtext")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "configs" / "models"


def _wrong(what: str, actual: str, expected: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "MaxTextModelMismatch", what, where=_WHERE, actual=actual, expected=expected,
        fix="Correct model.maxtextModel, or remove it if the model has a config.json.",
    )  # fmt: skip
