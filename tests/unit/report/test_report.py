"""The report as data: what each part shows of the records, and of records that are missing or hostile."""

import json
from array import array
from typing import Any

import pytest

from finetune_contract import EvaluatedRow, Outcome, Stage
from finetune_operator.results.comparison.model import Verdict
from finetune_operator.results.records import AttemptRecords
from finetune_operator.results.report.model import bounded
from finetune_operator.results.training_metrics import TrainingMetrics
from tests.unit.comparison.runs import progress, results, row, rows, run
from tests.unit.report.records import (
    NOW,
    data_report,
    export,
    failure,
    finished,
    finished_status,
    manifest,
    metrics,
    only,
    reported,
    result,
    sample,
)

# --- time and cost


def test_the_parts_of_the_time_add_up_to_the_time_of_the_job() -> None:
    usage = reported(finished()).usage
    assert usage is not None
    assert {part.name: part.seconds for part in usage.parts} == {
        "Train: queued": 30,
        "Train: waiting for nodes and images": 60,
        "Train: loading": 100,
        "Train: compiling, and the first step": 100,
        "Train: training": 600,
        "Train: validation during training": 40,
        "Train: lost: steps that were repeated": 20,
        "Train: saving, and between attempts": 135,
        "Evaluate": 160,
        "between stages": 255,
    }
    assert usage.seconds == sum(part.seconds for part in usage.parts) == 1500


def test_chip_hours_and_cost_of_a_part_are_its_time_on_the_chips() -> None:
    usage = reported(finished()).usage
    assert usage is not None
    parts = {part.name: part for part in usage.parts}
    assert parts["Train: training"].chip_hours == pytest.approx(600 * 4 / 3600)
    assert parts["Train: training"].cost == pytest.approx(2.40 * (600 * 4 / 3600) / 1.2)
    assert parts["Evaluate"].chip_hours == pytest.approx(160 * 4 / 3600)
    assert parts["Train: queued"].chip_hours is None
    assert (usage.chip_hours, usage.cost, usage.currency) == ("1.2", "2.40", "USD")


def test_chip_hours_that_contradict_the_total_are_left_out() -> None:
    records = finished(run=run(status=finished_status(cost={"chipHours": "0.5", "amount": "1.00"})))
    usage = reported(records).usage
    assert usage is not None
    assert {part.chip_hours for part in usage.parts} == {None}
    assert usage.chip_hours == "0.5"


def test_the_time_of_a_running_job_counts_until_the_report() -> None:
    stages = [{"name": "Train", "phase": "Running", "startTime": "2026-11-20T12:58:00Z"}]
    report = reported(only(status={"phase": "Queued", "stages": stages, "startTime": "2026-11-20T12:55:00Z"}))
    assert report.stages[0].seconds == 120
    assert report.usage is not None
    assert report.usage.seconds == 300
    # Nothing of the training was measured yet, so nothing says what it did.
    assert [part.name for part in report.usage.parts] == ["Train", "between stages"]


def test_without_a_status_the_time_is_that_of_the_progress_record() -> None:
    spent = progress().model_copy(update={"seconds": {"startup": 5.0, "compile": 20.0, "productive": 100.0}})
    usage = reported(only(status={}, progress=spent, live=False)).usage
    assert usage is not None
    assert {part.name: part.seconds for part in usage.parts} == {
        "Train: loading": 5,
        "Train: compiling, and the first step": 20,
        "Train: training": 100,
    }


# --- curves


def test_losses_of_training_and_validation_are_one_chart() -> None:
    report = reported(finished())
    assert report.loss is not None
    assert [(line.name, len(line.points)) for line in report.loss.series] == [
        ("training loss", 600),
        ("validation loss", 6),
    ]
    assert [curve.title for curve in report.curves] == ["Throughput", "Gradient norm", "Learning rate"]


def test_without_metrics_the_thinned_curve_of_the_progress_is_shown() -> None:
    report = reported(finished(metrics=TrainingMetrics()))
    assert report.loss is not None
    assert report.loss.series[0].points == [(1, 3.1), (600, 1.7)]


def test_without_a_run_folder_the_curve_of_the_status_is_shown() -> None:
    curve = {
        "points": [{"step": 1, "value": "3.1"}, {"step": 5, "value": "2.5"}, {"step": -1, "value": "x"}, 7]
    }
    report = reported(only(status={"phase": "Running", "progress": {"step": 5, "curve": curve}}))
    assert report.loss is not None
    assert report.loss.series[0].points == [(1, 3.1), (5, 2.5)]


