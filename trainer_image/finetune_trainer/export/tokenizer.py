"""The tokenizer's files as they are exported: with the chat template that was trained."""

import json
import shutil
from pathlib import Path

from finetune_trainer.export.folder import TOKENIZER_FILES, write_json

#: Where other templates would stand, which win over that of tokenizer_config.json.
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


def tokenizer_folder(source: Path, template: str | None, scratch: Path) -> Path:
    """``source``, or, where the job has a template of its own, a copy in ``scratch`` that has it."""
    if template is None:
        return source
    scratch.mkdir(parents=True)
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and name not in _TEMPLATES:
            shutil.copyfile(source / name, scratch / name)
    path = scratch / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    write_json(path, {**config, "chat_template": template})
    return scratch
