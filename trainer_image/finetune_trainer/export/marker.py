"""The marker at an export's destination, which names the uploading job and its files.

It is created and replaced with preconditions, so only one of two jobs gets the destination. It stays until the upload
is complete or until it is deleted manually. It never expires, because the duration of another job's upload is unknown.
"""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from finetune_contract import ExitCode, StageRequest
from finetune_trainer.errors import StageError
from finetune_trainer.storage import StorageClient, join

MARKER = ".upload-in-progress.json"
#: Maximum size in bytes of a marker that is read.
_LIMIT = 16 * 2**20


class UploadOwner(BaseModel):
    """The job and the attempt that upload."""

    model_config = ConfigDict(frozen=True)

    job: str
    """``namespace/name``, for messages."""
    uid: str
    run_folder: str
    """Identifies the owner: a job that resumes in another job's run folder completes that job's uploads."""
    attempt: str
    """The job's attempt, and the process in it."""

    @classmethod
    def of(cls, request: StageRequest, run: str) -> Self:
        """Returns the owner for a request. ``run`` differs between processes that run the same attempt."""
        return cls(
            job=f"{request.job.namespace}/{request.job.name}",
            uid=request.job.uid,
            run_folder=request.run_folder.rstrip("/"),
            attempt=f"{request.attempt}.{request.restart}-{run}",
        )


class _Marker(BaseModel):
    model_config = ConfigDict(frozen=True)

    format: Literal["tpu-finetune.dev/upload/v1"] = "tpu-finetune.dev/upload/v1"
    owner: UploadOwner
    names: frozenset[str]
    """Names, relative to the destination, of the upload's files and of those of the older model that it replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedUpload:
    """An earlier upload of the same owner that was interrupted. ``version`` is that of its marker."""

    names: frozenset[str]
    version: str


def interrupted(uri: str, owner: UploadOwner, store: StorageClient) -> InterruptedUpload | None:
    """Returns the interrupted upload of ``owner`` to ``uri``; None if there is no marker.

    Raises ``StageError`` 64 for another owner's marker and for one that cannot be parsed.
    """
    current = store.read_current(join(uri, MARKER), limit=_LIMIT)
    if current is None:
        return None
    found = _parsed(current.content)
    if found is None or found.owner.run_folder != owner.run_folder:
        raise _in_use(uri, found)
    return InterruptedUpload(names=found.names, version=current.version)


class Claim:
    """A destination that is reserved for an owner's upload."""

    def __init__(
        self,
        uri: str,
        owner: UploadOwner,
        names: frozenset[str],
        before: InterruptedUpload | None,
        store: StorageClient,
    ) -> None:
        """Writes the marker. ``before`` is the result of ``interrupted``.

        Raises ``StageError`` 64 if another upload was first.
        """
        self._uri, self._store = uri, store
        self._text = _Marker(owner=owner, names=names).model_dump_json().encode()
        self._place = join(uri, MARKER)
        if not (
            store.create(self._place, self._text)
            if before is None
            else store.replace(self._place, self._text, version=before.version)
        ):
            current = store.read_current(self._place, limit=_LIMIT)
            raise _in_use(uri, None if current is None else _parsed(current.content))

    def require(self) -> None:
        """Raises ``StageError`` 64 if the marker is no longer this upload's.

        If the marker is missing, another upload may have finished in between. The marker is then written again, so that
        the files do not look complete.
        """
        current = self._store.read_current(self._place, limit=_LIMIT)
        if current is not None and current.content == self._text:
            return
        if current is None:
            self._store.create(self._place, self._text)
        raise _in_use(self._uri, None if current is None else _parsed(current.content))

    def release(self) -> None:
        """Deletes the marker. Raises as ``require`` does."""
        self.require()
        self._store.delete(self._place)


def _parsed(content: bytes | None) -> _Marker | None:
    try:
        return None if content is None else _Marker.model_validate_json(content)
    except ValidationError:
        return None


def _in_use(uri: str, found: _Marker | None) -> StageError:
    by = "a marker without a job, or no marker"
    if found is not None:
        by = f"attempt {found.owner.attempt[:40]} of job {found.owner.job[:200]} (uid {found.owner.uid[:40]})"
    return StageError(
        ExitCode.BAD_REQUEST, "DestinationInUse", "another upload to the destination is under way or was interrupted",
        where=uri, actual=by, expected=f"no {MARKER} of another upload",
        fix=f"Wait until that job has finished; if it no longer exists, delete {join(uri, MARKER)}. Then retry from "
        "Export.",
    )  # fmt: skip
