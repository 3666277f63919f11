"""The smoke test of preflight: the job's own stages in miniature, on this machine's CPU.

Runs Convert, Train, Evaluate and Export as they will run, with the job's method, hyperparameters, tokenizer and the
first rows of its data, on a miniature of its model. What fails here would have failed on the slice.
"""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from finetune_contract import DatasetSpec, ExitCode, SmokeOutcome, Stage, StageRequest, TrainOutcome
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.hub.models import LocalModel
from finetune_trainer.methods import method_of
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages.context import StageContext
from finetune_trainer.verification import tiny_model

_LOG = logging.getLogger(__name__)
#: Sequence lengths in tokens; the shortest that leaves something to train on is used. A CPU does not train on longer
#: ones in minutes.
_LENGTHS = (512, 1024, 2048, 4096)
#: Most tokens times vocabulary size: some five float32 copies must fit preflight's 8 GiB.
_LOGITS = 2**28
_ANSWER_TOKENS = 8
_PROMPTS = 2
#: Least fraction of the rows that is held back: the job's own fraction of a few rows might be none.
_HELD_BACK = 0.25


def run_smoke_test(context: StageContext, model: LocalModel, plan: ModelPlan) -> SmokeOutcome | None:
    """Runs the smoke test; None if none is requested.

    Raises the ``StageError`` of the stage that failed, which its ``where`` names.
    """
    wanted = context.request.smoke
    if wanted is None:
        return None
    import jax

    started = time.monotonic()
    root = context.scratch / "smoke"
    small = tiny_model.write(root / "model", model.path, plan, seed=context.request.hyperparameters.seed)
    request = smoke_request(context.request, small, model.tokenizer_path, root, devices=jax.device_count())
    try:
        chain = _Chain(context, root, request)
        examples = chain.shorten(_LOGITS // plan.vocab_size)
        trained = chain.run()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return SmokeOutcome(
        steps=wanted.steps,
        examples=examples,
        max_seq_length=chain.request.data.max_seq_length,
        first_loss=trained.first_loss,
        last_loss=trained.last_loss,
        seconds=round(time.monotonic() - started, 3),
    )


def smoke_request(
    request: StageRequest, model: Path, tokenizer: Path, root: Path, *, devices: int
) -> StageRequest:
    """The request for a miniature: its own folders, one host's devices, a few rows and steps, nothing published.

    ``engineOverrides`` and the compiler's choices are for the slice, and are compiled for it.
    """
    assert request.smoke is not None, "asked for"
    steps, most = request.smoke.steps, request.smoke.examples
    h, data, evaluation = request.hyperparameters, request.data, request.evaluation
    parts = min(h.gradient_accumulation_steps, 2)
    split = data.split_from_train
    if split is not None:
        split = split.model_copy(update={"fraction": max(split.fraction, _HELD_BACK), "max_examples": None})
    return _replaced(
        request,
        run_folder=f"file://{root}/run",
        cache=f"file://{root}/cache",
        use_cache="Off",
        model={"uri": f"file://{model}", "tokenizer": {"uri": f"file://{tokenizer}"}},
        data=_replaced(
            data,
            train=_first(data.train, most),
            validation=_first(data.validation, most),
            split_from_train=split,
        ),
        hyperparameters=_replaced(
            h,
            epochs=None,
            steps=steps,
            gradient_accumulation_steps=parts,
            global_batch_size=parts * devices,
            warmup_ratio=None,
            warmup_steps=None,
        ),
        mesh={"hosts": 1, "chips_per_host": devices, "fsdp": devices},
        pathways_jax=None,
        checkpointing=_replaced(request.checkpointing, every_steps=steps, every_seconds=None, keep_best=0),
        evaluation=_replaced(
            evaluation,
            every_steps=None,
            datasets=[_replaced(each, source=_first([each.source], most)[0]) for each in evaluation.datasets],
            benchmarks=[],
            prompts=evaluation.prompts[:_PROMPTS],
            max_new_tokens=min(evaluation.max_new_tokens, _ANSWER_TOKENS),
            gates=[],
        ),
        export=_replaced(request.export, destinations=[]),
        profiling=None,
        engine_overrides={},
        memory=None,
        tuning={},
    )


def _first(sources: Sequence[DatasetSpec], most: int) -> list[DatasetSpec]:
    return [_replaced(each, max_examples=min(each.max_examples or most, most)) for each in sources]


def _replaced[Part: Any](part: Part, **changes: Any) -> Part:
    """A copy with changes, validated like any other."""
    made: Part = type(part).model_validate({**dict(part), **changes})
    return made


class _Chain:
    """The stages of a small request, one after the other in this process."""

    def __init__(self, context: StageContext, root: Path, request: StageRequest) -> None:
        self._context, self._root, self.request = context, root, request

    def shorten(self, most: int) -> int:
        """Sets the shortest sequence length that leaves every set something to train or measure on.

        The length is at most ``most`` tokens. Returns the number of training examples.
        """
        longest = min(self.request.data.max_seq_length, most, _LENGTHS[-1])
        asked = self.request
        for length in (*(length for length in _LENGTHS if length < longest), longest):
            self.request = _shortened(asked, length)
            try:
                return self._examples()
            except StageError as error:
                if error.reason != "DatasetHasNothingToTrain":
                    raise
                found = error
        raise StageError(
            ExitCode.BAD_REQUEST, "SmokeTestTooSmall", "the first rows contain no tokens to train on in a smoke test",
            where="spec.preflight.smoke.examples", actual=found.what,
            expected=f"rows with tokens to train on within {longest}",
            fix="Raise it, or remove preflight.smoke.",
        ) from found  # fmt: skip

    def _examples(self) -> int:
        context = self._small(Stage.PREFLIGHT)
        context.validation_data()
        for dataset in self.request.evaluation.datasets:
            context.evaluation_data(dataset)
        return context.training_data().examples

    def run(self) -> TrainOutcome:
        """Runs all stages and returns training's outcome."""
        from finetune_trainer.stages import convert, evaluate, export, train

        self._context.progress.begin("running the smoke test", len(Stage) - 1, "stages")
        converted = self._run(Stage.CONVERT, convert.run)
        self.request = _replaced(self.request, converted=converted.manifest.items)
        trained = self._run(Stage.TRAIN, train.run)
        self.request = _replaced(self.request, train_step=trained.step, end_ids=trained.end_ids)
        self._run(Stage.EVALUATE, evaluate.run)
        self._run(Stage.EXPORT, export.run)
        return trained

    def _run[Outcome](self, stage: Stage, function: Callable[[StageContext], Outcome]) -> Outcome:
        _LOG.info("smoke test: %s", stage)
        try:
            outcome = function(self._small(stage))
        except StageError as error:
            where = f"smoke test, {stage}" + (f": {error.where}" if error.where else "")
            raise StageError(
                error.code, error.reason, error.what, where=where, actual=error.actual, expected=error.expected,
                fix=error.fix,
            ) from error  # fmt: skip
        self._context.progress.advance()
        return outcome

    def _small(self, stage: Stage) -> StageContext:
        scratch = self._root / stage.short
        scratch.mkdir(exist_ok=True)
        return StageContext(
            request=_replaced(self.request, stage=stage),
            store=self._context.store,
            processes=self._context.processes,
            # There is nothing to save: a signal ends preflight at once.
            stopper=ImmediateStop(),
            scratch=scratch,
        )


def _shortened(request: StageRequest, length: int) -> StageRequest:
    return _replaced(
        request,
        data=_replaced(request.data, max_seq_length=length),
        method=method_of(request.method).shortened(length),
    )
