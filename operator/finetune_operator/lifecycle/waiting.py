"""What a job that could proceed waits for: the reason, the time since when, and what to do."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Reason, WaitingReason
from finetune_operator.api.timestamps import stamp
from finetune_operator.lifecycle.attempts.attempt import Attempt
from finetune_operator.lifecycle.attempts.capacity import RefusedPods
from finetune_operator.lifecycle.attempts.deadlines import interrupted
from finetune_operator.lifecycle.children.kueue import QueueStatus
from finetune_operator.lifecycle.children.object_events import (
    ObjectEvent,
    autoscaler,
    creation_failure,
    last_warning,
)
from finetune_operator.lifecycle.children.pod_blocker import PodBlocker, missing_reference, pod_blocker
from finetune_operator.lifecycle.children.webhook_failure import webhook_failure
from finetune_operator.lifecycle.decision import ObjectReference
from finetune_operator.lifecycle.job_state import WaitCause
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages.job_stages import JobStages, waiting_input
from finetune_operator.planning import Plan, Refused
from finetune_operator.rendering import first_group

#: Seconds that a JobSet may take to create its first pod; usually it takes one.
NO_PODS_SECONDS = 20.0
#: Seconds that a pod is without a node before the autoscaler's Events are read; it acts about every ten.
AUTOSCALER_SECONDS = 60.0
#: Seconds that a pod with a node may take to start its containers before this counts as waiting.
_CREATING_SECONDS = 60.0
_CHIPS = "Insufficient google.com/tpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBlocker:
    """What keeps an attempt from running."""

    wait: WaitCause
    refused: Refused | None = None
    """Set if the job names an object that does not exist."""
    stalled: bool = False
    """It has lasted longer than any other wait may, and has no end of its own."""
    about: ObjectReference | None = None
    """Object whose Events may explain the wait."""


def recovering(stages: JobStages) -> bool:
    """Returns whether the last attempt of the current stage has failed and the stage is retried."""
    result = stages.current.last_result
    waits = waiting_input(stages.current) is not None and stages.current.stage is Stage.PREFLIGHT
    return result is not None and result.failure is not None and not waits


def retry_wait(stages: JobStages) -> WaitCause:
    """Returns the wait for the time of the next attempt."""
    stage_state = stages.current
    result, due = stage_state.last_result, stage_state.retry_at
    assert result is not None, "a stage that is retried has had an attempt"
    assert result.failure is not None, "the last attempt of a stage that is retried has failed"
    assert due is not None, "called while the next attempt is not due"
    missing = waiting_input(stage_state)
    return WaitCause(
        reason=WaitingReason.INPUT if missing else WaitingReason.RETRY,
        message=f"{_missing(stages, missing or result.failure)} The next attempt starts at {stamp(due)}.",
        since=result.finished,
    )


def refusal_wait(record: Failure, due: datetime) -> WaitCause:
    """Returns the wait for the time of the next attempt, after pods were refused."""
    message = f"{record.message} The next attempt starts at {stamp(due)}."
    return WaitCause(reason=WaitingReason.PODS_REFUSED, message=message, since=record.written)


def input_wait(stages: JobStages) -> WaitCause | None:
    """Returns the wait for an input that preflight has not found, or for access; None if there is no such wait.

    Preflight is what tests both. Another stage that runs again has other things to do.
    """
    stage_state = stages.current
    missing, live = waiting_input(stage_state), stage_state.live
    if missing is None or (stage_state.stage is not Stage.PREFLIGHT and live is not None and live.running):
        return None
    return WaitCause(reason=WaitingReason.INPUT, message=f"{_missing(stages, missing)} Retrying.")


def _missing(stages: JobStages, failure: Failure) -> str:
    """What the failure says; of refused access also whose it is and how long it is waited for."""
    if not (failure.code == ExitCode.PERMISSION_DENIED and waiting_input(stages.current)):
        return failure.message
    plan = stages.plan
    account = plan.service_account_tpu if stages.current.stage.on_tpu else plan.service_account_cpu
    return (
        f'{failure.message} The account is ServiceAccount "{account}" of namespace "{plan.job.namespace}". '
        "A new grant takes minutes to have an effect: this is tried for 10 to 15 minutes."
    )


def attempt_blocker(  # noqa: PLR0911  one per case
    observation: Observation,
    stages: JobStages,
    attempt: Attempt,
    queue: QueueStatus | None,
    refusal: RefusedPods | None,
) -> AttemptBlocker | None:
    """Returns what prevents the attempt's pods from being created or started; None if nothing is known to."""
    plan, stage = stages.plan, attempt.key.stage
    if attempt.pods and refusal:
        wait = WaitCause(reason=WaitingReason.PODS_REFUSED, message=refusal.message, since=refusal.since)
        return AttemptBlocker(wait=wait)
    if queue is None and attempt.jobset is not None and attempt.jobset.suspended:
        return AttemptBlocker(wait=_suspended_by_hand(plan, attempt))
    if unsuspended_at := _without_pods_since(
        observation, attempt, queue, pre_running=plan.limits.pre_running
    ):
        job = f"{attempt.jobset_name}-{first_group(plan, stage)}-0"
        return AttemptBlocker(
            wait=WaitCause(
                reason=WaitingReason.INPUT,
                message=no_pods(plan, attempt, observation.events),
                since=unsuspended_at,
            ),
            about=ObjectReference(kind="Job", name=job),
        )
    found = None if attempt.running else pod_blocker(attempt.pods)
    if found is None:
        return None
    waited = (observation.now - found.since).total_seconds() if found.since else 0.0
    stalled = waited > plan.limits.pre_running
    if found.missing_reference:
        refused = missing_secret(plan, found.message)
        return AttemptBlocker(wait=_wait(found, refused.message), refused=refused, stalled=stalled)
    if found.reason is WaitingReason.IMAGE:
        message = f"{found.message.rstrip('.')}. {_image_fix(found.message)}"
        return AttemptBlocker(wait=_wait(found, message), stalled=stalled)
    message = f"{found.message.rstrip('.')}."
    if found.reason is WaitingReason.POD:
        if waited < _CREATING_SECONDS:
            return None
        warning = last_warning(observation.events or ())
        message = f"{message} {warning.rstrip('.')}." if warning else message
        return AttemptBlocker(wait=_wait(found, message), about=ObjectReference(kind="Pod", name=found.pod))
    if waited < AUTOSCALER_SECONDS:
        # Not a shortage yet, let alone one of quota: a node's device plugin registers after the node.
        moment = " A new TPU node advertises its chips a moment later." if _CHIPS in message else ""
        return AttemptBlocker(wait=_wait(found, f"{message}{moment}"))
    if observation.events is not None:
        message = f"{message} {autoscaler(observation.events, _nodes(plan, stage))}"
    return AttemptBlocker(wait=_wait(found, message), about=ObjectReference(kind="Pod", name=found.pod))


