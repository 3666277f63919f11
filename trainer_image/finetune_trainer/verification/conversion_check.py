"""The export proof, before any TPU is claimed: the converted model is the user's model, and exports as it again.

1. Converted and turned back, every tensor equals the source's. Bit for bit from bfloat16 and float16; see
   ``_allowed`` for the two roundings that float32 arithmetic leaves elsewhere.
2. On a few rows the converted model's logits and loss, computed by the engine, are those of ``numpy_reference``, an
   independent implementation that reads the source itself. Identical tensors alone prove little: wrong rotary factors
   or a wrong switch leave them identical and the function wrong. Where experts are chosen, float32 roundings decide
   between two of nearly the same score; so the engine takes the reference's choice, and a choice that its own scores
   rule out fails.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.checkpoints import mapping
from finetune_trainer.checkpoints.mapping import Parameter
from finetune_trainer.checkpoints.reading import CheckpointReader
from finetune_trainer.checkpoints.weights import Weights
from finetune_trainer.engine import maxtext
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.process.stage_progress import SILENT, StageProgressReporter
from finetune_trainer.verification import numpy_reference
from finetune_trainer.verification.forward import VOCABULARY, Forward, RunningLoss

#: Most rows, and most tokens of each, that are compared: numpy computes them.
ROWS, LENGTH = 4, 128
#: Largest logit difference, in standard deviations of the logits. Measured: 1e-5; a wrong switch gives 5e-3 to 4.
_LOGIT_TOLERANCE = 1e-3
_LOSS_TOLERANCE = 1e-3
_FLOAT32_STEP = 2.0**-23


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionCheck:
    tensors: int
    rounded: int
    """Number of tensors with values that differ within what ``_allowed`` explains."""
    rows: int
    tokens: int
    """Number of tokens in those rows."""
    loss: float
    """Nats per token on the compared rows, by the engine."""
    numpy_loss: float
    logit_difference: float
    """Largest logit difference, in standard deviations of the logits."""

    @property
    def sentence(self) -> str:
        kept = f"{self.tensors} tensors identical after conversion and back"
        if self.rounded:
            kept = f"{self.tensors - self.rounded} of {kept}, {self.rounded} equal to float32 rounding"
        return (
            f"{kept}; on {self.rows} rows of {self.tokens} tokens in total, loss {self.loss:.6f} against "
            f"{self.numpy_loss:.6f} by an independent implementation, "
            f"logits within {self.logit_difference:.1e} standard deviations."
        )


def check_conversion(
    weights: Weights,
    items: str,
    plan: ModelPlan,
    rows: Sequence[Sequence[int]],
    *,
    scratch: Path,
    progress: StageProgressReporter = SILENT,
) -> ConversionCheck:
    """Compares the converted model with the source.

    ``weights``: the source; ``items``: what ``conversion.convert`` wrote; ``rows``: token ids, cut to ``ROWS`` x
    ``LENGTH``. Raises ``StageError`` 64, ExportProofFailed. Call ``engine.prepare(plan)`` first.
    """
    judged = [list(row[:LENGTH]) for row in rows if len(row) > 1][:ROWS]
    if not judged:
        raise ValueError("the proof needs at least one row of two tokens")
    checkpoint = CheckpointReader(items)
    tensors, rounded = round_trip(weights, checkpoint, plan, scratch=scratch, progress=progress)
    progress.begin("comparing the loss with that of an independent implementation")
    judges, engines = RunningLoss(judged), RunningLoss(judged)
    spread, difference = _RunningDeviation(), 0.0
    opinion = numpy_reference.NumpyReference(weights.folder, weights.read, judged)
    found = Forward(checkpoint, plan, scratch=scratch).logits(judged, opinion.experts)
    for (start, theirs), (_, ours) in zip(opinion.logits(VOCABULARY), found, strict=True):
        judges.add(start, theirs)
        engines.add(start, ours)
        for e, f in zip(theirs, ours, strict=True):
            spread.add(e)
            difference = float(np.maximum(difference, np.abs(e - f).max()))  # keeps NaN
    numpy_loss, loss = judges.mean(), engines.mean()
    proof = ConversionCheck(
        tensors=tensors,
        rounded=rounded,
        rows=len(judged),
        tokens=sum(map(len, judged)),
        loss=loss,
        numpy_loss=numpy_loss,
        logit_difference=difference / (spread.deviation or 1.0),
    )
    close = math.isclose(loss, numpy_loss, rel_tol=_LOSS_TOLERANCE)
    if not close or not proof.logit_difference <= _LOGIT_TOLERANCE:  # NaN must fail
        raise _failed(
            "the engine computes a different function than the model",
            f"loss {loss:.6f}, logits off by {proof.logit_difference:.1e} standard deviations",
            f"loss {numpy_loss:.6f} by an independent implementation, logits within {_LOGIT_TOLERANCE:g}",
        )
    return proof


def round_trip(
    weights: Weights,
    checkpoint: CheckpointReader,
    plan: ModelPlan,
    *,
    scratch: Path,
    progress: StageProgressReporter = SILENT,
) -> tuple[int, int]:
    """Compares the converted model, turned back tensor by tensor, with the source.

    Returns the number of tensors, and of those with roundings that ``_allowed`` explains.
    """
    config = maxtext.configure(
        plan, weight_dtype="float32", run_name="proof", base_output_directory=str(scratch)
    )
    shapes = plan.tensors()
    named = [
        (parameter, place, name)
        for parameter in mapping.parameters(plan, config)
        for place, name in enumerate(parameter.names)
    ]
    if len(named) != len(shapes):
        raise _failed("conversion omits tensors", f"{len(named)} tensors", f"{len(shapes)}")

    progress.begin("comparing the converted weights with the model's", len(named), "tensors")

    def compare(parameter: Parameter, place: int, name: str) -> bool:
        progress.advance()
        index = parameter.index(place, checkpoint.arrays[parameter.key].shape, config.param_scan_axis)
        back = parameter.decode(checkpoint.read(parameter.key, index), shapes[name])
        source = weights.read(name)
        differs = back.astype(source.dtype) != source
        if not differs.any():
            return True
        error = np.abs(source.astype(np.float32) - back)
        wrong = differs & ~(error <= _allowed(name, source, plan))  # NaN must fail
        if wrong.any():
            raise _failed(
                f"a round trip of conversion changes {name}",
                f"{int(wrong.sum())} of {error.size} values differ, by up to {float(error.max()):.3g}",
                "the source's values",
            )
        return False

    exact = sum(compare(*each) for each in named)
    return len(named), len(named) - exact


class _RunningDeviation:
    """The standard deviation of values that are added in parts."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0

    def add(self, values: np.ndarray) -> None:
        wide = values.astype(np.float64)
        self._count += wide.size
        self._sum += float(wide.sum())
        self._squares += float((wide * wide).sum())

    @property
    def deviation(self) -> float:
        mean = self._sum / self._count
        return math.sqrt(max(0.0, self._squares / self._count - mean * mean))


def _allowed(name: str, source: np.ndarray, plan: ModelPlan) -> np.ndarray | float:
    """Elementwise bound on how far a value may change on the way through float32.

    - Gemma's norms are stored as 1 + weight: a weight below 2^-16 loses bits, the norm's effect none.
    - Scaling a *float32* query or embedding and back sometimes changes its last bit.
    """
    size = np.abs(source.astype(np.float32))
    if plan.norm_offset and name.endswith("norm.weight"):
        return (plan.norm_offset + size) * _FLOAT32_STEP
    scaled = (plan.folded_query_scalar is not None and name.endswith("q_proj.weight")) or (
        plan.embedding_scale != 1.0 and name == "model.embed_tokens.weight"
    )
    return 2 * size * _FLOAT32_STEP if scaled and source.dtype == np.float32 else 0.0


def _failed(what: str, actual: str, expected: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "ExportProofFailed", what, actual=actual, expected=expected,
        fix="Do not train this model with this release; report it with the model's config.json.",
    )  # fmt: skip
