"""The records of one attempt, and how the end of a stage is recorded: result, failure, log tail, exit code.

``request.json`` is written first, ``result.json`` at the end, however the stage ends as long as the process is alive;
both are written by process 0 alone. ``failure.json`` is written by the process that fails, whichever it is: the first
failure counts, since the others fail because of it.
"""

import errno
import logging
import os
import re
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, TextIO

from finetune_contract import (
    CONTRACT_VERSION,
    Details,
    ExitCode,
    Failure,
    Outcome,
    RunFolder,
    StageRequest,
    StageResult,
)
from finetune_contract.failure import PEER_LOST
from finetune_contract.log_line import readable
from finetune_trainer.engine.compilation_counter import CompilationCounter
from finetune_trainer.errors import StageError, encodable
from finetune_trainer.process.redaction import Redactor
from finetune_trainer.storage import StorageClient

_LOG = logging.getLogger(__name__)
#: Kubernetes keeps 4,096 bytes of a termination message.
TERMINATION_BYTES = 4096
_TAIL_LINES = 200
_EVIDENCE_LINES = 20
#: A line that no program writes. Once it has passed the pipe, everything written before it has passed too.
_SETTLE = b"\0\0settle\0\0\n"


class LogTail:
    """The last lines of standard error and standard output, as text; they also continue to the original streams."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._lock = threading.Lock()
        self._followed: list[tuple[TextIO, threading.Event]] = []

    def text(self, lines: int = _TAIL_LINES) -> str:
        with self._lock:
            return "".join(f"{line}\n" for line in list(self._lines)[-lines:])

    def follow(self, stream: TextIO) -> None:
        """Routes what is written to the stream's descriptor, by Python and native code alike, through this object.

        Secrets are redacted on the way to the original target.
        """
        stream.flush()
        descriptor = stream.fileno()
        original = os.dup(descriptor)
        reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        self._followed.append((stream, threading.Event()))
        arguments = (os.fdopen(reader, "rb"), original, self._followed[-1][1])
        threading.Thread(target=self._pump, args=arguments, name="log-tail", daemon=True).start()

    def settle(self) -> None:
        """Waits until everything written so far has passed through, at most five seconds per stream."""
        for stream, passed in self._followed:
            passed.clear()
            stream.flush()
            os.write(stream.fileno(), _SETTLE)
            passed.wait(timeout=5)

    def _pump(self, source: IO[bytes], target: int, passed: threading.Event) -> None:
        for raw in source:
            line = self._redact(raw.removesuffix(_SETTLE).decode("utf-8", "replace"))
            if line:
                with self._lock:
                    self._lines.append(readable(line.rstrip("\n")))
                os.write(target, line.encode())
            if raw.endswith(_SETTLE):
                passed.set()


@dataclass(slots=True, kw_only=True)
class AttemptRecorder:
    """Records one attempt at a stage."""

    request: StageRequest
    store: StorageClient
    first: bool
    """Whether this is process 0."""
    host: int
    tail: LogTail
    redact: Redactor
    termination: Path
    now: Callable[[], datetime]
    compilations: CompilationCounter | None = None
    """Counter of this process's compilations; None before the stage begins."""
    started: datetime = field(init=False)
    _ending: threading.Lock = field(default_factory=threading.Lock, init=False)
    _code: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.request.run_folder)

    @property
    def _place(self) -> tuple[str, int, int]:
        return self.request.stage.short, self.request.attempt, self.request.restart

    def begin(self) -> None:
        if self.first:
            self.store.write(self.folder.request(*self._place), self.redact(self.request.to_json()))

    def write_progress(self, content: bytes) -> None:
        """Replaces the record of what this attempt is doing."""
        self.store.write(self.folder.stage_progress(*self._place), content)

    def succeeded(self, details: Details) -> int:
        return self._end(Outcome.SUCCEEDED, ExitCode.OK, details, None)

    def stopped(self, details: Details | None = None) -> int:
        return self._end(Outcome.STOPPED, ExitCode.STOPPED, details, None)

    def failed(self, failure: Failure) -> int:
        """Records this process's failure, or one that another process published. Returns its exit code."""
        self._terminate(failure)
        return self._end(Outcome.FAILED, failure.code, None, failure)

    def failure_of(self, error: BaseException) -> Failure:
        stage_error = as_stage_error(error)
        evidence = self.redact(
            self.tail.text(_EVIDENCE_LINES)
            + "".join(
                traceback.format_exception(error) if stage_error is None or stage_error is not error else []
            )
        )
        if stage_error is not None:
            failure = stage_error.failure(host=self.host, evidence=evidence)
            return failure.model_copy(
                update={"message": self.redact(failure.message), "actual": self.redact(failure.actual)}
            )
        name = type(error).__name__
        text = self.redact(encodable(f"{self.request.stage} failed with an unexpected {name}: {error}"))
        return Failure(
            code=1,
            reason="UnexpectedError",
            message=text[:1024],
            where=f"stage {self.request.stage}, host {self.host}",
            evidence=encodable(evidence)[-4096:],
            host=self.host,
        )

    def _terminate(self, failure: Failure) -> None:
        """Logs the failure, and writes the container's termination message, which the kubelet reads from this file."""
        text = f"{failure.reason}: {failure.message}"
        _LOG.error("%s", text)
        try:
            self.termination.write_bytes(text.encode()[:TERMINATION_BYTES])
        except OSError as error:
            _LOG.warning("no termination message at %s: %s", self.termination, error)

    def _end(self, outcome: Outcome, code: int, details: Details | None, failure: Failure | None) -> int:
        """Records the end and returns the exit code.

        The stopper's thread and the main thread may both call it: the first call decides, and the other returns the
        same code once everything is written. If recording fails, the attempt has not ended, and the error is raised.
        """
        with self._ending:
            if self._code is None:
                self._record(outcome, code, details, failure)
                self._code = code
            return self._code

    def _record(self, outcome: Outcome, code: int, details: Details | None, failure: Failure | None) -> None:
        # A process that fails because another one did records no failure. Process 0 does, in case no other one could.
        if failure is not None and (
            self.first or (failure.host == self.host and failure.reason != PEER_LOST)
        ):
            self.store.create(self.folder.failure(*self._place), self.redact(failure.to_json()))
        if not self.first:
            return
        result = StageResult(
            supports=str(CONTRACT_VERSION),
            stage=self.request.stage,
            attempt=self.request.attempt,
            restart=self.request.restart,
            outcome=outcome,
            exit_code=int(code),
            started=self.started,
            finished=self.now(),
            details=details,
            failure=failure,
            compilations=self.compilations.compiled
            if self.compilations is not None and self.compilations.requested
            else None,
        )
        self.tail.settle()
        self.store.write(self.folder.log_tail(*self._place), self.tail.text(), content_type="text/plain")
        self.store.write(self.folder.result(*self._place), self.redact(result.to_json()))


