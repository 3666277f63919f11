"""What a job that could go on waits for, in words: why, since when, and what to do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from finetune_contract import Stage
from finetune_operator.api import Reason, WaitingReason
from finetune_operator.lifecycle import children
from finetune_operator.lifecycle.attempts import Attempt
from finetune_operator.lifecycle.deadlines import interrupted, stepped
from finetune_operator.lifecycle.decision import ObjectReference
from finetune_operator.lifecycle.job_state import WaitCause
from finetune_operator.lifecycle.kueue import QueueStatus
from finetune_operator.lifecycle.object_events import autoscaler, refusal, trouble
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.stages import JobStages, waiting_input
from finetune_operator.lifecycle.times import stamp
from finetune_operator.planning import Plan, Refused
from finetune_operator.rendering import first_group, jobset_name

type Object = Mapping[str, Any]

#: Seconds from a JobSet to its first pod: one where nothing is in the way.
NO_PODS_SECONDS = 20.0
#: Seconds that a pod is without a node before the autoscaler is asked about: it looks every ten or so itself.
AUTOSCALER_SECONDS = 60.0
#: Seconds from a pod's node to its containers that are nothing special.
_CREATING_SECONDS = 60.0
_CHIPS = "Insufficient google.com/tpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBlocker:
    """What keeps an attempt from running."""

    wait: WaitCause
    refused: Refused | None = None
    """Where the job names what is not there."""
    stalled: bool = False
    """It has lasted for longer than any other wait may, and has no end."""
    about: ObjectReference | None = None
    """Whose Events may tell more."""


def recovering(stages: JobStages) -> bool:
    """Whether the current stage has had a bad end, and is tried again."""
    verdict = stages.current.last_verdict
    return verdict is not None and verdict.failure is not None and waiting_input(stages.current) is None


def retry_wait(stages: JobStages) -> WaitCause:
    """For the time of the next try."""
    view = stages.current
    verdict, due = view.last_verdict, view.retry_at
    assert verdict is not None, "a stage that is tried again was tried"
    assert verdict.failure is not None, "a stage that is tried again had a bad end"
    assert due is not None, "called while the next try is not due"
    missing = waiting_input(view) is not None
    word = "Looked for again" if missing else "Tried again"
    return WaitCause(
        reason=WaitingReason.INPUT if missing else WaitingReason.RETRY,
        message=f"{verdict.failure.message} {word} at {stamp(due)}.",
        since=verdict.finished,
    )


def input_wait(stages: JobStages) -> WaitCause | None:
    """For what preflight has looked for in vain."""
    missing = waiting_input(stages[Stage.PREFLIGHT])
    if missing is None:
        return None
    return WaitCause(reason=WaitingReason.INPUT, message=f"{missing.message} It is being looked for again.")


def attempt_blocker(  # noqa: PLR0911  one per case
    observation: Observation, stages: JobStages, attempt: Attempt, queue: QueueStatus | None
) -> AttemptBlocker | None:
    """What keeps the attempt's pods from being made or started; None where nothing is known to."""
    plan, stage = stages.plan, attempt.key.stage
    if queue is None and attempt.jobset is not None and children.suspended(attempt.jobset):
        return AttemptBlocker(wait=_suspended_by_hand(plan, attempt))
    if let_go := _without_pods_since(observation, attempt, queue, pre_running=plan.limits.pre_running):
        job = f"{_name(plan, attempt)}-{first_group(plan, stage)}-0"
        return AttemptBlocker(
            wait=WaitCause(
                reason=WaitingReason.INPUT, message=no_pods(plan, attempt, observation.events), since=let_go
            ),
            about=ObjectReference(kind="Job", name=job),
        )
    found = None if attempt.running else children.pod_blocker(attempt.pods)
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
        told = trouble(observation.events or ())
        message = f"{message} {told.rstrip('.')}." if told else message
        return AttemptBlocker(wait=_wait(found, message), about=ObjectReference(kind="Pod", name=found.pod))
    if waited < AUTOSCALER_SECONDS:
        # It is no shortage yet, let alone one of quota: a node's device plugin registers after the node.
        moment = " A TPU node that has just come shows its chips a moment later." if _CHIPS in message else ""
        return AttemptBlocker(wait=_wait(found, f"{message}{moment}"))
    if observation.events is not None:
        message = f"{message} {autoscaler(observation.events, _nodes(plan, stage))}"
    return AttemptBlocker(wait=_wait(found, message), about=ObjectReference(kind="Pod", name=found.pod))


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


