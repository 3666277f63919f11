"""The state machine of :mod:`.test_machine` with stretches of hours and days in which the run folder cannot be read.

Meanwhile nothing is created, and suspension, deadlines and budgets hold.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from finetune_contract import Stage
from finetune_operator.api import Reason
from finetune_operator.lifecycle.observation import ReadFailure
from tests.unit.lifecycle.test_machine import TPU, Machine

pytestmark = pytest.mark.slow

AWAY = "gs://artifacts: timed out"
ALONE = [
    ReadFailure(
        reason=Reason.RECORD_MALFORMED, message="gs://artifacts/x/attempts/retry-1.json is no Retry."
    ),
    ReadFailure(reason=Reason.STORAGE_PERMISSION_DENIED, message="gs://artifacts/x: 403"),
    ReadFailure(reason=Reason.RUN_FOLDER_TOO_LARGE, message="gs://artifacts/x: more than 20,000 files"),
]
NEWER = ReadFailure(reason=Reason.CONTRACT_NEWER, message="gs://artifacts/x was written under version 2.")
#: Longer than the times that pass here, so that no hang is found and no wait for nodes ends.
LONG = 10**8
#: Failures caused by the user's limits.
LIMITS = ("DeadlineExceeded", "BudgetExhausted", "BudgetTooSmall")
HOUR = 3600


class BlindMachine(Machine):
    def __init__(self) -> None:
        super().__init__()
        self.plan: Any = None
        """Restores the plan as it was last stored: the plan of an edited job cannot be recreated."""

    @initialize(
        hosts=st.sampled_from(["v6e-4", "v6e-8"]),
        hit=st.booleans(),
        prompts=st.booleans(),
        reached=st.sampled_from(
            [None, Stage.CONVERT, Stage.TRAIN, Stage.TRAIN, Stage.EVALUATE, Stage.EXPORT]
        ),
        queued=st.booleans(),
        kinds=st.sampled_from([["OnDemand"], ["Spot", "OnDemand"]]),
        stalled=st.none(),
        gives_up=st.booleans(),
        may_cancel=st.sampled_from([False, False, True]),
    )
    def start(self, reached: Stage | None, **chosen: Any) -> None:
        super().start(reached=reached, **chosen)
        self.world.edit(
            hangPolicy={"startupSeconds": LONG, "noStepSeconds": LONG, "stageSeconds": LONG},
            preRunningDeadlineSeconds=LONG,
        )

    @property
    def blind(self) -> bool:
        return bool(self.world.unreadable) and self.world.config_map is not None

    @rule(why=st.sampled_from([None, AWAY, NEWER, *ALONE]))
    def the_run_folder_can_be_read_or_not(self, why: str | ReadFailure | None) -> None:
        self.world.unreadable = why

    @rule(why=st.sampled_from([None, *ALONE[:1]]))
    def the_progress_record_is_damaged_or_not(self, why: ReadFailure | None) -> None:
        self.world.progress_unknown = why

    @rule(hours=st.sampled_from([1, 5, 24, 72]))
    def hours_pass(self, hours: int) -> None:
        self.world.wait(hours * HOUR)

    @rule(hours=st.sampled_from([1, 10, 1000]), what=st.sampled_from(["deadline", "budget", "blind", "none"]))
    def limits_are_set(self, hours: int, what: str) -> None:
        match what:
            case "deadline":
                self.world.edit(activeDeadlineSeconds=hours * HOUR)
            case "budget":
                self.world.edit(budget={"maxChipHours": hours})
            case "blind":
                hang = {**self.world.job["spec"]["hangPolicy"], "blindSeconds": hours * HOUR}
                self.world.edit(hangPolicy=hang)
            case "none":
                self.lift_limits()

    @precondition(lambda self: self.blind and self.taken is None and not self.world.finished)
    @rule()
    def reconcile_while_unreadable(self) -> None:
        before, spec = list(self.world.created), self.world.job["spec"]
        begun = self.world.jobsets or self.world.pods or self.world.status.get("attempts", {}).get("total")
        unstarted = self.cancelled and not begun
        self.world.reconcile()
        assert self.world.created == before, "nothing is created while the run folder is unreadable"
        assert unstarted or not self.world.finished, "the result of the job is unknown"
        running = [
            name
            for name in self.world.live()
            if "deletionTimestamp" not in self.world.jobsets[name]["metadata"]
        ]
        if spec.get("suspend"):
            assert running == [], "suspension acts at once"
        if self.cancelled:
            assert running == [], "cancellation acts at once"
        seconds = self.world.status.get("activeTime", {}).get("seconds", 0)
        if seconds > spec.get("activeDeadlineSeconds", LONG):
            assert running == [], "the deadline acts at once"
        hours = float(self.world.status.get("cost", {}).get("chipHours", 0))
        if hours > float(spec.get("budget", {}).get("maxChipHours", LONG)):
            assert [name for name in running if self.world.key_of(name).stage in TPU] == [], (
                "the budget acts at once"
            )

    @invariant()
    def the_plan_is_backed_up(self) -> None:
        self.plan = self.world.config_map or self.plan

    @invariant()
    def charged_attempts_match_the_faults(self) -> None:
        if self.world.status.get("failure", {}).get("reason") not in LIMITS:
            super().charged_attempts_match_the_faults()

    def lift_limits(self) -> None:
        self.world.job["spec"].pop("budget", None)
        self.world.job["spec"].pop("activeDeadlineSeconds", None)
        self.world.edit()

    def teardown(self) -> None:
        self.taken = None
        self.world.unreadable = self.world.progress_unknown = None
        self.world.config_map = self.plan
        self.lift_limits()
        if self.world.status.get("failure", {}).get("reason") in LIMITS:
            generation = self.world.job["spec"].get("retry", {}).get("generation", 0) + 1
            self.world.edit(retry={"generation": generation})
        super().teardown()


TestBlindMachine = BlindMachine.TestCase
TestBlindMachine.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
