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
from finetune_trainer.storage import Entry, Store, name_of

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
    if whole and not any(entry.uri.endswith(".safetensors") for entry in entries):
        raise StageError(
            ExitCode.INPUT_MISSING, "WeightsMissing", "the folder has no safetensors weights", where=f"{where}.uri",
            saw=f"{source.uri} with {', '.join(name_of(entry.uri) for entry in entries[:4])}",
            expected="model.safetensors, or shards with model.safetensors.index.json",
            fix="Save the model with save_pretrained(..., safe_serialization=True) and upload the folder again.",
        )  # fmt: skip
    return store.fetch_folder(source.uri, scratch, include=include), _digest(entries, source.uri)


def _digest(entries: Iterable[Entry], uri: str) -> str:
    """The same files give the same digest wherever they lie."""
    prefix = uri.rstrip("/") + "/"
    lines = [
        f"{name} {entry.size} {entry.crc32c}"
        for entry in entries
        if (name := entry.uri.removeprefix(prefix)) == "config.json"
        or name.endswith(("safetensors", "safetensors.index.json"))
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:32]
