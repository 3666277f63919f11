"""Detects checkpoints that changed after they were saved.

Orbax distinguishes a checkpoint that was saved completely from one that was not. It does not notice a file that was
lost or changed later, by a lifecycle rule of the bucket, say: the restore then fails, or returns other numbers. So a
seal is kept beside the checkpoints, ``train/seals/<step>.json``: the size and the CRC32C of every file. A bucket's
listing holds both, so neither sealing nor verifying reads the checkpoint.
"""

import json
import logging
from collections.abc import Collection

from finetune_contract import DiscardedCheckpoint, RunFolder
from finetune_trainer.storage import StorageClient
from finetune_trainer.storage.contents import Held, first_changed, folder_contents

_LOG = logging.getLogger(__name__)


def checksums_of(store: StorageClient, folder: RunFolder, step: int) -> bytes:
    """The seal's content for the checkpoint of that step."""
    return json.dumps(
        {name: facts[:2] for name, facts in folder_contents(store, folder.checkpoint(step)).items()}
    ).encode()


def discard_damaged(store: StorageClient, folder: RunFolder) -> list[DiscardedCheckpoint]:
    """Deletes the newest checkpoints until one matches its seal, and returns those deleted.

    Additional files do no harm. A checkpoint without a seal is trusted: its process ended before it could be sealed.
    Seals of checkpoints that no longer exist are deleted too. Call it in one process, before any other reads the
    checkpoints.
    """
    found: dict[int, Held] = {}
    for path, each in folder_contents(store, folder.checkpoints).items():
        number, _, name = path.partition("/")
        if number.isdecimal():
            found.setdefault(int(number), {})[name] = each
    _delete_stale_checksums(store, folder, found.keys())
    discarded: list[DiscardedCheckpoint] = []
    for step in sorted(found, reverse=True):
        sealed = store.read_or_none(folder.seal(step))
        damage = None if sealed is None else first_changed(json.loads(sealed), found[step])
        if damage is None:
            break
        _LOG.warning(
            "the checkpoint of step %d has changed since it was saved (%s); it is deleted", step, damage
        )
        discarded.append(DiscardedCheckpoint(step=step, why=damage))
        # Orbax's mark of a complete checkpoint first: an interruption here leaves none that looks complete.
        store.delete_folder(folder.checkpoint(step), first=("commit_success.txt", "_CHECKPOINT_METADATA"))
        store.delete(folder.seal(step))
    return discarded


def _delete_stale_checksums(store: StorageClient, folder: RunFolder, steps: Collection[int]) -> None:
    for entry in list(store.entries(folder.seals)):
        name = entry.uri.rpartition("/")[2].removesuffix(".json")
        if not name.isdecimal() or int(name) not in steps:
            store.delete(entry.uri)
