"""Tunix's training loop on a MaxText model, extended with what a job needs.

Beyond MaxText's trainer: data by step number, token-weighted evaluation over all rows, no checkpoint at step 1, a check
that stops the run before a loss that is not finite can reach a checkpoint, and a stop at an agreed step.
"""

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, override

import jax
import numpy as np
import numpy.typing as npt
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from maxtext.trainers.post_train.sft import hooks
from maxtext.trainers.post_train.sft.train_sft import MaxTextPeftTrainer
from tunix.sft.hooks import DataHooks

from finetune_contract import EvaluationPoint, ExitCode, StepMetrics
from finetune_trainer.data.batches import EvaluationBatches, TrainBatches
from finetune_trainer.data.layout import Batch
from finetune_trainer.engine.accumulation import accumulated_step
from finetune_trainer.engine.compilation_counter import CompilationCounter
from finetune_trainer.engine.sharding import shard_batch
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.loss import LossMeter, MeasuredLoss, combined
from finetune_trainer.evaluation.numbers import perplexity
from finetune_trainer.methods.objectives import Objective, ReferenceModel
from finetune_trainer.training.report import HostProgressReporter, ProgressReporter
from finetune_trainer.training.retention import Retention
from finetune_trainer.training.saving import CheckpointSavePolicy
from finetune_trainer.training.tracing import Trace

_LOG = logging.getLogger(__name__)
#: Minimum seconds between two console lines.
_LOG_SECONDS = 1.0


class Stopped(Exception):
    """Training ended on request at ``step``.

    A checkpoint of that step exists, unless it is the step that the attempt began with.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


class StepDataHooks(DataHooks):  # type: ignore[misc]  # Tunix ships no types
    """Provides the batch of the trainer's current step."""

    def __init__(self, batches: TrainBatches, mesh: Mesh, total_steps: int) -> None:
        self._batches, self._mesh, self._total = batches, mesh, total_steps
        self.trained_tokens: dict[int, int] = {}

    @override
    def load_next_train_batch(self, train_ctx: "FineTuneTrainer") -> dict[str, jax.Array] | None:
        step = train_ctx.train_steps
        if step >= self._total:
            return None
        batch = self._batches.batch(step)
        self.trained_tokens[step + 1] = train_ctx.objective.tokens(batch)
        return shard_batch(train_ctx.with_reference_logps(batch), self._mesh)

    @override
    def load_next_eval_batch(self, train_ctx: "FineTuneTrainer") -> None:
        raise NotImplementedError("the trainer evaluates in its own loop")


@dataclass(slots=True, kw_only=True)
class TrainerControl:
    """Inputs of the trainer that come from the stage."""

    total_steps: int
    saving: CheckpointSavePolicy
    evaluate_every: int | None
    stop_requested: Callable[[], bool]
    begin_saving: Callable[[], None]
    """Called when a step is done that no checkpoint holds: from then on a stop waits for the next step."""
    learning_rates: npt.NDArray[np.float64]
    """Learning rate by number of steps done before."""
    accumulation: int = 1
    """Microbatches per step."""
    report: ProgressReporter | None = None
    """None except on process 0."""
    host_report: HostProgressReporter | None = None
    """None where there is only one process."""
    trace: Trace | None = None
    """None where no steps are profiled."""
    evaluation: Mapping[str, EvaluationBatches] = field(default_factory=dict)
    """Batches of the validation sets, by name of the set."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by kind of activity; the trainer fills it in."""
    compilations: CompilationCounter = field(default_factory=CompilationCounter)
    """Compilations of this process."""
    _asked: int = field(default=0, init=False)

    def stop_agreed(self) -> bool:
        """Whether to stop here.

        All processes call it at the same places of the training, in the same order, and get the same answer at each.
        """
        self._asked += 1
        if jax.distributed.is_initialized():
            # JAX counts the calls: one process has received the signal, and all stop at the first call that no process
            # has made yet.
            return bool(multihost_utils.reached_preemption_sync_point(self._asked))
        return self.stop_requested()

    def spent(self, kind: str, seconds: float) -> None:
        """Adds ``seconds`` to the time spent on ``kind``."""
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def evaluated_batch(self) -> None:
        if self.report is not None:
            self.report.alive()
        if self.host_report is not None:
            self.host_report.evaluated()


