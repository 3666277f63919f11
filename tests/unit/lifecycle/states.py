"""Every state of a job, how to reach it, and what each tool then reports.

The unit tests check the conditions and kubectl's rule against this table; tests/integration/test_states.py runs kstatus
and Argo CD themselves.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from finetune_contract import ExitCode, Stage
from finetune_operator.api import Reason
from finetune_operator.cluster.port import Unavailable
from finetune_operator.lifecycle.job import Job
from finetune_operator.lifecycle.observation import ReadFailure
from finetune_operator.reconcile.errors import status_with_error
from tests.unit.lifecycle.world import World, job, profile

type Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What tools report of a job in one state. The four conditions are None before the first reconcile."""

    reconciling: str | None
    stalled: str | None
    succeeded: str | None
    finished: str | None
    kstatus: str
    argo: str


UNSEEN = Row(
    reconciling=None, stalled=None, succeeded=None, finished=None, kstatus="InProgress", argo="Progressing"
)
ACTIVE = Row(
    reconciling="True",
    stalled="False",
    succeeded="Unknown",
    finished="False",
    kstatus="InProgress",
    argo="Progressing",
)
SUSPENDED = Row(
    reconciling="True",
    stalled="False",
    succeeded="Unknown",
    finished="False",
    kstatus="InProgress",
    argo="Suspended",
)
INVALID = Row(
    reconciling="False",
    stalled="True",
    succeeded="Unknown",
    finished="False",
    kstatus="Failed",
    argo="Degraded",
)
PLANNED = Row(
    reconciling="False",
    stalled="False",
    succeeded="Unknown",
    finished="True",
    kstatus="Current",
    argo="Healthy",
)
SUCCEEDED = Row(
    reconciling="False",
    stalled="False",
    succeeded="True",
    finished="True",
    kstatus="Current",
    argo="Healthy",
)
FAILED = Row(
    reconciling="False",
    stalled="True",
    succeeded="False",
    finished="True",
    kstatus="Failed",
    argo="Degraded",
)


def admitted() -> World:
    world = World()
    world.admit()
    return world


def at(stage: Stage) -> World:
    world = World()
    world.until(stage)
    return world


def _pending() -> World:
    world = at(Stage.CONVERT)
    world.succeed(world.live()[0])
    world.reconcile()
    world.schedule(world.live()[0])
    world.reconcile()
    return world


def _queued(reason: str, message: str) -> World:
    """The JobSet of training waits in a queue."""
    world = World(profiles=[profile(queue={"localQueue": "team-tpu"})])
    for stage in (Stage.PREFLIGHT, Stage.CONVERT):
        world.succeed(world.until(stage))
    world.reconcile()
    (name,) = world.live()
    world.workload(name, ("QuotaReserved", "False", reason, message))
    world.reconcile()
    return world


def _hung() -> World:
    world = at(Stage.TRAIN)
    world.wait(3600)
    world.reconcile()
    world.stop(world.live()[0])
    world.reconcile()
    return world


def _retried() -> World:
    world = failed()
    world.edit(retry={"generation": 1})
    world.reconcile()
    world.reconcile()
    return world


def _missing_input() -> World:
    world = at(Stage.PREFLIGHT)
    world.fail(world.live()[0], ExitCode.INPUT_MISSING, "InputMissing", "gs://data/chat.jsonl is not there")
    world.reconcile()
    return world


def _store_lost() -> World:
    world = at(Stage.TRAIN)
    world.unreadable = "gs://artifacts: timed out"
    world.reconcile()
    return world


def _store_lost_while_invalid() -> World:
    world = _edit_refused_between_stages()
    world.unreadable = "gs://artifacts: timed out"
    world.reconcile()
    return world


def _run_folder_damaged() -> World:
    world = at(Stage.TRAIN)
    world.unreadable = ReadFailure(reason=Reason.RECORD_MALFORMED, message="gs://artifacts/x is no Retry.")
    world.reconcile()
    return world


def _progress_damaged() -> World:
    world = at(Stage.TRAIN)
    world.progress_unknown = ReadFailure(
        reason=Reason.RECORD_MALFORMED, message="gs://artifacts/x is no Progress."
    )
    world.reconcile()
    return world


