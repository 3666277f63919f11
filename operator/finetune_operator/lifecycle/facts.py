"""What is known of a job when it is decided about. A plan or a run folder that is unknown is a value that rules see."""

from dataclasses import dataclass, replace
from functools import cached_property

from finetune_contract import Failure, Stage
from finetune_operator.api import Reason, StagePhase, WaitingReason
from finetune_operator.lifecycle.admission import admit_job, current_plan, stored_plan
from finetune_operator.lifecycle.attempts.attempt import Attempt, attempts_of, seconds_beside_others
from finetune_operator.lifecycle.attempts.pending_records import Record, confirmed_records
from finetune_operator.lifecycle.attempts.stop_records import requested_stop
from finetune_operator.lifecycle.attempts.usage import Usage, UsageRate, rate_of
from finetune_operator.lifecycle.decision import Admit, Delete, NextStep, Wait
from finetune_operator.lifecycle.job_state import JobPhase, JobState, WaitCause
from finetune_operator.lifecycle.observation import Observation
from finetune_operator.lifecycle.retry import acted_generation
from finetune_operator.lifecycle.stages.derive import derive_stages
from finetune_operator.lifecycle.stages.job_stages import JobStages, StageState
from finetune_operator.lifecycle.stops import Limits, planned_limits, seconds_to_stop
from finetune_operator.lifecycle.takeover import takeover_record
from finetune_operator.lifecycle.unplanned import unplanned_limits, unplanned_rate, unplanned_usage
from finetune_operator.planning import Plan, Refused
from finetune_operator.rendering import jobset_name

