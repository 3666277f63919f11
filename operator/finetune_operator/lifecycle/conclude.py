"""What the status tells of a look, and what goes with it. The last step of every decision."""

from dataclasses import replace

from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.decision import Decision, Deletion, Object
from finetune_operator.lifecycle.job_events import attempts_ended, transitions
from finetune_operator.lifecycle.job_state import JobState
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages import JobStages
from finetune_operator.lifecycle.status import build_status

#: Seconds. Watches tell of JobSets and pods; this is for what a watch may lose.
SAFETY_LOOK = 30.0


def conclude(
    observation: Observation,
    situation: JobState,
    stages: JobStages | None,
    requeue_after: float | None = None,
) -> Decision:
    """The situation as the whole status, with the Events of what it changes."""
    previous = observation.job.get("status") or {}
    status = build_status(observation, situation, stages)
    return Decision(
        status=status,
        notices=(
            *transitions(previous.get("conditions", ()), status["conditions"]),
            *attempts_ended(
                previous.get("attempts", {}).get("history", ()), status.get("attempts", {}).get("history", ())
            ),
        ),
        requeue_after=requeue_after,
    )


def deleting(observation: Observation, stages: JobStages, situation: JobState) -> Decision:
    """The same, while everything that runs is ended."""
    decision = conclude(observation, situation, stages, SAFETY_LOOK)
    return replace(
        decision, deletions=tuple(deletion(each) for each in observation.jobsets if stoppable(each))
    )


def stoppable(jobset: Object) -> bool:
    """Not ended, and not being deleted yet."""
    return not children.jobset_ended(jobset) and not children.deleting(jobset)


def deletion(jobset: Object) -> Deletion:
    """Of that very JobSet."""
    return Deletion(name=jobset["metadata"]["name"], uid=jobset["metadata"]["uid"])
