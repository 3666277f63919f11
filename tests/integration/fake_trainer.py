"""A trainer that does no work: writes what a real one would have written, at once.

As a program (``finetune-stage`` of the image that :func:`install` makes) it plays one stage of the request in its
environment; benchmarks call :func:`records` and write the files themselves. Run folders in ``file://``, or,
but for ``saves``, in ``gs://``.
"""

import argparse
import os
import shlex
import signal
import socket
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
    TrainOutcome,
)
from tests import stage_outcomes

IMAGE = "localhost/trainer-double:test"
RELEASE = signal.SIGUSR2
"""Sent to a double that takes its time: it goes on at once."""
STEPS = 10
SAVED_STEP = 4
"""The step of the checkpoint that a double which was asked to stop leaves."""


def records(request: StageRequest, now: datetime, least_chips: int | None = None) -> Mapping[str, str]:
    """URI -> content of every file of one attempt that succeeded, in the order of writing. ``least_chips``: preflight
    compiles, and smaller slices do not hold the training; None: it does not compile."""
    run, stage, number = RunFolder(request.run_folder), request.stage, request.attempt
    place = (stage.short, number, request.restart)
    files = {run.request(*place): request.to_json()}
    # One fingerprint per job: jobs do not share conversions, so that each shows all of its stages.
    fingerprint = request.job.uid.replace("-", "").ljust(64, "0")
    details = stage_outcomes.details(request, fingerprint=fingerprint, steps=STEPS, now=now)
    if isinstance(details, ConvertOutcome):
        manifest = CacheLayout(request.cache).convert_manifest(fingerprint)
        files[manifest] = details.manifest.to_json()
    if isinstance(details, TrainOutcome):
        start = SAVED_STEP if _saved(request) else 0
        progress = Progress(
            attempt=number,
            restart=request.restart,
            step=STEPS,
            total_steps=STEPS,
            start_step=start,
            updated=now,
        )
        files[run.progress] = progress.to_json()
        details = details.model_copy(update={"start_step": start})
    if isinstance(details, PreflightOutcome) and least_chips is not None:
        details = details.model_copy(update={"memory": stage_outcomes.memory(request, least_chips)})
    files[run.result(*place)] = _result(request, Outcome.SUCCEEDED, now, details)
    return files


def saving(request: StageRequest, now: datetime) -> Mapping[str, str]:
    """The same of a training that was asked to stop: a checkpoint, and a record that tells of it."""
    run = RunFolder(request.run_folder)
    checkpoint = run.checkpoint(SAVED_STEP)
    details = TrainOutcome(
        step=SAVED_STEP,
        total_steps=STEPS,
        checkpoints=[CheckpointRecord(step=SAVED_STEP, uri=checkpoint)],
    )
    record = _result(request, Outcome.STOPPED, now, details)
    place = (request.stage.short, request.attempt, request.restart)
    return {f"{checkpoint}/saved": "", run.result(*place): record}


def _result(request: StageRequest, outcome: Outcome, now: datetime, details: stage_outcomes.Details) -> str:
    return StageResult(
        stage=request.stage,
        attempt=request.attempt,
        restart=request.restart,
        outcome=outcome,
        exit_code=ExitCode.OK if outcome is Outcome.SUCCEEDED else ExitCode.STOPPED,
        started=now,
        finished=now,
        details=details,
    ).to_json()


def _saved(request: StageRequest) -> bool:
    return _path(f"{RunFolder(request.run_folder).checkpoint(SAVED_STEP)}/saved").exists()


def write(files: Mapping[str, str]) -> None:
    """Writes files, each whole."""
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
    least_chips: int | None = None,
) -> Path:
    """The folder of programs of :data:`IMAGE`, made below ``folder``; these ``stages`` take ``seconds`` more. With
    ``saves`` training saves when it is asked to stop; having saved, it takes no time. ``least_chips``: as in
    :func:`records`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "finetune-stage"
    root = Path(__file__).parents[2]
    options = [
        *(["--saves"] if saves else []),
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
    """A profile whose stages run the double and whose run folders lie in ``folder``."""
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneProfile",
        "metadata": {"name": name},
        "spec": {
            "images": {"trainer": IMAGE},
            "storage": {"artifacts": f"file://{folder}/runs", "cache": f"file://{folder}/cache"},
            "serviceAccounts": {"tpu": "ft-train", "cpu": "ft-cpu"},
            # What these tests forbid, they forbid themselves.
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
    """A job of that profile, with all five stages; ``spec`` is laid over what it asks for."""
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


def await_devices(target: str) -> None:
    """As JAX under Pathways does: returns when the proxy tells of devices, which it does when all workers are there.
    ``target``: ``grpc://HOST:PORT``."""
    host, _, port = target.removeprefix("grpc://").rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port))) as proxy:
                if proxy.recv(100):
                    return
        except ConnectionRefusedError:  # it is a container of the same pod, and may be slower
            time.sleep(0.05)


def crash(*_: object) -> None:
    """What an uncaught exception of Python comes to: exit code 1, and no record."""
    os._exit(1)


def main(seconds: float, stages: Collection[str], *, saves: bool, least_chips: int | None) -> None:
    """Plays the stage of the request in the environment."""
    request = StageRequest.of_environment(os.environ)

    def save(*_: object) -> NoReturn:
        write(saving(request, datetime.now(UTC)))
        sys.exit(ExitCode.STOPPED)

    # not taken before it is waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELEASE})
    signal.signal(signal.SIGUSR1, crash)
    if saves and request.stage is Stage.TRAIN:
        signal.signal(signal.SIGTERM, save)
    files = dict(records(request, datetime.now(UTC), least_chips))
    first = os.environ.get("TPU_WORKER_ID", "0") == "0"
    # First of all, as a real one: the attempt has started.
    begun = next(iter(files))
    if first:
        write({begun: files.pop(begun)})
    if target := os.environ.get("JAX_BACKEND_TARGET"):
        await_devices(target)
    if request.stage in stages and not (saves and _saved(request)):
        signal.sigtimedwait({RELEASE}, seconds)
    if first:
        write(files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--saves", action="store_true")
    parser.add_argument("--least-chips", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("stages", nargs="*")
    arguments = parser.parse_args()
    main(arguments.seconds, arguments.stages, saves=arguments.saves, least_chips=arguments.least_chips)
