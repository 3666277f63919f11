"""What a folder holds, by name, and the first file that is not as it was.

A bucket's listing has size, CRC32C and generation of every object, so nothing is downloaded to compare them; the
digests of local files are computed.
"""

import itertools
from collections.abc import Mapping, Sequence

from finetune_trainer.storage import StorageClient

type Held = dict[str, list[int | str]]
"""``{path below the folder: [bytes, CRC32C]}``, in a bucket ``[bytes, CRC32C, generation]``."""

#: Names are a writer's choice; in messages they are cut.
_SHOWN = 100


def folder_contents(store: StorageClient, folder: str, *, most: int | None = None) -> Held:
    """Every file below ``folder``; the first ``most`` where that is given."""
    prefix = folder.rstrip("/") + "/"
    return {
        entry.uri.removeprefix(prefix): [
            entry.size,
            entry.crc32c,
            *([] if entry.generation is None else [entry.generation]),
        ]
        for entry in itertools.islice(store.entries(folder), most)
    }


def first_changed(recorded: Mapping[str, Sequence[object]], found: Held) -> str | None:
    """The first recorded file that is not as it was, in words; None where all are. What was not recorded of a file is
    not compared."""
    for name, facts in recorded.items():
        now = found.get(name)
        if now is None:
            return f"{_short(name)} is missing"
        if now[0] != facts[0]:
            return f"{_short(name)} has {now[0]} bytes, {facts[0]} were saved"
        if now[1] != facts[1]:
            return f"{_short(name)} has other content than was saved"
        if len(facts) > 2 and now[2:] != list(facts[2:]):
            return f"{_short(name)} was written again since it was saved"
    return None


def first_added(recorded: Mapping[str, Sequence[object]], found: Held) -> str | None:
    """The first file that was not recorded, in words."""
    extra = next((name for name in found if name not in recorded), None)
    return None if extra is None else f"{_short(extra)} was added"


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN else f"…{name[-_SHOWN:]}"
