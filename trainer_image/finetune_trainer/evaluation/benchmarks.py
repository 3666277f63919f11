"""Benchmarks: tasks of lm-evaluation-harness with their rows.

The harness's own tasks read a dataset of the Hugging Face Hub at one commit. Other tasks are folders with the harness's
YAML and the data files that it names.

No code from a folder, a dataset or the hub is run: tasks are plain YAML with plain data files, metrics are the
harness's own (``plain_tasks``), and templates are rendered in a sandbox.
"""

import hashlib
import random
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from jinja2 import BaseLoader, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_eval import utils
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from lm_eval.tasks._yaml_loader import load_yaml
from tqdm import tqdm

from finetune_contract import BenchmarkSpec, DatasetSpec, ExitCode, HubRef
from finetune_trainer.data.hub import find_split
from finetune_trainer.errors import StageError, require_unchanged
from finetune_trainer.evaluation import language_data
from finetune_trainer.evaluation.plain_tasks import (
    functions,
    invalid,
    refuse_loading,
    require_known,
    require_plain,
    without_evaluate,
)
from finetune_trainer.storage import StorageClient, join

if TYPE_CHECKING:
    from finetune_trainer.evaluation.harness import HarnessModel

# The harness shows progress bars, which clutter logs.
tqdm.__init__ = partialmethod(tqdm.__init__, disable=True)
# Has to precede the import of any task's module.
refuse_loading()

#: Loaders of ``datasets`` for plain files.
_READERS = ("json", "csv", "parquet", "text")
#: Suffix of a file of the hub -> its loader.
_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
#: The harness's default seed for few-shot examples, which makes their choice the same for every model.
_SEED = 1234
_PUT = "Correct the name, or put the task's YAML and its rows into the folder."


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBenchmark:
    """One of ``evaluation.benchmarks`` with its rows loaded."""

    spec: BenchmarkSpec
    task: Any
    """The harness's task object."""
    uri: str
    revision: str
    """Revision of the data: the commit of the hub's dataset, or a digest of the folder's files."""

    @property
    def rows(self) -> int:
        every = len(self.task.eval_docs)
        return every if self.spec.limit is None else min(every, self.spec.limit)

    @property
    def digest(self) -> str:
        """Digest of the data's revision and the number of rows used."""
        return hashlib.sha256(f"{self.revision} {self.rows}".encode()).hexdigest()

    @property
    def metrics(self) -> dict[str, str]:
        """The benchmark's metrics: short name -> the harness's key, which includes the filter."""
        return {name: f"{metric},{filtered}" for name, (metric, filtered) in self.filtered_metrics.items()}

    @property
    def filtered_metrics(self) -> dict[str, tuple[str, str]]:
        """The benchmark's metrics: short name -> the harness's metric, and the filter of the answers."""
        keys = [
            (metric, str(each.name))
            for each in self.task._filters  # noqa: SLF001
            for metric in self.task.aggregation()
        ]
        return {key[0] if key[1] == "none" else ",".join(key): key for key in keys}


def load(spec: BenchmarkSpec, store: StorageClient, scratch: Path) -> LoadedBenchmark:
    """Loads a task from the folder ``spec.uri`` with its rows.

    Raises ``StageError`` 65 for a task that cannot be used, 66 if there is no such task, and 69 and 77 as ``store``
    does.
    """
    assert spec.uri is not None
    return _loaded(spec, *_own_task(spec, spec.uri, store, scratch / "benchmarks" / spec.name), scratch)


def load_known(
    spec: BenchmarkSpec, config: dict[str, Any], commits: MutableMapping[str, str], scratch: Path
) -> LoadedBenchmark:
    """Loads one of the harness's own tasks and its rows.

    ``config``: as ``resolved`` returns it. ``commits``: commits of the hub's datasets, as in
    ``BenchmarkReport.revisions``; one that it lacks is the current one, and is added. Raises ``StageError`` 64 or 65
    for a task that cannot be used, and 69 and 77 as ``hub`` does.
    """
    return _loaded(spec, *_pinned(spec, config, commits, scratch), scratch)