class FineTuneTrainingHooks(hooks.SFTTrainingHooks):  # type: ignore[misc]  # MaxText ships no types
    """MaxText's hooks (TensorBoard), extended: they stop on request, record, and check that the loss is finite."""

    def __init__(self, config: Any, mesh: Mesh, control: TrainerControl) -> None:
        super().__init__(
            config,
            mesh,
            lambda step: control.learning_rates[min(step, len(control.learning_rates) - 1)],
            None,
        )
        self._control = control
        self._last = self._compiled = 0.0
        self._clean = False
        self._logged = 0.0
        self._listed = 0
        self.first_loss: float | None = None
        self.last_loss: float | None = None
        self.tokens = 0

    @override
    def get_total_weights(self, batch: Any) -> Any:
        raise NotImplementedError("counted on the host, in on_train_step_start")

    @override
    def on_train_start(self, train_ctx: "FineTuneTrainer") -> None:
        super().on_train_start(train_ctx)
        self.skip_timing()

    @override
    def on_train_step_start(self, train_ctx: "FineTuneTrainer") -> None:
        if self._control.stop_agreed():
            raise Stopped(train_ctx.train_steps)
        step = train_ctx.train_steps
        if self._control.trace is not None:
            self._control.trace.begins(step + 1, train_ctx.finish_step)
        if self._control.host_report is not None:
            self._control.host_report.begins(step + 1)
        self.train_metadata[step] = {"total_weights": train_ctx.data_hooks.trained_tokens[step + 1]}

    @override
    def on_train_step_end(
        self, train_ctx: "FineTuneTrainer", train_step: int, train_loss: float, step_time: float = 0.0
    ) -> None:
        """Tunix calls this one step late, so that the transfer of the loss overlaps the next step."""
        loss = float(train_loss)
        check_finite(loss, train_step)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        del self.train_metadata[train_step - 1]
        measured = train_ctx.measured(train_step)
        metrics = StepMetrics(
            loss=loss,
            perplexity=perplexity(loss) if train_ctx.objective.per_token else None,
            gradient_norm=measured.pop("gradient_norm"),
            method_metrics=measured,
            learning_rate=float(self._control.learning_rates[train_step - 1]),
            tokens=train_ctx.data_hooks.trained_tokens.pop(train_step),
        )
        self._log(metrics, train_step, seconds)
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.last_loss = loss
        self.tokens += metrics.tokens or 0
        if self._clean:
            self._control.spent("productive", seconds)
        else:
            compiled = min(seconds, self._control.compilations.seconds - self._compiled)
            self._control.spent("compile", compiled)
            self._control.spent("first_step", seconds - compiled)
        if self._control.report is not None:
            self._control.report.step(train_step, metrics, seconds if self._clean else None)
            saved = self._control.saving.latest
            if self._listed < saved < train_step:  # by now most of it is written
                self._listed = saved
                self._control.report.checkpoints(train_ctx.saved_steps())
        self._clean = True

    def _log(self, metrics: StepMetrics, step: int, seconds: float) -> None:
        """Writes to TensorBoard through MaxText and logs a console line.

        MaxText's own hook would stack Tunix's whole history at every step.
        """
        measured = {
            "loss": metrics.loss,
            "perplexity": metrics.perplexity,
            "grad_norm": metrics.gradient_norm,
            "total_weights": metrics.tokens,
            **metrics.method_metrics,
        }
        values = {
            "scalar": {f"learning/{name}": value for name, value in measured.items() if value is not None}
        }
        self.metric_logger.record_train_metrics(values, step, seconds)
        self.metric_logger.write_metrics(values, step)
        total = self._control.total_steps
        if self._control.report is not None and (
            time.monotonic() - self._logged >= _LOG_SECONDS or step == total
        ):
            self._logged = time.monotonic()
            _LOG.info("step %d of %d: loss %.4f, %.3f s", step, total, metrics.loss, seconds)

    @override
    def on_train_end(self, train_ctx: "FineTuneTrainer") -> None:
        if self._control.trace is not None:
            self._control.trace.close(train_ctx.finish_step)
        train_ctx.flush_metrics()  # before the writers close: Tunix flushes afterwards
        super().on_train_end(train_ctx)

    def skip_timing(self) -> None:
        """Excludes the time until now (evaluation, a checkpoint's copy) from the next step's time."""
        self._last, self._compiled = time.perf_counter(), self._control.compilations.seconds


