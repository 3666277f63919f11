"""Defines how damaged files in a run folder are treated. An observation contains no attempts and retries of others.

- A result that cannot be parsed fails its attempt with class Infrastructure, once the attempt has ended.
- If a later attempt of the stage has followed, such a result is ignored, because no decision depends on it.
- After a result with a newer major version of the contract, the state of the stage is unknown, and so is the next
  action.
"""

from dataclasses import replace
from typing import Any

from finetune_contract import ExitCode, Failure
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts.attempt import MOST_ATTEMPTS, too_many
from finetune_operator.lifecycle.attempts.classify import RECORD_IGNORED, RESULT_MALFORMED
from finetune_operator.lifecycle.attempts.own_attempts import live_jobsets
from finetune_operator.lifecycle.attempts.pending_records import Record, as_if_written
from finetune_operator.lifecycle.observation import AttemptFiles, Observation, ReadFailure, RunFolderView


def without_damaged_records(observation: Observation) -> tuple[Observation, tuple[Record, ...]]:
    """Returns the observation without damaged records, and the records that have to be written."""
    checked = _without_malformed_results(observation)
    found, pending = as_if_written(checked)
    before = observation.folder.attempts
    damaged = {
        key: files.failure
        for key, files in checked.folder.attempts.items()
        if files.failure and files.failure.reason == RESULT_MALFORMED and files != before[key]
    }
    return _warned(found), tuple({**damaged, **dict(pending)}.items())


def _warned(observation: Observation) -> Observation:
    if observation.folder.unreadable or not too_many(observation):
        return observation
    return _with_warnings(
        observation, f"there are more than {MOST_ATTEMPTS} attempts, and the oldest do not count"
    )


def _with_warnings(observation: Observation, *warnings: str, **changes: Any) -> Observation:
    """Returns the observation with more warnings about the run folder, and with ``changes`` of it."""
    folder = observation.folder
    return replace(observation, folder=replace(folder, warnings=(*folder.warnings, *warnings), **changes))


def _without_malformed_results(observation: Observation) -> Observation:
    folder = observation.folder
    newest = {key.stage: key for key in sorted(folder.attempts)}
    unknown = next(
        (files.newer for key, files in folder.attempts.items() if files.newer and key == newest[key.stage]),
        None,
    )
    if unknown is not None:
        why = ReadFailure(reason=Reason.CONTRACT_NEWER, message=f"{unknown.rstrip('.')}.")
        return replace(observation, folder=RunFolderView(unreadable=why))
    bad = {key: files for key, files in folder.attempts.items() if files.malformed or files.newer}
    if not bad:
        return observation
    live = live_jobsets(observation.jobsets, observation.pods)
    ignored = (
        f"{(files.malformed or files.newer or '').rstrip('.')}; a later attempt has followed"
        for key, files in bad.items()
        if key != newest[key.stage]
    )
    attempts = {
        key: _without_result(files, ended=key.jobset not in live, last=key == newest[key.stage])
        if key in bad
        else files
        for key, files in folder.attempts.items()
    }
    return _with_warnings(observation, *ignored, attempts=attempts)


def _without_result(files: AttemptFiles, *, ended: bool, last: bool) -> AttemptFiles:
    """Replaces a result that cannot be parsed by a failure; an existing failure record takes precedence.

    ``ended``: whether the attempt has ended. ``last``: whether it is the last attempt of its stage.
    """
    if files.failure is not None:
        return files
    if not last:
        failure = Failure(
            code=ExitCode.STOPPED,
            reason=RECORD_IGNORED,
            message="The result is unknown, and a later attempt has followed.",
        )
        return replace(files, failure=failure)
    if not ended:
        return files
    failure = Failure(
        code=ExitCode.UNAVAILABLE,
        reason=RESULT_MALFORMED,
        message=f"The stage has ended, and its record cannot be parsed: {files.malformed}."[:1024],
        fix="The stage is retried. If this happens again, find out what else writes to the run folder.",
    )
    return replace(files, failure=failure)
