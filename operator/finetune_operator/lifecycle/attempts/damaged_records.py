"""Defines how damaged files in a run folder are treated. An observation contains no attempts and retries of others.

- A result that cannot be parsed fails its attempt with class Infrastructure, once the attempt has ended.
- If a later attempt of the stage has followed, such a result is ignored, because no decision depends on it.
- After a result with a newer major version of the contract, the state of the stage is unknown, and so is the next
  action.
"""

from dataclasses import replace

from finetune_contract import ExitCode, Failure
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts.attempt import MOST_ATTEMPTS, too_many
from finetune_operator.lifecycle.attempts.classify import RECORD_IGNORED, RESULT_MALFORMED
from finetune_operator.lifecycle.attempts.own_attempts import live_jobsets
from finetune_operator.lifecycle.attempts.pending_records import Record, as_if_written
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.observation import Observation, ReadFailure, RunFolderView


def without_damaged_records(observation: Observation) -> tuple[Observation, tuple[Record, ...]]:
    """Returns the observation without damaged records, and the records that have to be written."""
    folder = observation.folder
    newest = {key.stage: key for key in sorted(folder.attempts)}
    newer = next((files.newer for key in newest.values() if (files := folder.attempts[key]).newer), None)
    if newer is not None:
        why = ReadFailure(reason=Reason.CONTRACT_NEWER, message=f"{newer.rstrip('.')}.")
        return replace(observation, folder=RunFolderView(unreadable=why)), ()
    attempts, warnings = dict(folder.attempts), list(folder.warnings)
    damaged: dict[AttemptKey, Failure] = {}
    live = live_jobsets(observation.jobsets, observation.pods)
    for key, files in folder.attempts.items():
        fault = files.malformed or files.newer
        if fault is None:
            continue
        last = key == newest[key.stage]
        if not last:
            warnings.append(f"{fault.rstrip('.')}; a later attempt has followed")
        # An existing failure record takes precedence, and one that runs may still replace its result.
        if files.failure is None and not (last and key.jobset in live):
            failure = _malformed(fault) if last else _IGNORED
            attempts[key] = replace(files, failure=failure)
            damaged |= {key: failure} if last else {}
    seen = replace(observation, folder=replace(folder, attempts=attempts))
    found, pending = as_if_written(seen)
    if not folder.unreadable and too_many(found):
        warnings.append(f"there are more than {MOST_ATTEMPTS} attempts, and the oldest do not count")
    found = replace(found, folder=replace(found.folder, warnings=tuple(warnings)))
    return found, tuple({**damaged, **dict(pending)}.items())


_IGNORED = Failure(
    code=ExitCode.STOPPED,
    reason=RECORD_IGNORED,
    message="The result is unknown, and a later attempt has followed.",
)


def _malformed(fault: str) -> Failure:
    return Failure(
        code=ExitCode.UNAVAILABLE,
        reason=RESULT_MALFORMED,
        message=f"The stage has ended, and its record cannot be parsed: {fault}."[:1024],
        fix="The stage is retried. If this happens again, find out what else writes to the run folder.",
    )