class FineTuneTrainer(MaxTextPeftTrainer):  # type: ignore[misc]  # MaxText ships no types
    """The trainer of a job, see the module's docstring. Call ``prepare`` before ``train``."""

    control: TrainerControl
    maxtext: Any
    mesh: Mesh
    objective: Objective
    reference: ReferenceModel | None
    start_step: int = 0
    retention: Retention
    last_evaluation: MeasuredLoss | None = None
    accumulation: int
    _measured: dict[int, Mapping[str, Any]]
    _jitted_train_step_fn: Any
    _jitted_eval_step_fn: Any
    _meter: LossMeter | None = None

    def prepare(
        self,
        control: TrainerControl,
        config: Any,
        mesh: Mesh,
        reference: ReferenceModel | None,
    ) -> None:
        """Prepares for ``train``. ``config`` is MaxText's; ``reference`` is for objectives relative to it."""
        self.control, self.maxtext, self.mesh, self.reference = control, config, mesh, reference
        self.start_step = self.train_steps
        self._measured = {}
        # Orbax queries JAX with the number of the step whenever it may save. JAX expects a single rising count of
        # queries, and ``TrainerControl.stop_agreed`` also counts those between the batches of an evaluation.
        self._manager.reached_preemption = lambda _: False
        # It has nothing open, and would remove every listener of JAX's events: compilations of the evaluation after
        # the last step would not be counted.
        self.metrics_logger.close = lambda: None

    def learn(self, objective: Objective, accumulation: int) -> None:
        """Sets what a step minimizes, and in how many microbatches."""
        self.objective, self.accumulation = objective, accumulation
        self.with_loss_fn(lambda model, **batch: objective(model, batch, train=True), has_aux=True)

    def with_reference_logps(self, batch: Batch) -> Batch:
        """The batch, with the reference model's log-probabilities where the objective needs them."""
        return batch if self.reference is None else self.reference.of(batch)

    @override
    def create_train_step_fn(self) -> Any:
        inner = self._undivided_step() if self.accumulation == 1 else self._accumulated_step()

        def step(model: Any, optimizer: Any, batch: Any) -> Any:
            loss, sums, norm = inner(model, optimizer, batch)
            metrics = {name: sums[name] / sums["total_weights"] for name in self.objective.metrics}
            return loss, {"loss": loss, "gradient_norm": norm, **metrics}, norm

        return step

    def jit_step(self) -> Any:
        """The jitted step, which keeps no second copy of what it replaces.

        Tunix donates only the optimizer's state, so old and new parameters would be in memory at once.
        """
        return nnx.jit(self.create_train_step_fn(), donate_argnames=("model", "optimizer"))

    @override
    def jit_train_and_eval_step(self, skip_jit: bool = False, cache_nnx_graph: bool = False) -> Any:
        """Replaces Tunix's method: returns the step of ``jit_step``; Tunix's evaluation step is not used."""
        if self._jitted_train_step_fn is None:
            step = self.jit_step()
            bound = nnx.cached_partial if cache_nnx_graph else functools.partial
            # Tunix reads the size of the compilation cache from the partial's ``func``.
            self._jitted_train_step_fn = functools.partial(bound(step, self.model, self.optimizer))
        return self._jitted_train_step_fn, self._jitted_eval_step_fn

    def _undivided_step(self) -> Any:
        inner = super().create_train_step_fn()
        return lambda model, optimizer, batch: inner(model, optimizer, None, batch)

    def _accumulated_step(self) -> Any:
        nnx.pop(self.model, nnx.Intermediate)
        wrt = nnx.LoRAParam if self._lora_enabled else nnx.Param
        return accumulated_step(
            self.model, wrt, lambda model, batch: self.loss_fn(model, **batch), self.accumulation
        )

    @override
    def _post_process_train_step(self, aux: Any) -> None:
        """Runs before the step is counted and its checkpoint saved."""
        self.control.begin_saving()
        done = self.train_steps + 1
        self._measured[done] = {name: value for name, value in aux.items() if name != "loss"}
        if self.control.saving.decide(done) or done == self.control.total_steps:
            check_finite(float(aux["loss"]), done)
            check_finite(float(aux["gradient_norm"]), done, what="gradient norm")

    def measured(self, step: int) -> dict[str, float]:
        """What the step measured beside its loss, by name: ``gradient_norm`` and the method's metrics."""
        return {name: float(value) for name, value in self._measured.pop(step, {}).items()}

    @override
    def _run_eval(self, eval_ds: Any, eval_step_fn: Any) -> None:
        """Evaluates before the first step and every ``evaluate_every`` steps, when Tunix calls it.

        The last evaluation is made by ``Session.run``, at the end.
        """
        step = self.train_steps
        if step == self.control.total_steps or (step == self.start_step and step > 0):
            return
        self.evaluate(alive=self._evaluated_batch)

    def _evaluated_batch(self) -> None:
        """Called between two batches of an evaluation between steps, which may outlast a preemption's grace period."""
        self.control.evaluated_batch()
        if self.control.stop_agreed():
            raise Stopped(self.train_steps)

    def evaluate(self, *, alive: Callable[[], None] | None = None) -> MeasuredLoss | None:
        """Token-weighted loss over all validation sets with the current parameters; None if there are no sets.

        ``alive`` is called after each batch.
        """
        if not self.control.evaluation:
            return None
        started = time.perf_counter()
        if self._meter is None:
            self._meter = LossMeter(self.model, self.maxtext, self.mesh, self.objective)
        by_set = {
            name: self._meter.measure(
                self.model,
                map(self.with_reference_logps, batches),
                alive=alive or self.control.evaluated_batch,
            )
            for name, batches in self.control.evaluation.items()
        }
        loss = combined(by_set.values())
        self.last_evaluation = loss
        self.retention.measured[self.train_steps] = loss.mean
        self.control.spent("evaluate", time.perf_counter() - started)
        if self.control.report is not None:
            self.control.report.evaluation(
                EvaluationPoint(
                    step=self.train_steps,
                    loss=loss.mean,
                    perplexity=loss.perplexity,
                    tokens=loss.tokens,
                    by_set={name: each.mean for name, each in by_set.items()} if len(by_set) > 1 else {},
                    method_metrics=dict(loss.metrics),
                )
            )
        self.training_hooks.skip_timing()
        _LOG.info(
            "step %d: loss on the validation set %.4f over %d tokens",
            self.train_steps,
            loss.mean,
            loss.tokens,
        )
        return loss

    def finish_step(self) -> None:
        """Waits until the devices have done every step that was begun."""
        self._throttler.wait_for_all()

    def flush_metrics(self) -> None:
        """Writes the metrics of the last step, which Tunix holds back for one step."""
        self.finish_step()
        self._write_train_metrics()

    def saved_steps(self) -> list[int]:
        """Steps with a finished checkpoint, ascending."""
        steps = sorted(int(step) for step in self._manager.all_steps())
        return steps[:-1] if self._manager.is_saving_in_progress() else steps

    def save_now(self) -> None:
        """Saves the current step, unless it is saved already, and waits until the checkpoint is complete."""
        self._save_last_checkpoint()
        self._manager.wait_until_finished()

    @property
    def _manager(self) -> Any:
        """Orbax's checkpoint manager, which Tunix wraps."""
        return self.checkpoint_manager._checkpoint_manager  # noqa: SLF001


def check_finite(value: float, step: int, *, what: str = "loss") -> None:
    """Raises ``StageError`` 70 for NaN or an infinity."""
    if not math.isfinite(value):
        raise StageError(
            ExitCode.DIVERGED,
            "Diverged",
            f"training diverged: the {what} is NaN or infinite",
            where=f"step {step}",
            actual=str(value),
            expected="a finite number",
            fix="Lower hyperparameters.learningRate or raise warmupRatio; checkpoints before this step are valid.",
        )
