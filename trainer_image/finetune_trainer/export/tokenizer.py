"""The tokenizer's files as they are exported: with the chat template that was trained, and a class with which
transformers makes the same tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

from finetune_trainer.export.folder import TOKENIZER_FILES, write_json
from finetune_trainer.models import LocalModel
from finetune_trainer.tokenizer import CONFIG, misreading_class

#: Where other templates would stand, which win over that of tokenizer_config.json.
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
#: The class that every release of transformers loads from tokenizer.json alone.
_GENERIC = "PreTrainedTokenizerFast"


def tokenizer_folder(model: LocalModel, tokenizer: Any, template: str | None, scratch: Path) -> Path:
    """The model's own folder, or a copy in ``scratch`` where its tokenizer_config.json has to say something else: the
    job's own chat template, or, where the class it names makes other tokens than ``tokenizer``, the generic class."""
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
    """Special tokens that only the class of tokenizer_config.json has given: the generic one has no defaults."""
    config = _config(source)
    return {
        name: token
        for name, token in tokenizer.special_tokens_map.items()
        if name not in config and isinstance(token, str)
    }


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
