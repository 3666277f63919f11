"""Repositories of the Hugging Face Hub, pinned to a commit, through the hub's own library and cache.

Two steps, so that only requested files are fetched: ``find`` resolves the commit and lists its files, ``fetch``
downloads the named ones. ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, ``HF_HOME`` and ``HF_TOKEN`` have their usual effect;
with a filled cache and ``HF_HUB_OFFLINE=1`` the network is not used.
"""

import glob
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from huggingface_hub import HfApi, constants, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import CachedRepoTreeNotFoundError, SafetensorsParsingError
from huggingface_hub.utils.tqdm import disable_progress_bars

from finetune_contract import HubRef
from finetune_trainer.checkpoints import sparse_files
from finetune_trainer.hub.errors import Kind, explain, is_transient, retry_after_seconds
from finetune_trainer.storage import is_inside

_LOG = logging.getLogger(__name__)

#: Seconds between attempts when the hub does not answer and names no pause itself. The operator retries later.
_PAUSES = (1.0, 4.0, 15.0)
_LONGEST_PAUSE = 60.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """One commit of a repository. ``where`` is the field of the user's spec that names it."""

    name: str
    kind: Kind
    commit: str
    sizes: Mapping[str, int]
    """Bytes of all the commit's files by name; offline without a cached listing, of those in the cache."""
    where: str

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, sorted."""
        return tuple(sorted(self.sizes))

    def __str__(self) -> str:
        return f"{self.name}@{self.commit[:12]}"


def find(ref: HubRef, kind: Kind, where: str) -> Repository:
    """Resolves ``ref.revision`` (branch, tag or commit) to a commit, and lists the commit's files. Fetches no file.

    ``where`` is the field of the user's spec, for messages. Raises ``StageError`` 66 for a repository or revision that
    does not exist, 77 if access was refused, 69 if the hub does not answer, retries included.
    """
    # Without names this fetches only the listing. The folder in the cache is named after the commit.
    folder = _download(_settled(ref, kind, where), kind, where, ())
    try:
        tree = get_cached_repo_tree(ref.repo, repo_type=kind, revision=folder.name)
        sizes = {entry.path: entry.size for entry in tree}
    except CachedRepoTreeNotFoundError:
        files = [path for path in folder.rglob("*") if path.is_file()]
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    # Git allows no other names, but a mirror might have them.
    inside = {name: size for name, size in sizes.items() if is_inside(name)}
    return Repository(name=ref.repo, kind=kind, commit=folder.name, sizes=inside, where=where)


def fetch(repository: Repository, names: Iterable[str]) -> Path:
    """A folder with these files of the commit, under their names. Raises as ``find`` does."""
    ref, wanted = HubRef(repo=repository.name, revision=repository.commit), list(names)
    _LOG.info("%s: fetching %d of %d files", repository, len(wanted), len(repository.files))
    return _download(ref, repository.kind, repository.where, wanted)


def fetch_parts(
    repository: Repository, out: Path, small: Path, names: Iterable[str], wanted: Callable[[str], bool]
) -> Path:
    """A folder ``out`` with the files of ``small`` and these safetensors files of the commit.

    Files with a tensor whose name is ``wanted`` are complete; of the others there is only the header. Offline all are
    complete. Raises as ``find`` does.
    """
    others = [path.relative_to(small) for path in small.rglob("*") if path.is_file()]
    if constants.is_offline_mode():
        return fetch(repository, [*map(Path.as_posix, others), *names])
    ref = HubRef(repo=repository.name, revision=repository.commit)
    out.mkdir(parents=True, exist_ok=True)
    for path in others:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).symlink_to((small / path).resolve())
    whole = []
    for name in names:
        header = partial(HfApi().parse_safetensors_file_metadata, ref.repo, name, revision=ref.revision)
        try:
            tensors = asked(header, ref, repository.kind, repository.where).tensors
        except (SafetensorsParsingError, RecursionError):  # opening the file will report the error
            whole.append(name)
            continue
        if any(map(wanted, tensors)):
            whole.append(name)
            continue
        places = {key: (each.dtype, each.shape, each.data_offsets) for key, each in tensors.items()}
        sparse_files.write_header(out / name, places)
    if whole:
        folder = fetch(repository, whole)
        for name in whole:
            (out / name).symlink_to((folder / name).resolve())
    return out


def _settled(ref: HubRef, kind: Kind, where: str) -> HubRef:
    """The reference with its revision resolved to a commit.

    The library alone would use the cache's commit for a branch when the hub refuses or is down, so that an outdated
    model could be used silently.
    """
    if constants.is_offline_mode() or _COMMIT.fullmatch(ref.revision):
        return ref
    info = asked(lambda: HfApi().repo_info(ref.repo, repo_type=kind, revision=ref.revision), ref, kind, where)
    return ref.model_copy(update={"revision": info.sha})


def _download(ref: HubRef, kind: Kind, where: str, names: Iterable[str]) -> Path:
    patterns = [glob.escape(name) for name in names]
    disable_progress_bars()  # a log is no terminal

    def once() -> str:
        return snapshot_download(
            ref.repo,
            repo_type=kind,
            revision=ref.revision,
            allow_patterns=patterns,
            # without this, the revision of a known commit is requested even when the network is off
            local_files_only=constants.is_offline_mode(),
        )

    return Path(asked(once, ref, kind, where))


def asked[T](call: Callable[[], T], ref: HubRef, kind: Kind, where: str) -> T:
    """The call's result, with retries if the hub does not answer. Raises as ``find`` does."""
    try:
        return _patiently(call, time.sleep)
    except Exception as error:
        explained = explain(error, ref, kind, where)
        if explained is None:
            raise
        raise explained from error


def _patiently[T](call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """Retries the call: the library retries downloads, but no requests for a revision or a listing."""
    for pause in _PAUSES:
        try:
            return call()
        except Exception as error:
            if not is_transient(error):
                raise
            sleep(min(retry_after_seconds(error) or pause, _LONGEST_PAUSE))
    return call()