def test_a_diverged_training_shows_from_which_step_on() -> None:
    report = reported(finished(metrics=metrics(3, loss=float("nan"))))
    assert report.loss is not None
    line = report.loss.series[0]
    assert (len(line.not_finite), line.not_finite[0]) == (3, 1)


def test_throughput_is_the_tokens_of_some_steps_by_their_time() -> None:
    report = reported(finished())
    assert report.job.throughput is not None
    assert report.job.throughput.median_step_seconds == 0.5
    points = report.curves[0].series[0].points
    assert len(points) == 200
    assert {rate for _, rate in points} == {2000.0}


def test_a_step_without_its_wait_is_drawn_with_the_step_before() -> None:
    """The trainer waits for a step while the next one runs: of the last step only the rest of the wait is measured."""
    measured_steps = metrics(40)
    measured_steps.column("seconds").values[-2:] = array("d", [0.9, 0.1])
    points = reported(finished(metrics=measured_steps)).curves[0].series[0].points
    assert {rate for _, rate in points} == {2000.0}
    assert [step for step, _ in points][-2:] == [38, 40]


def test_tokens_per_second_are_those_of_all_steps_as_the_time_of_a_step_is() -> None:
    """After a restart shortly before the end the progress record has only what came after it."""
    last = progress().model_copy(update={"tokens_per_second": 50.0})
    throughput = reported(finished(run=run(progress=last))).job.throughput
    assert throughput is not None
    assert throughput.tokens_per_second == 2000.0
    without = reported(finished(run=run(progress=last), metrics=TrainingMetrics())).job.throughput
    assert without is not None
    assert without.tokens_per_second == 50.0


def test_metrics_of_a_preference_method_have_charts_of_their_own() -> None:
    report = reported(finished(metrics=metrics(10, reward_margin=0.5, **{"faq/loss": 1.0})))
    assert [curve.title for curve in report.curves] == [
        "Throughput",
        "Gradient norm",
        "Learning rate",
        "reward_margin",
    ]
    assert report.loss is not None
    assert [line.name for line in report.loss.series] == ["training loss", "validation: faq"]


# --- evaluation and answers


def test_metrics_show_the_difference_from_the_base_model_with_its_interval() -> None:
    evaluation = reported(finished(run=run(measured=rows(200, seed=1, right=0.9)))).evaluation
    assert evaluation is not None
    contrast = {each.name: each.values[0].from_baseline for each in evaluation.metrics}["faq/exact_match"]
    assert contrast is not None
    assert contrast.verdict is Verdict.BETTER
    assert contrast.interval is not None


def test_gates_show_the_measured_value_and_the_threshold() -> None:
    measured = rows(20, seed=1)
    gates = [
        {"metric": "loss", "value": 1.5, "op": "LessOrEqual", "threshold": 1.4, "passed": False},
        {"metric": "faq/exact_match", "op": "GreaterOrEqual", "passed": False},
    ]
    evaluation = reported(
        finished(run=run(measured=measured, evaluation=results(measured, gates=gates)))
    ).evaluation
    assert evaluation is not None
    assert [(gate.metric, gate.value, gate.op, gate.threshold, gate.passed) for gate in evaluation.gates] == [
        ("loss", 1.5, "LessOrEqual", 1.4, False),
        ("faq/exact_match", None, "GreaterOrEqual", None, False),
    ]


@pytest.mark.parametrize(
    "measured",
    [
        [row(number, 1.0, name=f"set-{number}") for number in range(80)],
        [row(0, 1.0, name=f"set-{part}", scores={f"s{n}": 1.0 for n in range(60)}) for part in range(4)],
    ],
    ids=["sets", "scores"],
)
def test_rows_of_more_sets_or_scores_than_a_job_has_leave_the_recorded_means(
    measured: list[EvaluatedRow],
) -> None:
    evaluation = reported(finished(run=run(measured=measured))).evaluation
    assert evaluation is not None
    assert [each.name for each in evaluation.metrics] == ["loss"]


def test_different_answers_come_first_and_repetitions_are_shown_once() -> None:
    given = [sample("a", "1", "1"), sample("b", "1", "2"), sample("b", "1", "2"), sample("c", None, "3")]
    answers = reported(finished(run=run(samples=given))).answers
    assert answers is not None
    assert [answer.sample.prompt for answer in answers.shown] == ["b", "c", "a"]
    assert (answers.different, answers.total) == (3, 4)
    assert answers.shown[0].changes is not None
    assert answers.shown[1].changes is None


