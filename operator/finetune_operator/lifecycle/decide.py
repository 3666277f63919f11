"""The decision: what to create and delete, what to tell, when to look again. Pure."""

from dataclasses import replace

from finetune_contract import ExitCode, Failure, Stage
from finetune_operator.api import Reason, WaitingReason
from finetune_operator.lifecycle import children, deadlines, retry
from finetune_operator.lifecycle.attempts import Attempt, attempts_of, next_number
from finetune_operator.lifecycle.classify import replacement, suspension
from finetune_operator.lifecycle.conditions import OUTCOME
from finetune_operator.lifecycle.decision import Decision, Deletion, Object
from finetune_operator.lifecycle.notices import attempts_ended, transitions
from finetune_operator.lifecycle.observed import Observed
from finetune_operator.lifecycle.queueing import Queueing, Standing, queueing
from finetune_operator.lifecycle.situation import Course, Situation, Wait, queued
from finetune_operator.lifecycle.stages import Survey, survey, waiting_input
from finetune_operator.lifecycle.status import build_status, pace
from finetune_operator.lifecycle.times import parse, stamp
from finetune_operator.planning import (
    Plan,
    Refused,
    Snapshot,
    admit,
    make_plan,
    read_snapshot,
    render_snapshot,
    replan,
)
from finetune_operator.rendering import (
    TPU_STAGES,
    CpuPoolTooSmall,
    content_of,
    first_group,
    jobset_name,
    render_jobset,
)

#: Seconds; nothing tells the job when a profile, a Secret or the store comes back.
_PROFILE_LOOK = 15.0
_STORE_LOOK = 5.0
#: From a JobSet to its first pod: a second where nothing is in the way.
_NO_PODS_SECONDS = 20.0
#: Watches tell of JobSets and pods; this is for what a watch may lose.
_SAFETY_LOOK = 30.0


def decide(observed: Observed) -> Decision:  # noqa: PLR0911  one per case
    """One decision from one look. It raises nothing but what is a fault of the operator itself."""
    job = observed.job
    if children.deleting(job):
        return Decision(status=job.get("status") or {})
    ended = finished(job) and not retry.revived(observed)
    if ended and retry.asked(observed) is None:
        return _keep(observed)
    if observed.snapshot is None:
        return _keep(observed) if ended else _admit(observed)
    attempts = attempts_of(observed)
    try:
        plan, refused = _plan(job, read_snapshot(observed.snapshot), deadlines.passed_capacities(attempts))
    except Refused as error:
        return _keep(observed) if ended else _refuse(observed, error)
    generation = retry.asked(observed)
    if generation is None:
        return _advance(observed, plan, attempts, refused)
    note = retry.note(observed, survey(observed, plan, attempts, suspend=False), generation)
    if note is not None:
        # The note comes first: the next look acts by it, whatever becomes of this operator.
        return Decision(status=job.get("status") or {}, retry=note, look_again_after=0.0)
    decision = _keep(observed) if ended else _advance(observed, plan, attempts, refused)
    return replace(decision, status={**decision.status, "retryGeneration": generation})


def finished(job: Object) -> bool:
    """Whether the status says that the job has ended. That is final: a finished job never starts again by itself."""
    conditions = (job.get("status") or {}).get("conditions", ())
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)


def _keep(observed: Observed) -> Decision:
    """A finished job: its status speaks of the newest spec, nothing of it runs, and its children go when it is time."""
    status = observed.job["status"]
    generation = observed.job["metadata"].get("generation", 1)
    left = _children_left(observed)
    expired = left is not None and left <= 0
    return Decision(
        status={
            **status,
            "observedGeneration": generation,
            "conditions": [{**each, "observedGeneration": generation} for each in status["conditions"]],
        },
        deletions=tuple(
            _deletion(each)
            for each in observed.jobsets
            if _stoppable(each) or (expired and not children.deleting(each))
        ),
        look_again_after=left if left is not None and left > 0 and observed.jobsets else None,
    )


