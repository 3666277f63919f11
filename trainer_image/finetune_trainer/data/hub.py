"""Finds and downloads the files of one split of a Hugging Face Hub dataset, pinned to a commit.

``datasets`` determines which files belong to a configuration and a split (from ``configs`` in the README, or from file
and folder names). It would, however, download all splits, and cannot resolve them without the network. This module
therefore gives it a local folder with the repository's file names and README but no data, then downloads the files that
it selects and reads them as any other file.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from finetune_contract import DatasetSpec, ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.hub import repositories as hub
from finetune_trainer.hub.repositories import Repository

#: Files that ``datasets`` reads before it reads data.
_DESCRIPTIONS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
#: Fields of a configuration with its name, description or files. All other fields change how the files are read.
_NAMING = frozenset({"name", "version", "data_dir", "data_files", "description", "features"})
#: Options of CSV that name the separator. ``datasets`` copies the second to the first.
_SEPARATORS = ("sep", "delimiter")
_PARQUET_BRANCH = "refs/convert/parquet"
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSplit:
    """The names of a split's files. ``separator`` of fields is the one that the README names; None for the usual."""

    repository: Repository
    uri: str
    """``hf://datasets/<repo>@<commit>/<config>/<split>``, for messages."""
    commit: str
    names: Sequence[str]
    separator: str | None = None

    def fetch(self) -> list[tuple[str, Path]]:
        """Downloads the files. Returns addresses as in the hub's file system, ``hf://datasets/<repo>@<commit>/<path>``,
        with the paths here. Raises ``StageError`` 69 if the hub does not answer.
        """
        folder = hub.fetch(self.repository, self.names)
        root = _root(self.repository)
        return [(f"{root}/{name}", folder / name) for name in self.names]


def find_split(
    spec: DatasetSpec, scratch: Path, is_readable: Callable[[str], object], readable: str
) -> HubSplit:
    """Finds the split's files, whose names must satisfy ``is_readable``; ``readable`` describes those that do.

    Raises ``StageError`` 65 for a dataset of another kind, 66 for a repository, revision, configuration or split that
    does not exist, 77 if access is denied, 69 if the hub does not answer.
    """
    assert spec.hugging_face is not None
    repository = hub.find(spec.hugging_face, "dataset", f"{spec.path}.huggingFace")
    script = f"{repository.name.rpartition('/')[2]}.py"
    if script in repository.files:
        what = "the dataset has a loading script, which is never run (trust_remote_code is not supported)"
        raise _unreadable(repository, what, script, "data files")
    names, separator = _names(repository, _outline(repository, scratch), spec)
    for name in names:
        if not is_readable(name):
            expected = f"names that end in {readable}"
            raise _unreadable(repository, "files of this type cannot be read", name, expected)
    uri = "/".join(part for part in (_root(repository), spec.config, spec.split) if part)
    return HubSplit(
        repository=repository, uri=uri, commit=repository.commit, names=names, separator=separator
    )


def _root(repository: Repository) -> str:
    return f"hf://datasets/{repository.name}@{repository.commit}"


def _outline(repository: Repository, scratch: Path) -> Path:
    """Returns a folder named like the repository, with all its file names but empty data files."""
    folder = scratch / "outlines" / repository.commit / repository.name.rpartition("/")[2]
    described = [name for name in _DESCRIPTIONS if name in repository.files]
    source = hub.fetch(repository, described)
    for name in repository.files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((source / name).read_bytes() if name in described else b"")
    return folder


def _names(repository: Repository, outline: Path, spec: DatasetSpec) -> tuple[list[str], str | None]:
    """Returns the names of the split's files in order, and the separator of fields that the README requests."""
    path = str(outline)
    configs, default = _query_datasets(repository, outline, lambda: _configs(path))
    if spec.config is not None and spec.config not in configs:
        raise _no_such(repository, "config", "configuration", spec.config, configs)
    if spec.config is None and len(configs) > 1 and default is None:
        raise _no_such(repository, "config", "default configuration", "none named", configs)
    config = _query_datasets(repository, outline, lambda: _config(path, spec.config))
    if spec.split not in config.data_files:
        raise _no_such(repository, "split", "split", spec.split, [str(split) for split in config.data_files])
    options = _reading_options(config)
    separators = [options.pop(name) for name in _SEPARATORS if name in options]
    if options:
        what = "its README requests an unsupported way of reading"
        raise _unreadable(repository, what, ", ".join(options), "plain rows")
    files = [Path(file).relative_to(outline.resolve()).as_posix() for file in config.data_files[spec.split]]
    return files, separators[0] if separators else None


@cache
def _configs(outline: str) -> tuple[Sequence[str], str | None]:
    """Returns the names of the configurations, and that of the default one.

    Answers are kept, as a group of benchmarks asks for each of its tasks; a folder belongs to one commit.
    """
    import datasets

    return datasets.get_dataset_config_names(outline), datasets.get_dataset_default_config_name(outline)


@cache
def _config(outline: str, name: str | None) -> Any:
    import datasets

    return datasets.load_dataset_builder(outline, name, cache_dir=str(Path(outline).parent / "cache")).config


def _query_datasets[T](repository: Repository, outline: Path, question: Callable[[], T]) -> T:
    """Returns the result of a call of ``datasets``.

    Raises ``StageError`` 65 if the call fails: the cause is then in the repository's file names or README.
    """
    try:
        return question()
    except Exception as error:
        said = " ".join(str(error).replace(str(outline), repository.name).split())[:160]
        files = ", ".join(repository.files[:4]) + (", …" if len(repository.files) > 4 else "")
        expected = "data files, or a README whose configs name them"
        what = "no data files can be identified"
        raise _unreadable(repository, what, f"{said}; its files: {files}", expected) from error


def _reading_options(config: Any) -> dict[str, Any]:
    """Returns the options that change how files are read, with their values."""
    plain = type(config)()
    return {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in _NAMING and getattr(config, field.name) != getattr(plain, field.name)
    }


def _no_such(repository: Repository, field: str, what: str, actual: str, known: Sequence[str]) -> StageError:
    return StageError(
        ExitCode.INPUT_MISSING, "DatasetMissing", f"the dataset has no {what} of this name",
        where=f"{repository.where}.{field}", actual=f"{actual} in {repository}",
        expected=f"one of {', '.join(known[:_SHOWN])}", fix=f"Set {repository.where}.{field} to an existing one.",
    )  # fmt: skip


def _unreadable(repository: Repository, what: str, actual: str, expected: str) -> StageError:
    return StageError(
        ExitCode.BAD_DATA, "HubDatasetUnreadable", what, where=repository.where,
        actual=f"{actual[:300]} in {repository}",
        expected=expected,
        fix=f"Set revision: {_PARQUET_BRANCH}, where the Hub stores a Parquet copy of most public datasets, or put "
        "JSON lines into object storage and use uri.",
    )  # fmt: skip
