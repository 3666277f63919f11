"""A profile's limits apply to the resolved values of a job, whatever their source."""

import re
from typing import Any

import pytest

from finetune_contract import DatasetReport, MemoryOutcome, ModelIdentity, PreflightOutcome, Stage
from finetune_operator.api import FineTuneJobSpec, Reason, number_paths
from finetune_operator.planning import Findings, Refused, admit, judge_findings, replan
from finetune_operator.planning.policy.limits import LIMITED
from tests.stage_outcomes import sizes
from tests.unit.lifecycle.world import World, job, profile

ROWS = {"uri": "gs://data/chat.jsonl"}
TRAIN = {"train": [ROWS]}


def limited(path: str, **limit: float) -> Any:
    return profile(constraints={"limits": [{"path": path, **limit}]}, currency="USD")


def refusal_message(spec: dict[str, Any], path: str, **limit: float) -> str:
    with pytest.raises(Refused) as caught:
        admit(job(**spec), [limited(path, **limit)])
    assert caught.value.reason == Reason.POLICY_VIOLATION
    assert caught.value.message.endswith("Ask #ml-help.")
    return caught.value.message


#: The spec of a job, the limited path, and the resolved value.
RESOLVED: list[tuple[dict[str, Any], str, str]] = [
    ({"hyperparameters": {"epochs": 9}}, "hyperparameters.epochs", "9"),
    ({"hyperparameters": {}}, "hyperparameters.epochs", "1"),
    ({"hyperparameters": {"steps": 500}}, "hyperparameters.steps", "500"),
    ({"hyperparameters": {}}, "hyperparameters.globalBatchSize", "8"),
    ({"hyperparameters": {"perDeviceBatchSize": 64}}, "hyperparameters.globalBatchSize", "256"),
    ({"hyperparameters": {"globalBatchSize": 64}}, "hyperparameters.perDeviceBatchSize", "16"),
    ({"hyperparameters": {}}, "hyperparameters.perDeviceBatchSize", "2"),
    (
        {"hyperparameters": {"globalBatchSize": 64, "gradientAccumulationSteps": 4}},
        "hyperparameters.perDeviceBatchSize",
        "4",
    ),
    ({"hyperparameters": {}}, "hyperparameters.gradientAccumulationSteps", "1"),
    ({"method": {"type": "SFT"}}, "hyperparameters.learningRate", "2e-05"),
    ({"method": {"type": "SFT", "lora": {}}}, "hyperparameters.learningRate", "0.0002"),
    ({"method": {"type": "DPO", "lora": {}}, "datasets": TRAIN}, "hyperparameters.learningRate", "5e-06"),
    ({"hyperparameters": {"learningRate": 1e-3}}, "hyperparameters.learningRate", "0.001"),
    ({"hyperparameters": {}}, "hyperparameters.warmupRatio", "0.03"),
    ({"hyperparameters": {"steps": 200, "warmupSteps": 50}}, "hyperparameters.warmupRatio", "0.25"),
    ({"hyperparameters": {"steps": 200, "warmupRatio": 0.1}}, "hyperparameters.warmupSteps", "20"),
    ({"hyperparameters": {"steps": 200, "warmupSteps": 5000}}, "hyperparameters.warmupSteps", "200"),
    ({}, "hyperparameters.maxGradNorm", "1"),
    ({}, "hyperparameters.seed", "42"),
    ({"method": {"type": "SFT", "lora": {}}}, "method.lora.rank", "16"),
    ({"method": {"type": "SFT", "lora": {"rank": 64}}}, "method.lora.alpha", "128"),
    ({"method": {"type": "DPO"}, "datasets": TRAIN}, "method.dpo.beta", "0.1"),
    ({"method": {"type": "DPO"}, "datasets": TRAIN}, "method.dpo.maxPromptLength", "512"),
    ({"method": {"type": "ORPO"}, "datasets": TRAIN}, "method.orpo.lambda", "0.1"),
    ({"method": {"type": "ORPO"}, "datasets": TRAIN}, "method.orpo.maxPromptLength", "512"),
    ({}, "datasets.maxSeqLength", "1024"),
    (
        {"datasets": {**TRAIN, "splitFromTrain": {"fraction": 0.2}}},
        "datasets.splitFromTrain.fraction",
        "0.2",
    ),
    ({"datasets": {**TRAIN, "splitFromTrain": {"fraction": 0.2}}}, "datasets.splitFromTrain.seed", "42"),
    ({}, "checkpointing.everySteps", "100"),
    ({}, "checkpointing.everySeconds", "600"),
    ({}, "checkpointing.keep.last", "2"),
    (
        {"evaluation": {"everySteps": 50}, "checkpointing": {"everySteps": 50}},
        "checkpointing.keep.best",
        "1",
    ),
    ({"evaluation": {"everySteps": 50}}, "evaluation.everySteps", "50"),
    ({}, "evaluation.maxExamples", "500"),
    ({}, "evaluation.generation.maxNewTokens", "128"),
    ({"evaluation": {"generation": {"temperature": 0.7}}}, "evaluation.generation.temperature", "0.7"),
    ({"evaluation": {"generation": {"topK": 3}}}, "evaluation.generation.topK", "3"),
    ({}, "hangPolicy.noStepSeconds", "900"),
    ({}, "hangPolicy.refusedPodsSeconds", "120"),
    ({"hangPolicy": {"blindSeconds": 700}}, "hangPolicy.blindSeconds", "700"),
    ({}, "hangPolicy.stageSeconds", "86400"),
    ({"hangPolicy": {"stageSeconds": 700}}, "hangPolicy.stageSeconds", "700"),
    ({}, "hangPolicy.startupSeconds", "1800"),
    ({}, "preRunningDeadlineSeconds", "7200"),
    ({}, "recovery.maxPreemptions", "100"),
    ({}, "recovery.maxInfrastructureRetries", "5"),
    ({"recovery": {"maxUserRetries": 2}}, "recovery.maxUserRetries", "2"),
    ({}, "resources.slices", "1"),
    ({"resources": {"tpu": "v6e-8"}}, "resources.chipsPerHost", "4"),
    (
        {"resources": {"tpu": "v6e-4", "parallelism": {"tensor": 2}}},
        "resources.parallelism.tensor",
        "2",
    ),
    ({"preflight": {"memory": "Off"}}, "resources.parallelism.fsdp", "4"),
    ({"preflight": {"memory": "Off"}}, "resources.parallelism.data", "1"),
    ({"preflight": {"smoke": {}}}, "preflight.smoke.steps", "5"),
    ({"preflight": {"smoke": {}}}, "preflight.smoke.examples", "64"),
    ({"profiling": {"startStep": 7}}, "profiling.startStep", "7"),
    ({"profiling": {"startStep": 7}}, "profiling.steps", "5"),
    ({"budget": {"maxChipHours": 30}}, "budget.maxChipHours", "30"),
    ({"activeDeadlineSeconds": 60}, "activeDeadlineSeconds", "60"),
    ({"childTTLSecondsAfterFinished": 60}, "childTTLSecondsAfterFinished", "60"),
    ({}, "activeDeadlineSeconds", "no limit"),
    ({}, "childTTLSecondsAfterFinished", "no limit"),
    ({}, "budget.maxChipHours", "no limit"),
    ({}, "budget.maxCost", "no limit"),
]


