"""The tensors of a model folder: checked against the plan by their headers, read one at a time."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  safetensors needs it to hand out bfloat16 as numpy arrays
import numpy as np
from safetensors import SafetensorError, safe_open

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
#: safetensors' names of the dtypes that weights may have.
DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
#: Where the text model lies inside an image-and-text model: transformers 5, then transformers 4.
_TEXT_PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
_FOREIGN = re.compile(r"(model\.)?(vision_tower|multi_modal_projector)\.")
#: Buffers that older files hold and every implementation computes anew.
_BUFFERS = re.compile(r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor by its header."""

    file: Path
    name: str
    """In the file; the key it is kept under is the name in a plain ``…ForCausalLM`` checkpoint."""
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """``text``: every tensor the plan asks for, by plain name. ``foreign``: parts of an image-and-text model that
    training leaves alone, by their own names."""

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


def open_weights(folder: Path, plan: ModelPlan, *, where: str = "") -> Weights:
    """Reads all headers and checks names, shapes and dtypes against ``plan``; ``where`` names the folder in messages.

    Raises ``StageError`` 66 for missing files, 64 for weights that are not what config.json says.
    """
    shown = where or str(folder)
    text: dict[str, Tensor] = {}
    foreign: dict[str, Tensor] = {}
    for file, names in _files(folder, shown).items():
        for tensor in _headers(file, names, shown):
            if _BUFFERS.match(tensor.name):
                continue
            if _FOREIGN.match(tensor.name) and plan.architecture.endswith("ForConditionalGeneration"):
                foreign[tensor.name] = tensor
            else:
                text[_plain(tensor.name)] = tensor
    if plan.tied_embeddings:
        text.pop("lm_head.weight", None)  # a copy of the embeddings, which transformers does not read either
    _compare(text, plan, shown)
    return Weights(folder=folder, text=text, foreign=foreign)


def _plain(name: str) -> str:
    for prefix, replacement in _TEXT_PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def weight_files(folder: Path, *, where: str = "") -> list[str]:
    """Names of the files that hold the weights, as the folder's index tells, or the single file without one.

    Raises ``StageError`` 64 for an index that cannot be read.
    """
    if not (folder / INDEX).is_file():
        return [SINGLE]
    return sorted(_indexed(folder, where or str(folder)))


def _files(folder: Path, shown: str) -> dict[Path, list[str] | None]:
    """Files with the names that the index lists for each; None where there is no index."""
    if (folder / INDEX).is_file():
        return {folder / file: names for file, names in _indexed(folder, shown).items()}
    if (folder / SINGLE).is_file():
        return {folder / SINGLE: None}
    others = sorted(path.name for path in folder.glob("*.bin")) + sorted(
        path.name for path in folder.glob("*.gguf")
    )
    raise StageError(
        ExitCode.INPUT_MISSING, "WeightsMissing", "the folder has no safetensors weights", where=shown,
        saw=", ".join(others[:4]) or "no weights at all", expected=f"{SINGLE} or {INDEX}",
        fix="Save the model with save_pretrained(..., safe_serialization=True) and upload the folder again.",
    )  # fmt: skip


def _indexed(folder: Path, shown: str) -> dict[str, list[str]]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        listed = [(str(name), str(file)) for name, file in index["weight_map"].items()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _mismatch(f"{shown}/{INDEX}", "the index is not readable", str(error), "weight_map") from None
    files: dict[str, list[str]] = {}
    for name, file in listed:
        files.setdefault(file, []).append(name)
    return files


def _headers(file: Path, names: list[str] | None, shown: str) -> Iterator[Tensor]:
    try:
        with safe_open(file, framework="numpy") as stream:
            for name in names if names is not None else list(stream.keys()):
                part = stream.get_slice(name)
                yield Tensor(file=file, name=name, shape=tuple(part.get_shape()), dtype=part.get_dtype())
    except FileNotFoundError:
        raise StageError(
            ExitCode.INPUT_MISSING, "WeightsMissing", "the index names a file that is not there",
            where=f"{shown}/{file.name}", fix="Upload the missing file.",
        ) from None  # fmt: skip
    except SafetensorError as error:
        raise _mismatch(
            f"{shown}/{file.name}", "the file is not whole", str(error), "a safetensors file"
        ) from None


def _compare(text: Mapping[str, Tensor], plan: ModelPlan, shown: str) -> None:
    expected = plan.tensors()
    for name, shape in expected.items():
        if name not in text:
            missing = sum(1 for n in expected if n not in text)
            raise _mismatch(
                shown, f"{missing} of {len(expected)} tensors are missing", f"no {name}", str(shape)
            )
        if text[name].shape != shape:
            raise _mismatch(
                f"{shown}: {name}",
                "the shape is not what config.json says",
                str(text[name].shape),
                str(shape),
            )
        if text[name].dtype not in DTYPES:
            raise _mismatch(
                f"{shown}: {name}", "this dtype is not supported", text[name].dtype, ", ".join(DTYPES)
            )
    extra = sorted(set(text) - set(expected))
    if extra:
        raise _mismatch(
            shown, "there are tensors that the architecture does not have",
            ", ".join(extra[:3]) + (" …" if len(extra) > 3 else ""), f"the tensors of {plan.architecture}",
        )  # fmt: skip


def _mismatch(where: str, what: str, saw: str, expected: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "WeightsMismatch", what, where=where, saw=saw[:300], expected=expected,
        fix="Use weights and config.json of the same model.",
    )  # fmt: skip