def test_long_answers_are_shortened() -> None:
    answers = reported(finished(run=run(samples=[sample("p" * 9000, "b" * 9000, "t" * 9000)]))).answers
    assert answers is not None
    shown = answers.shown[0].sample
    assert max(len(text or "") for text in (shown.prompt, shown.baseline, shown.tuned)) == 2000


# --- attempts


def test_an_attempt_is_shown_by_its_records_and_the_history() -> None:
    attempts = reported(finished()).attempts
    assert attempts is not None
    assert [(each.name, each.outcome, each.failure_class, each.reason) for each in attempts.shown] == [
        ("Preflight 1", "Succeeded", None, None),
        ("Train 1", "Failed", "Preemption", "Preempted"),
        ("Train 1.1", "Succeeded", None, None),
        ("Evaluate 1", "Succeeded", None, None),
    ]
    preempted = attempts.shown[1]
    assert (preempted.start_step, preempted.end_step, preempted.lost_steps) == (0, 310, 10)
    assert (preempted.seconds, preempted.queued, preempted.provisioning) == (400, 30, 60)
    assert (preempted.node, preempted.message) == ("tpu-7", "It ended: Preempted.")
    resumed = attempts.shown[2]
    assert (resumed.start_step, resumed.end_step, resumed.seconds) == (300, 600, 300)


def test_evictions_are_shown_before_the_attempt_that_they_interrupted() -> None:
    history = [
        {"stage": "Train", "attempt": 1, "class": "Quota", "reason": "KueuePreempted", "endStep": 40},
        {"stage": "Train", "attempt": 1, "jobSet": "support-bot-train-1", "reason": "Succeeded"},
    ]
    records = run(
        status={"attempts": {"total": 1, "history": history}},
        attempts=[AttemptRecords(stage=Stage.TRAIN, number=1, result=result(Stage.TRAIN))],
    )
    attempts = reported(records).attempts
    assert attempts is not None
    assert [(each.name, each.outcome, each.end_step) for each in attempts.shown] == [
        ("Train, attempt 1", "Evicted", 40),
        ("Train 1", "Succeeded", None),
    ]


@pytest.mark.parametrize(
    ("records", "entry", "outcome", "failure_class"),
    [
        (AttemptRecords(stage=Stage.TRAIN, number=1, failure=failure("Suspended")), None, "Stopped", None),
        (
            AttemptRecords(stage=Stage.TRAIN, number=1, failure=failure("BadData", code=65)),
            None,
            "Failed",
            "User",
        ),
        (AttemptRecords(stage=Stage.TRAIN, number=1), None, "no record of its end", None),
        (AttemptRecords(stage=Stage.TRAIN, number=1), {"reason": "Suspended"}, "Stopped", None),
        (
            AttemptRecords(stage=Stage.TRAIN, number=1, result=result(Stage.TRAIN, outcome=Outcome.STOPPED)),
            {"reason": "Preempted", "class": "Preemption"},
            "Stopped",
            "Preemption",
        ),
    ],
)
def test_the_end_of_an_attempt(
    records: AttemptRecords, entry: dict[str, Any] | None, outcome: str, failure_class: str | None
) -> None:
    history = [{"stage": "Train", "attempt": 1, "jobSet": "x-train-1"} | entry] if entry else []
    found = reported(run(status={"attempts": {"history": history}}, attempts=[records])).attempts
    assert found is not None
    assert (found.shown[0].outcome, found.shown[0].failure_class) == (outcome, failure_class)


def test_the_attempt_that_runs_is_shown_as_running() -> None:
    stages = [{"name": "Train", "phase": "Running", "jobSet": "support-bot-train-2", "restart": 3}]
    records = run(
        status={"phase": "Running", "stages": stages},
        attempts=[
            AttemptRecords(stage=Stage.TRAIN, number=2, restart=2),
            AttemptRecords(stage=Stage.TRAIN, number=2, restart=3),
        ],
    )
    attempts = reported(records).attempts
    assert attempts is not None
    assert [each.outcome for each in attempts.shown] == ["no record of its end", "Running"]


# --- data, configuration and files


def test_the_data_report_is_shown_without_its_cache() -> None:
    data = reported(finished()).data
    assert data is not None
    assert data.report.train[0].report.rows == 4800
    assert data.report.samples[0].pieces == [(False, "Hi"), (True, "Hello.")]


