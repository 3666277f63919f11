"""The special tokens that a model's configuration files declare."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONFIG, GENERATION = "config.json", "generation_config.json"

#: Special token ids in the model's files, by file and name, without invalid and negative values, which mean no token.
type DeclaredIds = Mapping[str, Mapping[str, Sequence[int]]]


def declared(folder: Path) -> DeclaredIds:
    """Returns the ids in config.json and generation_config.json; files that are missing or invalid are skipped."""
    found = {}
    for file in (CONFIG, GENERATION):
        try:
            content = json.loads((folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, Mapping):
            found[file] = {name: _ids(content, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return found


def stop_ids(files: DeclaredIds) -> Sequence[int]:
    """Returns the ids at which programs stop: those of generation_config.json, or of config.json if it has none."""
    return next(
        (files[file]["eos"] for file in (GENERATION, CONFIG) if file in files and files[file]["eos"]), ()
    )


def _ids(content: Mapping[str, Any], name: str) -> Sequence[int]:
    """Returns the ids of a special token; an image-and-text model may have them in its text model's settings only."""
    value = content.get(name)
    if value is None and isinstance(text := content.get("text_config"), Mapping):
        value = text.get(name)
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, int) and not isinstance(each, bool) and each >= 0]