def _contract_newer() -> World:
    world = at(Stage.TRAIN)
    world.unreadable = ReadFailure(reason=Reason.CONTRACT_NEWER, message="gs://artifacts/x is of version 2.")
    world.reconcile()
    return world


def _suspended_blind() -> World:
    world = _run_folder_damaged()
    world.edit(hangPolicy={"blindSeconds": 60})
    world.wait(61)
    world.reconcile()
    world.stop(world.live()[0])
    world.reconcile()
    return world


def _suspended_while_the_store_is_away() -> World:
    world = _store_lost()
    world.edit(suspend=True)
    world.reconcile()
    world.stop(world.live()[0])
    world.reconcile()
    return world


def _error_first() -> World:
    world = World()
    _meet_error(world)
    return world


def _error_while_invalid() -> World:
    world = no_profile()
    _meet_error(world)
    return world


def _meet_error(world: World) -> None:
    error = Unavailable("etcd is away", status=503)
    shown = status_with_error(Job.parse(world.job), error, now=world.now, retry_in=30)
    world.job["status"] = shown.to_document()


def _edit_refused_while_running() -> World:
    world = at(Stage.TRAIN)
    world.edit(resources={"tpu": "v6e-256"})
    world.reconcile()
    return world


def _preempted() -> World:
    world = at(Stage.TRAIN)
    world.stop(world.live()[0])
    world.reconcile()
    assert world.status["phase"] == "Recovering", world.status
    return world


def _waits_to_try_again() -> World:
    world = at(Stage.TRAIN)
    world.fail(world.live()[0], ExitCode.UNAVAILABLE)
    world.reconcile()
    assert world.status["waiting"]["reason"] == "WaitingForRetry", world.status
    return world


def _suspending() -> World:
    world = at(Stage.TRAIN)
    world.edit(suspend=True)
    world.reconcile()
    return world


def _suspended() -> World:
    world = _suspending()
    world.stop(world.live()[0])
    world.reconcile()
    return world


def _suspended_and_edited_against_the_rules() -> World:
    world = _suspended()
    world.edit(resources={"tpu": "v6e-256"})
    world.reconcile()
    return world


def born_suspended_without_a_profile() -> World:
    world = World(job=job(suspend=True, profileRef={"name": "late"}))
    world.reconcile()
    return world


def _cancelling() -> World:
    world = at(Stage.TRAIN)
    world.edit(cancel=True)
    world.reconcile()
    return world


def _cancelled() -> World:
    world = _cancelling()
    world.stop(world.live()[0])
    world.reconcile()
    return world


def _cancelled_while_the_store_is_away() -> World:
    world = _store_lost()
    world.edit(cancel=True)
    world.reconcile()
    world.stop(world.live()[0])
    world.reconcile()
    return world


def _cancelled_without_a_profile() -> World:
    world = no_profile()
    world.edit(cancel=True)
    world.reconcile()
    return world


def _resumed() -> World:
    world = _suspended()
    world.edit(suspend=False)
    world.reconcile()
    return world


def born_suspended() -> World:
    world = World(job=job(suspend=True))
    world.reconcile()
    world.reconcile()
    return world


def no_profile() -> World:
    world = World(job=job(profileRef={"name": "late"}))
    world.reconcile()
    return world


def _against_the_rules() -> World:
    world = World(job=job(resources={"tpu": "v6e-256"}))
    world.reconcile()
    return world


def _edit_refused_between_stages() -> World:
    world = _edit_refused_while_running()
    world.succeed(world.live()[0])
    world.reconcile()
    return world


def _plan_lost_with_its_profile() -> World:
    world = at(Stage.TRAIN)
    world.config_map = None
    world.profiles.clear()
    world.reconcile()
    return world


def planned() -> World:
    world = World(job=job(planOnly=True))
    world.to_the_end()
    return world


def succeeded() -> World:
    world = World()
    world.to_the_end()
    return world


def failed() -> World:
    world = at(Stage.TRAIN)
    world.fail(world.live()[0], ExitCode.DIVERGED, "Diverged", "the loss is NaN")
    world.reconcile()
    return world


def _retries_exhausted() -> World:
    world = at(Stage.PREFLIGHT)
    while not world.finished:
        for name in world.live():
            world.run(name)
            world.fail(name, 1)
        world.wait(world.requeue_after or 0)
        world.reconcile()
    return world