@pytest.mark.parametrize(("spec", "path", "value"), RESOLVED)
def test_a_limit_applies_to_the_resolved_value(spec: dict[str, Any], path: str, value: str) -> None:
    number = 10**9 if value == "no limit" else float(value)
    words = rf"spec.{re.escape(path)} (is|comes to) {re.escape(value)}( by default or by other fields)?, at "
    if value == "no limit":
        words = rf"spec.{re.escape(path)} has no value, so it is unlimited: set it to at "
    assert re.search(words + "most", refusal_message(spec, path, max=number * 0.99))
    if value != "no limit":
        assert re.search(words + "least", refusal_message(spec, path, min=number * 1.01))
        assert admit(job(**spec), [limited(path, min=number, max=number)]).plan


def test_every_number_of_a_job_can_be_limited_or_is_refused_in_the_profile() -> None:
    assert number_paths(FineTuneJobSpec) - LIMITED == {"retry.generation", "model.fromJob.step"}
    assert number_paths(FineTuneJobSpec) >= LIMITED
    tested = {path for _, path, _ in RESOLVED} | {"hyperparameters.weightDecay", "method.dpo.labelSmoothing"}
    assert tested == LIMITED
    with pytest.raises(Refused, match=r"limits\[0\].path: retry.generation cannot be limited") as caught:
        admit(job(), [limited("retry.generation", max=1)])
    assert caught.value.reason == Reason.PROFILE_INVALID


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"method": {"type": "SFT"}}, "method.lora.rank"),
        ({"method": {"type": "SFT"}}, "method.dpo.beta"),
        ({"method": {"type": "SFT"}}, "method.dpo.labelSmoothing"),
        ({}, "profiling.steps"),
        ({}, "preflight.smoke.steps"),
        ({}, "evaluation.everySteps"),
        ({}, "datasets.splitFromTrain.seed"),
    ],
)
def test_options_that_a_job_does_not_use_break_no_limit(spec: dict[str, Any], path: str) -> None:
    assert admit(job(**spec), [limited(path, min=1000, max=1000)]).plan


