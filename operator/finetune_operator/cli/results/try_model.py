"""``finetune try``: the exported model answers a prompt, or its recorded samples are shown."""

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from finetune_contract import Sample
from finetune_operator.artifacts.port import StorageError
from finetune_operator.cli import text
from finetune_operator.cli.connect.options import ExportName
from finetune_operator.cli.connect.store import caller_store, explained, explanation
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.results.adapter import read_adapter
from finetune_operator.cli.results.answer import ADAPTER_CONFIG, MODEL_CONFIG
from finetune_operator.cli.results.answering import DownloadedModel, Prompt, ask, find_python
from finetune_operator.cli.results.download import download, open_exported
from finetune_operator.cli.results.exports import ExportedFolder
from finetune_operator.cli.results.run_folder import JobRun
from finetune_operator.results.model_manifest import sha256_of
from finetune_operator.results.reader import RunReader

#: The only file of weights that PEFT may read; without it, it would look for a pickle.
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
#: A commit; libraries would use any other text as a part of paths.
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: Samples, and characters of each text, that are shown.
_SHOWN = 5
_CHARACTERS = 2000
_LABELS = {"prompt": "Prompt", "baseline": "Base model", "tuned": "Tuned model", "reference": "Reference"}


def try_model(
    run: JobRun,
    prompt: Prompt,
    *,
    what: ExportName | None,
    base: str | None,
    console: Console,
    write: Callable[[str], None],
) -> None:
    """Prints the answer of the exported model.

    If it cannot answer, prints the samples that Evaluate has recorded, if there are any, and raises CliError.

    Args:
        run: the job's run folder.
        prompt: what to ask.
        what: the exported folder; None: the model, or else the adapter.
        base: the base model of an adapter, a repository or a folder; None: the one that the adapter names.
        console: shows the progress, on a terminal.
        write: prints a line.
    """
    try:
        exported = open_exported(run, what)
        _require_loadable(exported)
        python = find_python(_packages(exported, base))
    except CliError as error:
        with contextlib.suppress(CliError):  # The first error explains more.
            show_samples(run, write)
        raise error from None
    folder = cache_folder() / sha256_of(exported.content)[:32]
    download(exported, folder, force=True, console=console)
    model, unreadable = asyncio.run(_as_trained(run, _downloaded(exported, folder, base), base))
    for each in unreadable:
        said = f"Asked without what the training's records name: {text.one_line(each)}"
        console.print(said, highlight=False, markup=False, soft_wrap=True)
    if model.base is not None:
        revision = f" at {model.revision}" if model.revision else ""
        console.print(f"Base model: {model.base}{revision}", highlight=False, markup=False, soft_wrap=True)
    answer = asyncio.run(ask(python, model, prompt, terminal=console.is_terminal))
    if not answer.strip():
        console.print("The model's answer is empty.")
    write(answer)


def show_samples(run: JobRun, write: Callable[[str], None]) -> None:
    """Prints the samples that Evaluate has recorded. Raises CliError if there are none, or they cannot be read."""
    with explained():
        samples = asyncio.run(RunReader(run.folder, caller_store()).first_samples(_SHOWN))
    if not samples:
        raise CliError(
            f"{run.name} has no recorded answers.",
            fix="Evaluate records them for spec.evaluation.prompts. "
            'To ask the exported model: finetune try NAME "PROMPT".',
        )
    for line in sample_lines(samples, run.folder.evaluation_samples):
        write(line)


def cache_folder() -> Path:
    """Returns the folder of downloaded models: ``~/.cache/finetune/models``, or below ``$XDG_CACHE_HOME``."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    if sys.platform == "win32":
        given = os.environ.get("LOCALAPPDATA", "")
    root = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return root / "finetune" / "models"


def _require_loadable(exported: ExportedFolder) -> None:
    """Raises CliError if libraries would read more of the export than a model: pickles, or an adapter's configuration.

    Names are compared as file systems do that ignore case.
    """
    names = {file.path.lower() for file in exported.manifest.files}
    for name in sorted(names):
        if name.endswith(_PICKLES) or (exported.name is ExportName.MODEL and name.endswith(ADAPTER_CONFIG)):
            raise CliError(
                f"{exported.uri} holds {name}, with which it could run code or read other files, so it is not loaded.",
                fix="`finetune download` fetches it without loading it.",
            )
    if exported.name is ExportName.MODEL and MODEL_CONFIG not in names:
        raise CliError(f"{exported.uri} holds no {MODEL_CONFIG}, so it is no model.")


def _packages(exported: ExportedFolder, base: str | None) -> tuple[str, ...]:
    """Returns the packages that load the export. Raises CliError if none do."""
    if exported.name is ExportName.ORBAX:
        raise CliError(
            "Orbax parameters are for MaxText, which this command does not run.",
            fix="Export the model, too: spec.export.formats: [HuggingFace, OrbaxParams].",
        )
    if exported.name is ExportName.MODEL:
        if base is not None:
            raise CliError("--base is for adapters, and this is a whole model.", fix="Leave it out.")
        return ("torch", "transformers")
    if not any(file.path == _ADAPTER_WEIGHTS for file in exported.manifest.files):
        raise CliError(f"{exported.uri} holds no {_ADAPTER_WEIGHTS}, and other weights are not loaded.")
    return ("torch", "transformers", "peft")


def _downloaded(exported: ExportedFolder, folder: Path, base: str | None) -> DownloadedModel:
    """Returns the model in ``folder``. Raises CliError if it is an adapter whose base model is not known."""
    if exported.name is ExportName.MODEL:
        return DownloadedModel(folder=folder)
    adapter = read_adapter(folder)
    if base is None and adapter.repository is None:
        raise CliError(
            f"The adapter's base model is {ascii(adapter.base_model_name_or_path)[:200]}, which is no repository of "
            "the Hugging Face Hub.",
            fix="Copy the base model to this machine and give its folder with --base DIR.",
        )
    if base is not None and Path(base).is_dir():
        base = str(Path(base).absolute())
    return DownloadedModel(folder=folder, base=base or adapter.repository, adapter=adapter)


def sample_lines(samples: Sequence[Sample], uri: str) -> Iterator[str]:
    """Yields the samples as text: each prompt with the answers of both models and the reference."""
    for sample in samples:
        for name, label in _LABELS.items():
            value = getattr(sample, name)
            if value is None:
                continue
            yield f"{label}:"
            shown = text.printable(value[:_CHARACTERS]) + ("…" if len(value) > _CHARACTERS else "")
            yield from (f"  {line}" for line in (shown or "(empty)").split("\n"))
        yield ""
    yield f"The first {len(samples)} of {uri}." if len(samples) > 1 else f"From {uri}."


async def _as_trained(
    run: JobRun, model: DownloadedModel, base: str | None
) -> tuple[DownloadedModel, Sequence[str]]:
    """Returns the model with what the training's records name and its export does not, and why some is not known.

    These are settings of the chat template, and the revision of the base model, unless the caller names the ``base``.
    """
    reader = RunReader(run.folder, caller_store())
    try:
        request, preflight = await asyncio.gather(reader.last_request(), reader.preflight())
    except StorageError as error:
        return model, (explanation(error).message,)
    if request:
        model = replace(
            model,
            template_arguments=request.data.chat_template_arguments,
            template_date=request.data.chat_template_date,
        )
    trained = preflight.model if preflight else None
    if trained and base is None and trained.source == model.base and _COMMIT.fullmatch(trained.revision):
        model = replace(model, revision=trained.revision)
    return model, reader.unreadable
