"""Progress and metrics of a training, as files in the run folder.

``progress.json`` is replaced about once a second; ``metrics.jsonl`` holds one line per step and is written at
checkpoints, evaluations and the end (an object in a bucket cannot be appended to). Where there are several processes,
each also replaces a file of its own every few seconds. Writes happen on a separate thread: a slow bucket never slows a
step, and only the newest state waits to be written.
"""

import json
import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from finetune_contract import (
    DiscardedCheckpoint,
    EvaluationPoint,
    HostProgress,
    Progress,
    RunFolder,
    StageRequest,
    StepMetrics,
)
from finetune_trainer.engine.compilation_counter import CompilationCounter
from finetune_trainer.process.latest_writer import LatestWriter
from finetune_trainer.storage import StorageClient
from finetune_trainer.training import goodput
from finetune_trainer.training.checkpoint_checksums import checksums_of

_LOG = logging.getLogger(__name__)
_CURVE_POINTS = 48
_RECENT_STEPS = 50
#: Seconds between two writes of a host; there may be hundreds of hosts, and the files are read only after a hang.
HOST_PAUSE_SECONDS = 10.0


class ProgressReporter:
    """Writes the records of a training. Only process 0 has one."""

    def __init__(
        self,
        folder: RunFolder,
        store: StorageClient,
        *,
        attempt: int,
        restart: int,
        total_steps: int,
        start_step: int,
        discarded: list[DiscardedCheckpoint],
        seconds: Mapping[str, float],
        compilations: CompilationCounter,
        peak_memory: Callable[[], int | None],
        ideal_seconds: float | None,
        now: Callable[[], datetime],
        pause: float = 1.0,
    ) -> None:
        """``discarded``: the checkpoints that this attempt found damaged. ``seconds``: this attempt's time so far, by
        kind; read at every report, as ``compilations`` is. ``peak_memory``: returns bytes. ``ideal_seconds``: duration
        of a step at the devices' full rate; None if unknown."""
        self._folder, self._store = folder, store
        self._now = now
        self._attempt, self._restart = attempt, restart
        self._total, self._start = total_steps, start_step
        self._writer = LatestWriter(store.write, pause=pause)
        self._lines = _kept_lines(store.read_or_none(folder.metrics) if start_step else None, start_step)
        self._curve = [(row["step"], row["loss"]) for row in self._lines if "loss" in row]
        self._step = start_step
        self._metrics = StepMetrics()
        self._evaluation: EvaluationPoint | None = None
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._tokens: deque[int] = deque(maxlen=_RECENT_STEPS)
        self._checkpoints: list[int] = []
        earlier = store.read_or_none(folder.progress)
        before = Progress.model_validate_json(earlier) if earlier is not None else None
        self._discarded = [*(before.discarded if before else ()), *discarded]
        self._before, self._seconds_by_kind = goodput.carried(before, start_step), seconds
        self._compilations, self._peak_memory, self._ideal_seconds = compilations, peak_memory, ideal_seconds

    def step(self, step: int, metrics: StepMetrics, seconds: float | None) -> None:
        """Records a step. ``seconds`` is None where the time includes more than the step (compilation, evaluation)."""
        self._step, self._metrics = step, metrics
        if seconds is not None:
            self._seconds.append(seconds)
            self._tokens.append(metrics.tokens or 0)
        row = {"step": step, **metrics.model_dump(exclude_none=True, exclude={"method_metrics"})}
        row |= metrics.method_metrics
        if seconds is not None:
            row["seconds"] = round(seconds, 6)
        self._lines.append(row)
        if metrics.loss is not None:
            self._curve.append((step, metrics.loss))
        self._show()

    def alive(self) -> None:
        """Renews the record while something other than a step is running, so that readers see progress."""
        self._show()

    def evaluation(self, point: EvaluationPoint) -> None:
        self._evaluation = point
        self._lines.append(
            {
                "step": point.step,
                "evaluation_loss": point.loss,
                "evaluation_tokens": point.tokens,
                **{f"{name}/loss": loss for name, loss in point.by_set.items()},
            }
        )
        self._show()
        self.flush()

    def checkpoints(self, steps: list[int]) -> None:
        if steps != self._checkpoints:
            for step in set(steps) - {*self._checkpoints, self._start}:
                self._writer.put(
                    self._folder.seal(step), partial(checksums_of, self._store, self._folder, step)
                )
            self._checkpoints = steps
            self._show()
            self.flush()

    def flush(self) -> None:
        """Schedules a write of the metrics of all steps."""
        content = "".join(json.dumps(line) + "\n" for line in self._lines)
        self._writer.put(self._folder.metrics, content.encode())

    def close(self) -> None:
        self._show()
        self.flush()
        self._writer.close()

    @property
    def losses(self) -> list[tuple[int, float]]:
        """(step, loss) of every step of the run so far, earlier attempts included."""
        return self._curve

    def _show(self) -> None:
        seconds = sorted(self._seconds)
        median = statistics.median(seconds) if seconds else None
        progress = Progress(
            attempt=self._attempt,
            restart=self._restart,
            step=self._step,
            total_steps=self._total,
            start_step=self._start,
            metrics=self._metrics,
            evaluation=self._evaluation,
            step_time_p50=median,
            step_time_p95=seconds[min(len(seconds) - 1, math.ceil(0.95 * len(seconds)) - 1)]
            if seconds
            else None,
            tokens_per_second=sum(self._tokens) / sum(seconds) if sum(seconds) > 0 else None,
            mfu=self._ideal_seconds / median if self._ideal_seconds and median else None,
            curve=thinned(self._curve, _CURVE_POINTS),
            checkpoints=self._checkpoints[-10:],
            discarded=self._discarded[-10:],
            peak_memory_bytes=self._peak_memory(),
            seconds=goodput.total(self._before, self._seconds_by_kind),
            compilations=self._compilations.compiled,
            updated=self._now(),
        )
        self._writer.put(self._folder.progress, progress.to_json().encode())


class HostProgressReporter:
    """Writes the progress of one of several processes. A failing store never fails the training."""

    def __init__(
        self, request: StageRequest, store: StorageClient, *, host: int, now: Callable[[], datetime]
    ) -> None:
        self._uri = RunFolder(request.run_folder).host(host)
        self._now = now
        self._progress_record = HostProgress(
            attempt=request.attempt, restart=request.restart, host=host, updated=now()
        )
        self._writer = LatestWriter(store.write, pause=HOST_PAUSE_SECONDS)
        self._publish()

    def begins(self, step: int) -> None:
        """Records that the step is about to be dispatched to the devices."""
        self._publish(step=step, evaluated=0)

    def evaluated(self) -> None:
        """Records that one more batch of an evaluation is done."""
        self._publish(evaluated=self._progress_record.evaluated + 1)

    def close(self) -> None:
        try:
            self._writer.close()
        except Exception as error:  # noqa: BLE001 - any error of the store
            _LOG.warning("%s was not written: %s", self._uri, error)

    def _publish(self, **moved: int) -> None:
        self._progress_record = self._progress_record.model_copy(update={**moved, "updated": self._now()})
        self._writer.put(self._uri, self._progress_record.to_json().encode())


def thinned(points: list[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    """At most ``limit`` of the points, evenly spread, including the first and the last."""
    if len(points) <= limit:
        return list(points)
    return [points[round(i * (len(points) - 1) / (limit - 1))] for i in range(limit)]


def _kept_lines(content: bytes | None, start_step: int) -> list[dict[str, Any]]:
    """The lines of earlier attempts up to the step that this one continues from."""
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in (content or b"").splitlines()]
    return [dict(line) for line in lines if line["step"] <= start_step]
