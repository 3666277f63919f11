"""Starts the compiler if there is one, sends it candidates, and caches its answers by shape."""

import contextlib
import hashlib
import importlib.util
import json
import logging
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

from finetune_contract import CacheLayout, ExitCode, PreferenceMethod, StageRequest
from finetune_contract.request import SLICE_PROGRAMS_VARIABLE, SLICE_VARIABLES
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompilerConfig,
    CompileResponse,
)
from finetune_trainer.engine import widths
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import StorageClient
from finetune_trainer.storage.cache_entry import manifest_at

_LOG = logging.getLogger(__name__)
#: Raised when the same candidate would be compiled to something else, or measured in another way.
_RELEASE = "4"
#: Hyperparameters that are constants in programs, or that the candidate and the rows already contain.
_CONSTANTS = frozenset(
    {
        "epochs", "steps", "global_batch_size", "gradient_accumulation_steps", "learning_rate", "schedule", "seed",
        "warmup_ratio", "warmup_steps",
    }
)  # fmt: skip
#: Messages with which XLA and libtpu end the process because of a flag.
_REFUSED_FLAG = re.compile(
    r"Unknown command line flag '[^']*'|Illegal value '[^']*' specified for flag '[^']*'"
    r"|Unknown flags? in XLA_FLAGS: .*"
)
#: Seconds after which a compilation is ended. It takes minutes; one that takes longer will not end.
_MOST_SECONDS = 1800.0


class CompilerUnavailable(Exception):
    """There is no compiler, or it ended; the message says why, as a sentence."""


def library(environment: Mapping[str, str]) -> Path | None:
    """libtpu's shared library, as ``TPU_LIBRARY_PATH`` names it, else in the package; None if there is none."""
    if named := environment.get("TPU_LIBRARY_PATH"):
        return Path(named) if Path(named).is_file() else None
    found = importlib.util.find_spec("libtpu")
    places = (found.submodule_search_locations if found else None) or ()
    return next((path for place in places if (path := Path(place) / "libtpu.so").is_file()), None)


