"""A fake trainer that does no work and immediately writes the files that a real one would write.

As a program (``finetune-stage`` of the image that :func:`install` makes) it runs the stage of the request in its
environment; benchmarks call :func:`records` and write the files themselves. Run folders are in ``file://`` or, except
with ``saves``, in ``gs://``.
"""

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

from finetune_contract import (
    CacheLayout,
    CheckpointRecord,
    ConvertOutcome,
    ExitCode,
    Outcome,
    PreflightOutcome,
    Progress,
    RunFolder,
    Stage,
    StageRequest,
    StageResult,
    StepMetrics,
    TrainOutcome,
)
from tests import stage_outcomes

IMAGE = "localhost/trainer-double:test"
RELEASE = signal.SIGUSR2
"""Signal after which a waiting fake trainer continues at once."""
STEPS = 10
SAVED_STEP = 4
"""Step of the checkpoint that a fake trainer saves when it is stopped."""


def records(
    request: StageRequest, now: datetime, least_chips: int | None = None, *, measured: bool = False
) -> Mapping[str, str]:
    """URI -> content of every file of a successful attempt, in the order of writing.

    ``least_chips``: preflight compiles and finds that training needs a slice with at least so many chips; None: it does
    not compile. ``measured``: training reports what a real one measures, see :func:`progress`.
    """
    run, stage, number = RunFolder(request.run_folder), request.stage, request.attempt
    place = (stage.short, number, request.restart)
    files = {run.request(*place): request.to_json()}
    # One fingerprint per job: jobs do not share conversions, so that each job runs all of its stages.
    fingerprint = request.job.uid.replace("-", "").ljust(64, "0")
    details = stage_outcomes.details(request, fingerprint=fingerprint, steps=STEPS, now=now)
    if isinstance(details, ConvertOutcome):
        manifest = CacheLayout(request.cache).convert_manifest(fingerprint)
        files[manifest] = details.manifest.to_json()
    if isinstance(details, TrainOutcome):
        start = SAVED_STEP if _saved(request) else 0
        report = progress(number, STEPS, now, restart=request.restart, start_step=start, measured=measured)
        files[run.progress] = report.to_json()
        details = details.model_copy(update={"start_step": start})
    if isinstance(details, PreflightOutcome) and least_chips is not None:
        details = details.model_copy(update={"memory": stage_outcomes.memory(request, least_chips)})
    files[run.result(*place)] = _result(request, Outcome.SUCCEEDED, now, now, details)
    return files


def progress(
    attempt: int, step: int, now: datetime, *, restart: int = 0, start_step: int = 0, measured: bool = False
) -> Progress:
    """The progress record at a step; ``measured``: with loss, throughput and the use of the time."""
    made = Progress(
        attempt=attempt,
        restart=restart,
        step=step,
        total_steps=STEPS,
        start_step=start_step,
        compilations=3,
        updated=now,
    )
    if not measured:
        return made
    return made.model_copy(
        update={
            "metrics": StepMetrics(loss=1.25),
            "step_time_p50": 0.5,
            "step_time_p95": 0.75,
            "tokens_per_second": 4000.0,
            "mfu": 0.4,
            "seconds": {
                "startup": 1.0,
                "compile": 2.0,
                "productive": 3.0,
                "evaluate": 1.0,
                "recomputed": 1.0,
            },
        }
    )


def saving(request: StageRequest, started: datetime, now: datetime) -> Mapping[str, str]:
    """URI -> content of the files of a training that was asked to stop: a checkpoint, and the result that lists it.

    ``started``: when the process started.
    """
    run = RunFolder(request.run_folder)
    checkpoint = run.checkpoint(SAVED_STEP)
    details = TrainOutcome(
        step=SAVED_STEP,
        total_steps=STEPS,
        checkpoints=[CheckpointRecord(step=SAVED_STEP, uri=checkpoint)],
        end_ids=[],
    )
    record = _result(request, Outcome.STOPPED, started, now, details)
    place = (request.stage.short, request.attempt, request.restart)
    return {f"{checkpoint}/saved": "", run.result(*place): record}


def _result(
    request: StageRequest,
    outcome: Outcome,
    started: datetime,
    now: datetime,
    details: stage_outcomes.Details,
) -> str:
    return StageResult(
        stage=request.stage,
        attempt=request.attempt,
        restart=request.restart,
        outcome=outcome,
        exit_code=ExitCode.OK if outcome is Outcome.SUCCEEDED else ExitCode.STOPPED,
        started=started,
        finished=now,
        details=details,
    ).to_json()


def _saved(request: StageRequest) -> bool:
    return _path(f"{RunFolder(request.run_folder).checkpoint(SAVED_STEP)}/saved").exists()


def write(files: Mapping[str, str]) -> None:
    """Writes the files, each one atomically."""
    for uri, content in files.items():
        if uri.startswith("gs://"):
            _upload(uri, content)
            continue
        path = _path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".writing-{path.name}")
        partial.write_text(content)
        partial.replace(path)


