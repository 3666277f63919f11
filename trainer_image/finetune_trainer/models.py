"""The user's model on this machine: from the hub or from a folder in object storage. No JAX, no MaxText."""

import fnmatch
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from finetune_contract import ExitCode, ModelIdentity, ModelSource
from finetune_trainer import hub, sparse_files
from finetune_trainer.checkpoints.layout import OCDBT, CheckpointLayout
from finetune_trainer.errors import StageError, reading_listed, replaced, require_unchanged
from finetune_trainer.families import ModelPlan
from finetune_trainer.families.sizes import sizes
from finetune_trainer.stage_progress import ignore
from finetune_trainer.storage import Entry, StorageClient, is_inside, local_path, unchanged
from finetune_trainer.weights import INDEX, SINGLE, is_vision, weight_files

#: Everything but the weights. Subfolders hold other formats of the same model (original/, onnx/).
_SMALL = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt", "README.md", "LICENSE*", "NOTICE",
          "USE_POLICY.md")  # fmt: skip
#: Files of a folder that determine the weights, and files that determine the tokens.
_MODEL = ("config.json", "*safetensors", "*safetensors.index.json")
_TOKENIZER = (
    "tokenizer*",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "vocab.*",
)
#: File that identifies a LoRA adapter in PEFT's layout.
_ADAPTER = "adapter_config.json"
#: Weights in formats that are not read, for the error message.
_OTHER_WEIGHTS = (".bin", ".gguf", ".pth", ".pt", ".msgpack", ".h5", ".safetensors")

Values = Literal["All", "Foreign", "None"]
"""Which tensors' values are fetched with the headers of the weights; Foreign: those that training leaves unchanged."""
_WANTED: Mapping[Values, Callable[[str], bool]] = {"Foreign": is_vision, "None": lambda _: False}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    path: Path
    """Folder with config.json and, if requested, the weights."""
    tokenizer_path: Path
    source: str
    """Hub name or address, as the user wrote it."""
    tokenizer_source: str
    """Source of the tokenizer: the model's, or the tokenizer's own."""
    revision: str
    """Commit on the hub; for a folder, a digest over names, sizes and checksums of config.json and weights."""
    tokenizer_revision: str | None = None
    """Commit of the tokenizer's own repository on the hub; for a tokenizer in a folder, a digest over its files; None
    if it is in the model's repository."""
    weights_bytes: int = 0
    """Bytes of the files that hold the weights, whether fetched or not; 0 if unknown, or beside a MaxText checkpoint.
    """
    in_place: tuple[Entry, ...] = ()
    """For a ``file://`` folder, config.json and weights as they were verified; they are read in place."""

    def require_unchanged(self) -> None:
        """Verifies the files that are read in place once more, by size and time.

        Results derived from them are valid only if they did not change. Raises ``StageError`` 65.
        """
        for entry in self.in_place:
            if not unchanged(entry):
                raise replaced(entry.uri, "model.uri")

    def identity(self, plan: ModelPlan, layout: CheckpointLayout = OCDBT) -> ModelIdentity:
        """The identity that preflight reports; ``layout`` is that of the converted model."""
        return ModelIdentity(
            source=self.source,
            revision=self.revision,
            tokenizer_revision=self.tokenizer_revision,
            architecture=plan.architecture,
            parameters=plan.parameters,
            maxtext_model=plan.model_name,
            layout=layout.name,
            sizes=sizes(plan, weights_bytes=self.weights_bytes),
        )


