"""The user's model on this machine: from the hub or from a folder in object storage. No JAX, no MaxText."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from finetune_contract import ExitCode, ModelIdentity, ModelSource
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.fingerprint import LAYOUT
from finetune_trainer.hub import snapshot
from finetune_trainer.storage import Entry, Store

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_SMALL = ("*.json", "*.jinja", "tokenizer.model", "README.md", "LICENSE*", "NOTICE", "USE_POLICY.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    path: Path
    """Folder with config.json and, where asked for, the weights."""
    tokenizer_path: Path
    source: str
    """Hub name or address, as the user wrote it."""
    revision: str
    """Commit on the hub; of a folder, a digest over names, sizes and checksums of config.json and weights."""

    def identity(self, plan: ModelPlan) -> ModelIdentity:
        return ModelIdentity(
            source=self.source,
            revision=self.revision,
            architecture=plan.architecture,
            parameters=plan.parameters,
            maxtext_model=plan.model_name,
            layout=LAYOUT,
        )


def fetch_model(source: ModelSource, scratch: Path, store: Store, *, weights: bool) -> LocalModel:
    """Fetches config.json, tokenizer and small files, and the weights where ``weights``; a ``file://`` folder is used
    where it lies. Raises ``StageError`` 66, 69 or 77."""
    include = (*_SMALL, *_WEIGHTS) if weights else _SMALL
    path, revision = _fetch(source, scratch / "model", store, include, "model", whole=True)
    tokenizer = path
    if source.tokenizer is not None:
        tokenizer, _ = _fetch(
            source.tokenizer, scratch / "tokenizer", store, _SMALL, "model.tokenizer", whole=False
        )
    return LocalModel(path=path, tokenizer_path=tokenizer, source=_name(source), revision=revision)


def _name(source: ModelSource) -> str:
    if source.hugging_face is not None:
        return source.hugging_face.repo
    assert source.uri is not None
    return source.uri


def _fetch(
    source: ModelSource, scratch: Path, store: Store, include: tuple[str, ...], where: str, *, whole: bool
) -> tuple[Path, str]:
    """``whole``: it must be a model, not a tokenizer alone."""
    if source.hugging_face is not None:
        found = snapshot(source.hugging_face, "model", f"{where}.huggingFace", include=include)
        return found.path, found.commit
    assert source.uri is not None
    entries = list(store.entries(source.uri))
    if not entries:
        raise StageError(
            ExitCode.INPUT_MISSING, "ModelMissing", "there is no such folder, or it is empty",
            where=f"{where}.uri", saw=source.uri, expected="a folder in Hugging Face format",
            fix="Correct the address, or put the model there.",
        )  # fmt: skip
    if whole:
        _require_model(source.uri, {_relative(entry, source.uri) for entry in entries}, where)
    return store.fetch_folder(source.uri, scratch, include=include), _digest(entries, source.uri)


def _require_model(uri: str, names: set[str], where: str) -> None:
    """Config and weights lie in the folder itself. Raises ``StageError`` 66 with what is there instead."""
    if "config.json" not in names:
        reason, missing = "ConfigMissing", "config.json"
        fix = "Name the folder that save_pretrained wrote."
    elif not any(name.endswith(".safetensors") and "/" not in name for name in names):
        reason, missing = "WeightsMissing", "safetensors weights"
        fix = "Save the model with save_pretrained(..., safe_serialization=True) and upload the folder again."
    else:
        return
    shown = ", ".join(sorted(names)[:4]) + (", …" if len(names) > 4 else "")
    raise StageError(
        ExitCode.INPUT_MISSING, reason, f"the folder has no {missing}", where=f"{where}.uri", saw=f"{uri} with {shown}",
        expected="config.json, the tokenizer's files, and model.safetensors or its shards with their index", fix=fix,
    )  # fmt: skip


def _relative(entry: Entry, folder: str) -> str:
    return entry.uri.removeprefix(folder.rstrip("/") + "/")


def _digest(entries: Iterable[Entry], uri: str) -> str:
    """The same files give the same digest wherever they lie."""
    lines = [
        f"{name} {entry.size} {entry.crc32c}"
        for entry in entries
        if (name := _relative(entry, uri)) == "config.json"
        or name.endswith(("safetensors", "safetensors.index.json"))
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:32]
