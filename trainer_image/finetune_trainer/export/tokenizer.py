"""Prepares the tokenizer's files for export.

They contain the chat template used in training and name a class with which transformers produces the same tokens.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from finetune_trainer.export.folder import TOKENIZER_FILES, write_json
from finetune_trainer.models import LocalModel
from finetune_trainer.tokenizer import CONFIG, misreading_class

#: Files with chat templates, which take precedence over the one in tokenizer_config.json.
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
#: The class that all releases of transformers load from tokenizer.json alone.
_GENERIC = "PreTrainedTokenizerFast"


def tokenizer_folder(model: LocalModel, tokenizer: Any, template: str | None, scratch: Path) -> Path:
    """Returns the model's tokenizer folder, or a copy in ``scratch`` if its tokenizer_config.json has to change.

    The copy contains the job's chat template, and the generic class if the one in the file produces other tokens than
    ``tokenizer``.
    """
    source = model.tokenizer_path
    changes: dict[str, Any] = {}
    if misreading_class(model, tokenizer) is not None:
        changes = _named(tokenizer, source) | {"tokenizer_class": _GENERIC}
    if template is not None:
        changes["chat_template"] = template
    if not changes:
        return source
    scratch.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and (template is None or name not in _TEMPLATES):
            shutil.copyfile(source / name, scratch / name)
    write_json(scratch / CONFIG, _config(source) | changes)
    return scratch


def _named(tokenizer: Any, source: Path) -> dict[str, str]:
    """Returns special tokens that are defaults of the class in tokenizer_config.json; the generic class has none."""
    config = _config(source)
    return {
        name: token
        for name, token in tokenizer.special_tokens_map.items()
        if name not in config and isinstance(token, str)
    }


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