def fetch_model(
    source: ModelSource,
    scratch: Path,
    store: StorageClient,
    *,
    weights: bool,
    values: Values = "All",
    fetched: Callable[[int], None] = ignore,
) -> LocalModel:
    """Fetches config.json, tokenizer and small files, and if ``weights`` the weights' headers and at least ``values``.

    Every file of a bucket is fetched at the version that was verified; a ``file://`` folder is used in place
    (``LocalModel.require_unchanged``). The weights must exist in any case. Raises ``StageError`` 65 (changed since
    preflight, or meanwhile), 66, 69 or 77. Beside a MaxText checkpoint there are no weights to fetch.

    ``fetched`` is called with the size in bytes of each whole file that is fetched from a bucket.
    """
    if source.orbax is not None:
        return _with_checkpoint(source, source.orbax, scratch, store)
    model = _find(source, scratch / "model", store, "spec.model", fetched)
    _require_model(model)
    path = model.fetch(model.small())
    needed = weight_files(path, where=model.source)
    _require_weights(model, needed)
    if weights:
        path = (
            model.fetch([*model.small(), *needed])
            if values == "All"
            else model.fetch_parts(path, needed, _WANTED[values])
        )
    tokenizer, tokenizer_path, tokenizer_revision = model, path, model.tokenizer_digest
    if source.tokenizer is not None:
        tokenizer = _find(source.tokenizer, scratch / "tokenizer", store, "spec.model.tokenizer")
        tokenizer_path = tokenizer.fetch(tokenizer.small())
        tokenizer_revision = tokenizer.tokenizer_digest or tokenizer.revision
    return LocalModel(
        path=path,
        tokenizer_path=tokenizer_path,
        source=model.source,
        tokenizer_source=tokenizer.source,
        revision=model.revision,
        tokenizer_revision=tokenizer_revision,
        weights_bytes=sum(model.sizes.get(name, 0) for name in needed),
        in_place=model.in_place,
    )