def test_a_job_does_not_renew_a_budget_that_its_profile_limits() -> None:
    path, own = "recovery.maxInfrastructureRetries", {"recovery": {"renewedBy": "Checkpoint"}}
    message = refusal_message(own, path, max=10)
    assert f"spec.recovery.renewedBy would renew {path}" in message
    admit(job(**own), [limited(path, min=1)])
    admit(job(**own), [profile()])
    within = limited(path, max=10)
    within["spec"]["defaults"] = {**within["spec"].get("defaults", {}), **own}
    assert admit(job(), [within]).plan.recovery.renewed_by
    assert admit(job(**own), [within]).plan.recovery.renewed_by
    assert not admit(job(), [limited(path, max=10)]).plan.recovery.renewed_by


def test_decimals_are_compared_as_numbers() -> None:
    exact = {"hyperparameters": {"weightDecay": 0.10}}
    assert admit(job(**exact), [limited("hyperparameters.weightDecay", min=1e-1, max=0.1)]).plan
    assert admit(job(**exact), [limited("hyperparameters.weightDecay", max=1.7e308)]).plan
    assert "at most 5E-324 is allowed" in refusal_message(exact, "hyperparameters.weightDecay", max=5e-324)
    little_more = {"hyperparameters": {"weightDecay": 0.1 + 0.2}}
    refusal = refusal_message(little_more, "hyperparameters.weightDecay", max=0.3)
    assert "is 0.30000000000000004, at most 0.3 is allowed" in refusal


def test_a_limit_applies_to_edits_and_to_the_profiles_own_defaults() -> None:
    found = limited("checkpointing.everySteps", min=50)
    stored = admit(job(), [found]).stored
    with pytest.raises(Refused, match=r"checkpointing.everySteps is 7, at least 50"):
        replan(job(checkpointing={"everySteps": 7}), stored)
    found["spec"]["defaults"] = {"checkpointing": {"everySteps": 3}}
    with pytest.raises(Refused, match="is 3, at least 50"):
        admit(job(), [found])


# --- after preflight


def found(steps: int, *rows: dict[str, Any]) -> Findings:
    train = [
        DatasetReport.model_validate(
            {
                "path": "spec.datasets.train[0]", "name": f"train-{index}", "uri": "…", "revision": "r",
                "format": "Text", "rows": 10, "tokens": 100, "trained_tokens": 50, **each,
            }
        )
        for index, each in enumerate(rows or ({"sequences": 80},))
    ]  # fmt: skip
    model = ModelIdentity(
        source="m", revision="r", architecture="A", parameters=1, maxtext_model="m", layout="scanned/float32",
        sizes=sizes(1),
    )  # fmt: skip
    return Findings(
        preflight=PreflightOutcome(
            model=model,
            train=train,
            steps=steps,
            max_seq_length=512,
            row_width=512,
            fingerprint="f",
            fingerprint_inputs={},
            report="gs://a/r",
        )
    )


