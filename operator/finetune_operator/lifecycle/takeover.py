"""Takes over the run folder of another job (``spec.resumeFrom``): once, and never for two jobs at a time."""

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts.attempt import Attempt, next_number
from finetune_operator.lifecycle.observation import Observation, TakeoverRecord
from finetune_operator.lifecycle.stages.retry_budget import too_many_attempts
from finetune_operator.planning import Plan, Refused
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.planning.resumption import refuse_folder_in_use


def takeover_record(
    observation: Observation, plan: Plan, attempts: tuple[Attempt, ...]
) -> TakeoverRecord | None:
    """Returns the record to write before anything is started in the run folder; None if none is due.

    Raises Refused if another job has taken the folder over or may still use it, if no job has ever run in it, or if a
    stage has no attempt number left.
    """
    takeovers, job = observation.folder.takeovers, observation.job
    if observation.folder.unreadable or (takeovers and takeovers[-1].uid == job.uid):
        return None
    # A job that has a JobSet has written a record, whatever has become of it since.
    reported = observation.status.attempts
    begun = bool(observation.jobsets or (reported and reported.total))
    followed = any(each.uid == job.uid for each in takeovers) or (
        begun and (observation.neighbours or observation.unserved_namespace)
    )
    if takeovers and (not plan.resumes or followed):
        raise Refused(
            Reason.RUN_FOLDER_TAKEN,
            f'FineTuneJob "{takeovers[-1].job}" continues in this job\'s run folder, {plan.run_folder.uri}. '
            "Use that job, or create a job with another name.",
        )
    if not plan.resumes:
        return None
    refuse_folder_in_use(job.document, observation.neighbours)
    if observation.unserved_namespace is not None:
        raise Refused(
            Reason.RUN_FOLDER_IN_USE,
            f"spec.resumeFrom.runFolder: {plan.run_folder.uri} was last used by a job of namespace "
            f"{observation.unserved_namespace}, which this operator does not serve, so whether that job has ended is "
            "not known. Copy the run folder below the artifacts of this job's namespace, and name the copy.",
        )
    if not attempts and not takeovers:
        raise Refused(
            Reason.RUN_NOT_FOUND,
            f"spec.resumeFrom.runFolder: no job has run in {plan.run_folder.uri}. Name the runFolder that the other "
            "job's status.resolved shows. The job continues automatically when it exists.",
        )
    before = takeovers[-1].first if takeovers else {}
    first = {stage: max(next_number(attempts, stage), before.get(stage, 1)) for stage in Stage}
    if begun:
        first = _again(observation, attempts)
    if first == before:
        # The previous job has run nothing. Of two records the later one has the higher numbers.
        first[plan.stages[0]] += 1
    if used_up := next((stage for stage in plan.stages if first[stage] > MAX_ATTEMPT), None):
        raise Refused(
            Reason.TOO_MANY_ATTEMPTS,
            f"spec.resumeFrom.runFolder: {too_many_attempts(used_up).message} Create the job without spec.resumeFrom.",
        )
    return TakeoverRecord(uid=job.uid, job=job.name, namespace=job.namespace, first=first)


def _again(observation: Observation, attempts: tuple[Attempt, ...]) -> dict[Stage, int]:
    """Returns the first numbers of a job that has run in the folder and whose record was deleted: it keeps its
    attempts."""
    foreign_attempts = observation.folder.foreign_attempts
    own = {
        stage: [
            each.key.number
            for each in attempts
            if each.key.stage is stage and each.key not in foreign_attempts
        ]
        for stage in Stage
    }
    return {
        stage: min(numbers) if numbers else next_number(attempts, stage, foreign_attempts=foreign_attempts)
        for stage, numbers in own.items()
    }
