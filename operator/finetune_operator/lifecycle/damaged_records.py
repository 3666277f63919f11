"""What is believed of a run folder: the one place that turns damaged or foreign files into something to act on.

- A file of an attempt that the job has not made is ignored (:mod:`.known_attempts`).
- A result that cannot be understood is a failure of its attempt, of class Infrastructure, once the attempt has ended.
- Of an attempt that a later one of its stage has followed, such a result is ignored: it decides nothing any more.
- A result that a newer major version of the contract wrote leaves unknown what became of the stage, and with it what
  has to come next.
"""

from collections.abc import Iterable
from dataclasses import replace

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import MOST_ATTEMPTS, too_many
from finetune_operator.lifecycle.classify import RECORD_IGNORED, RESULT_MALFORMED
from finetune_operator.lifecycle.known_attempts import with_own_attempts
from finetune_operator.lifecycle.observation import (
    AttemptFiles,
    AttemptKey,
    Observation,
    ReadFailure,
    RunFolderView,
)
from finetune_operator.lifecycle.pending import Record, as_if_written
from finetune_operator.rendering import attempt_of


def without_damaged_records(observation: Observation) -> tuple[Observation, tuple[Record, ...]]:
    """The look as it is to be judged, and the records that have to be written for that."""
    seen = _without_foreign_retry(with_own_attempts(observation))
    judged = _judged(seen)
    found, pending = as_if_written(judged)
    before = seen.folder.attempts
    damaged = {
        key: files.failure
        for key, files in judged.folder.attempts.items()
        if files.failure and files.failure.reason == RESULT_MALFORMED and files != before[key]
    }
    return _warned(found), tuple({**damaged, **dict(pending)}.items())


def _warned(observation: Observation) -> Observation:
    folder = observation.folder
    if folder.unreadable or not too_many(observation):
        return observation
    warning = f"there are more than {MOST_ATTEMPTS} attempts, and the oldest of them do not count"
    return replace(observation, folder=replace(folder, warnings=(*folder.warnings, warning)))


def _without_foreign_retry(observation: Observation) -> Observation:
    """The operator notes a retry when it is asked for; its generation never falls again."""
    noted, asked = observation.folder.retry, observation.job["spec"].get("retry", {}).get("generation", 0)
    if noted is None or noted.generation <= asked:
        return observation
    warning = f"attempts/retry-{noted.generation}.json is of no retry that this job was asked for"
    folder = replace(observation.folder, retry=None, warnings=(*observation.folder.warnings, warning))
    return replace(observation, folder=folder)


def _judged(observation: Observation) -> Observation:
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
    live = _live(observation)
    ignored = tuple(
        f"{(files.malformed or files.newer or '').rstrip('.')}; a later attempt has followed"
        for key, files in bad.items()
        if key != newest[key.stage]
    )
    attempts = {
        key: _without_result(files, ended=(key.stage, key.number) not in live, last=key == newest[key.stage])
        if key in bad
        else files
        for key, files in folder.attempts.items()
    }
    return replace(
        observation, folder=replace(folder, attempts=attempts, warnings=(*folder.warnings, *ignored))
    )


def _without_result(files: AttemptFiles, *, ended: bool, last: bool) -> AttemptFiles:
    """``last``: of its stage. A record that says why it ended counts as ever."""
    if files.failure is not None:
        return files
    if not last:
        failure = Failure(
            code=ExitCode.STOPPED,
            reason=RECORD_IGNORED,
            message="What became of it is not known, and a later attempt has followed.",
        )
        return replace(files, failure=failure)
    if not ended:
        return files
    failure = Failure(
        code=ExitCode.UNAVAILABLE,
        reason=RESULT_MALFORMED,
        message=f"The stage has ended, and its record cannot be understood: {files.malformed}."[:1024],
        fix="The stage is tried again. Where it happens again, look for what else writes to the run folder.",
    )
    return replace(files, failure=failure)


def _live(observation: Observation) -> frozenset[tuple[Stage, int]]:
    """Numbers of which something may still run."""
    alive: Iterable[children.Object] = (
        *(jobset for jobset in observation.jobsets if not children.jobset_ended(jobset)),
        *(pod for pod in observation.pods if children.pod_live(pod)),
    )
    keys = (AttemptKey(*found) for each in alive if (found := attempt_of(each)))
    return frozenset((key.stage, key.number) for key in keys)