def _children_left(observed: Observed) -> float | None:
    """Seconds until JobSets and pods of a finished job are deleted; None: they stay."""
    ttl = observed.job["spec"].get("childTTLSecondsAfterFinished")
    completed = observed.job["status"].get("completionTime")
    if ttl is None or completed is None:
        return None
    return float(ttl - (observed.now - parse(completed)).total_seconds())


def _admit(observed: Observed) -> Decision:
    """The snapshot alone: nothing is started before somebody has looked into the run folder that it names.

    The ConfigMap may have been deleted from a job that has run for days.
    """
    try:
        admission = admit(observed.job, observed.profiles)
    except Refused as error:
        return _refuse(observed, error)
    status = observed.job.get("status") or {}
    if "resolved" not in status:
        live = [attempt for attempt in attempts_of(observed) if attempt.live]
        look = survey(observed, admission.plan, live, suspend=False)
        status = build_status(observed, Situation(course=Course.ACTIVE, starting=True), look)
    return Decision(
        status=status,
        snapshot=render_snapshot(observed.job, admission.snapshot),
        look_again_after=0.0,
    )


def _refuse(observed: Observed, refused: Refused) -> Decision:
    """Nothing can be planned. What runs goes on; what the status knew stays."""
    situation = Situation(course=Course.INVALID, refused=refused)
    if refused.reason in (Reason.PROFILE_NOT_FOUND, Reason.NO_DEFAULT_PROFILE):
        situation = replace(situation, wait=Wait(reason=WaitingReason.INPUT, message=refused.message))
    decision = _decision(observed, situation, None, max(_PROFILE_LOOK, observed.live_jobs / 20))
    known = {name: value for name, value in (observed.job.get("status") or {}).items() if name != "waiting"}
    return replace(decision, status={**known, **decision.status})


def _plan(job: Object, snapshot: Snapshot, passed: frozenset[str]) -> tuple[Plan, Refused | None]:
    """The plan as the spec reads now; where that is refused, as it was admitted. Raises Refused."""
    try:
        return replan(job, snapshot, passed), None
    except Refused as refused:
        return make_plan({**job, "spec": snapshot.spec}, snapshot, passed), refused


def _advance(
    observed: Observed, plan: Plan, attempts: tuple[Attempt, ...], refused: Refused | None
) -> Decision:
    suspend = bool(observed.job["spec"].get("suspend", False))
    if observed.folder.unreadable:
        return _blind(observed, plan, attempts, observed.folder.unreadable)
    look = survey(observed, plan, attempts, suspend=suspend)
    records = tuple((attempt.key, verdict.record) for attempt, verdict in look.judged if verdict.record)
    decision = _next(observed, look, refused, suspend=suspend)
    return replace(
        decision,
        records=(*records, *decision.records),
        deletions=(*decision.deletions, *_outdated_checks(look)),
    )


def _next(  # noqa: PLR0911  one per case
    observed: Observed, look: Survey, refused: Refused | None, *, suspend: bool
) -> Decision:
    left = deadlines.active_left(look.plan.limits, look.attempts, observed.now)
    expired = left is not None and left <= 0
    if look.live and expired and not look.succeeded and not suspend:
        return _end_attempt(observed, look, look.live, deadlines.active_exceeded(look.plan.limits))
    if look.live and (look.failed or look.succeeded):
        # A leftover: stopped before the job is called finished.
        return _stop(observed, look, look.live, refused)
    if look.live:
        return _suspend(observed, look, look.live, refused) if suspend else _watch(observed, look, refused)
    if look.succeeded:
        return _decision(observed, Situation(course=Course.SUCCEEDED), look)
    if look.failed:
        return _decision(observed, Situation(course=Course.FAILED, failure=_final(look)), look)
    if look.plan.plan_only and look[Stage.PREFLIGHT].done:
        return _decision(observed, Situation(course=Course.PLANNED), look)
    if suspend:
        return _decision(observed, Situation(course=Course.SUSPENDED, refused=refused), look)
    if refused:
        return _decision(observed, Situation(course=Course.INVALID, refused=refused), look)
    over = deadlines.active_exceeded(look.plan.limits) if expired else _no_capacity_left(look)
    if over:
        return _decision(observed, Situation(course=Course.FAILED, failure=over), look)
    due = look.current.retry_at
    if due is not None and due > observed.now:
        left = (due - observed.now).total_seconds()
        return _decision(
            observed,
            Situation(course=Course.ACTIVE, recovering=_recovering(look), wait=_retry(look)),
            look,
            left,
        )
    return _create(observed, look)