class CompileClient:
    """Answers from the cache, else from the compiler, which is started when the first answer is not cached.

    A context manager; leaving it ends the compiler.
    """

    def __init__(
        self,
        request: StageRequest,
        plan: ModelPlan,
        model: Path,
        store: StorageClient,
        environment: Mapping[str, str],
        *,
        end_ids: frozenset[int] = frozenset(),
    ) -> None:
        """``request`` and ``end_ids``: see ``CompilerConfig``."""
        self._request, self._plan, self._model, self._store = request, plan, model, store
        self._given, self._end_ids = environment, end_ids
        self._environment: Mapping[str, str] = {}
        """Environment of the compiler's process."""
        self._library = library(environment)
        self._process: subprocess.Popen[str] | None = None
        self._echo: threading.Thread | None = None
        self._last_lines: deque[str] = deque(maxlen=50)
        """The last lines of the compiler's process."""
        self._programs: tempfile.TemporaryDirectory[str] | None = None
        """Folder for compiled programs, with JAX's keys as file names; None before a process is started."""
        self._keys: dict[str, list[str]] = {}
        """Keys of the programs that were compiled for each candidate."""
        self.compiled = 0
        """Number of answers that were not cached."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._programs is not None:
            self._programs.cleanup()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()  # it holds nothing that needs an orderly end
        process.wait()
        if self._echo is not None:
            self._echo.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # input that it has not read
                    stream.close()

    def __call__(self, candidate: Candidate) -> Answer:
        """The answer for ``candidate``. Raises ``CompilerUnavailable``."""
        fingerprint = self.fingerprint(candidate)
        uri = CacheLayout(self._request.cache).compiled(fingerprint)
        if self._request.use_cache == "Use" and (known := self._known(uri, fingerprint)) is not None:
            return known
        _LOG.info("compiling %s", candidate)
        started = time.monotonic()
        answer = self._ask(candidate)
        self.compiled += 1
        _LOG.info("compiled in %.0f s: %s", time.monotonic() - started, answer)
        # an uncertain failure may be due to this image or this machine
        lasting = not isinstance(answer, CompileFailure) or answer.certain
        if self._request.use_cache != "Off" and lasting:
            self._store.write(uri, CompileResponse(answer=answer, fingerprint=fingerprint).to_json())
        return answer

    def keep(self, candidate: Candidate) -> None:
        """Stores the programs that were compiled for ``candidate`` where the slice's stages read them.

        Does nothing unless the environment names that folder. Programs that were not compiled here, because the answer
        was cached, are not stored. Never raises for storage.
        """
        folder = self._given.get(SLICE_PROGRAMS_VARIABLE)
        keys = self._keys.pop(candidate.to_json(), [])
        if not folder or not keys:
            return
        assert self._programs is not None
        from finetune_trainer.engine.compilation_cache import StorageCompilationCache  # imports JAX

        programs = StorageCompilationCache(folder, self._store, first=True, now=lambda: datetime.now(UTC))
        for key in keys:
            programs.put(key, Path(self._programs.name, key).read_bytes())
        _LOG.info("compiled programs of %s stored in %s: %d", candidate, folder, len(keys))

    def fingerprint(self, candidate: Candidate) -> str:
        """A digest of everything that determines whether and how a program fits.

        Rates, seeds, the training's length and the tokens that end an answer are constants in programs, so that a job
        with other values needs programs of its own, but they affect neither memory nor cost.
        """
        request, h = self._request, self._request.hyperparameters
        environment = _of_the_slice(self._given, candidate)
        # Whether preflight was given the flags for this slice or for several does not matter.
        plain = candidate.slice.model_copy(update={"flags": None})
        decides = {
            "candidate": json.loads(candidate.model_copy(update={"slice": plain}).to_json()),
            "model": dict(self._plan.settings()),
            "data": [widths.of_rows(request), request.data.packing, h.gradient_accumulation_steps],
            "columns": widths.of_pairs(request) if isinstance(request.method, PreferenceMethod) else None,
            "method": json.loads(request.method.model_dump_json(exclude={"train_on_prompt"})),
            "hyperparameters": {
                # for a number in a program, it matters only whether it is nonzero
                name: value > 0 if isinstance(value, float) else value
                for name, value in h
                if name not in _CONSTANTS
            },
            "overrides": dict(request.engine_overrides),
            "flags": {name: environment.get(name, "") for name in SLICE_VARIABLES},
            "versions": [
                _RELEASE,
                *(f"{name} {version(name)}" for name in ("finetune-trainer", "maxtext", "jax")),
                self._compiler(),
            ],
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]

    def _compiler(self) -> str:
        """libtpu's release, from the name of the folder beside the package."""
        if self._library is None:
            raise CompilerUnavailable(
                "This trainer image contains no libtpu, so the train step could not be compiled before training."
            )
        return next((path.name for path in self._library.parent.parent.glob("libtpu-*.dist-info")), "libtpu")

    def _known(self, uri: str, fingerprint: str) -> Answer | None:
        """The cached answer; None if it is missing, unreadable, too large, or of another request."""
        found = manifest_at(self._store, uri, CompileResponse).record
        return found.answer if found is not None and found.fingerprint == fingerprint else None

    def _ask(self, candidate: Candidate) -> Answer:
        environment = _of_the_slice(self._given, candidate)
        if environment != self._environment:
            # The compiler reads its flags once.
            self._stop()
            self._environment = environment
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(_MOST_SECONDS, process.kill)
        limit.start()
        try:
            process.stdin.write(candidate.to_json() + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            limit.cancel()
        if not line:
            code = process.wait()
            self._require_known_flags()
            raise CompilerUnavailable(
                f"The compiler exited with code {code} on {candidate}; the log contains its last lines."
            )
        answered = CompileResponse.model_validate_json(line)
        self._keys[candidate.to_json()] = answered.programs
        return answered.answer

    def _require_known_flags(self) -> None:
        """Raises ``StageError`` 76 if libtpu has ended the compiler's process because of one of its flags.

        It would end the stage on the slice in the same way.
        """
        assert self._echo is not None
        self._echo.join()
        refused = _REFUSED_FLAG.search("".join(self._last_lines))
        if refused is None:
            return
        flags = {name: self._environment[name] for name in SLICE_VARIABLES if self._environment.get(name)}
        raise StageError(
            ExitCode.CONTRACT_UNSUPPORTED, "CompilerFlagRefused",
            "the TPU compiler rejects a flag of the profile",
            where=f"libtpuInitArgs or xlaFlags of the profile's flavor, {self._compiler()}",
            actual=f"{refused[0]} in {flags}",
            fix="Ask the profile's owner to correct the flag, then create the job again. No TPU time was used.",
        )  # fmt: skip

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **self._environment,
            "TPU_LIBRARY_PATH": str(self._library),
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",  # there is no TPU machine to query
            # It is loaded to compile, not to hold a chip: another process on this machine may do the same.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "finetune_trainer.compiled"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._echo = threading.Thread(
            target=self._repeat, args=(process.stderr,), name="compiler", daemon=True
        )
        self._echo.start()
        assert process.stdin is not None
        self._programs = self._programs or tempfile.TemporaryDirectory(prefix="programs-")
        job = CompilerConfig(
            request=self._request,
            model=str(self._model),
            end_ids=sorted(self._end_ids),
            programs=self._programs.name,
        )
        process.stdin.write(job.to_json() + "\n")
        return process

    def _repeat(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._last_lines.append(line)
            sys.stderr.write(line)


def _of_the_slice(environment: Mapping[str, str], candidate: Candidate) -> Mapping[str, str]:
    """The environment with the compiler's variables as the operator sets them on the slice.

    Without a job, the variables are this process's own.
    """
    given = candidate.slice.flags
    if given is None:
        flags = {name: environment[each] for name, each in SLICE_VARIABLES.items() if each in environment}
        return {**environment, **flags}
    return {name: each for name, each in environment.items() if name not in SLICE_VARIABLES} | given