def missing_secret(plan: Plan, message: str) -> Refused:
    """Returns the refusal for a Secret or ConfigMap that a pod refers to and the kubelet does not find. ``message`` is
    the kubelet's."""
    missing = missing_reference(message)
    assert missing is not None, "called for a message that names one"
    kind, name, key = missing
    fields = [
        f'{field}: key "{secret[1]}" of Secret "{name}"'
        for field, secret in _secrets(plan)
        if (kind, name) == ("Secret", secret[0]) and key in (None, secret[1])
    ]
    added = f'{kind} "{name}", which not the job but a webhook or policy has added to the pod,'
    return Refused(
        Reason.SECRET_NOT_FOUND,
        f"{' and '.join(fields) or added} in namespace {plan.job.namespace} cannot be used: {message}. "
        "The job continues automatically when it appears.",
    )


def _secrets(plan: Plan) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields the fields of the job that name Secrets, each with the Secret's name and key."""
    if plan.hub_token:
        yield "spec.huggingFaceTokenSecretRef", plan.hub_token
    for variable, secret in plan.upload_tokens.items():
        if secret != plan.hub_token:
            index = variable.rpartition("_")[2]
            yield f"spec.export.destinations[{index}].huggingFaceHub.tokenSecretRef", secret


def no_pods(plan: Plan, attempt: Attempt, events: Iterable[ObjectEvent] | None) -> str:
    """Returns why a JobSet has no pods, with the Job controller's message if there is one."""
    stage, namespace = attempt.key.stage, plan.job.namespace
    name = attempt.jobset_name
    account = plan.service_account_tpu if stage.on_tpu else plan.service_account_cpu
    check = (
        f'Check that ServiceAccount "{account}" exists in namespace "{namespace}", and that quota and admission '
        "policies allow its pods"
    )
    failure = creation_failure(events or ())
    if webhook := webhook_failure(failure):
        return f"JobSet {name} creates no pods: {webhook}"
    if failure:
        return f"JobSet {name} creates no pods: {failure.rstrip('.')}. {check}."
    return (
        f"JobSet {name} creates no pods. {check}; kubectl -n {namespace} describe job "
        f"{name}-{first_group(plan, stage)}-0 shows the cause. If there is no such Job, the JobSet controller is down, "
        f"or describe jobset {name} shows why it creates none."
    )