LATER: list[tuple[dict[str, Any], str, str, Findings, str]] = [
    (
        {"epochs": 3},
        "hyperparameters.steps",
        29,
        found(30),
        "comes to 30 by what preflight found, at most 29",
    ),
    (
        {"epochs": 3},
        "hyperparameters.warmupSteps",
        2,
        found(100),
        "comes to 3 by what preflight found, at most 2",
    ),
    (
        {"epochs": 3, "warmupSteps": 50},
        "hyperparameters.warmupRatio",
        0.4,
        found(100),
        "comes to 0.5 by what preflight found, at most 0.4",
    ),
    # 100 steps of 8 rows, of which an epoch has 80.
    (
        {"steps": 100},
        "hyperparameters.epochs",
        9,
        found(100),
        "comes to 10 by what preflight found, at most 9",
    ),
    (
        {"steps": 100},
        "hyperparameters.epochs",
        9,
        found(100, {"sequences": 40, "epoch_sequences": 60}, {"sequences": 20}),
        "comes to 10 by what preflight found, at most 9",
    ),
    (
        {"steps": 100},
        "hyperparameters.epochs",
        9,
        found(100, {"sequences": 40}, {"sequences": None}),
        "comes to no limit by what preflight found, at most 9",
    ),
    (
        {"steps": 100},
        "hyperparameters.epochs",
        9,
        found(100, {"sequences": 0}),
        "comes to no limit by what preflight found, at most 9",
    ),
]


@pytest.mark.parametrize(("numbers", "path", "most", "findings", "message"), LATER)
def test_limits_on_counts_of_preflight_apply_after_it(
    numbers: dict[str, Any], path: str, most: float, findings: Findings, message: str
) -> None:
    plan = admit(job(hyperparameters=numbers), [limited(path, max=most)]).plan
    assert judge_findings(plan, Findings()) is None
    broken = judge_findings(plan, findings)
    assert broken is not None
    assert broken.reason == Reason.POLICY_VIOLATION
    assert message in broken.message
    assert broken.message.endswith("Ask #ml-help.")
    enough = admit(job(hyperparameters=numbers), [limited(path, max=1e9)]).plan
    assert (judge_findings(enough, findings) is None) is ("no limit" not in message)


@pytest.mark.parametrize(("axis", "limit"), [("fsdp", {"max": 4}), ("data", {"min": 2})])
def test_a_recorded_mesh_is_checked_as_training_uses_it(axis: str, limit: dict[str, float]) -> None:
    """The job's account can write preflight's record; a mesh that does not cover the slice is not used."""
    plan = admit(job(resources={"tpu": "v6e-8"}), [limited(f"resources.parallelism.{axis}", **limit)]).plan
    mesh = plan.mesh.model_copy(update={axis: 4})
    preflight = found(10).preflight
    assert preflight is not None
    memory = MemoryOutcome(source="Compile", slice="v6e-8", mesh=mesh)
    findings = Findings(preflight=preflight.model_copy(update={"memory": memory}))
    assert judge_findings(plan, findings) is not None


def test_epochs_without_counted_rows_are_refused_at_once() -> None:
    spec = {"hyperparameters": {"steps": 100}, "preflight": {"dataset": "Sample"}}
    assert "spec.preflight.dataset: Sample the rows are not counted: use Full" in refusal_message(
        spec, "hyperparameters.epochs", max=5
    )


def test_a_job_beyond_a_limit_fails_before_it_claims_a_slice() -> None:
    world = World(
        job=job(hyperparameters={"steps": 100}), profiles=[limited("hyperparameters.epochs", max=1)]
    )
    world.to_the_end()
    assert world.status["phase"] == "Failed"
    assert world.status["failure"]["reason"] == "PolicyViolation"
    assert world.status["failure"]["class"] == "User"
    assert "hyperparameters.epochs" in world.status["failure"]["message"]
    assert {world.key_of(name).stage for name in world.created} == {Stage.PREFLIGHT}


def test_a_plan_beyond_a_limit_is_not_reported_as_planned() -> None:
    world = World(
        job=job(hyperparameters={"epochs": 1}, planOnly=True),
        profiles=[limited("hyperparameters.steps", max=5)],
    )
    world.to_the_end()
    assert world.status["phase"] == "Failed"
