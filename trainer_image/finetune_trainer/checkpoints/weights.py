"""The tensors of a model folder: checked against the plan by their headers, read one at a time."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  safetensors needs it to return bfloat16 as numpy arrays
import numpy as np
from safetensors import SafetensorError, safe_open

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.checkpoints.model_files import HEAD, require_content
from finetune_trainer.errors import StageError
from finetune_trainer.families import Family, ModelPlan
from finetune_trainer.storage import is_inside

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
#: safetensors' names of the dtypes that weights may have.
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
#: Bytes per element, by safetensors' names of the dtypes that can be copied from one file to another.
COPIED = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8,
    "I64": 8, "F64": 8,
}  # fmt: skip
#: Name prefixes of the text model inside an image-and-text model: transformers 5, then transformers 4.
_TEXT_PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
_EMBEDDINGS, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_SAVE_AGAIN = "Save the model with save_pretrained and upload the folder again."
#: Bytes of a tensor that are compared at once.
_PIECE = 16 * 2**20
_FOREIGN = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
#: Buffers that older files contain and every implementation recomputes.
_BUFFERS = re.compile(r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor, described by its header."""

    file: Path
    name: str
    """Name in the file. The mapping's key is the name in a plain ``...ForCausalLM`` checkpoint."""
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The tensors of a folder.

    ``text``: every tensor that the plan requires, by plain name. ``foreign``: parts of an image-and-text model that
    training leaves unchanged, by their own names.
    """

    folder: Path
    text: Mapping[str, Tensor]
    foreign: Mapping[str, Tensor]

    @property
    def dtypes(self) -> frozenset[str]:
        return frozenset(tensor.dtype for tensor in self.text.values())

    def read(self, name: str) -> np.ndarray:
        """One text tensor by its plain name, in its own dtype."""
        return read_tensor(self.text[name])


def read_tensor(tensor: Tensor) -> np.ndarray:
    with safe_open(tensor.file, framework="numpy") as stream:
        array: np.ndarray = stream.get_tensor(tensor.name)
        return array


def open_weights(folder: Path, plan: ModelPlan, *, where: str = "", headers_only: bool = False) -> Weights:
    """Reads all headers and checks names, shapes and dtypes against ``plan``; ``where`` names the folder in messages.

    With tied embeddings, a ``lm_head.weight`` in the files must equal them: transformers does not tie them if both
    exist and differ. Checking that reads these two tensors, unless the files hold ``headers_only``. Raises
    ``StageError`` 66 for missing files, 64 for weights that do not match config.json.
    """
    shown = where or str(folder)
    text: dict[str, Tensor] = {}
    foreign: dict[str, Tensor] = {}
    files = _files(folder, shown)
    shards = {name: file for file, names in files.items() for name in names or ()}
    for file, names in files.items():
        tensors = [tensor for tensor in _headers(file, shown) if not _BUFFERS.match(tensor.name)]
        if names is not None:
            _require_listed(tensors, file, shards, plan, shown)
        for tensor in tensors:
            of_images = is_vision(tensor.name) and plan.architecture.endswith("ForConditionalGeneration")
            kept, key = (foreign, tensor.name) if of_images else (text, _plain(tensor.name))
            if key in kept:
                raise _mismatch(
                    f"{shown}/{file.name}: {tensor.name}", "the weights contain this tensor twice",
                    f"{kept[key].name} in {kept[key].file.name}, too", f"{key} once", _SAVE_AGAIN,
                )  # fmt: skip
            if of_images and tensor.dtype not in COPIED:
                # Export copies it, after all the cost of training
                raise _mismatch(
                    f"{shown}/{file.name}: {tensor.name}", "this dtype of a vision part cannot be exported",
                    tensor.dtype, ", ".join(COPIED), "Save the vision part in bfloat16, float16 or float32.",
                )  # fmt: skip
            kept[key] = tensor
    head = text.pop(_HEAD, None) if plan.tied_embeddings else None
    _compare(text, plan, shown)
    if head is not None and not headers_only:
        _require_copy(head, text[_EMBEDDINGS], plan, shown)
    return Weights(folder=folder, text=text, foreign=foreign)


def is_vision(name: str) -> bool:
    """Whether a tensor of this name, in an image-and-text model, belongs to a part that training leaves unchanged."""
    return _FOREIGN.match(name) is not None


def _plain(name: str) -> str:
    for prefix, replacement in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def weight_files(folder: Path, *, where: str = "") -> list[str]:
    """Names of the files that hold the weights, from the folder's index, or the single file without one.

    Raises ``StageError`` 64 for an index that cannot be read.
    """
    if not (folder / INDEX).is_file():
        return [SINGLE]
    return sorted(_indexed(folder, where or str(folder)))


def _files(folder: Path, shown: str) -> dict[Path, list[str] | None]:
    """Files with the names that the index lists for each; None instead of names if there is no index."""
    if (folder / INDEX).is_file():
        files: dict[Path, list[str] | None] = {
            folder / file: list(names) for file, names in _indexed(folder, shown).items()
        }
        if (folder / SINGLE).is_file() and folder / SINGLE not in files:
            raise two_models(shown)
        return files
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    others = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for path in folder.glob("*.gguf")
    )
    raise StageError(
        ExitCode.INPUT_MISSING, "WeightsMissing", "the folder has no safetensors weights", where=shown,
        actual=", ".join(others[:4]) or "no weights at all", expected=f"{SINGLE} or {INDEX}",
        fix="Save the model with save_pretrained(..., safe_serialization=True) and upload the folder again.",
    )  # fmt: skip


def two_models(where: str) -> StageError:
    """Returns the error (64) for a folder with a single file of weights and an index of others."""
    return StageError(
        ExitCode.BAD_REQUEST, "WeightsAmbiguous", "the folder has two sets of weights", where=where,
        actual=f"{SINGLE}, and {INDEX}, which names other files", expected="one of them",
        fix=f"Remove {INDEX} and the files that it names if {SINGLE} is the newer one, else {SINGLE}: transformers "
        "reads the single file, other programs the index.",
    )  # fmt: skip


def require_size(weights_bytes: int, plan: ModelPlan, *, where: str) -> None:
    """Raises ``StageError`` 64 if files of this size cannot hold the plan's tensors in any dtype that is read.

    A size of 0 is unknown.
    """
    least = 2 * sum(math.prod(shape) for shape in plan.tensors().values())
    if 0 < weights_bytes < least:
        raise _mismatch(
            where, "the weights are smaller than config.json says", f"{weights_bytes:,} bytes",
            f"at least {least:,}, two for each parameter", "Upload all weights again, or their config.json.",
        )  # fmt: skip


def _indexed(folder: Path, shown: str) -> dict[str, list[str]]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        listed = [(str(name), str(file)) for name, file in index["weight_map"].items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _mismatch(
            f"{shown}/{INDEX}",
            "the index cannot be read",
            str(error),
            "weight_map",
            "Upload the index again.",
        ) from None
    files: dict[str, list[str]] = {}
    for name, file in listed:
        if "/" in file or not is_inside(file):
            raise _mismatch(
                f"{shown}/{INDEX}: {name}", "the index names a file outside of the folder", repr(file),
                "the name of a file beside the index", _SAVE_AGAIN,
            )  # fmt: skip
        files.setdefault(file, []).append(name)
    return files


def _require_listed(
    tensors: Sequence[Tensor], file: Path, shards: Mapping[str, Path], plan: ModelPlan, shown: str
) -> None:
    """Raises unless a shard holds exactly what the index lists for it: transformers loads whole shards.

    A copy of tied embeddings may be missing from the index.
    """
    found = {tensor.name for tensor in tensors}
    listed = {name for name, shard in shards.items() if shard == file and not _BUFFERS.match(name)}
    if missing := sorted(listed - found):
        raise _mismatch(
            f"{shown}/{file.name}", "the file lacks tensors that the index lists for it", ", ".join(missing[:3]),
            f"the {len(listed)} tensors that {INDEX} lists", _SAVE_AGAIN,
        )  # fmt: skip
    for name in sorted(found - listed):
        if name not in shards and plan.tied_embeddings and _plain(name) == _HEAD:
            continue
        other = f"in {shards[name].name} only" if name in shards else "no such tensor"
        raise _mismatch(
            f"{shown}/{file.name}: {name}", "the file contains a tensor that the index does not list for it", name,
            f"{other}, as {INDEX} says", _SAVE_AGAIN,
        )  # fmt: skip


def _headers(file: Path, shown: str) -> Iterator[Tensor]:
    try:
        with safe_open(file, framework="numpy") as stream:
            for name in list(stream.keys()):
                part = stream.get_slice(name)
                yield Tensor(file=file, name=name, shape=tuple(part.get_shape()), dtype=part.get_dtype())
    except FileNotFoundError:
        raise StageError(
            ExitCode.INPUT_MISSING, "WeightsMissing", "the index names a file that does not exist",
            where=f"{shown}/{file.name}", fix="Upload the missing file.",
        ) from None  # fmt: skip
    except SafetensorError as error:
        with file.open("rb") as content:
            require_content(content.read(HEAD), f"{shown}/{file.name}")
        raise _mismatch(
            f"{shown}/{file.name}", "the file is incomplete", f"{file.stat().st_size} bytes: {error}",
            "a safetensors file with the length in its header",
            "Upload the file again.",
        ) from None  # fmt: skip


def _compare(text: Mapping[str, Tensor], plan: ModelPlan, shown: str) -> None:
    expected = plan.tensors()
    extra = sorted(set(text) - set(expected))
    unknown = ", ".join(extra[:3]) + (" …" if len(extra) > 3 else "")
    for name, shape in expected.items():
        if name not in text:
            missing = sum(1 for n in expected if n not in text)
            actual = f"no {name}, but {unknown}" if unknown else f"no {name}"
            raise _mismatch(shown, f"{missing} of {len(expected)} tensors are missing", actual, str(shape))
        if text[name].shape != shape:
            raise _mismatch(
                f"{shown}: {name}",
                "the shape differs from config.json",
                str(text[name].shape),
                str(shape),
            )
        if text[name].dtype not in DTYPES:
            raise _mismatch(
                f"{shown}/{text[name].file.name}: {name}", "this dtype is not supported", text[name].dtype,
                ", ".join(DTYPES), "Save the model in bfloat16, float16 or float32; quantized weights are not read.",
            )  # fmt: skip
    if extra:
        raise _mismatch(
            shown, "there are tensors that the architecture does not have", unknown,
            f"the tensors of {plan.architecture}",
        )  # fmt: skip


def _require_copy(head: Tensor, embeddings: Tensor, plan: ModelPlan, shown: str) -> None:
    """Raises unless both are equal. Reads them a few rows at a time."""
    if head.dtype in DTYPES and head.shape == embeddings.shape and _equal(head, embeddings):
        return
    fix = "Set tie_word_embeddings to false in config.json if the model has an output layer of its own"
    if plan.family in (Family.GEMMA2, Family.GEMMA3):
        fix = "MaxText's Gemma shares input and output embeddings: use a model that does so"
    raise _mismatch(
        f"{shown}/{head.file.name}: {head.name}", "config.json ties the embeddings, but the weights do not",
        f"{head.dtype} {head.shape} with values that differ from {embeddings.name}", f"the values of {embeddings.name}",
        f"{fix}, else save the weights without {head.name}.",
    )  # fmt: skip


def _equal(one: Tensor, other: Tensor) -> bool:
    rows, width = one.shape
    step = max(1, _PIECE // (4 * max(1, width)))
    with safe_open(one.file, framework="numpy") as first, safe_open(other.file, framework="numpy") as second:
        a, b = first.get_slice(one.name), second.get_slice(other.name)
        return all(
            np.array_equal(a[at:end].astype(np.float32), b[at:end].astype(np.float32))
            for at in range(0, rows, step)
            for end in [min(at + step, rows)]  # a slice must not exceed the number of rows
        )


def _mismatch(
    where: str,
    what: str,
    actual: str,
    expected: str,
    fix: str = "Use weights and config.json of the same model.",
) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST,
        "WeightsMismatch",
        what,
        where=where,
        actual=actual[:300],
        expected=expected,
        fix=fix,
    )
