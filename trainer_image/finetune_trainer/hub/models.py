"""The user's model on this machine: from the hub or from a folder in object storage. No JAX, no MaxText."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from finetune_contract import ExitCode, ModelIdentity, ModelSource
from finetune_trainer.checkpoints import model_files, sparse_files
from finetune_trainer.checkpoints.layout import OCDBT, CheckpointLayout
from finetune_trainer.checkpoints.model_files import MODEL, TOKENIZER, is_any, is_small
from finetune_trainer.checkpoints.sparse_files import Read
from finetune_trainer.checkpoints.weights import INDEX, SINGLE, is_vision, two_models, weight_files
from finetune_trainer.errors import StageError, reading_listed, replaced, require_unchanged
from finetune_trainer.families import ModelPlan
from finetune_trainer.hub import repositories as hub
from finetune_trainer.process.stage_progress import ignore
from finetune_trainer.storage import Entry, StorageClient, content_encoding, is_inside, local_path, unchanged

#: Size in bytes below which a file holds no weights, and the number of threads that read the beginnings of files.
_SMALLEST, _PARALLEL = 4096, 8
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
            sizes=plan.sizes(weights_bytes=self.weights_bytes),
        )


def fetch_model(
    source: ModelSource,
    scratch: Path,
    store: StorageClient,
    *,
    weights: bool,
    values: Values = "All",
    heads: bool = False,
    fetched: Callable[[int], None] = ignore,
) -> LocalModel:
    """Fetches config.json, tokenizer and small files, and if ``weights`` the weights' headers and at least ``values``.

    Every file of a bucket is fetched at the version that was verified; a ``file://`` folder is used in place
    (``LocalModel.require_unchanged``). The weights must exist in any case; with ``heads``, the header of each of their
    files is read and must be that of a complete file. Raises ``StageError`` 64 or 66 for files that are no model, 65
    for files with another content or that have changed since preflight or meanwhile, 69 or 77. Beside a MaxText
    checkpoint there are no weights to fetch.

    ``fetched`` is called with the size in bytes of each whole file that is fetched from a bucket.
    """
    if source.orbax is not None:
        return _with_checkpoint(source, source.orbax, scratch, store)
    model = _find(source, scratch / "model", store, "spec.model", fetched)
    _require_model(model)
    path = model.fetch_small()
    needed = weight_files(path, where=model.source)
    _require_weights(model, needed, heads=heads)
    if weights:
        path = (
            model.fetch([*model.small(), *needed])
            if values == "All"
            else model.fetch_parts(path, needed, _WANTED[values])
        )
    tokenizer, tokenizer_path, tokenizer_revision = model, path, model.tokenizer_digest
    if source.tokenizer is not None:
        tokenizer = _find(source.tokenizer, scratch / "tokenizer", store, "spec.model.tokenizer")
        tokenizer_path = tokenizer.fetch_small()
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
    _require_plain(entries)
    path = found.fetch_small()
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
    reader: Callable[[str], Read | None]
    """Returns a function that reads parts of a file; None for a file that can only be fetched whole."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """The files of a folder in storage as they were listed; empty on the hub."""
    tokenizer_digest: str | None = None
    """None on the hub, where the revision pins the tokenizer, too."""
    in_place: tuple[Entry, ...] = ()
    """See ``LocalModel``."""

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.sizes)

    def small(self) -> list[str]:
        return sorted(name for name in self.names if is_small(name))

    def fetch_small(self) -> Path:
        """Fetches all small files; returns their folder. Raises ``StageError`` 65 for one that is only a pointer."""
        path = self.fetch(self.small())
        model_files.require_contents(path, self.small(), where=self.source)
        return path


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
            fetch_parts=partial(hub.fetch_parts, repository, scratch), reader=partial(_hub_reader, repository),
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
    model, tokenizer = _digest(checksums, MODEL), _digest(checksums, TOKENIZER)
    require_unchanged(source.digest, model, where=f"{where}.uri", uri=uri)
    require_unchanged(source.tokenizer_digest, tokenizer, where=f"{where}.uri", uri=f"the tokenizer in {uri}")
    folder = _Folder(
        listed=listed, store=store, scratch=scratch, where=f"{where}.uri", local=local_path(uri), fetched=fetched
    )  # fmt: skip
    return _Found(
        source=uri, where=f"{where}.uri", revision=model, tokenizer_digest=tokenizer,
        sizes={name: entry.size for name, entry in listed.items()},
        fetch=folder.fetch, fetch_parts=folder.fetch_parts, reader=folder.reader, entries=listed,
        in_place=tuple(entry for name, entry in listed.items() if folder.local and is_any(name, MODEL)),
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

    def reader(self, name: str) -> Read:
        entry = self.listed[name]

        def read(start: int, end: int) -> bytes:
            with reading_listed(self.where):
                return self.store.read_range(entry.uri, start, end, generation=entry.generation)

        return read

    def fetch_parts(self, folder: Path, names: Sequence[str], wanted: Callable[[str], bool]) -> Path:
        if self.local is not None:
            return folder
        for name in names:
            sparse_files.write(folder / name, self.listed[name].size, self.reader(name), wanted)
        return folder


def _hub_reader(repository: hub.Repository, name: str) -> Read | None:
    """Reads a file that is too small for weights; others would be fetched whole."""
    if repository.sizes[name] > _SMALLEST:
        return None
    content = (hub.fetch(repository, [name]) / name).read_bytes()
    return lambda start, end: content[start:end]


def _require_model(model: _Found) -> None:
    """Raises ``StageError`` 66, listing what the folder has, unless config and weights are in the folder itself."""
    if "config.json" not in model.names:
        fix = "Name the folder that save_pretrained wrote."
        raise _incomplete(model, "ConfigMissing", "config.json", sorted(model.names), fix)
    if not model.names & {SINGLE, INDEX}:
        shown = sorted(name for name in model.names if name.endswith(_OTHER_WEIGHTS)) or sorted(model.names)
        fix = "Save the model with save_pretrained(..., safe_serialization=True) and upload the folder again."
        raise _incomplete(model, "WeightsMissing", "safetensors weights", shown, fix)


def _require_weights(model: _Found, needed: Sequence[str], *, heads: bool) -> None:
    if SINGLE in model.names and SINGLE not in needed:
        raise two_models(model.source)
    missing = [name for name in needed if name not in model.names]
    if missing:
        raise _incomplete(
            model, "WeightsMissing", missing[0], sorted(name for name in needed if name in model.names),
            f"Upload the missing files: {', '.join(missing[:4])}.",
        )  # fmt: skip
    _require_plain(model.entries[name] for name in needed if name in model.entries)
    if not heads:
        return

    def check(name: str) -> None:
        read = model.reader(name)
        if read is not None:
            model_files.require_safetensors(read, model.sizes[name], f"{model.source}/{name}")

    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(check, needed))


def _require_plain(entries: Iterable[Entry]) -> None:
    """Raises ``StageError`` 65 for a file of which parts are read and that is stored compressed."""
    for entry in entries:
        if packed := content_encoding.compression(entry.encoding):
            raise content_encoding.refused(
                entry.uri, f"Content-Encoding: {packed}", "weights that are stored compressed are not read",
                "no Content-Encoding",
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
    return _sum(f"{name} {checksum}" for name, checksum in checksums.items() if is_any(name, patterns))


def _sum(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:32]
