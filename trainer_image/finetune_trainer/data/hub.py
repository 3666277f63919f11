"""Datasets of the Hugging Face Hub, pinned to a commit.

The snapshot is fetched first (through the hub's own cache, so that an offline machine with a filled cache works) and
``datasets`` then reads that folder: what was pinned is what is read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_contract import DatasetSource, ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.hub import snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRows:
    uri: str
    """``hf://datasets/<repo>@<commit>/<config>/<split>``, for people."""
    commit: str
    rows: Iterable[Mapping[str, Any]]


def load(spec: DatasetSource, scratch: Path) -> HubRows:
    """The rows of one split. Raises 66 for a repository, revision, configuration or split that is not there, 77 for
    one that asks for a licence or token, 69 when the hub does not answer."""
    import datasets

    assert spec.hugging_face is not None
    repo = spec.hugging_face.repo
    where = f"{spec.path}.huggingFace"
    found = snapshot(spec.hugging_face, "dataset", where)
    folder, commit = found.path, found.commit
    cache = str(scratch / "datasets")
    datasets.disable_progress_bars()
    try:
        configs = datasets.get_dataset_config_names(str(folder))
        if spec.config is not None and spec.config not in configs:
            raise _no_such(f"{where}.config", spec.config, configs)
        splits = datasets.get_dataset_split_names(str(folder), spec.config)
        if spec.split not in splits:
            raise _no_such(f"{where}.split", spec.split, splits)
        rows = datasets.load_dataset(str(folder), spec.config, split=spec.split, cache_dir=cache)
    except (datasets.exceptions.DatasetsError, ValueError, FileNotFoundError) as error:
        raise StageError(
            ExitCode.BAD_DATA,
            "HubDatasetUnreadable",
            "the repository holds no dataset that can be read",
            where=where,
            saw=f"{repo}@{commit[:12]}: {error}"[:400],
            fix="Name config and split, or use another dataset.",
        ) from error
    name = "/".join(part for part in (spec.config, spec.split) if part)
    return HubRows(uri=f"hf://datasets/{repo}@{commit}/{name}", commit=commit, rows=rows)


def _no_such(where: str, saw: str, known: list[str]) -> StageError:
    return StageError(
        ExitCode.INPUT_MISSING,
        "DatasetMissing",
        "the repository has none of this name",
        where=where,
        saw=saw,
        expected=f"one of {', '.join(known[:20])}",
        fix="Correct the name.",
    )
