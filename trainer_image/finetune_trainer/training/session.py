"""One training run, from the converted model or the newest checkpoint to the last step."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from flax import nnx
from jax.sharding import Mesh
from maxtext.optimizers import optimizers
from maxtext.utils import maxtext_utils
from orbax import checkpoint as ocp
from tunix.sft import peft_trainer

from finetune_contract import StageRequest
from finetune_trainer.conversion.loading import pretrained
from finetune_trainer.data.batches import TrainBatches
from finetune_trainer.engine.lora import with_lora
from finetune_trainer.engine.sharding import ROW_AXES, mesh_context, with_canonical_sharding
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_of
from finetune_trainer.methods.objectives import Objective, ReferenceModel
from finetune_trainer.training.parameter_changes import ParameterChanges, require_parameter_changes
from finetune_trainer.training.retention import Retention
from finetune_trainer.training.saving import CheckpointSavePolicy
from finetune_trainer.training.trainer import (
    FineTuneTrainer,
    FineTuneTrainingHooks,
    StepDataHooks,
    Stopped,
    TrainerControl,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A model and its trainer, restored and ready. Built by ``open_session``."""

    trainer: FineTuneTrainer
    config: Any
    mesh: Mesh
    reference: ReferenceModel | None
    movement: ParameterChanges
    learning_rates: npt.NDArray[np.float64]
    """Learning rate by number of steps done before."""

    @property
    def start_step(self) -> int:
        """Number of steps done before this attempt."""
        return int(self.trainer.start_step)

    def run(self, batches: TrainBatches, control: TrainerControl) -> list[str]:
        """Trains up to ``control.total_steps``, saves and evaluates.

        Returns the names of trained tensors that did not change. Raises ``Stopped`` after saving when a stop was
        requested, ``StageError`` 70 when the loss is not finite or a whole layer did not change, and RuntimeError when
        the loop ended before its last step.
        """
        trainer = self.trainer
        trainer.with_data_hooks(StepDataHooks(batches, self.mesh, control.total_steps))
        trainer.with_training_hooks(FineTuneTrainingHooks(self.config, self.mesh, control))
        with mesh_context(self.config, self.mesh):
            trainer.prepare(control, self.config, self.mesh, self.reference)
            # Its truth value makes Tunix evaluate while training; the rows come from ``control``.
            wanted = bool(control.evaluate_every and control.evaluation)
            try:
                trainer.train([], [True] if wanted else None, cache_nnx_graph=self.config.num_experts <= 1)
            except Stopped:
                if control.trace is not None:
                    control.trace.close(trainer.finish_step)
                trainer.flush_metrics()
                trainer.save_now()
                trainer.close()
                raise
            if trainer.train_steps != control.total_steps:
                raise RuntimeError(
                    f"training ended after step {trainer.train_steps} of {control.total_steps}"
                )
            if control.report is not None:
                control.report.flush()
            if control.stop_agreed():
                raise Stopped(control.total_steps)
            self.movement.require_finite(trainer.model, step=control.total_steps)
            moved = self.movement.moved(trainer.model, trainer.optimizer)
            still = require_parameter_changes(moved, step=control.total_steps, rates=self.learning_rates)
            trainer.evaluate()
            return still


def open_session(
    config: Any,
    plan: ModelPlan,
    request: StageRequest,
    *,
    steps: int,
    retention: Retention,
    saving: CheckpointSavePolicy,
) -> Session:
    """Loads the model and the newest complete checkpoint, if there is one.

    ``config`` is MaxText's; it names the run folder, the converted model and the mesh.
    """
    objective = method_of(request.method).objective(config)
    model, mesh = pretrained(config)
    with mesh_context(config, mesh):
        parts = request.hyperparameters.gradient_accumulation_steps
        if config.lora.enable_lora:
            model = with_lora(model, mesh, config)
        movement = ParameterChanges(model, plan, config, mesh)
        reference = None
        if objective.relative:
            nnx.pop(model, nnx.Intermediate)
            made = ReferenceModel.without_adapter if config.lora.enable_lora else ReferenceModel.copied
            # before a checkpoint is restored
            reference = made(model, mesh, rows=request.hyperparameters.microbatch_size)
        trainer, schedule = build_trainer(
            config,
            model,
            _tunix(config, steps, retention, saving, request.evaluation.every_steps),
            objective,
            parts,
        )
        for module in (trainer.model, trainer.optimizer):
            nnx.update(
                module, jax.tree.map(lambda leaf: with_canonical_sharding(leaf, mesh), nnx.state(module))
            )
        trainer.retention = retention
    return Session(
        trainer=trainer,
        config=config,
        mesh=mesh,
        reference=reference,
        movement=movement,
        # a constant schedule without warm-up returns one number for all steps
        learning_rates=np.broadcast_to(np.asarray(schedule(jnp.arange(steps)), np.float64), (steps,)),
    )


def build_trainer(
    config: Any, model: Any, training: peft_trainer.TrainingConfig, objective: Objective, accumulation: int
) -> tuple[FineTuneTrainer, optax.Schedule]:
    """The trainer of a loaded model with its adapters, and the learning rate by step.

    Call inside ``mesh_context``. It is also traced without any weights, where the step
    is only compiled.
    """
    optimizer, schedule = optimizer_of(config, model)
    nnx.pop(model, nnx.Intermediate)
    trainer = FineTuneTrainer(model, optimizer, training)
    trainer.start_step = trainer.train_steps
    trainer.learn(objective, accumulation)
    return trainer, schedule


def optimizer_of(config: Any, model: Any) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """The optimizer, with gradient clipping in front, and its learning rate by number of updates done before."""
    schedule = maxtext_utils.create_learning_rate_schedule(config)
    optimizer = optimizers.get_optimizer(config, schedule, model)
    if config.gradient_clipping_threshold > 0:
        optimizer = optax.chain(optax.clip_by_global_norm(config.gradient_clipping_threshold), optimizer)
    return optimizer, schedule


def _tunix(
    config: Any, steps: int, retention: Retention, saving: CheckpointSavePolicy, evaluate_every: int | None
) -> Any:
    return peft_trainer.TrainingConfig(
        eval_every_n_steps=evaluate_every or steps + 1,
        # The data ends at the last step. A number would start a progress bar that stacks all metrics at every step.
        max_steps=None,
        checkpoint_root_directory=config.checkpoint_dir,
        checkpointing_options=ocp.CheckpointManagerOptions(
            # Explicit, because Orbax's default also saves the first step it sees and checks for preemption by itself.
            save_decision_policy=saving,
            preservation_policy=retention,
            # leftovers of an attempt that ended while it was saving
            cleanup_tmp_directories=True,
            enable_async_checkpointing=True,
        ),
        # MaxText's hooks write TensorBoard already.
        metrics_logging_options=None,
        data_sharding_axis=(ROW_AXES,),
        pbar_description=None,
    )


def peak_memory() -> int | None:
    """Largest number of bytes in use on any device of this process; None where devices report no statistics (CPU)."""
    all_stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return max(
        (stats["peak_bytes_in_use"] for stats in all_stats if "peak_bytes_in_use" in stats), default=None
    )
