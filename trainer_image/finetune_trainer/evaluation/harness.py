"""Implements lm-evaluation-harness's model interface with the trainer's generation and log-probabilities.

The harness's control flow is deterministic (fixed seeds, ordered requests). On several hosts every process runs all of
it: each makes the same collective calls and gets the same results.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.defaults import DEFAULT_MAX_GEN_TOKS
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from finetune_trainer.evaluation.sampling import Sampling
from finetune_trainer.evaluation.scores import opens_reasoning, without_reasoning
from finetune_trainer.tokens.template import Renderer


class EvaluationBackend(Protocol):
    """What benchmarks need from a model. All texts are token ids."""

    def likelihoods(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        """Returns the same as ``Likelihood.of``."""

    def answers(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
        """Returns the same as ``Generator.answers``."""


class HarnessModel(TemplateLM):  # type: ignore[misc]
    """A model for the harness. The task and the harness compose the prompts (chat template, few-shot examples)."""

    def __init__(
        self,
        engine: EvaluationBackend,
        tokenizer: Any,
        renderer: Renderer,
        *,
        context: int,
        seed: int,
    ) -> None:
        """``context`` is the model's context length in tokens."""
        super().__init__()
        self._engine, self._renderer = engine, renderer
        self._context, self._seed = context, seed
        self.tokenizer = tokenizer

    @property
    def eot_token_id(self) -> int | None:
        end: int | None = self.tokenizer.eos_token_id
        return end

    @property
    def prefix_token_id(self) -> int | None:
        """Token that precedes a text without context."""
        begin: int | None = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else begin

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self._renderer.chat.continued(chat_history, asking=add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: Any) -> list[int]:
        """Returns the text's token ids.

        Includes the beginning-of-sequence token if the tokenizer adds one and there is no chat template that writes it.
        """
        if add_special_tokens is False:
            return self._renderer.ids(string)
        return self._renderer.opened(string)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        **_options: Any,
    ) -> list[tuple[float, bool]]:
        return self._engine.likelihoods([(context, rest) for _, context, rest in requests])

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:  # noqa: ARG002
        """Returns the log-likelihoods of whole texts.

        A text longer than the context is split into windows, each with as much preceding text as fits.
        """
        windows = [
            [
                make_disjoint_window(window)
                for window in get_rolling_token_windows(
                    self.tok_encode(request.args[0], add_special_tokens=False),
                    self.prefix_token_id,
                    self._context,
                    1,
                )
            ]
            for request in requests
        ]
        measured = iter(self._engine.likelihoods([window for text in windows for window in text]))
        return [sum(next(measured)[0] for _ in text) for text in windows]

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
        """Generates answers up to their end token and cuts them before the first of the task's stop strings."""
        by_sampling: dict[Sampling, list[int]] = {}
        for number, request in enumerate(requests):
            by_sampling.setdefault(self._sampling(request.args[1]), []).append(number)
        answers = [""] * len(requests)
        for sampling, numbers in by_sampling.items():
            row_capacity = self._context - sampling.max_new_tokens
            prompts = [self.tok_encode(requests[number].args[0])[-row_capacity:] for number in numbers]
            found = self._engine.answers(prompts, sampling)
            for number, answer in zip(numbers, found, strict=True):
                text = self.tokenizer.decode(answer, skip_special_tokens=True)
                # As in the harness, the stop strings apply only to the text after the reasoning.
                prompt, options = requests[number].args
                spoken = without_reasoning(text, opened=opens_reasoning(prompt))
                answers[number] = _cut(spoken, options.get("until") or [])
        return answers

    def _sampling(self, options: dict[str, Any]) -> Sampling:
        drawn = options.get("do_sample", False)
        limit = options.get("max_gen_toks") or options.get("max_new_tokens") or DEFAULT_MAX_GEN_TOKS
        return Sampling(
            max_new_tokens=min(int(limit), self._context // 2),
            temperature=float(options.get("temperature", 1.0)) if drawn else 0.0,
            top_k=int(options.get("top_k", 0)) if drawn else 0,
            seed=self._seed,
        )


def _cut(text: str, stops: str | Sequence[str]) -> str:
    for stop in [stops] if isinstance(stops, str) else stops:
        if stop:
            text = text.partition(stop)[0]
    return text
