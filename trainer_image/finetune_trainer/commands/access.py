"""``finetune-stage access``: whether this process's account may use folders, for ``finetune doctor --probe``.

The result is one JSON document, ``{"faults": [{"right", "uri", "reason", "detail"}]}``, on standard output and in the
container's termination message, which a caller without a right to read logs sees, too. What it writes it deletes again.
"""

import argparse
import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from finetune_contract import ExitCode
from finetune_trainer.errors import StageError
from finetune_trainer.stages.attempt import TERMINATION_BYTES
from finetune_trainer.storage import StorageClient, join, open_store

_DETAIL = 200


class Fault(NamedTuple):
    """Something that the account may not do, or that does not exist."""

    right: str
    """bucket, read or write."""
    uri: str
    reason: str
    """As in the record of a failed stage: StoragePermissionDenied, InputMissing, StorageUnavailable."""
    detail: str


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Runs the command. Returns 0, or 77 if there are faults."""
    options = _parser().parse_args(arguments)
    faults = list(examine(open_store(), read=options.read, write=options.write))
    text = _report(faults)
    print(text)
    with contextlib.suppress(OSError):  # outside of a pod there is none
        Path(environment.get("TERMINATION_MESSAGE_PATH", "/dev/termination-log")).write_text(text)
    return ExitCode.PERMISSION_DENIED if faults else 0


def _report(faults: Sequence[Fault]) -> str:
    """The first faults, as many as fit."""
    text = json.dumps({"faults": [fault._asdict() for fault in faults]})
    return text if len(text) <= TERMINATION_BYTES else _report(faults[:-1])


def examine(store: StorageClient, *, read: Sequence[str], write: Sequence[str]) -> Iterator[Fault]:
    """Reads a file of each folder of ``read``, and writes, reads and deletes a new one in each folder of ``write``.

    Yields at most one fault for each folder. A folder without files has nothing to read, which is no fault.
    """
    checks: Sequence[tuple[str, Callable[[StorageClient, str], None], Sequence[str]]] = (
        ("bucket", StorageClient.require_bucket, [*read, *write]),
        ("read", _read, read),
        ("write", _write, write),
    )
    seen = set()
    for right, check, folders in checks:
        for folder in folders:
            target = "/".join(folder.split("/")[:3]) if right == "bucket" else folder
            if (right, target) in seen:
                continue
            seen.add((right, target))
            try:
                check(store, target)
            except StageError as error:
                yield Fault(right, target, error.reason, (error.actual or error.what)[:_DETAIL])


def _read(store: StorageClient, folder: str) -> None:
    for entry in store.entries(folder):
        try:
            store.read_range(entry.uri, 0, 1, generation=entry.generation)
        except StageError as error:
            if error.code is not ExitCode.INPUT_MISSING:  # deleted meanwhile
                raise
        return


def _write(store: StorageClient, folder: str) -> None:
    own = join(folder, f".access-{uuid.uuid4()}")
    store.write(own, "{}")
    try:
        store.read(own)
    finally:
        _delete(store, own)


def _delete(store: StorageClient, own: str) -> None:
    try:
        store.delete(own)
    except StageError as error:
        error.actual = f"{own} is left behind: {error.actual}"
        raise


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="finetune-stage access", description=__doc__)
    for right in ("read", "write"):
        parser.add_argument(
            f"--{right}",
            action="append",
            default=[],
            metavar="URI",
            help=f"a folder to {right}; may be repeated",
        )
    return parser
