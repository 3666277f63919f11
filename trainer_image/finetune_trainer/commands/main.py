"""``finetune-stage``: one stage in one process.

Without arguments the request comes from the environment variable ``FINETUNE_REQUEST``. ``finetune-stage evaluate
--model URI --data URI`` evaluates any folder in Hugging Face format manually, ``finetune-stage compile`` compiles a
train step with the TPU compiler and reports what it needs, ``finetune-stage access`` tests folders in storage.
"""

import contextlib
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finetune_contract import (
    CONTRACT_VERSION,
    ContractUnsupported,
    Details,
    ExitCode,
    Failure,
    Stage,
    StageRequest,
)
from finetune_contract.request import REQUEST_VARIABLE
from finetune_trainer.errors import StageError, faults
from finetune_trainer.process import logs
from finetune_trainer.process.locked_memory import allow_locking
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.redaction import Redactor
from finetune_trainer.process.stage_progress import StageProgressReporter
from finetune_trainer.process.stopping import SigtermHandler, exit_now
from finetune_trainer.stages.attempt import AttemptRecorder, LogTail
from finetune_trainer.storage import open_store
from finetune_trainer.training.report import HostProgressReporter

_MODULES: Mapping[Stage, str] = {stage: f"finetune_trainer.stages.{stage.lower()}" for stage in Stage}


