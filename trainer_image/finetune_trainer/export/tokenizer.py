"""Prepares the tokenizer's files for export.

They contain the chat template used in training, name a class with which transformers produces the same tokens, and have
no settings that transformers 4 and programs built on it cannot read: those that transformers 5 writes.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finetune_trainer.checkpoints.folder import as_json, json_object, tokenizer_files
from finetune_trainer.hub.models import LocalModel
from finetune_trainer.tokens.tokenizer import CONFIG, TOKENIZER, misreading_class, without_mark

#: Files with chat templates, which take precedence over the one in tokenizer_config.json.
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/")
#: The class that all releases of transformers load from tokenizer.json alone.
_GENERIC = "PreTrainedTokenizerFast"
#: Classes that transformers 5 writes and 4.57 does not have, beside the names that end in Backend.
_NEWER = frozenset({"Qwen3_5Tokenizer", "LasrTokenizer", "Siglip2Tokenizer"})
_SPECIAL_TOKENS = "special_tokens_map.json"


def tokenizer_folder(model: LocalModel, tokenizer: Any, template: str | None, scratch: Path) -> Path:
    """Returns the model's tokenizer folder, or a copy in ``scratch`` if some of its files have to change.

    The copy contains the job's chat template, settings that transformers 4 can read, chat templates without a byte
    order mark, a tokenizer.json in any case, and the generic class if the one in the file is unknown to transformers,
    or produces other tokens than ``tokenizer``. A file without a class would need the model's config.json beside it,
    which an adapter's folder does not have.
    """
    source = model.tokenizer_path
    names = [name for name in tokenizer_files(source) if template is None or not name.startswith(_TEMPLATES)]
    changed = _changed(model, tokenizer, template) | _without_marks(source, names)
    if not changed:
        return source
    for name in dict.fromkeys((*names, *changed)):
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in changed:
            target.write_text(changed[name], encoding="utf-8")
        else:
            shutil.copyfile(source / name, target)
    return scratch


def _changed(model: LocalModel, tokenizer: Any, template: str | None) -> dict[str, str]:
    """Returns the files of settings that have to change, by name, with their new content."""
    source = model.tokenizer_path
    config, special = (json_object(source / name) or {} for name in (CONFIG, _SPECIAL_TOKENS))
    readable = _readable(config)
    # Releases of transformers make different tokenizers of other files.
    whole = (source / TOKENIZER).is_file()
    written = {} if whole else {TOKENIZER: tokenizer.backend_tokenizer.to_str(pretty=True)}
    if written or _is_unknown(config) or misreading_class(model, tokenizer) is not None:
        readable |= _named(tokenizer, readable) | {"tokenizer_class": _GENERIC}
    if template is not None or "chat_template" in readable:
        readable["chat_template"] = without_mark(template or readable["chat_template"])
    contents = ((CONFIG, config, readable), (_SPECIAL_TOKENS, special, _readable(special)))
    return written | {name: as_json(new) for name, old, new in contents if new != old}


def _without_marks(source: Path, names: Sequence[str]) -> dict[str, str]:
    """Returns the chat templates that begin with a byte order mark, by name, without it."""
    texts = {name: (source / name).read_text(encoding="utf-8") for name in names if name.endswith(".jinja")}
    return {name: without_mark(text) for name, text in texts.items() if without_mark(text) != text}


def _is_unknown(config: Mapping[str, Any]) -> bool:
    """Whether the tokenizer's class is not named, is the publisher's own, or is one that transformers 4 lacks."""
    from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

    name = str(config.get("tokenizer_class") or "")
    return name.endswith("Backend") or name in _NEWER or tokenizer_class_from_name(name) is None


def _readable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with special tokens under the names of transformers 4, which 5 reads, too.

    transformers 5 writes a list as ``extra_special_tokens``, for which 4 expects an object of named tokens, and writes
    those as ``model_specific_special_tokens``. Also removes references to code, which is not exported.
    """
    found = {name: value for name, value in settings.items() if name != "auto_map"}
    if isinstance(listed := found.get("extra_special_tokens"), list):
        del found["extra_special_tokens"]
        own = found.get("additional_special_tokens") or []
        if tokens := [*own, *(token for token in listed if token not in own)]:
            found["additional_special_tokens"] = tokens
    if isinstance(named := found.get("model_specific_special_tokens"), dict):
        del found["model_specific_special_tokens"]
        found["extra_special_tokens"] = {**(found.get("extra_special_tokens") or {}), **named}
    return found


def _named(tokenizer: Any, config: Mapping[str, Any]) -> dict[str, str]:
    """Returns special tokens that are defaults of the class in tokenizer_config.json; the generic class has none."""
    return {
        name: token
        for name, token in tokenizer.special_tokens_map.items()
        if name not in config and isinstance(token, str)
    }