#: What is missing and may appear without a change of the job.
_MAY_APPEAR = (
    Reason.PROFILE_NOT_FOUND,
    Reason.NO_DEFAULT_PROFILE,
    Reason.CHAT_TEMPLATE_NOT_FOUND,
    Reason.SOURCE_JOB_NOT_FOUND,
    Reason.SOURCE_JOB_RUNNING,
    Reason.SOURCE_JOB_UNUSABLE,
    Reason.RUN_NOT_FOUND,
    Reason.RUN_FOLDER_IN_USE,
    Reason.QUOTA_TOO_SMALL,
)
#: Seconds. No watch reports to the job that a profile, a ConfigMap, a Secret, another job's model or
#: a larger quota has appeared.
_REQUEUE_SECONDS = 15.0
#: The same with any number of other jobs.
_LONGEST_REQUEUE_SECONDS = 60.0
#: Seconds. No watch reports that the store is available again.
_STORE_SECONDS = 5.0
#: Seconds. Listing too many objects takes time, which other jobs need.
_EXCESS_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One observation and what follows from it, each derived when a rule first asks for it."""

    observation: Observation

    @property
    def deleted(self) -> bool:
        """Whether the job is being deleted."""
        return self.observation.job.deleted

    @cached_property
    def ended(self) -> bool:
        """Whether the job has ended, and no retry is recorded that its status does not show yet."""
        shown = self.observation.status.retry_generation or 0
        return self.observation.job.finished and acted_generation(self.observation) <= shown

    @cached_property
    def requested(self) -> Failure | None:
        """The stop that the job's user requests; None: the job may run."""
        return requested_stop(self.observation.job.control)

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        return attempts_of(self.observation)

    @cached_property
    def _admitted(self) -> tuple[Plan | None, Refused | None, NextStep | None]:
        observation = self.observation
        try:
            stored = stored_plan(observation)
            if stored is None:
                return None, None, None if self.ended else admit_job(observation)
            plan, refused = current_plan(observation, stored, self.attempts)
            takeover = takeover_record(observation, plan, self.attempts)
        except Refused as error:
            return None, error, None
        # From the next observation on, what was in the run folder before is not this job's.
        stores = NextStep(action=Admit(write=takeover), requeue_after=0.0) if takeover else None
        return plan, refused, stores

    @property
    def plan(self) -> Plan | None:
        """None: it is lost, refused or not made yet, or the run folder is another job's."""
        return self._admitted[0]

    @property
    def refused(self) -> Refused | None:
        """Why there is no plan, or why the spec in its present form is refused: what runs continues under the admitted
        plan."""
        return self._admitted[1]

    @property
    def stores(self) -> NextStep | None:
        """The step that stores what later decisions start from, if it is missing: the plan or the record of a
        takeover."""
        return self._admitted[2]

    @cached_property
    def stages(self) -> JobStages | None:
        """The state of the stages; None without a plan. If the run folder is unknown: of the stage that runs, or else
        the one that the status contains."""
        observation, plan = self.observation, self.plan
        if plan is None:
            return None
        if observation.folder.unreadable is None:
            attempts = tuple(
                replace(each, over=each.trainer_ended and seconds_beside_others(each, observation.now) == 0)
                for each in self.attempts
            )
            return derive_stages(observation, plan, attempts, stop=self.requested)
        live = next((self._numbered(each, plan) for each in reversed(self.attempts) if each.live), None)
        last = observation.status.stage or Stage.PREFLIGHT
        stage_state = (
            StageState(stage=live.key.stage, phase=StagePhase.RUNNING, attempts=(live,))
            if live
            else StageState(stage=last, phase=StagePhase.PENDING)
        )
        derived = derive_stages(observation, plan, self.attempts, stop=None)
        # Attempts that have ended are classified when their records can be read.
        return replace(derived, stages=(stage_state,), classified=())

    def _numbered(self, attempt: Attempt, plan: Plan) -> Attempt:
        """Returns the attempt with its ordinal from the status: earlier ones cannot be counted."""
        name = jobset_name(plan.job.name, *attempt.key.jobset)
        known = next((each for each in self.observation.status.stages or () if each.job_set == name), None)
        if known is None or known.attempt is None:
            return attempt
        return replace(attempt, ordinal=known.attempt + attempt.key.restart - (known.restart or 0))

    @property
    def planned(self) -> JobStages:
        """``stages`` of a job whose plan is known, which the rules before have made sure of."""
        assert self.stages is not None, "called for a job with a plan"
        return self.stages

    @cached_property
    def live(self) -> Attempt | None:
        """The attempt that may still run; None if there is none."""
        if self.stages:
            return self.stages.live
        return next((each for each in reversed(self.attempts) if each.live and each.jobset), None)

    @cached_property
    def used(self) -> Usage | None:
        """What a job without a plan has used, if something of it runs; else None."""
        return unplanned_usage(self.observation, self.attempts) if self.stages is None and self.live else None

    def rate(self, attempt: Attempt) -> UsageRate:
        """Returns what an hour of the attempt uses."""
        return rate_of(attempt, self.plan) if self.plan else unplanned_rate(attempt, self.observation)

    @cached_property
    def limits(self) -> Limits:
        if self.stages:
            return planned_limits(self.observation, self.stages)
        return unplanned_limits(self.observation, self.used or Usage())

    @property
    def unknown(self) -> bool:
        """Whether plan or run folder is unknown: nothing starts, and records wait in the status."""
        return self.stages is None or self.observation.folder.unreadable is not None

    def state(self) -> JobState:
        """Returns the state of a job whose plan or run folder is unknown, if it is not stopped for a reason of its
        own."""
        refused, why = self.refused, self.observation.folder.unreadable
        running = self.live is not None and self.live.running
        if self.stages is None:
            assert refused is not None, "without a plan there is a refusal"
            appears = refused.reason in _MAY_APPEAR
            # A job whose source still runs is valid: it starts when the other one is done.
            valid = refused.reason is Reason.SOURCE_JOB_RUNNING
            return JobState(
                phase=JobPhase.ACTIVE if valid else JobPhase.INVALID,
                refused=None if valid else refused,
                wait=WaitCause(reason=WaitingReason.INPUT, message=refused.message) if appears else None,
                running=running,
            )
        assert why is not None, "plan or run folder is unknown"
        what = "the job's pods are unknown" if why.excess else "the artifact store could not be read"
        wait = WaitCause(reason=WaitingReason.RETRY, message=f"{what}: {why.message.rstrip('.')}")
        return JobState(phase=JobPhase.ACTIVE, wait=wait, running=running)

    def step(
        self,
        action: Wait | Delete,
        state: JobState,
        records: tuple[Record, ...] | None = None,
        *,
        requeue_after: float | None = None,
    ) -> NextStep:
        """Returns a step of a job that has not ended. If its plan or run folder is unknown, records wait in the status.

        ``records``: those of what is stopped; None: nothing is. ``requeue_after``: ignored if plan or run folder is
        unknown, since no watch reports that they are known again.
        """
        if self.stages is not None:
            unreadable = self.observation.folder.unreadable
            state = replace(state, refused=state.refused or self.refused, unreadable=unreadable)
        if not self.unknown:
            action = replace(action, records=records or ())
            return NextStep(action=action, state=state, stages=self.stages, requeue_after=requeue_after)
        held = dict(confirmed_records(self.observation))
        pending = held | {key: record for key, record in records or () if key not in held}
        summary = None
        if self.stages is None and self.refused and self.observation.job.control.cancel:
            summary = f"Cancelled, and ends when this is corrected: {self.refused.message}"
        elif self.stages is None and records and not self.requested:
            summary = records[-1][1].message
        return NextStep(
            action=action,
            state=state,
            stages=self.stages,
            used=self.used,
            requeue_after=self._requeue_after(),
            pending=None if self.stages is None and records is None else tuple(pending.items()),
            summary=summary,
        )

    def _requeue_after(self) -> float:
        """Returns the seconds until a job whose plan or run folder is unknown is observed again."""
        observation, stages, live = self.observation, self.stages, self.live
        if stages is None:
            return min(observation.pace(_REQUEUE_SECONDS), _LONGEST_REQUEUE_SECONDS)
        why = observation.folder.unreadable
        runs = live and not (live.jobset and live.jobset.deleting)
        due = tuple(seconds_to_stop(self.limits, stages, live)) if live and runs else ()
        regular = observation.pace(_EXCESS_SECONDS if why and why.excess else _STORE_SECONDS)
        return max(1.0, min([regular, *due]))
