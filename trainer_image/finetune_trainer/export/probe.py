"""Tests, before conversion and training, whether Export will be able to write to every destination.

Preflight runs under the same account as Export and therefore has the same permissions. The test leaves no files behind
and does not modify existing ones.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from finetune_contract import DestinationSpec, ExitCode, ExportSpec
from finetune_trainer.errors import StageError
from finetune_trainer.export import hub_upload
from finetune_trainer.export.marker import UploadOwner
from finetune_trainer.export.publish import PROBE, folder_names, places, require_ours
from finetune_trainer.storage import StorageClient, join, local_path


def destinations(export: ExportSpec, store: StorageClient, owner: UploadOwner) -> None:
    """Tests all destinations of an export.

    Raises ``StageError`` 64 for a destination that Export would reject, 66 if the bucket does not exist, 77 if a
    permission is missing, 69 if the service does not answer after retries.
    """
    for destination in export.destinations:
        if destination.hub is not None:
            hub_upload.check(destination)
        else:
            _folder(destination, export, store, owner)


def _folder(
    destination: DestinationSpec, export: ExportSpec, store: StorageClient, owner: UploadOwner
) -> None:
    root = destination.uri
    assert root is not None, "a destination is one of two"
    local = local_path(root)
    if local is not None:
        _require_folder(local, destination.path)
    for place in places(folder_names(export.content, orbax=export.orbax)).values():
        uri = join(root, place).rstrip("/")
        _try("list the files there", destination, partial(require_ours, uri, store, owner))
    probe = join(root, f"{PROBE}{uuid.uuid4().hex}")
    made = [] if local is None else [each for each in (local, *local.parents) if not each.exists()]
    # Deletion is tested first, on a name that does not exist: without that permission the file could not be removed.
    _try("delete a file", destination, lambda: store.delete(probe))
    try:
        _try("write a file", destination, lambda: store.create(probe, b""))
        _try(f"delete the file {probe}", destination, lambda: store.delete(probe))
    finally:
        for folder in made:
            with suppress(OSError):  # another process uses it by now
                folder.rmdir()


def _try(what: str, destination: DestinationSpec, call: Callable[[], object]) -> None:
    """Runs ``call`` and raises its errors in terms of the destination."""
    uri = str(destination.uri)
    try:
        call()
    except StageError as error:
        match error.code:
            case ExitCode.PERMISSION_DENIED:
                raise StageError(
                    error.code, error.reason, f"Export could not {what}", where=destination.path,
                    actual=f"{uri}: {error.actual}", expected="permission to list, read, create and delete files there",
                    fix=_grant(uri),
                ) from error  # fmt: skip
            case ExitCode.INPUT_MISSING:
                raise StageError(
                    error.code, "DestinationMissing", f"Export could not {what}: the location does not exist",
                    where=destination.path, actual=uri, expected="a bucket that exists",
                    fix="Correct the address, or create the bucket.",
                ) from error  # fmt: skip
            case ExitCode.BAD_REQUEST:
                raise StageError(
                    error.code, error.reason, error.what, where=destination.path, actual=f"{uri}: {error.actual}",
                    expected=error.expected, fix=error.fix,
                ) from error  # fmt: skip
            case _:
                raise


def _grant(uri: str) -> str:
    if local_path(uri) is not None:
        return "Mount a volume there that the stage's user can write to."
    return (
        f"Grant the account of the profile's serviceAccounts.cpu the role roles/storage.objectUser on {uri} "
        "(a managed folder) or on its bucket."
    )


def _require_folder(path: Path, where: str) -> None:
    """Raises ``StageError`` 64 if ``path`` is not a folder and cannot become one."""
    existing = next(each for each in (path, *path.parents) if each.exists())
    if not existing.is_dir():
        raise StageError(
            ExitCode.BAD_REQUEST, "DestinationNotAFolder", "the destination cannot be a folder", where=where,
            actual=f"{existing}, which is a file", expected="a folder, or an unused name",
            fix="Choose another destination.",
        )  # fmt: skip
