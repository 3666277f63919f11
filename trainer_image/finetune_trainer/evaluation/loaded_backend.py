"""Runs benchmarks' requests on a loaded model."""

from collections.abc import Callable, Sequence

from finetune_trainer.evaluation.batching import RowCapacity
from finetune_trainer.evaluation.generate import Generator
from finetune_trainer.evaluation.likelihood import Likelihood, Pair
from finetune_trainer.evaluation.models import LoadedModel
from finetune_trainer.evaluation.sampling import Sampling
from finetune_trainer.process.stage_progress import ignore


class LoadedModelBackend:
    """``harness.EvaluationBackend`` of a loaded model."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        row_capacity: RowCapacity,
        context: int,
        end_ids: frozenset[int],
        done: Callable[[int], None] = ignore,
    ) -> None:
        """``context`` is the model's context length in tokens. ``done`` is called with the number of requests of each
        batch."""
        self._done = done
        self._loaded, self._row_capacity, self._context, self._end_ids = (
            loaded,
            row_capacity,
            context,
            end_ids,
        )
        self._likelihood = Likelihood(loaded, row_capacity=row_capacity, longest=context)
        self._generators: dict[Sampling, Generator] = {}

    def likelihoods(self, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        return self._likelihood.of(pairs, measured=self._done)

    def answers(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
        if sampling not in self._generators:
            self._generators[sampling] = Generator(
                self._loaded,
                sampling,
                end_ids=self._end_ids,
                row_capacity=self._row_capacity,
                longest=self._context - sampling.max_new_tokens,
            )
        return self._generators[sampling].answers(prompts, answered=self._done)