def _upload(uri: str, content: str) -> None:
    # Slow to import, and most tests do not need it.
    from devcluster import samples

    bucket, _, name = uri.removeprefix("gs://").partition("/")
    samples.client(os.environ["STORAGE_EMULATOR_HOST"]).bucket(bucket).blob(name).upload_from_string(content)


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def install(
    folder: Path,
    *,
    seconds: float = 0,
    stages: Collection[Stage] = tuple(Stage),
    saves: bool = False,
    measured: bool = False,
    least_chips: int | None = None,
    together: bool = False,
) -> Path:
    """Writes the program of :data:`IMAGE` into ``folder`` and returns that folder.

    These ``stages`` take ``seconds`` longer. With ``saves``, training saves a checkpoint when it is asked to stop, and
    takes no time if there is a saved checkpoint. ``measured``, ``least_chips``: as in :func:`records`.
    ``together``: the hosts of a slice wait for each other, as JAX does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "finetune-stage"
    root = Path(__file__).parents[2]
    options = [
        *(["--saves"] if saves else []),
        *(["--measured"] if measured else []),
        *(["--together"] if together else []),
        *([f"--least-chips={least_chips}"] if least_chips is not None else []),
    ]
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} "
        f"exec {shlex.quote(sys.executable)} -m tests.integration.fake_trainer "
        f"{shlex.join([*options, str(seconds), *stages])}\n"
    )
    program.chmod(0o755)
    return folder


def profile(name: str, folder: Path) -> dict[str, object]:
    """A profile whose stages run the fake trainer and whose run folders are in ``folder``."""
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneProfile",
        "metadata": {"name": name},
        "spec": {
            "images": {"trainer": IMAGE},
            "storage": {"artifacts": f"file://{folder}/runs", "cache": f"file://{folder}/cache"},
            "serviceAccounts": {"tpu": "ft-train", "cpu": "ft-cpu"},
            # Tests that need constraints set them themselves.
            "constraints": {"mode": "Open"},
            "currency": "USD",
            "flavors": [
                {
                    "name": "local",
                    "capacity": "OnDemand",
                    "accelerator": "tpu-v6e-slice",
                    "topologies": ["2x2", "2x4"],
                    "chipsPerHost": 4,
                    "chipHourPrice": 0,
                }
            ],
        },
    }


def job(namespace: str, name: str, profile_name: str, **spec: object) -> dict[str, object]:
    """A job of that profile, with all five stages; ``spec`` adds or replaces fields of its spec."""
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "profileRef": {"name": profile_name},
            "model": {"uri": "file:///models/tiny"},
            "datasets": {"train": [{"uri": "file:///data/train.jsonl"}], "maxSeqLength": 64},
            "method": {"type": "SFT"},
            "evaluation": {"prompts": ["Hello"]},
            **spec,
        },
    }


def await_hosts(request: StageRequest) -> None:
    """Returns when all hosts of the slice run the attempt."""
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    attempt = f"{request.stage.short}-{request.attempt}.{request.restart}"
    folder = _path(request.run_folder).parent / f"{request.job.uid}-{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / os.environ.get("TPU_WORKER_ID", "0")).touch()
    while len(list(folder.iterdir())) < len(hosts):
        time.sleep(0.05)


def crash(*_: object) -> None:
    """Ends the process like an uncaught Python exception: exit code 1, and no record."""
    os._exit(1)


def main(
    seconds: float,
    stages: Collection[str],
    *,
    saves: bool,
    measured: bool,
    least_chips: int | None,
    together: bool = False,
) -> None:
    """Runs the stage of the request in the environment."""
    request = StageRequest.of_environment(os.environ)
    started = datetime.now(UTC)

    def save(*_: object) -> NoReturn:
        write(saving(request, started, datetime.now(UTC)))
        sys.exit(ExitCode.STOPPED)

    # blocked, so that the signal stays pending until the stage waits for it
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELEASE})
    signal.signal(signal.SIGUSR1, crash)
    if saves and request.stage is Stage.TRAIN:
        signal.signal(signal.SIGTERM, save)
    files = dict(records(request, started, least_chips, measured=measured))
    first = os.environ.get("TPU_WORKER_ID", "0") == "0"
    # Like a real trainer, write the request first: it shows that the attempt has started.
    begun = next(iter(files))
    if first:
        write({begun: files.pop(begun)})
    if together:
        await_hosts(request)
    if request.stage in stages and not (saves and _saved(request)):
        signal.sigtimedwait({RELEASE}, seconds)
    if first:
        write(files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--saves", action="store_true")
    parser.add_argument("--measured", action="store_true")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--least-chips", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("stages", nargs="*")
    arguments = parser.parse_args()
    main(
        arguments.seconds,
        arguments.stages,
        saves=arguments.saves,
        measured=arguments.measured,
        least_chips=arguments.least_chips,
        together=arguments.together,
    )
