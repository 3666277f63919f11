"""What a job that could go on waits for, in words."""

from finetune_contract import Stage
from finetune_operator.api import Reason, WaitingReason
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.situation import Wait
from finetune_operator.lifecycle.stages import Survey, waiting_input
from finetune_operator.lifecycle.times import stamp
from finetune_operator.planning import Plan, Refused
from finetune_operator.rendering import TPU_STAGES, first_group, jobset_name


def recovering(look: Survey) -> bool:
    """Whether the current stage has had a bad end, and is tried again."""
    verdict = look.current.last_verdict
    return verdict is not None and verdict.failure is not None and waiting_input(look.current) is None


def retry_wait(look: Survey) -> Wait:
    """For the time of the next try."""
    view = look.current
    verdict, due = view.last_verdict, view.retry_at
    assert verdict is not None, "a stage that is tried again was tried"
    assert verdict.failure is not None, "a stage that is tried again had a bad end"
    assert due is not None, "called while the next try is not due"
    missing = waiting_input(view) is not None
    word = "Looked for again" if missing else "Tried again"
    return Wait(
        reason=WaitingReason.INPUT if missing else WaitingReason.RETRY,
        message=f"{verdict.failure.message} {word} at {stamp(due)}.",
        since=verdict.finished,
    )


def input_wait(look: Survey) -> Wait | None:
    """For what preflight has looked for in vain."""
    missing = waiting_input(look[Stage.PREFLIGHT])
    if missing is None:
        return None
    return Wait(reason=WaitingReason.INPUT, message=f"{missing.message} It is being looked for again.")


def missing_secret(plan: Plan, message: str) -> Refused:
    """A Secret that the job names and the kubelet does not find; ``message`` is the kubelet's."""
    named = ""
    if plan.hub_token:
        name, key = plan.hub_token
        named = f'spec.huggingFaceTokenSecretRef: key "{key}" of Secret "{name}" in namespace {plan.job.namespace} '
    return Refused(
        Reason.SECRET_NOT_FOUND,
        f"{named or 'a Secret or ConfigMap '}cannot be used: {message}. The job goes on by itself when it appears.",
    )


def no_pods(plan: Plan, attempt: Attempt) -> str:
    """The Job controller tells the reason in Events alone, which the operator may not read."""
    stage, namespace = attempt.key.stage, plan.job.namespace
    name = jobset_name(plan.job.name, stage, attempt.key.number)
    account = plan.service_account_tpu if stage in TPU_STAGES else plan.service_account_cpu
    group = first_group(plan, stage)
    return (
        f'JobSet {name} makes no pods. Is there a ServiceAccount "{account}" in namespace "{namespace}", and do quota '
        f"and admission policies let its pods in? kubectl -n {namespace} describe job {name}-{group}-0 tells which."
    )
