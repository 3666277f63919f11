"""The marker at an export's destination: which job uploads there, and which files are its own.

It is created and replaced on conditions, so of two jobs one gets the destination. It holds until its upload is whole,
or until somebody deletes it: how long another job's upload may take is not known.
"""

from dataclasses import dataclass
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from finetune_contract import ExitCode, StageRequest
from finetune_trainer.errors import StageError
from finetune_trainer.storage import StorageClient, join

MARKER = ".upload-in-progress.json"
#: Larger ones are not ours.
_LIMIT = 16 * 2**20


class UploadOwner(BaseModel):
    """Who uploads."""

    model_config = ConfigDict(frozen=True)

    job: str
    """``namespace/name``, for people."""
    uid: str
    run_folder: str
    """What makes two owners one: a job that resumes in the run folder of another completes its uploads."""
    attempt: str
    """Of the job, and of this process in it."""

    @classmethod
    def of(cls, request: StageRequest, run: str) -> Self:
        """``run`` differs between processes that run the same attempt."""
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
    """The upload's files, and those of the older model that it replaces; below the destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedUpload:
    """An earlier, interrupted upload of the same job."""

    names: frozenset[str]
    version: str


def interrupted(uri: str, owner: UploadOwner, store: StorageClient) -> InterruptedUpload | None:
    """The upload of ``owner`` that ``uri`` has the marker of; None where there is no marker. Raises ``StageError`` 64
    for another job's, and for one that cannot be read."""
    current = store.read_current(join(uri, MARKER), limit=_LIMIT)
    if current is None:
        return None
    found = _parsed(current.content)
    if found is None or found.owner.run_folder != owner.run_folder:
        raise _in_use(uri, found)
    return InterruptedUpload(names=found.names, version=current.version)


class Claim:
    """A destination that ``owner`` uploads to."""

    def __init__(
        self,
        uri: str,
        owner: UploadOwner,
        names: frozenset[str],
        before: InterruptedUpload | None,
        store: StorageClient,
    ) -> None:
        """Marks the destination. ``before``: what ``interrupted`` found. Raises ``StageError`` 64 where another upload
        was first."""
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
        """Raises ``StageError`` 64 where the marker is no longer this upload's. Where none is left, another upload may
        have ended between this one's files: the marker returns, so that they do not look whole."""
        current = self._store.read_current(self._place, limit=_LIMIT)
        if current is not None and current.content == self._text:
            return
        if current is None:
            self._store.create(self._place, self._text)
        raise _in_use(self._uri, None if current is None else _parsed(current.content))

    def release(self) -> None:
        """Raises as ``require`` does."""
        self.require()
        self._store.delete(self._place)


def _parsed(content: bytes | None) -> _Marker | None:
    try:
        return None if content is None else _Marker.model_validate_json(content)
    except ValidationError:
        return None


def _in_use(uri: str, found: _Marker | None) -> StageError:
    by = "a marker that names no job, or none"
    if found is not None:
        by = f"attempt {found.owner.attempt[:40]} of job {found.owner.job[:200]} (uid {found.owner.uid[:40]})"
    return StageError(
        ExitCode.BAD_REQUEST, "DestinationInUse", "another upload to the destination is under way or was interrupted",
        where=uri, saw=by, expected=f"no {MARKER} of another upload",
        fix=f"Let that job finish; if it is gone, delete {join(uri, MARKER)}. Then retry from Export.",
    )  # fmt: skip