def run() -> None:
    """Console entry. Ends the process with the contract's exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["compile"]:
        from finetune_trainer.commands import compile as compiled

        sys.exit(compiled.main(arguments[1:]))
    if arguments[:1] == ["access"]:
        from finetune_trainer.commands import access as access_cli

        sys.exit(access_cli.main(arguments[1:]))
    if arguments:
        from finetune_trainer.commands import evaluate as evaluate_cli

        sys.exit(evaluate_cli.main(arguments))
    exit_now(main(os.environ))


def main(environment: Mapping[str, str]) -> int:
    """Runs the stage that ``environment`` requests and returns its exit code; by then every outcome is recorded.

    Call it once per process, on its main thread. Afterwards the process is of no further use.
    """
    redact = Redactor(environment)
    termination = Path(environment.get("TERMINATION_MESSAGE_PATH", "/dev/termination-log"))
    try:
        request = StageRequest.of_environment(environment)
    except KeyError:
        return _no_request(
            ExitCode.BAD_REQUEST,
            f"BadRequest: {REQUEST_VARIABLE} is not set.\nThe operator sets it; to run a stage manually, use "
            "finetune-stage evaluate --help.",
            termination,
        )
    except (ContractUnsupported, ValidationError) as error:
        return _no_request(ExitCode.CONTRACT_UNSUPPORTED, redact(_not_understood(error)), termination)
    tail = LogTail(redact)
    for stream in (sys.stdout, sys.stderr):
        tail.follow(stream)
    logs.configure(request, environment, redact)
    processes = Processes.of(environment) if request.stage.on_tpu else Processes(count=1, index=0)
    attempt = AttemptRecorder(
        request=request,
        store=open_store(),
        first=processes.first,
        host=processes.index,
        tail=tail,
        redact=redact,
        termination=termination,
        now=lambda: datetime.now(UTC),
    )
    stopper = SigtermHandler(lambda: _end(attempt.stopped, ExitCode.STOPPED))
    try:
        attempt.begin()
        code = _run(request.stage, attempt, processes, stopper, environment)
    except BaseException as error:  # noqa: BLE001 - the boundary: every error becomes a record and an exit code
        code = _failed(error, attempt, processes)
    tail.settle()
    return int(code)


def _run(
    stage: Stage,
    attempt: AttemptRecorder,
    processes: Processes,
    stopper: SigtermHandler,
    environment: Mapping[str, str],
) -> int:
    from finetune_trainer.engine.compilation_cache import use_compilation_cache
    from finetune_trainer.engine.compilation_counter import CompilationCounter
    from finetune_trainer.stages.context import StageContext, late_environment

    late_environment(environment)
    if "://" in (folder := environment.get("JAX_COMPILATION_CACHE_DIR", "")):
        use_compilation_cache(folder, attempt.store, first=processes.first)
    attempt.compilations = compilations = CompilationCounter.begin()
    # Before the processes connect: a host that does not come is identified by its missing file.
    several = stage is Stage.TRAIN and processes.count > 1
    report = (
        HostProgressReporter(attempt.request, attempt.store, host=processes.index, now=attempt.now)
        if several
        else None
    )
    progress = StageProgressReporter(attempt.write_progress if processes.first else None, now=attempt.now)
    context = StageContext(
        request=attempt.request,
        store=attempt.store,
        processes=processes,
        stopper=stopper,
        compilations=compilations,
        host_report=report,
        progress=progress,
    )
    module: Any = importlib.import_module(_MODULES[stage])
    function: Callable[[StageContext], Details] = module.run
    from finetune_trainer.stages.train import TrainingStopped

    if stage.on_tpu and environment.get("JAX_PLATFORMS", "tpu") == "tpu":
        allow_locking()
    # Only training has something to save at an agreed step; Evaluate ends at once.
    processes.join(environment.get("JAX_PLATFORMS", ""), agree_on_stops=stage is Stage.TRAIN)
    processes.watch(
        lambda published: _end(lambda: attempt.failed(_peer_failure_of(published)), ExitCode.UNAVAILABLE)
    )
    try:
        with contextlib.closing(progress):
            details = function(context)
        code: int = attempt.succeeded(details)
    except TrainingStopped as stop:
        code = attempt.stopped(stop.outcome)
    if report is not None:
        report.close()
    processes.leave()
    return code


def _failed(error: BaseException, attempt: AttemptRecorder, processes: Processes) -> int:
    """Records why the stage failed, here or in another process, and ends the other processes."""
    published = processes.peer_failure()
    if published is not None:
        return attempt.failed(_peer_failure_of(published))
    failure = attempt.failure_of(processes.cause(error))
    try:
        return attempt.failed(failure)
    except StageError as unrecorded:
        # The run folder itself may be denied or away: the exit code and the termination message say why.
        logging.getLogger(__name__).error("this failure could not be recorded: %s", unrecorded)
        return failure.code
    finally:
        processes.publish_failure(failure.to_json())


def _peer_failure_of(published: str) -> Failure:
    return Failure.model_validate_json(published)


def _end(record: Callable[[], int], otherwise: int) -> None:
    """Ends the process from a thread other than the main one, also if the end cannot be recorded."""
    code = otherwise
    try:
        code = record()
    finally:
        exit_now(code)


def _not_understood(error: ContractUnsupported | ValidationError) -> str:
    if isinstance(error, ContractUnsupported):
        what = str(error)
    else:
        what = (
            f"{REQUEST_VARIABLE} is not a valid request for this trainer, which supports version "
            f"{CONTRACT_VERSION} of the contract:\n{faults(error)}"
        )
    return f"ContractUnsupported: {what}\nUse the trainer image of the operator's release."


def _no_request(code: ExitCode, text: str, termination: Path) -> int:
    """Reports an unusable request. No run folder is known, so only the container's own output can say why."""
    print(text, file=sys.stderr)
    with contextlib.suppress(
        OSError
    ):  # outside a container there is no such file, and standard error has the message
        termination.write_text(text[:4096], encoding="utf-8")
    return code


def preload() -> None:
    """Imports what stages need and excludes the objects from garbage collection, without using a JAX device.

    For a server that forks a process per stage.
    """
    import gc

    for name in (*_MODULES.values(), "finetune_trainer.training.session", "finetune_trainer.evaluation.models",
                 "finetune_trainer.evaluation.generate", "transformers", "datasets"):  # fmt: skip
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