def _no_capacity_left(look: Survey) -> Failure | None:
    """Every kind of capacity was waited for in vain."""
    passed = deadlines.passed_capacities(look.attempts)
    if look.current.stage not in TPU_STAGES or not passed or set(look.plan.capacities) - passed:
        return None
    noted = next(each.files.failure for each in reversed(look.attempts) if each.files and each.files.failure)
    return noted.model_copy(update={"message": f"{noted.message} No other kind is left."})


def _create(observed: Observed, look: Survey) -> Decision:
    """The next attempt of the current stage. Every stage before it is green."""
    stage = look.current.stage
    number = next_number(look.current.attempts, stage)
    try:
        jobset = render_jobset(look.plan, stage, number, look.findings)
    except Refused as error:
        return _decision(observed, Situation(course=Course.INVALID, refused=error), look)
    except CpuPoolTooSmall as error:
        failure = Failure(
            code=ExitCode.OUT_OF_MEMORY,
            reason="CpuPoolTooSmall",
            message=str(error),
            fix="Create the job under a profile with larger CPU nodes.",
        )
        return _decision(observed, Situation(course=Course.FAILED, failure=failure), look)
    # What the status tells of this look is what the next look will see: the attempt exists.
    created = survey(
        replace(observed, jobsets=(*observed.jobsets, jobset)),
        look.plan,
        attempts_of(replace(observed, jobsets=(*observed.jobsets, jobset))),
        suspend=False,
    )
    situation = Situation(
        course=Course.ACTIVE,
        starting=True,
        recovering=_recovering(look),
        wait=_input_wait(look),
        queue=queueing(jobset, None, served=True, now=observed.now),
    )
    decision = _decision(observed, situation, created, _NO_PODS_SECONDS)
    return replace(decision, jobset=jobset)


def _watch(observed: Observed, look: Survey, refused: Refused | None) -> Decision:
    """An attempt is alive: say how it goes."""
    attempt = look.live
    assert attempt is not None, "called for a live attempt"
    if not refused and _edited(look, attempt):
        return _end_attempt(observed, look, attempt, replacement())
    queue = queueing(
        attempt.jobset, attempt.workload, served=observed.workloads is not None, now=observed.now
    )
    if queue and queue.without_quota:
        situation = queued(look.current.stage, queue, refused)
        return _decision(observed, situation, look, _next_look(observed, look, attempt))
    late = deadlines.overdue(
        attempt,
        look.plan.limits,
        observed.folder.progress,
        look.plan.placement.capacity,
        observed.now,
    )
    if late:
        return _end_attempt(observed, look, attempt, late)
    running = attempt.running
    wait = _input_wait(look)
    if queue and queue.standing is Standing.CHECKED:
        wait = Wait(reason=WaitingReason.CAPACITY, message=queue.message, since=queue.since)
    obstacle = None if running else children.hindrance(attempt.pods)
    if _makes_no_pods(observed, attempt, queue):
        wait = Wait(reason=WaitingReason.INPUT, message=_no_pods(look.plan, attempt))
    if obstacle:
        wait = Wait(reason=obstacle.reason, message=obstacle.message, since=obstacle.since)
        if obstacle.missing_reference:
            refused = _missing_secret(look.plan, obstacle.message)
            wait = replace(wait, message=refused.message)
    situation = Situation(
        course=Course.ACTIVE,
        refused=refused,
        running=running,
        starting=not running,
        recovering=not running and _recovering(look),
        wait=wait,
        queue=queue,
    )
    return _decision(observed, situation, look, _next_look(observed, look, attempt))


