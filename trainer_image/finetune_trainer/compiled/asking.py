"""Starts the compiler where there is one, asks it, and remembers its answers by shape."""

import hashlib
import importlib.util
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

from finetune_contract import CacheLayout, StageRequest
from finetune_trainer.cache_entry import manifest_at
from finetune_trainer.compiled.question import Answer, Answered, Candidate, NotCompiled
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import Store

_LOG = logging.getLogger(__name__)
#: Raised when the same candidate would be compiled to something else, or measured in another way.
_RELEASE = "2"
#: A compilation takes minutes; one that takes longer will not end.
_MOST_SECONDS = 1800.0


class NoCompiler(Exception):
    """The compiler is not there, or ended; the message says why, as a sentence."""


def library(environment: Mapping[str, str]) -> Path | None:
    """libtpu's shared library: where ``TPU_LIBRARY_PATH`` says, else in the package; None: there is none."""
    if named := environment.get("TPU_LIBRARY_PATH"):
        return Path(named) if Path(named).is_file() else None
    found = importlib.util.find_spec("libtpu")
    places = (found.submodule_search_locations if found else None) or ()
    return next((path for place in places if (path := Path(place) / "libtpu.so").is_file()), None)


class Asking:
    """Answers from the cache, else from the compiler, which is started at the first question that needs it.

    Leave it (``with``) to end the compiler.
    """

    def __init__(
        self,
        request: StageRequest,
        plan: ModelPlan,
        model: Path,
        store: Store,
        environment: Mapping[str, str],
    ) -> None:
        self._request, self._plan, self._model, self._store = request, plan, model, store
        self._environment = environment
        self._library = library(environment)
        self._process: subprocess.Popen[str] | None = None
        self.compiled = 0
        """Answers that no cache had."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()  # it holds nothing that needs an orderly end
            self._process.communicate()

    def __call__(self, candidate: Candidate) -> Answer:
        """Raises ``NoCompiler``."""
        fingerprint = self.fingerprint(candidate)
        uri = CacheLayout(self._request.cache).compiled(fingerprint)
        if self._request.use_cache == "Use" and (known := self._known(uri, fingerprint)) is not None:
            return known
        _LOG.info("compiling the train step for %s", candidate)
        answer = self._ask(candidate)
        self.compiled += 1
        _LOG.info("%s", answer)
        # a refusal may be this image's or this machine's
        if self._request.use_cache != "Off" and not isinstance(answer, NotCompiled):
            self._store.write(uri, Answered(answer=answer, fingerprint=fingerprint).to_json())
        return answer

    def fingerprint(self, candidate: Candidate) -> str:
        """Of all that decides the compiled step; rates, seeds and lengths of the training do not."""
        request, h = self._request, self._request.hyperparameters
        decides = {
            "candidate": json.loads(candidate.to_json()),
            "model": dict(self._plan.settings()),
            "data": [request.data.max_seq_length, request.data.packing, h.gradient_accumulation_steps],
            "method": json.loads(request.method.model_dump_json(exclude={"train_on_prompt"})),
            "optimizer": [h.optimizer, h.max_grad_norm > 0, h.weight_decay > 0],
            "precision": [h.compute_precision, h.weight_precision],
            "overrides": dict(request.engine_overrides),
            "versions": [
                _RELEASE,
                *(f"{name} {version(name)}" for name in ("maxtext", "jax")),
                self._compiler(),
            ],
        }
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]

    def _compiler(self) -> str:
        """libtpu's release; the folder beside the package names it."""
        if self._library is None:
            raise NoCompiler(
                "This trainer image holds no libtpu, so the train step could not be compiled beforehand."
            )
        return next((path.name for path in self._library.parent.parent.glob("libtpu-*.dist-info")), "libtpu")

    def _known(self, uri: str, fingerprint: str) -> Answer | None:
        """None for what is not there, of another release, too large, or of another question."""
        found = manifest_at(self._store, uri, Answered).record
        return found.answer if found is not None and found.fingerprint == fingerprint else None

    def _ask(self, candidate: Candidate) -> Answer:
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
            raise NoCompiler(
                f"The compiler ended with code {process.wait()} on {candidate}; the log has its last lines."
            )
        return Answered.model_validate_json(line).answer

    def _start(self) -> subprocess.Popen[str]:
        environment = {
            **self._environment,
            "TPU_LIBRARY_PATH": str(self._library),
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",  # there is no TPU machine to be asked about
            # It is loaded to compile, not to hold a chip: another process on this machine may do the same.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "finetune_trainer.compiled"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert process.stdin is not None
        process.stdin.write(f"{self._request.to_json()}\n{self._model}\n")
        return process