def test_a_long_row_is_cut() -> None:
    pieces = [[True, "x" * 1500], [False, "y" * 1500], [True, "z"]]
    row_shown = {"dataset": "a", "row": "row 1", "tokens": 1, "trained": 1, "pieces": pieces}
    data = reported(finished(data=data_report(samples=[row_shown]))).data
    assert data is not None
    assert [len(text) for _, text in data.report.samples[0].pieces] == [1500, 500, 1]
    assert data.report.samples[0].pieces[-1] == (False, "…")


def test_files_show_whether_the_manifest_has_the_recorded_digest() -> None:
    for digest, matches in (("a" * 64, True), ("c" * 64, False)):
        files = reported(finished(manifests={"model": manifest(digest=digest)})).files
        assert files is not None
        assert files.exports[0].matches is matches
        assert [file.path for file in files.exports[0].files] == [
            "model-0.safetensors",
            "model-1.safetensors",
        ]


def test_a_run_folder_that_was_copied_still_shows_its_files() -> None:
    files = reported(finished(run=run(run_folder="file:///backup/support-bot"))).files
    assert files is not None
    assert len(files.exports[0].files) == 2


def test_a_copy_of_the_model_elsewhere_has_no_files_of_this_folder() -> None:
    files = reported(finished(export=export(uri="gs://models/copy"))).files
    assert files is not None
    assert (files.exports[0].matches, list(files.exports[0].files)) == (None, [])


def test_of_thousands_of_files_the_first_are_shown() -> None:
    files = reported(finished(manifests={"model": manifest(5000)})).files
    assert files is not None
    assert (len(files.exports[0].files), files.exports[0].left_out) == (200, 4800)


def test_the_configuration_is_that_of_the_request_and_the_spec() -> None:
    configuration = reported(finished()).configuration
    assert configuration is not None
    assert dict(configuration.settings)["hyperparameters.learningRate"] == "0.0002"
    assert json.loads(configuration.spec)["method"] == {"type": "SFT"}


# --- missing and hostile records


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        (
            {},
            ["Status", "Time and cost", "Data report", "Loss", "Throughput", "Evaluation", "Exported files"],
        ),
        (
            {"phase": "Queued", "startTime": "2026-11-20T12:59:00Z"},
            ["Data report", "Loss", "Throughput", "Evaluation", "Exported files"],
        ),
    ],
)
def test_what_a_report_does_not_have_is_named_with_the_reason(
    status: dict[str, Any], missing: list[str]
) -> None:
    report = reported(only(status=status))
    assert [name for name, _ in report.missing] == missing
    assert all(why for _, why in report.missing)


def test_a_complete_report_misses_nothing() -> None:
    report = reported(finished())
    assert report.missing == []
    assert (report.job.name, report.uid, report.labels) == ("support-bot", "0b5e3a52", {"team": "nlp"})


HOSTILE: list[Any] = [
    None, True, -1, 2**70, 10**400, float("nan"), float("inf"), "", "x" * 100_000, "\x1b[31m\u202e", [], [[]] * 50,
    {}, {"name": {"name": []}}, [{"name": {"name": []}, "stage": []}],
    [{"name": "Train", "phase": 7, "startTime": "0001-01-01T00:00:00+23:59"}],
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: f"{type(value).__name__}-{str(value)[:12]!r}")
def test_a_value_of_any_type_at_any_place_of_the_status_is_no_error(value: Any) -> None:
    """Everyone who may write to the run folder may have written ``status.json``."""
    whole = finished_status()
    for name, section in whole.items():
        reported(
            only(status=whole | {name: value}, spec={name: value}, metadata={"labels": value, "uid": value})
        )
        if isinstance(section, dict):
            for below in section:
                reported(only(status=whole | {name: section | {below: value}}))
                reported(only(status=whole | {name: section | {below: [value] * 3}}))


def test_names_and_texts_of_records_are_bounded() -> None:
    long = "x" * 50_000
    deep: Any = "leaf"
    for _ in range(500):
        deep = {"a": deep}
    measured = [row(number, scores={long: 1.0}, base_scores={long: 0.0}, name=long) for number in range(20)]
    records = finished(
        run=run(measured=measured, status=finished_status(summary=long), spec={"deep": deep, "long": long}),
        data=data_report(remarks=[{"level": "Note", "text": long}] * 5000),
        unreadable=(),
    )
    report = reported(records)
    assert len(str(report.model_dump())) < 200_000 + len(str(report.loss)) * 6
    assert report.written == NOW


def test_bounds_hold_at_every_depth() -> None:
    assert bounded({"a": ["x" * 20] * 9, "b": (10**30, True, 1.5, None)}, text=5, items=3) == {
        "a": ["xxxx…"] * 3,
        "b": (2**63 - 1, True, 1.5),
    }
