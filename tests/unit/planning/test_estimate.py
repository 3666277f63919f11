"""Memory per device, steps and least time: sums that are computed by hand here."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune_contract import PreferenceMethod
from finetune_operator.planning import Plan
from finetune_operator.planning.considered import considered_slices
from finetune_operator.planning.estimate.model_shape import ModelShape
from finetune_operator.planning.estimate.training_memory import candidates_memory, training_memory
from finetune_operator.planning.estimate.training_time import StepCount, least_step_seconds, step_count
from finetune_operator.rendering.offline import offline_admission

ROOT = Path(__file__).parents[3]
PROFILE = yaml.safe_load((ROOT / "examples" / "profiles" / "gke-v6e.yaml").read_text())
MANY = yaml.safe_load((ROOT / "examples" / "profiles" / "gke-many.yaml").read_text())
PUBLISHED = json.loads((ROOT / "tests" / "trainer" / "published.json").read_text())
#: 2 layers of width 8, vocabulary 32, tied: 256 + 8 + 2 * (4 * 64 + 3 * 8 * 16 + 16) parameters.
TINY = ModelShape.of(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }
)
PARAMETERS = 256 + 8 + 2 * (4 * 64 + 3 * 8 * 16 + 16)
WIDTH = 2 * (4 * 16 + 3 * 24)
TOKENS = 512


def job(**spec: Any) -> dict[str, Any]:
    datasets = {
        "train": [{"uri": "gs://my-project-data/team-a/chat.jsonl"}],
        "maxSeqLength": TOKENS,
        **spec.pop("datasets", {}),
    }
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": "bot", "namespace": "team-a"},
        "spec": {
            "model": {"huggingFace": {"repo": "Qwen/Qwen3-0.6B"}},
            "datasets": datasets,
            "method": {"type": "SFT"},
            "resources": {"tpu": "v6e-4"},
            **spec,
        },
    }


def plan(**spec: Any) -> Plan:
    return offline_admission(job(**spec), PROFILE).plan


@pytest.mark.parametrize(
    ("spec", "weights", "moments", "references"),
    [
        ({}, 4 * PARAMETERS, 2, 0),
        ({"hyperparameters": {"optimizer": "SGD"}}, 4 * PARAMETERS, 0, 0),
        ({"hyperparameters": {"weightPrecision": "BF16"}}, 2 * PARAMETERS, 2, 0),
        ({"method": {"type": "DPO"}}, 4 * PARAMETERS, 2, 1),
        ({"method": {"type": "ORPO"}}, 4 * PARAMETERS, 2, 0),
    ],
)
def test_the_state_is_shared_by_the_devices_that_shard_it(
    spec: dict[str, Any], weights: int, moments: int, references: int
) -> None:
    assert TINY.parameters == PARAMETERS
    made = plan(**spec)
    found = training_memory(made, TINY, made.mesh, "v6e")
    assert found.state == (1 + moments + references) * weights // 4
    assert found.usable == int(31.24 * 2**30)
    assert found.parts is not None
    assert found.parts.parameters == weights // 4
    assert found.parts.optimizer == moments * weights // 4
    assert found.parts.reference == references * weights // 4
    assert found.headroom == found.usable - found.parts.peak


@pytest.mark.parametrize("method", ["SFT", "DPO"])
def test_a_base_model_is_its_own_reference_and_the_adapter_is_on_every_device(method: str) -> None:
    made = plan(method={"type": method, "lora": {"rank": 4}})
    found = training_memory(made, TINY, made.mesh, "v6e").parts
    assert found is not None
    base, adapter = 2 * PARAMETERS // 4, 4 * 4 * WIDTH
    assert found.parameters == base + adapter
    assert found.optimizer == 2 * adapter
    assert found.reference == 0


def test_a_quantized_base_is_whole_while_it_is_loaded() -> None:
    made = plan(method={"type": "SFT", "lora": {"rank": 4, "quantization": "NF4"}})
    found = training_memory(made, TINY, made.mesh, "v6e")
    assert found.parts is not None
    assert found.state > 2 * PARAMETERS // 4 > found.parts.parameters - 4 * 4 * WIDTH


@pytest.mark.parametrize(
    ("spec", "rows", "width", "scored"),
    [
        ({"hyperparameters": {"globalBatchSize": 16}}, 4, TOKENS, TOKENS),
        ({"hyperparameters": {"globalBatchSize": 16, "gradientAccumulationSteps": 2}}, 2, TOKENS, TOKENS),
        ({"resources": {"tpu": "v6e-4", "parallelism": {"tensor": 2}}}, 2, TOKENS, TOKENS),
        ({"method": {"type": "DPO", "dpo": {"maxPromptLength": 384}}}, 4, TOKENS, 128),
        ({"datasets": {"maxSeqLength": 700}}, 2, 1024, 1024),
        ({"datasets": {"maxSeqLength": 130}}, 2, 256, 256),
        ({"datasets": {"maxSeqLength": 100}}, 2, 100, 100),
    ],
)  # fmt: skip
def test_activations_and_logits_follow_from_a_devices_rows(
    spec: dict[str, Any], rows: int, width: int, scored: int
) -> None:
    made = plan(**spec)
    step = training_memory(made, TINY, made.mesh, "v6e").step
    assert (step.rows, step.width, step.scored) == (rows, width, scored)


LARGE = ModelShape.of(PUBLISHED["Llama-3.2-1B-Instruct"]["config"])


@pytest.mark.parametrize(
    ("spec", "remat", "pieces"),
    [
        ({}, "minimal_with_context", 8),
        (
            {"hyperparameters": {"globalBatchSize": 64}, "datasets": {"maxSeqLength": 4096}},
            "save_qkv_proj",
            8,
        ),
        ({"hyperparameters": {"globalBatchSize": 128}, "datasets": {"maxSeqLength": 4096}}, "full", 8),
        ({"engineOverrides": {"remat_policy": "save_qkv_proj", "num_vocab_tiling": "4"}}, "save_qkv_proj", 4),
        ({"engineOverrides": {"remat_policy": "minimal"}}, None, 8),
        ({"engineOverrides": {"remat_policy": "custom", "decoder_layer_input": "offload"}}, "offload", 8),
        ({"engineOverrides": {"remat_policy": "custom", "mlpwo": "device"}}, None, 8),
        ({"preflight": {"memory": "Off"}}, "full", 1),
        ({"preflight": {"memory": "Analytic"}}, "full", 1),
        ({"method": {"type": "ORPO"}}, "minimal_with_context", 1),
    ],
)
def test_the_settings_are_the_jobs_or_those_that_preflight_probably_chooses(
    spec: dict[str, Any], remat: str | None, pieces: int
) -> None:
    profile = copy.deepcopy(PROFILE)
    profile["spec"]["constraints"]["engineOverrides"]["allow"] = [
        "remat_policy",
        "num_vocab_tiling",
        "decoder_layer_input",
        "mlpwo",
    ]
    made = offline_admission(job(**spec), profile).plan
    found = training_memory(made, LARGE, made.mesh, "v6e")
    assert (found.remat, found.pieces) == (remat, pieces)
    assert (found.parts is None) == (remat is None) == (found.headroom is None)


def test_a_state_that_no_slice_holds_is_too_small_on_each_candidate() -> None:
    made = plan(resources={}, hyperparameters={"globalBatchSize": 16})
    model = ModelShape.of(
        PUBLISHED["Llama-3.2-1B-Instruct"]["config"] | {"hidden_size": 16384, "num_hidden_layers": 200}
    )
    found = candidates_memory(made, model)
    assert set(found) == {("v6e", "2x2"), ("v6e", "2x4")}
    assert all(each.too_small for each in found.values())
    assert not any(each.too_small for each in candidates_memory(made, TINY).values())


@pytest.mark.parametrize(
    ("spec", "rows", "steps"),
    [
        ({"hyperparameters": {"steps": 7}}, None, StepCount(steps=7)),
        ({"hyperparameters": {"steps": 7}}, 1000, StepCount(steps=7)),
        ({}, None, None),
        ({}, 1000, StepCount(steps=125, at_most=True)),
        ({"datasets": {"packing": False}}, 1001, StepCount(steps=126)),
        ({"datasets": {"packing": False}, "hyperparameters": {"epochs": 2}}, 1001, StepCount(steps=251)),
        ({"datasets": {"packing": False, "splitFromTrain": {"fraction": 0.1}}}, 1000, StepCount(steps=113)),
        # At most 500 rows of the source are held back.
        (
            {"datasets": {"packing": False, "splitFromTrain": {"fraction": 0.1}}},
            100_000,
            StepCount(steps=12438),
        ),
        ({"method": {"type": "DPO"}}, 1, StepCount(steps=1)),
        ({"datasets": {"train": [{"uri": "gs://my-project-data/team-a/a.txt", "format": "Text"}]}}, 9, None),
    ],
)
def test_steps_follow_from_the_rows_as_the_trainer_counts_them(
    spec: dict[str, Any], rows: int | None, steps: StepCount | None
) -> None:
    found = step_count(plan(**spec), rows)
    assert (found and replace(found, rows=None)) == steps


@pytest.mark.parametrize(
    ("limits", "rows", "expected"),
    [
        ([2000], 207_865, StepCount(steps=250, rows=2000)),
        ([2000], 1000, StepCount(steps=125, rows=1000)),
        ([2000, 600], 207_865, StepCount(steps=325, rows=2600, at_most=True)),
        ([2000, None], 10_000, StepCount(steps=1250, rows=10_000, at_most=True)),
    ],
)
def test_rows_beyond_max_examples_are_not_trained_on(
    limits: list[int | None], rows: int, expected: StepCount
) -> None:
    train = [
        {"uri": f"gs://my-project-data/team-a/{number}.jsonl"} | ({"maxExamples": limit} if limit else {})
        for number, limit in enumerate(limits)
    ]
    assert step_count(plan(datasets={"train": train, "packing": False}), rows) == expected


def test_no_step_is_faster_than_its_arithmetic() -> None:
    matrices = 256 + 2 * (4 * 64 + 3 * 8 * 16)
    attention = 2 * 2 * (4 + 4) * TOKENS**2
    forward = 8 * (2 * matrices * TOKENS + attention)
    rate = 918e12 * 4
    assert least_step_seconds(plan(), TINY) == pytest.approx(3 * forward / rate)
    # Logits of prompts are not needed.
    pairs = plan(method={"type": "DPO"})
    assert isinstance(pairs.method, PreferenceMethod)
    forward_pairs = 2 * (forward - 8 * 2 * 256 * pairs.method.max_prompt_length)
    assert least_step_seconds(pairs, TINY) == pytest.approx(4 * forward_pairs / rate)
    adapted = 8 * (TOKENS * (6 * 4 * WIDTH + 4 * matrices) + 3 * attention)
    lora = plan(method={"type": "SFT", "lora": {"rank": 4}})
    assert least_step_seconds(lora, TINY) == pytest.approx(adapted / rate)


def considered(profile: dict[str, Any], **spec: Any) -> list[tuple[str | None, str, bool, int | None, str]]:
    manifest = job(**spec)
    admission = offline_admission(manifest, profile)
    found = considered_slices(admission.job, admission.stored, admission.plan)
    return [
        (each.shape.name if each.shape else None, each.flavor, each.chosen, each.next, each.why)
        for each in found
    ]


def test_every_slice_of_the_profile_has_a_reason() -> None:
    spec = {
        "datasets": {"train": [{"uri": "gs://my-project-shared/chat.jsonl"}]},
        "hyperparameters": {"globalBatchSize": 16},
        "resources": {"capacity": ["Spot", "OnDemand"]},
    }
    assert considered(MANY, **spec) == [
        ("v5litepod-4", "v5e-spot", True, None, "chosen"),
        ("v5litepod-16", "v5e-spot", False, 1, "tried next (1), if the training does not fit"),
        ("v5litepod-32", "v5e-spot", False, 2, "tried next (2), if the training does not fit"),
        ("v5litepod-4", "v5e", False, None, "the same slice, if Spot provides no nodes in time"),
        ("v5litepod-16", "v5e", False, 1, "tried next (1), if the training does not fit"),
        (None, "v6e-reserved", False, None, "Reservation is not in spec.resources.capacity"),
        (None, "v6e-eight", False, None, "FlexStart is not in spec.resources.capacity"),
    ]


def test_a_slice_that_cannot_share_the_batch_says_so() -> None:
    spec = {
        "datasets": {"train": [{"uri": "gs://my-project-shared/chat.jsonl"}]},
        "hyperparameters": {"globalBatchSize": 1},
        "resources": {},
    }
    found = considered(MANY, **spec)
    assert ("v5litepod-32", "v5e-spot", False, None, "has more devices than can share the batch") in found


def test_of_a_named_slice_no_other_is_considered() -> None:
    assert considered(PROFILE) == [
        ("v6e-4", "one-host", True, None, "named in spec.resources: no other slice is considered")
    ]


def test_without_a_memory_check_no_other_slice_is_tried() -> None:
    found = considered(PROFILE, resources={}, preflight={"memory": "Off"})
    assert found[1][2:] == (False, None, "dearer, and not tried with preflight.memory Off")
