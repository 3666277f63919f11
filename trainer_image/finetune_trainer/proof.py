"""The export proof, before any TPU is claimed: what we convert is the model, and what we will export is it again.

1. Converted and turned back, every tensor is the source's again. Bit for bit from bfloat16 and float16; see
   ``_allowed`` for the two roundings that float32 arithmetic leaves elsewhere.
2. On a few rows the converted model's logits and loss, computed by the engine, are those of ``judge``, an independent
   implementation that reads the source itself. Identical tensors alone prove little: wrong rotary factors or a wrong
   switch leave them identical and the function wrong.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune_contract.exit_codes import ExitCode
from finetune_trainer import conversion, engine, judge, mapping
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.forward import Forward, mean_loss
from finetune_trainer.weights import Weights

#: At most so many rows and tokens a row are judged: numpy computes them.
ROWS, LENGTH = 4, 128
#: Largest logit difference, in standard deviations of the logits. Measured: 1e-5; a wrong switch gives 5e-3 to 4.
_LOGIT_TOLERANCE = 1e-3
_LOSS_TOLERANCE = 1e-3
_FLOAT32_STEP = 2.0**-23


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    tensors: int
    rounded: int
    """Tensors with values that differ within what ``_allowed`` explains."""
    loss: float
    """Nats a token on the judged rows, by the engine."""
    judge_loss: float
    logit_difference: float
    """Largest, in standard deviations."""

    @property
    def sentence(self) -> str:
        kept = f"{self.tensors} tensors identical after conversion and back"
        if self.rounded:
            kept = f"{self.tensors - self.rounded} of {kept}, {self.rounded} equal to float32 rounding"
        return (
            f"{kept}; loss {self.loss:.6f} against {self.judge_loss:.6f} by an independent implementation, "
            f"logits within {self.logit_difference:.1e} standard deviations."
        )


def prove(
    weights: Weights, items: str, plan: ModelPlan, rows: Sequence[Sequence[int]], *, scratch: Path
) -> Proof:
    """``weights``: the source; ``items``: what ``conversion.convert`` wrote; ``rows``: token ids, cut to
    ``ROWS`` x ``LENGTH``. Raises ``StageError`` 64, ExportProofFailed. ``engine.prepare(plan)`` comes first."""
    judged = [list(row[:LENGTH]) for row in rows if len(row) > 1][:ROWS]
    if not judged:
        raise ValueError("the proof needs at least one row of two tokens")
    tensors, rounded = round_trip(weights, items, plan, scratch=scratch)
    expected = judge.logits(weights.folder, weights.read, judged)
    forward = Forward(items, plan, rows=len(judged), length=max(map(len, judged)), scratch=scratch)
    found = forward.logits(judged)
    spread = float(np.concatenate([e.ravel() for e in expected]).std()) or 1.0
    difference = max(float(np.abs(e - f).max()) for e, f in zip(expected, found, strict=True)) / spread
    proof = Proof(
        tensors=tensors,
        rounded=rounded,
        loss=mean_loss(found, judged),
        judge_loss=mean_loss(expected, judged),
        logit_difference=difference,
    )
    close = math.isclose(proof.loss, proof.judge_loss, rel_tol=_LOSS_TOLERANCE)
    if not close or not difference <= _LOGIT_TOLERANCE:  # NaN must fail
        raise _failed(
            "the engine computes another function than the model's",
            f"loss {proof.loss:.6f}, logits off by {difference:.1e} standard deviations",
            f"loss {proof.judge_loss:.6f} by an independent implementation, logits within {_LOGIT_TOLERANCE:g}",
        )
    return proof


def round_trip(weights: Weights, items: str, plan: ModelPlan, *, scratch: Path) -> tuple[int, int]:
    """Compares the converted model, turned back, with the source. Returns how many tensors, and how many of them
    with roundings that ``_allowed`` explains."""
    state = conversion.restore(items, plan, scratch)
    config = engine.configure(
        plan, weight_dtype="float32", run_name="proof", base_output_directory=str(scratch)
    )
    shapes = plan.tensors()
    seen = rounded = 0
    for parameter in mapping.parameters(plan, config):
        layers = parameter.decode(
            state.pop(parameter.key), shapes[parameter.names[0]], config.param_scan_axis
        )
        for name, back in zip(parameter.names, layers, strict=True):
            source = weights.read(name)
            seen += 1
            if np.array_equal(source, back.astype(source.dtype)):
                continue
            rounded += 1
            error = np.abs(source.astype(np.float32) - back)
            if not (error <= _allowed(name, source, plan)).all():
                raise _failed(
                    f"converting {name} and back changes it",
                    f"{int((error > 0).sum())} of {error.size} values differ, by up to {float(error.max()):.3g}",
                    "the source's values",
                )
    if seen != len(shapes):
        raise _failed("conversion leaves tensors out", f"{seen} tensors", f"{len(shapes)}")
    return seen, rounded


def _allowed(name: str, source: np.ndarray, plan: ModelPlan) -> np.ndarray | float:
    """How far a value may move on the way through float32, elementwise.

    - Gemma's norms are stored as 1 + weight: a weight below 2^-16 loses bits, the norm's effect none.
    - Scaling a *float32* query or embedding and back moves its last bit at times.
    """
    size = np.abs(source.astype(np.float32))
    if plan.norm_offset and name.endswith("norm.weight"):
        return (plan.norm_offset + size) * _FLOAT32_STEP
    scaled = (plan.folded_query_scalar is not None and name.endswith("q_proj.weight")) or (
        plan.embedding_scale != 1.0 and name == "model.embed_tokens.weight"
    )
    return 2 * size * _FLOAT32_STEP if scaled and source.dtype == np.float32 else 0.0


def _failed(what: str, saw: str, expected: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "ExportProofFailed", what, saw=saw, expected=expected,
        fix="Do not train this model with this release; report it with the model's config.json.",
    )  # fmt: skip