def no_pods(plan: Plan, attempt: Attempt, events: Iterable[Object] | None) -> str:
    """Why, in the words of the Job controller where it has said."""
    stage, namespace = attempt.key.stage, plan.job.namespace
    name = _name(plan, attempt)
    account = plan.service_account_tpu if stage.on_tpu else plan.service_account_cpu
    question = (
        f'Is there a ServiceAccount "{account}" in namespace "{namespace}", and do quota and admission policies let '
        "its pods in?"
    )
    if told := refusal(events or ()):
        return f"JobSet {name} makes no pods: {told.rstrip('.')}. {question}"
    return (
        f"JobSet {name} makes no pods. {question} kubectl -n {namespace} describe job "
        f"{name}-{first_group(plan, stage)}-0 tells which."
    )


def _without_pods_since(
    observation: Observation, attempt: Attempt, queue: QueueStatus | None, *, pre_running: int
) -> datetime | None:
    """When a JobSet that should have pods by now was let go."""
    if attempt.jobset is None or attempt.pods or attempt.key.restart or children.deleting(attempt.jobset):
        return None
    let_go = children.unsuspended_at(attempt.jobset, queued=queue is not None)
    if let_go is None or children.suspended(attempt.jobset) or stepped(attempt, observation.folder.progress):
        return None
    waited = (observation.now - let_go).total_seconds()
    # One that had never made any would have been ended by then: this one has run, and JobSet is about to restart it.
    over = waited > pre_running and interrupted(attempt, observation.folder.progress)
    return let_go if waited > NO_PODS_SECONDS and not over else None


def _suspended_by_hand(plan: Plan, attempt: Attempt) -> WaitCause:
    name, namespace = _name(plan, attempt), plan.job.namespace
    return WaitCause(
        reason=WaitingReason.INPUT,
        message=f"JobSet {name} is suspended, and no queue holds it. Let it go with: kubectl -n {namespace} patch "
        f'jobset {name} --type merge -p \'{{"spec":{{"suspend":false}}}}\'',
    )


def _wait(found: children.PodBlocker, message: str) -> WaitCause:
    return WaitCause(reason=found.reason, message=message, since=found.since)


def _image_fix(message: str) -> str:
    """By what the registry has answered."""
    told = message.lower()
    if any(word in told for word in ("401", "403", "unauthorized", "denied", "forbidden")):
        return (
            "The nodes may not read it: ask the platform team to grant their service account "
            "roles/artifactregistry.reader, or to add imagePullSecrets to the pods' ServiceAccount."
        )
    if any(
        word in told for word in ("not found", "notfound", "invalidimagename", "manifest unknown", "no such")
    ):
        return "Ask the platform team to correct spec.images of the profile; a new job takes it over."
    return "It is tried again by itself."


def _nodes(plan: Plan, stage: Stage) -> str:
    """The nodes that a stage's pods need."""
    on_tpu = stage.on_tpu
    labels = plan.placement.node_selector if on_tpu else plan.cpu_pool.node_selector
    chips = f"{plan.placement.shape.chips_per_host} chips each" if on_tpu else "room for what it requests"
    named = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return f"{named} and {chips}" if named else chips


def _name(plan: Plan, attempt: Attempt) -> str:
    return jobset_name(plan.job.name, attempt.key.stage, attempt.key.number)