def _without_pods_since(
    observation: Observation, attempt: Attempt, queue: QueueStatus | None, *, pre_running: int
) -> datetime | None:
    """Returns when a JobSet that should have pods by now was unsuspended; None for others."""
    if attempt.jobset is None or attempt.pods or attempt.key.restart or attempt.jobset.deleting:
        return None
    unsuspended_at = attempt.jobset.unsuspended_at(queued=queue is not None)
    if unsuspended_at is None or attempt.jobset.suspended or attempt.stepped:
        return None
    waited = (observation.now - unsuspended_at).total_seconds()
    # A JobSet that had never had pods would have been stopped by then: this one has run and is about to be restarted.
    over = waited > pre_running and interrupted(attempt)
    return unsuspended_at if waited > NO_PODS_SECONDS and not over else None


def _suspended_by_hand(plan: Plan, attempt: Attempt) -> WaitCause:
    name, namespace = attempt.jobset_name, plan.job.namespace
    return WaitCause(
        reason=WaitingReason.INPUT,
        message=f"JobSet {name} is suspended, and no queue holds it. Resume it with: kubectl -n {namespace} patch "
        f'jobset {name} --type merge -p \'{{"spec":{{"suspend":false}}}}\'',
    )


def _wait(found: PodBlocker, message: str) -> WaitCause:
    return WaitCause(reason=found.reason, message=message, since=found.since)


def _image_fix(message: str) -> str:
    """Returns the fix that follows from the registry's response."""
    answer = message.lower()
    if any(word in answer for word in ("401", "403", "unauthorized", "denied", "forbidden")):
        return (
            "The nodes have no permission to read it: ask the platform team to grant their service account "
            "roles/artifactregistry.reader, or to add imagePullSecrets to the pods' ServiceAccount."
        )
    if any(
        word in answer
        for word in ("not found", "notfound", "invalidimagename", "manifest unknown", "no such")
    ):
        return (
            "Ask the platform team to correct spec.images of the profile; new jobs use the corrected profile."
        )
    return "Kubernetes retries automatically."


def _nodes(plan: Plan, stage: Stage) -> str:
    """Describes the nodes that a stage's pods need."""
    on_tpu = stage.on_tpu
    labels = plan.placement.node_selector if on_tpu else plan.cpu_pool.node_selector
    chips = f"{plan.placement.shape.chips_per_host} chips each" if on_tpu else "enough free resources for it"
    named = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return f"{named} and {chips}" if named else chips
