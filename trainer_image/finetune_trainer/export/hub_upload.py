"""Pushes finished folders to a repository of the Hugging Face Hub, in one commit.

A commit is atomic: large files are uploaded first and stay invisible until the commit, so an interrupted upload leaves
the repository unchanged. The same commit deletes files of an earlier export that this one does not have.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, errors
from huggingface_hub.utils.tqdm import disable_progress_bars

from finetune_contract import DestinationSpec, ExitCode, HubDestinationSpec, HubRef
from finetune_trainer.errors import StageError
from finetune_trainer.export.publish import MANIFEST, Kind, Published, listed_files
from finetune_trainer.hub.repositories import asked

#: HTTP statuses of a call that the server does not implement.
_UNKNOWN_CALL = (404, 405, 501)
#: Files that the hub itself creates in a new repository.
_HUBS_OWN = frozenset({".gitattributes", "README.md", "LICENSE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadFolder:
    """A folder with its manifest. ``prefix`` is its path in the repository: empty, or ending with a slash."""

    folder: Path
    kind: Kind
    prefix: str

    def files(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                yield self.prefix + path.relative_to(self.folder).as_posix(), path


def push(
    parts: Mapping[str, UploadFolder], destination: DestinationSpec, message: str
) -> dict[str, Published]:
    """Pushes all parts in one commit and returns what was published, by name.

    Raises ``StageError`` 64 if the repository contains unrelated files or is public although a private one is
    requested, 77 if the token may not write, 69 if the hub does not answer after retries.
    """
    hub = destination.hub
    assert hub is not None, "called for a repository"
    api = HfApi(token=_token(hub, destination.path))
    disable_progress_bars()  # a log is no terminal

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

    uri = _asked(once, hub, destination.path)
    return {name: _published(part, uri) for name, part in parts.items()}


def check(destination: DestinationSpec) -> None:
    """Raises the errors that ``push`` would raise for the repository and the token. Changes nothing.

    If the hub, for example a mirror, does not report a token's permissions, they are assumed to suffice.
    """
    hub, where = destination.hub, destination.path
    assert hub is not None, "called for a repository"
    api = HfApi(token=_token(hub, where))

    def once() -> None:
        repo = hub.repo
        if "/" not in repo:  # a repository of the token's user
            with _unsaid():
                repo = f"{api.whoami()['name']}/{repo}"
        try:
            info = api.model_info(repo)
        except errors.RepositoryNotFoundError:  # push would create it
            with _unsaid():
                if refusal := why_not(api.whoami(), repo):
                    raise _denied(where, repo, refusal) from None
            return
        if hub.private and not info.private:
            raise _public(hub, where)
        _files_of_ours(api, repo, {sibling.rfilename for sibling in info.siblings or ()}, where)
        with _unsaid():
            api.auth_check(repo, write=True)

    _asked(once, hub, where)


def _asked[T](call: Callable[[], T], hub: HubDestinationSpec, where: str) -> T:
    try:
        return asked(call, HubRef(repo=hub.repo), "model", where)
    except StageError as error:
        if error.reason == "HubAccessDenied" and isinstance(error.__cause__, errors.HfHubHTTPError):
            raise _denied(where, hub.repo, error.actual) from error
        if error.reason != "HubRepositoryMissing":
            raise
        # The hub answers "not found" for repositories without write access; a missing one would have been created.
        raise _denied(where, hub.repo, "refused by the hub") from error


@contextmanager
def _unsaid() -> Iterator[None]:
    """Suppresses errors of calls that the hub does not implement."""
    try:
        yield
    except errors.RepositoryNotFoundError:
        raise
    except errors.HfHubHTTPError as error:
        if error.response.status_code not in _UNKNOWN_CALL:
            raise


def why_not(who: Any, repo: str) -> str:
    """Returns why the token of ``who`` cannot create ``repo``; empty if no reason is known.

    ``who`` is the hub's answer to whoami.
    """
    owner = repo.partition("/")[0].casefold()
    token = _at(who, "auth", "accessToken")
    role = _at(token, "role")
    if role == "read":
        return "a read-only token"
    if role == "fineGrained":
        scopes = _at(token, "fineGrained", "scoped")
        if not isinstance(scopes, list) or any(_grants(each, owner, repo) for each in scopes):
            return ""
        return f"a fine-grained token without repo.write for {repo.partition('/')[0]}"
    name, orgs = _at(who, "name"), _at(who, "orgs")
    if str(name).casefold() == owner or not isinstance(orgs, list):
        return ""
    roles = {str(_at(org, "name")).casefold(): _at(org, "roleInOrg") for org in orgs}
    if owner not in roles:
        return f"a token of {name}, who is not a member of {repo.partition('/')[0]}"
    return f"a token of {name}, who has read access only" if roles[owner] in ("read", "no_access") else ""


def _grants(scope: Any, owner: str, repo: str) -> bool:
    name = str(_at(scope, "entity", "name")).casefold()
    return name in (owner, repo.casefold()) and "repo.write" in (_at(scope, "permissions") or ())


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _published(part: UploadFolder, uri: str) -> Published:
    manifest = (part.folder / MANIFEST).read_bytes()
    return Published(
        kind=part.kind,
        uri=uri,
        digest=f"sha256:{hashlib.sha256(manifest).hexdigest()}",
        size_bytes=sum(entry["size"] for entry in json.loads(manifest)["files"]),
    )


def _token(hub: HubDestinationSpec, where: str) -> str:
    token = os.environ.get(hub.token_variable, "").strip()
    if not token:
        raise _denied(where, hub.repo, f"an empty {hub.token_variable}")
    return token


def _files_of_ours(api: HfApi, repo: str, present: set[str], where: str) -> set[str]:
    """Returns the names of an earlier export's files. Raises ``StageError`` 64 if there are unrelated files."""
    ours: set[str] = set()
    for manifest in sorted(name for name in present if name.rpartition("/")[2] == MANIFEST):
        listed = listed_files(Path(api.hf_hub_download(repo, manifest)).read_bytes())
        prefix = manifest.removesuffix(MANIFEST)
        ours |= {prefix + name for name in listed or ()} | ({manifest} if listed is not None else set())
    others = present - ours - _HUBS_OWN
    if others:
        raise StageError(
            ExitCode.BAD_REQUEST, "DestinationNotEmpty",
            "the destination contains files that are not an exported model",
            where=where, actual=f"{repo}: {', '.join(sorted(others)[:3])}", expected="a new one, or an earlier export",
            fix="Choose another repository.",
        )  # fmt: skip
    return ours


def _denied(where: str, repo: str, actual: str) -> StageError:
    return StageError(
        ExitCode.PERMISSION_DENIED, "HubAccessDenied",
        f"the token does not allow pushing to {repo}", where=where, actual=actual,
        expected="a token with write access", fix="Put one into the Secret that tokenSecretRef names.",
    )  # fmt: skip


def _public(hub: HubDestinationSpec, where: str) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "HubRepositoryPublic", "the repository is public", where=where, actual=hub.repo,
        expected="a private repository, because of private: true",
        fix="Make it private on the Hub, choose another repository, or set private: false.",
    )  # fmt: skip
