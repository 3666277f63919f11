"""Records the files in a folder and reports the first one that differs from an earlier record.

A bucket's listing contains size, CRC32C and generation of every object, so comparing them downloads nothing. The
checksums of local files are computed.
"""

import itertools
from collections.abc import Mapping, Sequence

from finetune_trainer.storage import StorageClient

type Held = dict[str, list[int | str]]
"""``{path below the folder: [bytes, CRC32C]}``; ``[bytes, CRC32C, generation]`` for objects in a bucket."""

#: Maximum length of a file name in a message, in characters.
_SHOWN = 100


def folder_contents(store: StorageClient, folder: str, *, most: int | None = None) -> Held:
    """Returns every file below ``folder``, or only the first ``most`` files if that is given."""
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
    """Describes the first recorded file that is missing or has changed; None if all are unchanged.

    Compares only the recorded attributes of each file.
    """
    for name, facts in recorded.items():
        now = found.get(name)
        if now is None:
            return f"{_short(name)} is missing"
        if now[0] != facts[0]:
            return f"{_short(name)} has {now[0]} bytes, {facts[0]} were saved"
        if now[1] != facts[1]:
            return f"{_short(name)} has other content than the saved one"
        if len(facts) > 2 and now[2:] != list(facts[2:]):
            return f"{_short(name)} was written again after it was saved"
    return None


def first_added(recorded: Mapping[str, Sequence[object]], found: Held) -> str | None:
    """Describes the first file that is not recorded; None if there is none."""
    extra = next((name for name in found if name not in recorded), None)
    return None if extra is None else f"{_short(extra)} was added"


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN else f"…{name[-_SHOWN:]}"
