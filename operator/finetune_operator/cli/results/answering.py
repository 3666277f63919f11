"""Asks a downloaded model: finds a Python that has transformers, and runs :mod:`.answer` with it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from finetune_operator.cli import text
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results.adapter import AdapterConfig

_PROGRAM = Path(__file__).with_name("answer.py")
_PROBE = (
    "import sys; sys.path.pop(0); from importlib.util import find_spec; "
    "print(*(name for name in sys.argv[1:] if find_spec(name)))"
)
_PROBE_SECONDS = 30
_ENVIRONMENT = {
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What to ask, and how to decode the answer."""

    text: str
    """The user's turn."""
    max_new_tokens: int
    temperature: float
    """0: greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedModel:
    """A model that can be loaded."""

    folder: Path
    base: str | None = None
    """The base model of an adapter: a repository or a folder. None: ``folder`` is a whole model."""
    adapter: AdapterConfig | None = None
    revision: str | None = None
    """Commit of the base model's repository. None: the newest."""
    template_arguments: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Variables of the chat template."""
    template_date: date | None = None
    """Day that the chat template prints as the current one. None: today."""


def find_python(packages: Sequence[str]) -> str:
    """Returns a Python that has the packages: this one, or the first on PATH. Raises CliError if none has them."""
    found = filter(None, map(shutil.which, ("python3", "python")))
    # Absolute, since it runs in another folder; its links are those of a virtual environment, and are kept.
    for python in dict.fromkeys([sys.executable, *map(os.path.abspath, found)]):
        if set(packages) <= _installed(python, packages):
            return python
    raise CliError(
        f"No Python here has {' and '.join(packages)}, which a live answer needs.",
        fix=f"`pip install {' '.join(packages)}` in an active environment (one with vLLM has the first two), and "
        "run the command again.",
    )


def _installed(python: str, packages: Sequence[str]) -> set[str]:
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, *packages],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROBE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return set(done.stdout.split()) if done.returncode == 0 else set()


async def ask(python: str, model: DownloadedModel, prompt: Prompt, *, terminal: bool) -> str:
    """Returns the answer. Raises CliError.

    Args:
        python: what :func:`find_python` has returned.
        model: the model to ask.
        prompt: what to ask.
        terminal: whether the libraries' progress may be shown on stderr.
    """
    process = await asyncio.create_subprocess_exec(
        python,
        str(_PROGRAM),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if terminal else subprocess.DEVNULL,
        # A name of a base model is that of a repository, whatever lies in the caller's folder.
        cwd=model.folder.parent,
        env={**os.environ, **_ENVIRONMENT, **({} if model.base else {"HF_HUB_OFFLINE": "1"})},
    )
    try:
        output, _ = await process.communicate(json.dumps(_asked(model, prompt)).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise CliError(
            f"The model could not answer: its process ended with {process.returncode}.",
            fix="-9 means that the memory of this machine was too small: try a machine with more, or serve the model.",
        )
    answered: Mapping[str, Any] = json.loads(output)
    if "error" in answered:
        raise CliError(f"The model could not answer: {text.one_line(answered['error'])[:600]}")
    return text.printable(str(answered["answer"]))


def _asked(model: DownloadedModel, prompt: Prompt) -> Mapping[str, Any]:
    adapter = model.adapter
    return {
        "folder": str(model.folder),
        "prompt": prompt.text,
        "maxNewTokens": prompt.max_new_tokens,
        "temperature": prompt.temperature,
        "base": model.base,
        "revision": model.revision,
        "arguments": dict(model.template_arguments),
        "date": model.template_date.isoformat() if model.template_date else None,
        "adapter": adapter and adapter.model_dump(exclude={"base_model_name_or_path", "peft_type"}),
    }
