"""Going on in the run folder of another job (``spec.resumeFrom``): once, and never two jobs in one folder."""

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts import Attempt, next_number
from finetune_operator.lifecycle.observation import Observation, TakeoverRecord
from finetune_operator.lifecycle.retry_budget import too_many_attempts
from finetune_operator.planning import Plan, Refused
from finetune_operator.planning.requests import MAX_ATTEMPT
from finetune_operator.planning.resumption import refuse_folder_in_use


def takeover_record(
    observation: Observation, plan: Plan, attempts: tuple[Attempt, ...]
) -> TakeoverRecord | None:
    """What to leave in the run folder before anything is started there; None where nothing is due.

    Raises Refused where the folder is another job's by now, or may still be used by one, where no job has ever run, or
    where a stage has no number left.
    """
    notes, metadata = observation.folder.takeovers, observation.job["metadata"]
    if observation.folder.unreadable or (notes and notes[-1].uid == metadata["uid"]):
        return None
    # Where a JobSet of this job is, it has left a note, whatever became of that since.
    begun = bool(
        observation.jobsets or (observation.job.get("status") or {}).get("attempts", {}).get("total")
    )
    followed = any(note.uid == metadata["uid"] for note in notes) or (
        begun and (observation.neighbours or observation.unserved_namespace)
    )
    if notes and (not plan.resumes or followed):
        raise Refused(
            Reason.RUN_FOLDER_TAKEN,
            f'FineTuneJob "{notes[-1].job}" goes on in this job\'s run folder, {plan.run_folder.uri}. '
            "Look at that one; or create a job of another name.",
        )
    if not plan.resumes:
        return None
    refuse_folder_in_use(observation.job, observation.neighbours)
    if observation.unserved_namespace is not None:
        raise Refused(
            Reason.RUN_FOLDER_IN_USE,
            f"spec.resumeFrom.runFolder: {plan.run_folder.uri} was last used by a job of namespace "
            f"{observation.unserved_namespace}, which this operator does not serve, so whether that job has ended is "
            "not known. Copy the run folder below the artifacts of this job's namespace, and name the copy.",
        )
    if not attempts and not notes:
        raise Refused(
            Reason.RUN_NOT_FOUND,
            f"spec.resumeFrom.runFolder: no job has run in {plan.run_folder.uri}. Name the runFolder that the other "
            "job's status.resolved shows. The job goes on by itself when it is there.",
        )
    before = notes[-1].first if notes else {}
    first = {stage: max(next_number(attempts, stage), before.get(stage, 1)) for stage in Stage}
    if begun:
        first = _again(observation, attempts)
    if first == before:
        # The job before has run nothing; of two notes the later one has the higher numbers.
        first[plan.stages[0]] += 1
    if used_up := next((stage for stage in plan.stages if first[stage] > MAX_ATTEMPT), None):
        raise Refused(
            Reason.TOO_MANY_ATTEMPTS,
            f"spec.resumeFrom.runFolder: {too_many_attempts(used_up).message} Create the job without spec.resumeFrom.",
        )
    return TakeoverRecord(
        uid=metadata["uid"], job=metadata["name"], namespace=metadata.get("namespace", "default"), first=first
    )


def _again(observation: Observation, attempts: tuple[Attempt, ...]) -> dict[Stage, int]:
    """The first numbers of a job that has run in the folder and whose note was deleted: it keeps its attempts."""
    strangers = observation.folder.strangers
    own = {
        stage: [each.key.number for each in attempts if each.key.stage is stage and each.key not in strangers]
        for stage in Stage
    }
    return {
        stage: min(numbers) if numbers else next_number(attempts, stage, strangers=strangers)
        for stage, numbers in own.items()
    }