def _edited(before: Callable[[], World]) -> World:
    world = before()
    world.edit(cache="Refresh")
    return world


def _edited_and_seen(before: Callable[[], World]) -> World:
    world = _edited(before)
    world.reconcile()
    return world


STATES: Mapping[str, tuple[Callable[[], World], Row]] = {
    "not seen yet": (World, UNSEEN),
    "an older generation, running": (lambda: _edited(lambda: at(Stage.TRAIN)), UNSEEN),
    "an older generation, invalid": (lambda: _edited(no_profile), UNSEEN),
    "an older generation, succeeded": (lambda: _edited(succeeded), UNSEEN),
    "an older generation, failed": (lambda: _edited(failed), UNSEEN),
    "admitted": (admitted, ACTIVE),
    "validating": (lambda: at(Stage.PREFLIGHT), ACTIVE),
    "waiting for input": (_missing_input, ACTIVE),
    "converting": (lambda: at(Stage.CONVERT), ACTIVE),
    "provisioning": (_pending, ACTIVE),
    "training": (lambda: at(Stage.TRAIN), ACTIVE),
    "evaluating": (lambda: at(Stage.EVALUATE), ACTIVE),
    "exporting": (lambda: at(Stage.EXPORT), ACTIVE),
    "an edit refused while a stage runs": (_edit_refused_while_running, ACTIVE),
    "store out of reach": (_store_lost, ACTIVE),
    "store out of reach while invalid": (_store_lost_while_invalid, ACTIVE),
    "run folder damaged": (_run_folder_damaged, ACTIVE),
    "progress record damaged": (_progress_damaged, ACTIVE),
    "record of a newer contract": (_contract_newer, ACTIVE),
    "suspended as the run folder cannot be read": (_suspended_blind, SUSPENDED),
    "suspended while the store is out of reach": (_suspended_while_the_store_is_away, SUSPENDED),
    "an error at the first look": (_error_first, ACTIVE),
    "an error while invalid": (_error_while_invalid, ACTIVE),
    "queued": (lambda: _queued("WaitingForQuota", "4 more needed"), ACTIVE),
    "can never be admitted": (lambda: _queued("ExceedsMaxQuota", "> maximum capacity (2)"), INVALID),
    "recovering": (_preempted, ACTIVE),
    "recovering from a hang": (_hung, ACTIVE),
    "retried by hand": (_retried, ACTIVE),
    "waiting to try again": (_waits_to_try_again, ACTIVE),
    "suspending": (_suspending, ACTIVE),
    "resumed": (_resumed, ACTIVE),
    "suspended": (_suspended, SUSPENDED),
    "born suspended": (born_suspended, SUSPENDED),
    "suspended, with an edit that is not valid": (
        _suspended_and_edited_against_the_rules,
        replace(SUSPENDED, argo="Degraded"),
    ),
    "suspended without a profile": (born_suspended_without_a_profile, INVALID),
    "cancelling": (_cancelling, ACTIVE),
    "cancelled while the store is out of reach": (_cancelled_while_the_store_is_away, SUSPENDED),
    "no profile": (no_profile, INVALID),
    "against the rules": (_against_the_rules, INVALID),
    "an edit refused between stages": (_edit_refused_between_stages, INVALID),
    "plan lost together with its profile": (_plan_lost_with_its_profile, INVALID),
    "planned": (planned, PLANNED),
    "succeeded": (succeeded, SUCCEEDED),
    "failed": (failed, FAILED),
    "cancelled": (_cancelled, FAILED),
    "cancelled before it started": (_cancelled_without_a_profile, FAILED),
    "retries exhausted": (_retries_exhausted, FAILED),
    "succeeded, edited since": (lambda: _edited_and_seen(succeeded), SUCCEEDED),
    "failed, edited since": (lambda: _edited_and_seen(failed), FAILED),
}


def reach(state: str) -> Object:
    """Returns the job in that state, as the API server stores it."""
    to, _ = STATES[state]
    return copy.deepcopy(to().job)


def waits_end(obj: Object, kind: str) -> bool:
    """Whether ``kubectl wait --for=condition=KIND`` returns: kubectl ignores conditions of older generations."""
    return any(
        each["type"] == kind
        and each["status"] == "True"
        and each["observedGeneration"] >= obj["metadata"]["generation"]
        for each in obj["status"].get("conditions", ())
    )
