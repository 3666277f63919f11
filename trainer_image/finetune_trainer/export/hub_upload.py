"""Pushes finished folders to a repository of the Hugging Face Hub, in one commit.

A commit is whole or is not there: large files are uploaded before it and seen by nobody until then, and an upload that
was cut off leaves the repository as it was. The same commit removes what an earlier export of ours had and this one has
not.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.utils.tqdm import disable_progress_bars

from finetune_contract import Destination, ExitCode, HubDestination, HubRef
from finetune_trainer.errors import StageError
from finetune_trainer.export.publish import MANIFEST, Kind, Published, listed_files
from finetune_trainer.hub import asked

#: What the hub's own page puts into a new repository.
_HUBS_OWN = frozenset({".gitattributes", "README.md", "LICENSE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the folders, with its manifest. ``prefix`` is its place in the repository: empty, or with a slash."""

    folder: Path
    kind: Kind
    prefix: str

    def files(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                yield self.prefix + path.relative_to(self.folder).as_posix(), path


def push(parts: Mapping[str, Part], destination: Destination, message: str) -> dict[str, Published]:
    """What each part became, by name. Raises ``StageError`` 64 where the repository holds other people's files or is
    more public than asked for, 77 where the token may not write, 69 when the hub does not answer, retries included."""
    hub = destination.hub
    assert hub is not None, "called for a repository"
    api = HfApi(token=_token(hub, destination.path))
    disable_progress_bars()  # a log is no terminal
    ref = HubRef(repo=hub.repo)

    def once() -> str:
        repo = api.create_repo(hub.repo, private=hub.private, exist_ok=True).repo_id
        info = api.model_info(repo)
        if hub.private and not info.private:
            raise _public(hub, destination.path)
        present = {sibling.rfilename for sibling in info.siblings or ()}
        old = _files_of_ours(api, repo, present, destination.path)
        new = {name: path for part in parts.values() for name, path in part.files()}
        commit = api.create_commit(
            repo,
            [
                *(CommitOperationAdd(name, path) for name, path in new.items()),
                *(CommitOperationDelete(name) for name in sorted((old & present) - new.keys())),
            ],
            commit_message=message,
            parent_commit=info.sha,
        )
        return f"hf://{repo}@{commit.oid}"

    try:
        uri = asked(once, ref, "model", destination.path)
    except StageError as error:
        if error.reason != "HubRepositoryMissing":
            raise
        # What may not be written is answered like what is not there; but what is not there would have been made.
        raise _denied(destination.path, hub.repo, "refused by the hub") from error
    return {name: _published(part, uri) for name, part in parts.items()}


def _published(part: Part, uri: str) -> Published:
    manifest = (part.folder / MANIFEST).read_bytes()
    return Published(
        kind=part.kind,
        uri=uri,
        digest=f"sha256:{hashlib.sha256(manifest).hexdigest()}",
        size_bytes=sum(entry["size"] for entry in json.loads(manifest)["files"]),
    )


def _token(hub: HubDestination, where: str) -> str:
    token = os.environ.get(hub.token_variable, "").strip()
    if not token:
        raise _denied(where, hub.repo, f"an empty {hub.token_variable}")
    return token


def _files_of_ours(api: HfApi, repo: str, present: set[str], where: str) -> set[str]:
    """Names of an earlier export's files. Refuses a repository with others."""
    ours: set[str] = set()
    for manifest in sorted(name for name in present if name.rpartition("/")[2] == MANIFEST):
        listed = listed_files(Path(api.hf_hub_download(repo, manifest)).read_bytes())
        prefix = manifest.removesuffix(MANIFEST)
        ours |= {prefix + name for name in listed or ()} | ({manifest} if listed is not None else set())
    others = present - ours - _HUBS_OWN
    if others:
        raise StageError(
            ExitCode.BAD_REQUEST, "DestinationNotEmpty", "the destination holds files that are not an exported model",
            where=where, saw=f"{repo}: {', '.join(sorted(others)[:3])}", expected="a new one, or an earlier export",
            fix="Choose another repository.",
        )  # fmt: skip
    return ours


def _denied(where: str, repo: str, saw: str) -> StageError:
    return StageError(
        ExitCode.PERMISSION_DENIED, "HubAccessDenied", f"the token may not push to {repo}", where=where, saw=saw,
        expected="a token that may write there", fix="Put one into the Secret that tokenSecretRef names.",
    )  # fmt: skip


def _public(hub: HubDestination, where: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "HubRepositoryPublic", "the repository is public", where=where, saw=hub.repo,
        expected="a private repository, as private: true asks",
        fix="Make it private on the hub, choose another repository, or set private: false.",
    )  # fmt: skip
