"""Train and Evaluate in two processes, as on a slice of two hosts.

The numbers are those of one process, and a failure of one process ends both.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from finetune_contract import Failure, HostProgress, Outcome, StageRequest, StageResult, TrainOutcome
from finetune_contract.failure import PEER_LOST
from tests.trainer.requests import request
from tests.trainer.stages import Running, Stages, attempt_folder, await_file, result_of

TWO_HOSTS = {"mesh": {"hosts": 2, "chips_per_host": 1, "fsdp": 2}}
#: The step whose batch fails. It is not the first, so both processes have been in a collective before.
FAILING = 3


def asked(stages: Stages, converted: str, stage: str, run: str, **changes: Any) -> StageRequest:
    return request(
        stages.root, stage, run, converted=converted, **{"hyperparameters": {"steps": 6}, **changes}
    )


def ends(running: list[Running]) -> list[int]:
    return [each.wait() for each in running]


def read(made: StageRequest) -> StageResult:
    found = result_of(made)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({}, id="full"),
        pytest.param({"lora": {"rank": 4, "alpha": 8.0}}, id="lora", marks=pytest.mark.thorough),
    ],
)
def test_two_processes_train_and_evaluate_as_one_does(
    method: dict[str, Any], stages: Stages, converted: str
) -> None:
    results: dict[str, list[Any]] = {}
    one_process, two_processes = (f"{name}-{'lora' if method else 'full'}" for name in ("one", "two"))
    for run, mesh in ((one_process, {}), (two_processes, TWO_HOSTS)):
        results[run] = []
        for stage in ("Train", "Evaluate"):
            made = asked(stages, converted, stage, run, train_step=6, method=method, **mesh)
            if mesh:
                running = stages.pair(made)
                assert ends(running) == [0, 0], "\n".join(each.log[-2000:] for each in running)
            else:
                stages.run(
                    stage, run, converted=converted, train_step=6, method=method, hyperparameters={"steps": 6}
                )
            results[run].append(read(made).details)
    one, two = results.values()
    losses = [[float(loss) for loss in stages.losses(run).values()] for run in (one_process, two_processes)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert two[0].evaluation_loss == pytest.approx(one[0].evaluation_loss, rel=1e-5)
    assert two[1].tuned.loss == pytest.approx(one[1].tuned.loss, rel=1e-5)
    assert two[1].baseline.loss == pytest.approx(one[1].baseline.loss, rel=1e-5)
    assert two[1].samples == one[1].samples


@pytest.mark.parametrize("stage", ["Train", "Evaluate"])
def test_a_slice_with_other_devices_than_asked_for_is_reported_as_that(
    stages: Stages, converted: str, stage: str
) -> None:
    mesh = {"hosts": 1, "chips_per_host": 4, "fsdp": 4}
    result = stages.run(stage, f"few-chips-{stage}", converted=converted, train_step=1, mesh=mesh)
    assert result.failure is not None
    assert (result.exit_code, result.failure.reason) == (69, "DeviceCountMismatch")
    assert "found 1 cpu devices, expected 4, over all hosts" in result.failure.message


def test_both_save_when_the_first_ones_clock_says_so(stages: Stages, converted: str) -> None:
    """The clocks run at different speeds; processes that saved different steps would wait for each other forever."""
    made = asked(
        stages, converted, "Train", "by-time", **TWO_HOSTS,
        checkpointing={"every_steps": 100, "every_seconds": 10, "keep_last": 9},
    )  # fmt: skip
    running = stages.pair(made, faults=[("fixed_save_clock", 5.0), ("fixed_save_clock", 0.1)])
    assert ends(running) == [0, 0], "\n".join(each.log[-2000:] for each in running)
    found = read(made).details
    assert isinstance(found, TrainOutcome)
    assert [checkpoint.step for checkpoint in found.checkpoints] == [2, 4, 6]


@pytest.mark.parametrize("heard", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_both_leave_an_evaluation_when_one_is_to_end(stages: Stages, converted: str, heard: int) -> None:
    made = asked(
        stages, converted, "Train", f"left-evaluation-{heard}", **TWO_HOSTS,
        evaluation={"every_steps": 2, "prompts": []},
    )  # fmt: skip
    faults = [("terminated_in_evaluation", 2, 200, heard == index) for index in range(2)]
    running = stages.pair(made, faults=faults)
    assert ends(running) == [75, 75], "\n".join(each.log[-2000:] for each in running)
    found = read(made)
    assert found.outcome is Outcome.STOPPED
    assert isinstance(found.details, TrainOutcome)
    assert [each.step for each in found.details.checkpoints] == [2]


@pytest.mark.parametrize("culprit", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_failure_in_one_process_ends_both_and_is_reported_as_that_ones(
    stages: Stages, converted: str, culprit: int
) -> None:
    made = asked(stages, converted, "Train", f"failed-{culprit}", **TWO_HOSTS)
    faults: list[Any] = [(), ()]
    faults[culprit] = ("raise_at_step", FAILING, "MemoryError", "no room for the batch")
    codes = ends(stages.pair(made, faults=faults))
    found = read(made)
    assert (found.outcome, found.exit_code, codes[0]) == (Outcome.FAILED, 78, 78)
    assert codes[culprit] == 78
    assert found.failure is not None
    assert (found.failure.reason, found.failure.host) == ("OutOfMemory", culprit)
    assert found.failure == written(made)


def test_a_process_that_fails_before_they_meet_leaves_its_own_record(stages: Stages, converted: str) -> None:
    made = asked(stages, converted, "Evaluate", "failed-early", **TWO_HOSTS)
    first, second = stages.pair(made, faults=[(), ("raise_before_joining", "no such thing")])
    assert second.wait() == 1
    assert written(made).host == 1
    await_file(attempt_folder(made) / "request.json")
    first.terminate()  # as Kubernetes does after a pod of the Job has failed
    assert first.wait() == 75
    assert read(made).outcome is Outcome.STOPPED
    assert written(made).reason == "UnexpectedError"


def test_a_process_that_is_killed_is_missed_and_no_other_process_is_blamed(
    stages: Stages, converted: str
) -> None:
    made = asked(stages, converted, "Train", "killed", **TWO_HOSTS)
    first, second = stages.pair(made, faults=[(), ("killed_at_step", FAILING)])
    assert second.wait() == -9
    assert first.wait() == 69
    found = read(made).failure
    assert found is not None
    assert (found.reason, found.host) == (PEER_LOST, 0)


def test_of_a_process_that_stands_still_its_own_record_shows_that_it_lags(
    stages: Stages, converted: str
) -> None:
    made = asked(stages, converted, "Train", "stuck", **TWO_HOSTS)
    running = stages.pair(made, faults=[("stuck_at_step", -1), ("stuck_at_step", FAILING)])
    folder = attempt_folder(made).parents[1] / "train/hosts"
    # Batch N belongs to the step that is reported as N + 1: the first process has begun it, and the second has not.
    # JAX dispatches asynchronously, so the first may also have begun a later one.
    until = {0: FAILING + 1, 1: FAILING}
    for host, step in until.items():
        await_file(folder / f"{host}.json")
        while told(folder / f"{host}.json").step < step:
            ended = result_of(made)
            assert ended is None, ended
            time.sleep(0.01)
    assert told(folder / "1.json").step == FAILING
    for each in running:
        os.kill(each.pid, signal.SIGKILL)
    assert ends(running) == [-9, -9]


def told(path: Path) -> HostProgress:
    return HostProgress.model_validate_json(path.read_bytes())


def written(made: StageRequest) -> Failure:
    return Failure.model_validate_json((attempt_folder(made) / "failure.json").read_bytes())
