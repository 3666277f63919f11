"""Which checkpoints are kept: the newest, and the best by the loss on the validation rows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from finetune_contract import CheckpointPolicy, CheckpointRecord, RunFolder
from finetune_contract.result import MOST_CHECKPOINTS
from finetune_trainer.evaluation.numbers import perplexity


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """A preservation policy that Orbax calls whenever a checkpoint is saved. All processes measure the same."""

    policy: CheckpointPolicy
    measured: dict[int, float]
    """Loss by step; grows while training evaluates."""
    per_token: bool = True
    """Whether the loss is a mean over tokens, so that its exponential is a perplexity."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:  # noqa: ARG002
        """Whether to keep each of ``checkpoints``, oldest first."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*steps[-self.policy.keep_last :], *self.ranked(steps)[: self.policy.keep_best]}
        return [step in kept for step in steps]

    def ranked(self, steps: Iterable[int]) -> list[int]:
        """Those of ``steps`` that were measured, best first; among equals the earlier one."""
        sign = 1 if self.policy.best_mode == "Min" else -1
        # Perplexity rises with the loss: both metrics rank alike.
        return sorted(
            (step for step in steps if step in self.measured),
            key=lambda step: (sign * self.measured[step], step),
        )

    def best(self, steps: Iterable[int]) -> int | None:
        """The best of ``steps``; None if the policy keeps no best checkpoints or nothing was measured."""
        return next(iter(self.ranked(steps)), None) if self.policy.keep_best else None

    def records(self, steps: Iterable[int], folder: RunFolder) -> list[CheckpointRecord]:
        """Records of these checkpoints, oldest first, as many as a result holds: the newest, and the best."""
        saved = list(steps)
        listed = saved[-MOST_CHECKPOINTS:]
        best = self.best(saved)
        if best is not None and best not in listed:
            listed[0] = best
        return [
            CheckpointRecord(step=step, uri=folder.checkpoint(step), metrics=self._metrics(step))
            for step in listed
        ]

    def _metrics(self, step: int) -> dict[str, float]:
        loss = self.measured.get(step)
        if loss is None:
            return {}
        return {"loss": loss} | ({"perplexity": perplexity(loss)} if self.per_token else {})


def measured_before(metrics: bytes | None) -> dict[int, float]:
    """Loss by step of earlier attempts, from the run's metrics file."""
    rows = [json.loads(line) for line in (metrics or b"").splitlines()]
    return {row["step"]: row["evaluation_loss"] for row in rows if "evaluation_loss" in row}