#: The operating system's messages for a full disk; TensorStore's own error class for it is that of exhausted memory.
_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_LOCAL_FILE = re.compile(r'local file "([^"]+)"')
_OUT_OF_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|OOM when allocating", re.IGNORECASE)
_PERMISSION = re.compile(r"PERMISSION_DENIED|\b403\b.*(?:Forbidden|does not have)", re.IGNORECASE)
#: Without the metadata server at its first use TensorStore sends requests without a token, until the process ends.
_WITHOUT_TOKEN = re.compile(r"http_response_code='401'")
_UNAVAILABLE = re.compile(
    r"\bUNAVAILABLE\b|\bDEADLINE_EXCEEDED\b|Connection (?:refused|reset)|timed out", re.IGNORECASE
)


def as_stage_error(error: BaseException) -> StageError | None:
    """The error as a ``StageError``, classified by its or its cause's message; None if it matches no class."""
    if isinstance(error, StageError):
        return error
    text = f"{type(error).__name__}: {error}"
    actual = " ".join(text.split())[:400]
    if _DISK_FULL.search(text) or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    ):
        return StageError(
            ExitCode.OUT_OF_MEMORY,
            "DiskFull",
            "no space is left on the disk",
            where=_place(error),
            actual=actual,
            fix="Use nodes with a larger boot disk or local SSDs, or more space on the disk of that folder.",
        )
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(text):
        return StageError(
            ExitCode.OUT_OF_MEMORY,
            "OutOfMemory",
            "the device or the host ran out of memory",
            actual=actual,
            fix="Lower hyperparameters.globalBatchSize or datasets.maxSeqLength, use LoRA, or request more chips.",
        )
    anonymous = _WITHOUT_TOKEN.search(text)
    if isinstance(error, PermissionError) or (_PERMISSION.search(text) and not anonymous):
        return StageError(
            ExitCode.PERMISSION_DENIED,
            "PermissionDenied",
            "access was denied",
            actual=actual,
            fix="Grant the stage's service account roles/storage.objectViewer there, or objectUser to write.",
        )
    if isinstance(error, (ConnectionError, TimeoutError)) or anonymous or _UNAVAILABLE.search(text):
        return StageError(
            ExitCode.UNAVAILABLE,
            "DependencyUnavailable",
            "a service did not respond",
            actual=actual,
            fix="No action is needed: the operator retries.",
        )
    return as_stage_error(error.__cause__) if error.__cause__ is not None else None


def _place(error: BaseException) -> str:
    """The file that had no space, if the error names it; else the folder for temporary files."""
    if isinstance(error, OSError) and error.filename:
        return str(error.filename)
    named = _LOCAL_FILE.search(str(error))
    return named[1] if named else tempfile.gettempdir()
