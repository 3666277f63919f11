"""Which decisions on cached objects need live reads before they are applied (docs/decisions/watch-cache.md)."""

from enum import Enum

from finetune_contract import Stage
from finetune_operator.api import Phase
from finetune_operator.lifecycle.children.attempt_key import AttemptKey
from finetune_operator.lifecycle.decision import Admit, Create, Decision, Delete, Finish
from finetune_operator.lifecycle.observation import Observation


class Confirmation(Enum):
    """What must be read live before a decision is applied."""

    NOTHING = "nothing"
    JOB = "job"
    """The job alone: the decision stands if it has not changed."""
    EVERYTHING = "everything"
    """The decision is taken again on a live observation."""


def confirmation(observation: Observation, decision: Decision) -> Confirmation:
    """Returns what the decision needs.

    Most decisions change nothing that cannot be corrected: they wait, or create a JobSet on CPU nodes after a stage
    whose success is a fact. Those that stop something, charge an attempt, end the job or refuse it do.
    """
    action = decision.action
    if isinstance(action, Admit):
        first = observation.stored is None and not observation.status.resolved
        return Confirmation.NOTHING if first else Confirmation.EVERYTHING
    if isinstance(action, Delete) or action.records or observation.stored is None:
        return Confirmation.EVERYTHING
    if isinstance(action, Create):
        key = AttemptKey.of(action.jobset)
        # The JobSet of an earlier attempt, or its pods, may be missing from the cache.
        if key is None or key.number > 1 or not _nothing_else_runs(observation, key.stage):
            return Confirmation.EVERYTHING
        return Confirmation.JOB if key.stage.on_tpu else Confirmation.NOTHING
    if isinstance(action, Finish):
        succeeded = decision.status.phase == Phase.SUCCEEDED
        return Confirmation.JOB if succeeded else Confirmation.EVERYTHING
    return Confirmation.NOTHING


def _nothing_else_runs(observation: Observation, stage: Stage) -> bool:
    """Whether the stage had no JobSet yet, and the JobSet of each earlier stage's newest attempt has completed.

    One that has vanished or failed may have left running pods, which the cache may lack.
    """
    if any(each.name is stage and each.job_set for each in observation.status.stages or ()):
        return False
    newest: dict[Stage, int] = {}
    for attempt in observation.folder.attempts:
        newest[attempt.stage] = max(attempt.number, newest.get(attempt.stage, 0))
    completed = {each.key.jobset for each in observation.jobsets if each.key and each.completed}
    return newest.items() <= completed
