"""Train: from the converted model, or the newest checkpoint, to the last step; then the loss on the validation set."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from finetune_contract import TrainOutcome
from finetune_contract.result import MOST_UNCHANGED
from finetune_trainer.conversion import cache as conversion_cache
from finetune_trainer.data.batches import EvaluationBatches, TrainBatches, steps_for
from finetune_trainer.data.dataset import Dataset
from finetune_trainer.engine import maxtext
from finetune_trainer.families import ModelPlan
from finetune_trainer.stages.context import StageContext
from finetune_trainer.stages.inputs import converted_model
from finetune_trainer.storage import engine_path
from finetune_trainer.training.engine_config import require_devices, settings_json, training_config

if TYPE_CHECKING:
    from finetune_contract import DiscardedCheckpoint
    from finetune_trainer.training.report import ProgressReporter
    from finetune_trainer.training.retention import Retention
    from finetune_trainer.training.saving import CheckpointSavePolicy
    from finetune_trainer.training.session import Session
    from finetune_trainer.training.trainer import TrainerControl


class TrainingStopped(Exception):
    """Training stopped on request, after saving. Carries the outcome so far."""

    def __init__(self, outcome: TrainOutcome) -> None:
        super().__init__(f"stopped at step {outcome.step} of {outcome.total_steps}")
        self.outcome = outcome


def run(context: StageContext) -> TrainOutcome:
    """Trains from the converted model or the newest complete checkpoint to the last step, and evaluates at the end.

    Raises ``TrainingStopped`` after a requested stop, once the checkpoint is saved, and ``StageError`` 70 if the loss
    or the weights are not finite, or a layer has not changed.
    """
    from finetune_trainer.training import goodput
    from finetune_trainer.training.checkpoint_checksums import discard_damaged
    from finetune_trainer.training.session import open_session
    from finetune_trainer.training.trainer import Stopped

    # Seconds by kind of activity; trainer and reports read and extend this dictionary.
    seconds = {"startup": goodput.since_process_start()}
    started = time.perf_counter()
    plan = context.plan(context.model(weights=False))
    request = context.request
    maxtext.prepare(plan)
    require_devices(request)
    data = context.training_data()
    validation = context.validation_data()
    h = request.hyperparameters
    steps = h.steps or steps_for(data.epoch, h.epochs or 1.0, h.global_batch_size)
    ends = context.trained_ends(data) if context.processes.first else []
    seconds["data"] = time.perf_counter() - started

    context.progress.begin("loading the model")
    started, compiled = time.perf_counter(), context.compilations.seconds
    discarded = discard_damaged(context.store, context.folder) if context.processes.first else []
    context.processes.barrier("checkpoints")
    parameters = engine_path(converted_model(context))
    config = training_config(request, plan, steps=steps, folder=context.folder.uri, parameters=parameters)
    if context.processes.first:
        place = request.stage.short, request.attempt, request.restart
        context.store.write(context.folder.engine(*place), settings_json(config))
    retention, saving = _policies(context)
    with conversion_cache.loading(request):
        session = open_session(config, plan, request, steps=steps, retention=retention, saving=saving)
    seconds["compile"] = context.compilations.seconds - compiled
    seconds["restore"] = time.perf_counter() - started - seconds["compile"]

    report = _reporter(context, plan, session, steps, discarded, seconds) if context.processes.first else None
    control = _control(context, session, steps, saving, report, validation, seconds)
    batches = TrainBatches(
        rows=data.rows,
        parts=data.parts,
        batch_size=h.global_batch_size,
        seed=h.seed,
        shuffle=request.data.shuffle,
    )
    context.progress.begin("compiling and running the first step")
    stopped = False
    unchanged: list[str] = []
    try:
        unchanged = session.run(batches, control)
    except Stopped:
        stopped = True
    finally:
        if report is not None:
            report.checkpoints(session.trainer.saved_steps())
            report.close()
    outcome = _outcome(context, session, steps, seconds, unchanged=unchanged, ends=ends)
    if stopped:
        raise TrainingStopped(outcome)
    return outcome


def _reporter(  # noqa: PLR0917
    context: StageContext,
    plan: ModelPlan,
    session: "Session",
    steps: int,
    discarded: "list[DiscardedCheckpoint]",
    seconds: dict[str, float],
) -> "ProgressReporter":
    """Returns the reporter of the first process. ``discarded`` are the damaged checkpoints that were deleted."""
    import jax

    from finetune_trainer.training.report import ProgressReporter
    from finetune_trainer.training.session import peak_memory
    from finetune_trainer.training.utilization import ideal_step_seconds

    request = context.request
    return ProgressReporter(
        context.folder,
        context.store,
        attempt=request.attempt,
        restart=request.restart,
        total_steps=steps,
        start_step=session.start_step,
        discarded=discarded,
        seconds=seconds,
        compilations=context.compilations,
        peak_memory=peak_memory,
        ideal_seconds=ideal_step_seconds(plan, request, [each.device_kind for each in jax.devices()]),
        now=context.now,
    )


def _control(  # noqa: PLR0917
    context: StageContext,
    session: "Session",
    steps: int,
    saving: "CheckpointSavePolicy",
    report: "ProgressReporter | None",
    validation: Sequence[Dataset],
    seconds: dict[str, float],
) -> "TrainerControl":
    """Returns the trainer's inputs; see ``TrainerControl``."""
    from finetune_trainer.training.tracing import Trace
    from finetune_trainer.training.trainer import TrainerControl

    request, h = context.request, context.request.hyperparameters
    trace = None
    if request.profiling:
        host = context.processes.index
        trace = Trace(request.profiling, context.folder.profile, context.store, context.scratch, host=host)
    return TrainerControl(
        total_steps=steps,
        saving=saving,
        evaluate_every=request.evaluation.every_steps,
        stop_requested=lambda: context.stopper.requested,
        begin_saving=context.stopper.defer,
        learning_rates=session.learning_rates,
        accumulation=h.gradient_accumulation_steps,
        report=report,
        host_report=context.host_report,
        trace=trace,
        evaluation={
            each.name: EvaluationBatches(rows=each.rows, batch_size=h.microbatch_size) for each in validation
        },
        seconds=seconds,
        compilations=context.compilations,
    )