def _loaded(
    spec: BenchmarkSpec, config: dict[str, Any], uri: str, revision: str, scratch: Path
) -> LoadedBenchmark:
    utils.env = _sandbox()
    kept = {"cache_dir": str(scratch / "benchmarks" / "cache")}
    config |= {"task": spec.name, "dataset_kwargs": {**config.get("dataset_kwargs", {}), **kept}}
    _seed()
    try:
        task = ConfigurableTask(config=config)
    except Exception as error:  # the harness raises anything for a faulty configuration or faulty rows
        raise invalid(spec, "the harness cannot create this task", actual=str(error)) from error
    return LoadedBenchmark(spec=spec, task=task, uri=uri, revision=revision)


def scores(benchmark: LoadedBenchmark, model: "HarnessModel", *, chat: bool) -> dict[str, float]:
    """Returns the model's scores by short name. On several hosts every process calls this.

    ``chat`` formats prompts with the model's chat template. Raises ``StageError`` 65 if a score overflows, as the
    perplexity of a very bad model may.
    """
    _seed()
    benchmark.task.set_fewshot_seed(_SEED)
    try:
        found = evaluate(
            lm=model,
            task_dict={"tasks": {benchmark.spec.name: benchmark.task}},
            limit=benchmark.spec.limit,
            bootstrap_iters=0,
            log_samples=False,
            apply_chat_template=chat,
        )
    except ArithmeticError as error:
        raise invalid(
            benchmark.spec, "a score cannot be computed", actual=f"{type(error).__name__}: {error}",
            fix="Use a metric that stays finite, acc or bits_per_byte, or remove the benchmark.",
        ) from error  # fmt: skip
    values = found["results"][benchmark.spec.name]
    return {
        name: float(values[key])
        for name, key in benchmark.metrics.items()
        if isinstance(values.get(key), int | float)
    }


def _seed() -> None:
    """Seeds the global generators, with which some tasks shuffle their choices, equally for all models and hosts."""
    random.seed(_SEED)
    np.random.seed(_SEED)


def _pinned(
    spec: BenchmarkSpec, config: dict[str, Any], commits: MutableMapping[str, str], scratch: Path
) -> tuple[dict[str, Any], str, str]:
    """Returns configuration, URI and commit of one of the harness's own tasks, its dataset pinned to the commit."""
    repo = config.get("dataset_path")
    splits = sorted({config[kind] for kind in _SPLITS if config.get(kind)})
    if repo is None or repo in _READERS or not splits:
        raise invalid(spec, "its rows do not come from a dataset of the hub", actual=str(repo))
    name = config.pop("dataset_name", None)
    wanted = (config.get("dataset_kwargs") or {}).get("revision")
    key = f"{repo}@{wanted}" if wanted else repo
    commit = commits.get(key) or spec.revision or wanted or "main"
    files: dict[str, list[str]] = {}
    for split in splits:
        source = DatasetSpec(
            path=spec.path, name=spec.name, config=name, split=split,
            hugging_face=HubRef(repo=repo, revision=commit),
        )  # fmt: skip
        found = find_split(source, scratch, lambda name: name.endswith(tuple(_KINDS)), ", ".join(_KINDS))
        if found.separator is not None:
            raise invalid(spec, "its README names a separator of CSV", actual=found.separator)
        commit = found.commit
        files[split] = [str(path) for _, path in found.fetch()]
    kinds = {_KINDS[Path(file).suffix] for some in files.values() for file in some}
    if len(kinds) != 1:
        raise invalid(spec, "its files are of several types", actual=", ".join(sorted(kinds)))
    commits[key] = commit
    config |= {"dataset_path": kinds.pop(), "dataset_kwargs": {"data_files": files}}
    return config, f"hf://datasets/{repo}@{commit}", commit


