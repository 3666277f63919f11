"""A trainer that does no work: writes what a real one would have written, at once.

As a program (``finetune-stage`` of the image that :func:`install` makes) it plays one stage of the request in its
environment; benchmarks call :func:`records` and write the files themselves. Only ``file://`` run folders.
"""

import os
import shlex
import signal
import sys
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

from finetune_contract import (
    CacheLayout,
    ConvertOutcome,
    Outcome,
    Progress,
    RunFolder,
    Stage,
    StageRequest,
    StageResult,
    TrainOutcome,
)
from tests import stage_outcomes

IMAGE = "localhost/trainer-double:test"
STEPS = 10


def records(request: StageRequest, now: datetime) -> Mapping[str, str]:
    """URI -> content of every file of one attempt that succeeded, in the order of writing."""
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
        progress = Progress(
            attempt=number, restart=request.restart, step=STEPS, total_steps=STEPS, updated=now
        )
        files[run.progress] = progress.to_json()
    files[run.result(*place)] = StageResult(
        stage=stage,
        attempt=number,
        restart=request.restart,
        outcome=Outcome.SUCCEEDED,
        exit_code=0,
        started=now,
        finished=now,
        details=details,
    ).to_json()
    return files


def write(files: Mapping[str, str]) -> None:
    """Writes ``file://`` files, each whole."""
    for uri, content in files.items():
        path = Path(uri.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".writing-{path.name}")
        partial.write_text(content)
        partial.replace(path)


def install(folder: Path, *, seconds: float = 0, stages: Collection[Stage] = tuple(Stage)) -> Path:
    """The folder of programs of :data:`IMAGE`, made below ``folder``; these ``stages`` take ``seconds`` more."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "finetune-stage"
    root = Path(__file__).parents[2]
    program.write_text(
        f"#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} "
        f"exec {shlex.quote(sys.executable)} -m tests.integration.trainer_double {seconds} {' '.join(stages)}\n"
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
            "currency": "USD",
            "flavors": [
                {
                    "name": "local",
                    "capacity": "OnDemand",
                    "accelerator": "tpu-v6e-slice",
                    "topologies": ["2x2", "2x4"],
                    "chipsPerHost": 4,
                    "chipHourPrice": "0",
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


def crash(*_: object) -> None:
    """What an uncaught exception of Python comes to: exit code 1, and no record."""
    os._exit(1)


def main() -> None:
    request = StageRequest.of_environment(os.environ)
    signal.signal(signal.SIGUSR1, crash)
    files = dict(records(request, datetime.now(UTC)))
    # First of all, as a real one: the attempt has started.
    first = next(iter(files))
    if os.environ.get("TPU_WORKER_ID", "0") == "0":
        write({first: files.pop(first)})
    if request.stage in sys.argv[2:]:
        time.sleep(float(sys.argv[1]))
    if os.environ.get("TPU_WORKER_ID", "0") == "0":
        write(files)


if __name__ == "__main__":
    main()