def _next_look(observed: Observed, look: Survey, attempt: Attempt) -> float:
    """Seconds. Only training writes to its run folder before it ends, and no watch tells of that."""
    if attempt.running and attempt.key.stage is Stage.TRAIN:
        regular = pace(observed.live_jobs)
    else:
        regular = max(_SAFETY_LOOK if attempt.pods else _NO_PODS_SECONDS, pace(observed.live_jobs))
    due = (
        deadlines.next_due(attempt, look.plan.limits, observed.now),
        deadlines.active_left(look.plan.limits, look.attempts, observed.now),
    )
    return max(1.0, min([regular, *(each for each in due if each is not None)]))


def _makes_no_pods(observed: Observed, attempt: Attempt, queue: Queueing | None) -> bool:
    if attempt.jobset is None or attempt.pods or attempt.key.restart or children.deleting(attempt.jobset):
        return False
    if queue:  # it counts from when the queue let it go, which its own controller does a moment after Kueue
        let_go = children.resumed_at(attempt.jobset)
    else:
        created = attempt.jobset["metadata"].get("creationTimestamp")
        let_go = parse(created) if created else None
    return let_go is not None and (observed.now - let_go).total_seconds() > _NO_PODS_SECONDS


def _no_pods(plan: Plan, attempt: Attempt) -> str:
    """The Job controller tells the reason in Events alone, which the operator may not read."""
    stage, namespace = attempt.key.stage, plan.job.namespace
    name = jobset_name(plan.job.name, stage, attempt.key.number)
    account = plan.service_account_tpu if stage in TPU_STAGES else plan.service_account_cpu
    group = first_group(plan, stage)
    return (
        f'JobSet {name} makes no pods. Is there a ServiceAccount "{account}" in namespace "{namespace}", and do quota '
        f"and admission policies let its pods in? kubectl -n {namespace} describe job {name}-{group}-0 tells which."
    )


def _suspend(observed: Observed, look: Survey, attempt: Attempt, refused: Refused | None) -> Decision:
    situation = Situation(course=Course.SUSPENDING, refused=refused, running=attempt.running)
    return _noted(_deleting(observed, look, situation), attempt, suspension())


def _edited(look: Survey, attempt: Attempt) -> bool:
    """JobSet is about to start again what the spec no longer asks for. Placement is read when an attempt begins."""
    jobset = attempt.jobset
    if jobset is None or attempt.key.restart == 0 or attempt.running or children.deleting(jobset):
        return False
    try:
        now = render_jobset(look.plan, attempt.key.stage, attempt.key.number, look.findings)
    except (Refused, CpuPoolTooSmall):
        return False
    return content_of(now) != content_of(jobset)


def _end_attempt(observed: Observed, look: Survey, attempt: Attempt, why: Failure) -> Decision:
    """It is stopped, and the next one follows."""
    situation = Situation(course=Course.ACTIVE, starting=True, recovering=_recovering(look))
    return _noted(_deleting(observed, look, situation), attempt, why)


def _noted(decision: Decision, attempt: Attempt, why: Failure) -> Decision:
    """The note comes before the signal, so that the attempt's end is charged to nobody."""
    noted = attempt.files.failure if attempt.files else None
    return decision if noted == why else replace(decision, records=((attempt.key, why),))


def _stop(observed: Observed, look: Survey, attempt: Attempt, refused: Refused | None) -> Decision:
    situation = Situation(course=Course.SUSPENDING, refused=refused, running=attempt.running)
    return _deleting(observed, look, situation)