def resolved(
    spec: BenchmarkSpec, path: Path, changes: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns the configuration in a harness task's YAML, with its functions imported.

    ``changes``: what a group changes in it. Raises ``StageError`` 65 for a task that cannot be used.
    """
    # Checked before the import: some modules run programs when imported, others need packages that are not installed.
    config = {**load_yaml(path, resolve_func=False), **changes}
    require_known(spec, config)
    if any(place.startswith("ifeval/utils.") for place in functions(config)):
        language_data.provide()
    try:
        return without_evaluate({**load_yaml(path, resolve_func=True), **changes})
    except (Exception, SystemExit) as error:  # the import of the task's module may raise anything
        raise invalid(
            spec, "the task cannot be loaded with the packages of the trainer image",
            actual=f"{type(error).__name__}: {error}", fix="Remove it.",
        ) from error  # fmt: skip


def _own_task(
    spec: BenchmarkSpec, uri: str, store: StorageClient, scratch: Path
) -> tuple[dict[str, Any], str, str]:
    """Returns configuration, URI and revision of the user's task in ``<uri>/<name>.yaml``.

    The data files are downloaded to ``scratch``, and the configuration refers to them there. The revision is a digest
    of names, sizes and checksums of all the task's files. Raises ``StageError`` for a missing file, an invalid task,
    and files that have changed since preflight pinned the revision.
    """
    name = f"{spec.name}.yaml"
    text = store.read_or_none(join(uri, name))
    if text is None:
        raise missing(
            spec, actual=f"no {name} in {uri}", expected=f"the harness's YAML in {join(uri, name)}", fix=_PUT
        )
    config = _read(spec, text)
    files = _data_files(spec, config)
    names = [name, *(file for split in files.values() for file in split)]
    digest = hashlib.sha256()
    paths: dict[str, str] = {}
    for each in names:
        entry = store.stat(join(uri, each))
        if entry is None:
            raise missing(
                spec, actual=f"no {each} in {uri}", expected=f"the file that {name} names", fix=_PUT
            )
        digest.update(f"{each}\0{entry.size}\0{entry.crc32c}\n".encode())
        (scratch / each).parent.mkdir(parents=True, exist_ok=True)
        paths[each] = str(store.fetch_file(join(uri, each), scratch / each))
    revision = digest.hexdigest()[
        :40
    ]  # the length of a commit, like the revisions of the harness's own tasks
    require_unchanged(spec.revision, revision, where=spec.path, uri=uri)
    options = dict(config["dataset_kwargs"])
    options["data_files"] = {split: [paths[file] for file in some] for split, some in files.items()}
    return config | {"dataset_kwargs": options}, uri, revision


def _read(spec: BenchmarkSpec, text: bytes) -> dict[str, Any]:
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise invalid(
            spec, "this is not plain YAML", actual=str(error), fix="Remove !function: no code is run."
        ) from error
    if not isinstance(config, Mapping):
        raise invalid(spec, "this is not a task", actual=type(config).__name__)
    plain = require_plain(spec, config)
    if plain.get("dataset_path") not in _READERS:
        raise invalid(
            spec, "its rows must be in the folder", actual=f"dataset_path: {plain.get('dataset_path')}",
            expected=f"one of {', '.join(_READERS)}, with dataset_kwargs: {{data_files: {{test: rows.jsonl}}}}",
        )  # fmt: skip
    return plain


def _data_files(spec: BenchmarkSpec, config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the names of the task's data files in the folder, by split."""
    found = (config.get("dataset_kwargs") or {}).get("data_files")
    if isinstance(found, Mapping) and found:
        files = {
            str(split): [str(name) for name in ([some] if isinstance(some, str) else some or [])]
            for split, some in found.items()
        }
        if all(files.values()) and not any(_outside(name) for some in files.values() for name in some):
            return files
    raise invalid(
        spec, "it must name its files by split, in the folder", actual=f"data_files: {found}",
        expected="dataset_kwargs: {data_files: {test: rows.jsonl}}",
    )  # fmt: skip


def _outside(name: str) -> bool:
    path = Path(name)
    return path.is_absolute() or ".." in path.parts or "://" in name


def _sandbox() -> ImmutableSandboxedEnvironment:
    """Returns a sandboxed equivalent of the harness's template environment."""
    environment = ImmutableSandboxedEnvironment(
        loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["regex_replace"] = utils.regex_replace
    return environment


def missing(spec: BenchmarkSpec, *, actual: str, expected: str, fix: str) -> StageError:
    """Returns the error (66) for a benchmark that does not exist."""
    return StageError(
        ExitCode.INPUT_MISSING, "BenchmarkMissing", "the benchmark does not exist", where=spec.path, actual=actual,
        expected=expected, fix=fix,
    )  # fmt: skip
