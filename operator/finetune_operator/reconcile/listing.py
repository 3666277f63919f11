"""Parses the names of files below ``attempts/`` in a run folder."""

import re
from collections.abc import Sequence

from finetune_contract import Stage
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import TakeoverRecord, since

#: Files that identify the folder of an attempt: other users may have written files there.
_RECORDS = frozenset({"request.json", "result.json", "failure.json"})
_RETRY = re.compile(r"retry-([1-9][0-9]{0,9})\.json")
_TAKEOVER = re.compile(r"taken-over-([^/]{1,8})\.json")
#: At most 999 JobSets, as many as pod names allow, with 9,999 restarts each.
_ATTEMPT = re.compile(
    f"({'|'.join(stage.short for stage in Stage)})-([1-9][0-9]{{0,2}})(?:\\.([1-9][0-9]{{0,3}}))?"
)


def retry_generations(names: Sequence[str]) -> list[int]:
    """Returns the generations for which there is a record of a manual retry."""
    return [int(match[1]) for name in names if (match := _RETRY.fullmatch(name))]


def taken_over_by(names: Sequence[str]) -> list[str]:
    """Returns the first characters of the uids of jobs that have taken the folder over."""
    return [match[1] for name in names if (match := _TAKEOVER.fullmatch(name))]


def files_by_attempt(
    names: Sequence[str], takeovers: Sequence[TakeoverRecord]
) -> dict[AttemptKey, frozenset[str]]:
    """Returns the names of each attempt's records since the last takeover, from the listing of ``attempts/``."""
    files: dict[AttemptKey, frozenset[str]] = {}
    for path in names:
        folder, _, name = path.partition("/")
        key = attempt_of(folder)
        if key is not None and name in _RECORDS and since(takeovers, key):
            files[key] = files.get(key, frozenset()) | {name}
    return files


def attempt_of(folder: str) -> AttemptKey | None:
    """Parses the name of an attempt's folder; None for any other name.

    ``train-2`` is (Train, 2, 0), and ``train-2.1`` is (Train, 2, 1).
    """
    match = _ATTEMPT.fullmatch(folder)
    return AttemptKey(Stage.from_short(match[1]), int(match[2]), int(match[3] or 0)) if match else None