def _deleting(observed: Observed, look: Survey, situation: Situation) -> Decision:
    decision = _decision(observed, situation, look, _SAFETY_LOOK)
    return replace(
        decision, deletions=tuple(_deletion(each) for each in observed.jobsets if _stoppable(each))
    )


def _blind(observed: Observed, plan: Plan, attempts: tuple[Attempt, ...], why: str) -> Decision:
    """The store could not be read: nothing is created, nothing is lost, the status says so."""
    situation = Situation(
        course=Course.ACTIVE,
        store_error=why,
        wait=Wait(reason=WaitingReason.RETRY, message=f"the artifact store could not be read: {why}"),
    )
    live = [attempt for attempt in attempts if attempt.live]
    told = build_status(observed, situation, survey(observed, plan, live, suspend=False))
    previous = observed.job.get("status") or {}
    if "resolved" in previous:
        # What was known from the store is still true; only what is told of now changes.
        fresh = {each["type"]: each for each in told["conditions"]}
        told = {
            **previous,
            "waiting": told["waiting"],
            "summary": told["summary"],
            "conditions": [
                fresh[each["type"]] if each["type"] in OUTCOME else each for each in previous["conditions"]
            ],
        }
    return Decision(status=told, look_again_after=max(_STORE_LOOK, observed.live_jobs / 20))


def _decision(
    observed: Observed, situation: Situation, look: Survey | None, look_again_after: float | None = None
) -> Decision:
    previous = observed.job.get("status") or {}
    status = build_status(observed, situation, look)
    return Decision(
        status=status,
        notices=(
            *transitions(previous.get("conditions", ()), status["conditions"]),
            *attempts_ended(
                previous.get("attempts", {}).get("history", ()), status.get("attempts", {}).get("history", ())
            ),
        ),
        look_again_after=look_again_after,
    )


def _final(look: Survey) -> Failure:
    """Why the job failed, with the budget that it used up where there was one."""
    view = look.failed
    assert view is not None, "called for a job that failed"
    assert view.failure is not None, "a stage that failed has a failure"
    used_up = view.exhausted
    if used_up is None or used_up.allowed == 0:
        return view.failure
    return view.failure.model_copy(
        update={
            "reason": used_up.reason.value,
            "message": f"{view.failure.message} That was number {used_up.used}, and {used_up.field} is "
            f"{used_up.allowed}.",
        }
    )


def _recovering(look: Survey) -> bool:
    verdict = look.current.last_verdict
    return verdict is not None and verdict.failure is not None and waiting_input(look.current) is None


def _retry(look: Survey) -> Wait:
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


def _input_wait(look: Survey) -> Wait | None:
    missing = waiting_input(look[Stage.PREFLIGHT])
    if missing is None:
        return None
    return Wait(reason=WaitingReason.INPUT, message=f"{missing.message} It is being looked for again.")


def _missing_secret(plan: Plan, message: str) -> Refused:
    named = ""
    if plan.hub_token:
        name, key = plan.hub_token
        named = f'spec.huggingFaceTokenSecretRef: key "{key}" of Secret "{name}" in namespace {plan.job.namespace} '
    return Refused(
        Reason.SECRET_NOT_FOUND,
        f"{named or 'a Secret or ConfigMap '}cannot be used: {message}. The job goes on by itself when it appears.",
    )


def _outdated_checks(look: Survey) -> tuple[Deletion, ...]:
    """JobSets of preflights that looked in vain; the newest one stays for people to look at."""
    view = look[Stage.PREFLIGHT]
    return tuple(
        _deletion(attempt.jobset)
        for attempt in view.attempts[:-1]
        if attempt.jobset is not None
        and not attempt.restarted
        and not attempt.live
        and not children.deleting(attempt.jobset)
    )


def _stoppable(jobset: Object) -> bool:
    return not children.jobset_ended(jobset) and not children.deleting(jobset)


def _deletion(jobset: Object) -> Deletion:
    return Deletion(name=jobset["metadata"]["name"], uid=jobset["metadata"]["uid"])
