"""Going on in the run folder of another job (``spec.resumeFrom``): once, and never two jobs in one folder."""

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.attempts import Attempt, next_number
from finetune_operator.lifecycle.budgets import too_many_attempts
from finetune_operator.lifecycle.observed import Observed, Takeover
from finetune_operator.planning import Plan, Refused
from finetune_operator.planning.requests import MAX_ATTEMPT


def note_due(observed: Observed, plan: Plan, attempts: tuple[Attempt, ...]) -> Takeover | None:
    """What to leave in the run folder before anything is started there; None where nothing is due.

    Raises Refused where the folder is another job's by now, where no job has ever run, or where a stage has no number
    left.
    """
    notes, metadata = observed.folder.takeovers, observed.job["metadata"]
    if observed.folder.unreadable or (notes and notes[-1].uid == metadata["uid"]):
        return None
    if notes and (not plan.resumes or any(note.uid == metadata["uid"] for note in notes)):
        raise Refused(
            Reason.RUN_FOLDER_TAKEN,
            f'FineTuneJob "{notes[-1].job}" goes on in this job\'s run folder, {plan.run_folder.uri}. '
            "Look at that one; or create a job of another name.",
        )
    if not plan.resumes:
        return None
    if not attempts:
        raise Refused(
            Reason.RUN_NOT_FOUND,
            f"spec.resumeFrom.runFolder: no job has run in {plan.run_folder.uri}. Name the runFolder that the other "
            "job's status.resolved shows. The job goes on by itself when it is there.",
        )
    before = notes[-1].first if notes else {}
    first = {stage: max(next_number(attempts, stage), before.get(stage, 1)) for stage in Stage}
    if used_up := next((stage for stage in plan.stages if first[stage] > MAX_ATTEMPT), None):
        raise Refused(
            Reason.TOO_MANY_ATTEMPTS,
            f"spec.resumeFrom.runFolder: {too_many_attempts(used_up).message} Create the job without spec.resumeFrom.",
        )
    return Takeover(uid=metadata["uid"], job=metadata["name"], first=first)
