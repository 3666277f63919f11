"""What the names below ``attempts/`` in a run folder tell."""

import re
from collections.abc import Sequence

from finetune_contract import Stage
from finetune_operator.lifecycle.observation import AttemptKey, TakeoverRecord, since

#: What makes a folder that of an attempt: others may have put files there.
_RECORDS = frozenset({"request.json", "result.json", "failure.json"})
_RETRY = re.compile(r"retry-([1-9][0-9]{0,9})\.json")
_TAKEOVER = re.compile(r"taken-over-([^/]{1,8})\.json")
#: 999 JobSets at most, which is what fits the names of pods, of 9,999 restarts each.
_ATTEMPT = re.compile(
    f"({'|'.join(stage.short for stage in Stage)})-([1-9][0-9]{{0,2}})(?:\\.([1-9][0-9]{{0,3}}))?"
)


def retry_generations(names: Sequence[str]) -> list[int]:
    """Of the notes on retries by hand."""
    return [int(match[1]) for name in names if (match := _RETRY.fullmatch(name))]


def taken_over_by(names: Sequence[str]) -> list[str]:
    """First characters of the uids of jobs that went on in the folder."""
    return [match[1] for name in names if (match := _TAKEOVER.fullmatch(name))]


def files_by_attempt(
    names: Sequence[str], takeovers: Sequence[TakeoverRecord]
) -> dict[AttemptKey, frozenset[str]]:
    """The records of each attempt, by what is listed below ``attempts/``, since the last takeover."""
    files: dict[AttemptKey, frozenset[str]] = {}
    for path in names:
        folder, _, name = path.partition("/")
        key = attempt_of(folder)
        if key is not None and name in _RECORDS and since(takeovers, key):
            files[key] = files.get(key, frozenset()) | {name}
    return files


def attempt_of(folder: str) -> AttemptKey | None:
    """``train-2`` -> (Train, 2, 0), ``train-2.1`` -> (Train, 2, 1); None for a name that is no attempt's."""
    match = _ATTEMPT.fullmatch(folder)
    return AttemptKey(Stage.from_short(match[1]), int(match[2]), int(match[3] or 0)) if match else None