def _with_checkpoint(source: ModelSource, items: str, scratch: Path, store: StorageClient) -> LocalModel:
    """The configuration and tokenizer of a model whose weights are those of a MaxText checkpoint."""
    assert source.tokenizer is not None, "a checkpoint requires a tokenizer"
    found = _find(source.tokenizer, scratch / "tokenizer", store, "spec.model.tokenizer")
    if "config.json" not in found.names:
        raise _incomplete(
            found, "ConfigMissing", "config.json", sorted(found.names),
            "Name a tokenizer in the folder of its model: a checkpoint does not identify its model.",
        )  # fmt: skip
    entries = list(store.entries(items))
    if not entries:
        raise StageError(
            ExitCode.INPUT_MISSING, "CheckpointMissing", "the folder does not exist or is empty",
            where="spec.model.orbax.uri", actual=items, expected="the items folder of a MaxText checkpoint",
            fix="Correct the address, or put the checkpoint there.",
        )  # fmt: skip
    path = found.fetch(found.small())
    config = hashlib.sha256((path / "config.json").read_bytes()).hexdigest()
    revision = _sum([config, *(f"{_relative(each, items)} {each.size} {each.crc32c}" for each in entries)])
    require_unchanged(source.digest, revision, where="spec.model.orbax.uri", uri=items)
    return LocalModel(
        path=path,
        tokenizer_path=path,
        source=items,
        tokenizer_source=found.source,
        revision=revision,
        tokenizer_revision=found.tokenizer_digest or found.revision,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A model folder or repository that was found, and how to fetch its files."""

    source: str
    """Hub name or address, as the user wrote it."""
    where: str
    """The field of the spec that names it."""
    revision: str
    sizes: Mapping[str, int]
    """Bytes of all files, by name."""
    fetch: Callable[[Sequence[str]], Path]
    """Fetches files by name; returns their folder."""
    fetch_parts: Callable[[Path, Sequence[str], Callable[[str], bool]], Path]
    """Fetches weight files by name, with at least the wanted tensors, beside the small files of the given folder.
    Returns the folder with both."""
    tokenizer_digest: str | None = None
    """None on the hub, where the revision pins the tokenizer, too."""
    in_place: tuple[Entry, ...] = ()
    """See ``LocalModel``."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.sizes)

    def small(self) -> list[str]:
        return sorted(name for name in self.names if _is_small(name))


def _is_small(name: str) -> bool:
    return "/" not in name and _is_any(name, _SMALL)


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _find(
    source: ModelSource,
    scratch: Path,
    store: StorageClient,
    where: str,
    fetched: Callable[[int], None] = ignore,
) -> _Found:
    if source.hugging_face is not None:
        repository = hub.find(source.hugging_face, "model", f"{where}.huggingFace")
        return _Found(
            source=repository.name, where=repository.where, revision=repository.commit,
            sizes=repository.sizes, fetch=partial(hub.fetch, repository),
            fetch_parts=partial(hub.fetch_parts, repository, scratch),
        )  # fmt: skip
    uri = source.uri
    assert uri is not None
    entries = list(store.entries(uri))
    if not entries:
        raise StageError(
            ExitCode.INPUT_MISSING, "ModelMissing", "the folder does not exist or is empty",
            where=f"{where}.uri", actual=uri, expected="a folder in Hugging Face format",
            fix="Correct the address, or put the model there.",
        )  # fmt: skip
    found = {_relative(entry, uri): entry for entry in entries}
    listed = {name: entry for name, entry in found.items() if is_inside(name)}
    checksums = {name: f"{entry.size} {entry.crc32c}" for name, entry in listed.items()}
    model, tokenizer = _digest(checksums, _MODEL), _digest(checksums, _TOKENIZER)
    require_unchanged(source.digest, model, where=f"{where}.uri", uri=uri)
    require_unchanged(source.tokenizer_digest, tokenizer, where=f"{where}.uri", uri=f"the tokenizer in {uri}")
    folder = _Folder(
        listed=listed, store=store, scratch=scratch, where=f"{where}.uri", local=local_path(uri), fetched=fetched
    )  # fmt: skip
    return _Found(
        source=uri, where=f"{where}.uri", revision=model, tokenizer_digest=tokenizer,
        sizes={name: entry.size for name, entry in listed.items()},
        fetch=folder.fetch, fetch_parts=folder.fetch_parts,
        in_place=tuple(entry for name, entry in listed.items() if folder.local and _is_any(name, _MODEL)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """A folder in storage as it was listed: each file is fetched at that version.

    Raises ``StageError`` 65 for a file that has been replaced or removed since.
    """

    listed: Mapping[str, Entry]
    store: StorageClient
    scratch: Path
    where: str
    local: Path | None
    fetched: Callable[[int], None]

    def fetch(self, names: Sequence[str]) -> Path:
        if self.local is not None:
            return self.local
        with reading_listed(self.where):
            listed = {name: self.listed[name] for name in names}
            return self.store.fetch_listed(listed, self.scratch, fetched=self.fetched)

    def fetch_parts(self, folder: Path, names: Sequence[str], wanted: Callable[[str], bool]) -> Path:
        if self.local is not None:
            return folder
        for name in names:
            entry = self.listed[name]
            read = partial(self.store.read_range, entry.uri, generation=entry.generation)
            with reading_listed(self.where):
                sparse_files.write(folder / name, entry.size, read, wanted)
        return folder


def _require_model(model: _Found) -> None:
    """Raises ``StageError`` 66, listing what the folder has, unless config and weights are in the folder itself."""
    if "config.json" not in model.names:
        fix = "Name the folder that save_pretrained wrote."
        raise _incomplete(model, "ConfigMissing", "config.json", sorted(model.names), fix)
    if not model.names & {SINGLE, INDEX}:
        shown = sorted(name for name in model.names if name.endswith(_OTHER_WEIGHTS)) or sorted(model.names)
        fix = "Save the model with save_pretrained(..., safe_serialization=True) and upload the folder again."
        raise _incomplete(model, "WeightsMissing", "safetensors weights", shown, fix)


def _require_weights(model: _Found, needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in model.names]
    if missing:
        raise _incomplete(
            model, "WeightsMissing", missing[0], sorted(name for name in needed if name in model.names),
            f"Upload the missing files: {', '.join(missing[:4])}.",
        )  # fmt: skip


def _incomplete(model: _Found, reason: str, missing: str, names: Sequence[str], fix: str) -> StageError:
    if _ADAPTER in model.names:
        fix = "This is a LoRA adapter: name the base model, or merge the two with PEFT and use the result."
    shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return StageError(
        ExitCode.INPUT_MISSING, reason, f"the folder has no {missing}", where=model.where,
        actual=f"{model.source} with {shown or 'nothing'}",
        expected="config.json, the tokenizer's files, and model.safetensors or its shards with their index", fix=fix,
    )  # fmt: skip


def _relative(entry: Entry, folder: str) -> str:
    return entry.uri.removeprefix(folder.rstrip("/") + "/")


def _digest(checksums: Mapping[str, str], patterns: Sequence[str]) -> str:
    """A digest over the files that match the patterns. Equal files give an equal digest, wherever they are."""
    return _sum(f"{name} {checksum}" for name, checksum in checksums.items() if _is_any(name, patterns))


def _sum(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:32]