def _policies(context: StageContext) -> "tuple[Retention, CheckpointSavePolicy]":
    """The policies for which checkpoints are kept, and when they are saved."""
    from finetune_trainer.training.retention import Retention, measured_before
    from finetune_trainer.training.saving import CheckpointSavePolicy

    policy = context.request.checkpointing
    retention = Retention(
        policy=policy,
        measured=measured_before(context.store.read_or_none(context.folder.metrics)),
        per_token="perplexity" in context.request.method.metrics,
    )
    saving = CheckpointSavePolicy(
        every_steps=policy.every_steps,
        every_seconds=policy.every_seconds,
        first_says=context.processes.broadcast_from_first,
    )
    return retention, saving


def _outcome(
    context: StageContext,
    session: "Session",
    steps: int,
    seconds: dict[str, float],
    *,
    unchanged: list[str],
    ends: list[int],
) -> TrainOutcome:
    """Returns the outcome so far. ``unchanged`` are the names of trained tensors that training left unchanged, and
    ``ends`` the tokens with which it taught answers to end."""
    watch = session.trainer.training_hooks
    evaluated = session.trainer.last_evaluation
    done, saved, retention = (
        session.trainer.train_steps,
        session.trainer.saved_steps(),
        session.trainer.retention,
    )
    return TrainOutcome(
        step=done,
        total_steps=steps,
        start_step=session.start_step,
        first_loss=watch.first_loss,
        last_loss=watch.last_loss,
        evaluation_loss=evaluated.mean if evaluated is not None and done == steps else None,
        best_step=retention.best(saved),
        checkpoints=retention.records(saved, context.folder),
        tokens=watch.tokens,
        unchanged_tensors=len(unchanged),
        unchanged=unchanged[:MOST_UNCHANGED],
        end_ids=ends,
        trace=context.folder.profile
        if any(True for _ in context.store.entries(context.folder.profile))
        else None,
        seconds={name: round(value, 3) for name, value in seconds.items()},
    )
