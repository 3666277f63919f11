"""Cancelled jobs (``spec.cancel``): what runs saves and stops, then the job ends, for good.

A job that has had an attempt ends when its plan and its run folder show whether it has succeeded or failed before. One
that has had none ends at once, whatever else is missing or wrong.
"""

from finetune_contract import ExitCode, Failure
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts.stop_records import CANCELLED
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages
from finetune_operator.lifecycle.stages.spending import ForcedSuspension
from finetune_operator.planning import Refused


def cancelled(stages: JobStages | None) -> Failure:
    """Returns the failure of a job that has ended because it is cancelled. ``stages``: None if it never started."""
    begun = stages is not None and bool(stages.attempts)
    return Failure(
        code=ExitCode.BAD_REQUEST,
        reason=CANCELLED,
        message="The job was cancelled." if begun else "The job was cancelled before it started.",
        fix="To continue it, create a job whose spec.resumeFrom.runFolder is this job's status.resolved.runFolder."
        if begun
        else "To run it, create a job of another name.",
    )


def not_retried() -> Refused:
    """Returns why ``spec.retry`` of a cancelled job has no effect."""
    return Refused(
        Reason.CANCELLED,
        "spec.cancel is true, which cannot be taken back. Create another job; its spec.resumeFrom continues this one.",
    )


def not_ended() -> ForcedSuspension:
    """Returns why a cancelled job of which nothing runs has not ended."""
    return ForcedSuspension(
        reason=Reason.CANCELLING,
        message="The job is cancelled, and nothing of it runs.",
        fix="It ends when its run folder can be read, which shows whether it has succeeded or failed before.",
    )


def ends_unstarted(observation: Observation) -> bool:
    """Returns whether a cancelled job ends although its plan or run folder is unknown or still another job's: it has
    had no attempt, so that nothing of it can run or have succeeded."""
    reported, stages = observation.status.attempts, observation.status.stages or ()
    begun = (reported and reported.total) or any(each.job_set for each in stages)
    if observation.jobsets or observation.pods or begun:
        return False
    job, folder = observation.job, observation.folder
    waits_for_takeover = job.control.resumes and all(record.uid != job.uid for record in folder.takeovers)
    return observation.stored is None or folder.unreadable is not None or waits_for_takeover
