"""A profile of a few steps of training, as JAX records it for TensorBoard and XProf."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import jax

from finetune_contract import ProfilingSpec
from finetune_trainer.storage import StorageClient, join

_LOG = logging.getLogger(__name__)
_SUFFIXES = (".xplane.pb", ".trace.json.gz")


class Trace:
    """Records this process's part of the profile. A failing profiler costs the profile, never the training.

    Args:
        wanted: which steps to record.
        folder: where TensorBoard reads the profile (``RunFolder.profile``).
        store: client for that folder.
        scratch: a local folder.
        host: index of this process within the stage.
    """

    def __init__(
        self, wanted: ProfilingSpec, folder: str, store: StorageClient, scratch: Path, *, host: int
    ) -> None:
        self._first, self._last = wanted.start_step, wanted.start_step + wanted.steps - 1
        self._to = join(folder, "plugins", "profile", f"step-{self._first}")
        self._store, self._local, self._host = store, scratch / "profile", host
        self._recording = False

    def begins(self, step: int, wait: Callable[[], object]) -> None:
        """Called before each step, hence also after the last one that is recorded.

        ``wait()`` returns when the devices have finished the steps that were dispatched.
        """
        if step == self._first and not self._recording:
            self._start()
        elif step > self._last:
            self.close(wait)

    def close(self, wait: Callable[[], object]) -> None:
        """Ends the recording, if one is running, and uploads it."""
        if not self._recording:
            return
        self._recording = False
        try:
            wait()
            jax.profiler.stop_trace()
            self._keep()
        except Exception:  # noqa: BLE001  any error of the profiler or the store
            _LOG.warning("the profile of steps %d to %d is lost", self._first, self._last, exc_info=True)
        shutil.rmtree(self._local, ignore_errors=True)

    def _start(self) -> None:
        try:
            jax.profiler.start_trace(str(self._local))
            self._recording = True
        except Exception:  # noqa: BLE001  see close
            _LOG.warning("step %d cannot be profiled", self._first, exc_info=True)

    def _keep(self) -> None:
        """Uploads each process's files under a distinct name: host names may be equal."""
        for path in sorted(self._local.rglob("*")):
            suffix = next((each for each in _SUFFIXES if path.name.endswith(each)), None)
            if suffix is not None:
                self._store.upload_file(path, join(self._to, f"host-{self._host}{suffix}"))
        _LOG.info("steps %d to %d are profiled: %s", self._first, self._last, self._to)
