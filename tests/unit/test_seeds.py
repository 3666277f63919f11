"""Published recipes as jobs: each manifest plans to the model, data, steps, batch, rate and slice of its command.

Steps, batch and rate are compared exactly, slices by chips and topology. What a document leaves open is None.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from finetune_contract import Stage
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests.plan import planned_jobs
from finetune_operator.cli.manifests.plan_report import KnownInputs, read_model_config
from finetune_operator.planning import Plan

ROOT = Path(__file__).parents[2]
SEEDS = ROOT / "examples" / "seeds"
PROFILE = ROOT / "examples" / "profiles" / "gke-recipes.yaml"
ULTRACHAT = ("HuggingFaceH4/ultrachat_200k", "train_sft")
STORIES = ("gs://my-project-data/team-a/TinyStories-train.txt", None)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the document says, with its lines."""

    lines: tuple[str, ...]
    model: str | None
    tokenizer: str | None = None
    data: tuple[tuple[str, str | None], ...]
    weights: tuple[float | None, ...] = (None,)
    length: int
    steps: int | None
    batch: int
    """Rows of a step over all chips."""
    rate: float
    chips: int | None
    topology: str | None
    lora: tuple[int, float] | None = None
    mesh: tuple[int, int] | None = None
    """Shards of the batch (data and fsdp) and of the matrices."""
    refused: str | None = None
    """Architecture in the config.json that is refused."""
    stages: tuple[Stage, ...] = (Stage.CONVERT, Stage.TRAIN, Stage.EXPORT)


_MAXTEXT = (
    "export TPU_TYPE=<TPU Type> # e.g., v6e-256",
    "export STEPS=<Fine-Tuning Steps> # e.g., 1000",
    "export MODEL_NAME=<Model Name> # e.g., deepseek3-671b",
    "export TOKENIZER_PATH=<Model Tokenizer> # e.g., deepseek-ai/DeepSeek-V3",
    "export DATASET_NAME=<Hugging Face Dataset Name> # e.g., HuggingFaceH4/ultrachat_200k",
    "export TRAIN_SPLIT=<Data Split for Train> # e.g., train_sft",
    "per_device_batch_size=1 steps=$STEPS profiler=xplane",
)
_DEMO = (
    "- **Batch Size**: 8 per device (64 global batch size across 8 TPU chips)",
    "- **Learning Rate**: Adaptive learning rate scheduling",
    "- **Sequence Length**: `max_target_length=1024` tokens",
    "  - `steps=1000` - Training steps",
)
_DEMO_STAGES = (Stage.CONVERT, Stage.TRAIN, Stage.EVALUATE, Stage.EXPORT)
_SPOTJAX = (
    "| `hf_path` | `openai/gsm8k` | HuggingFace dataset |",
    "| `steps` | `500` | Training steps |",
    "| `per_device_batch_size` | `1` | Batch size per TPU chip |",
    "| `max_target_length` | `1024` | Max sequence length |",
    "| `learning_rate` | `3e-6` | Learning rate |",
)
_MARIN = (
    'model_name_or_path="meta-llama/Meta-Llama-3.1-8B",',
    "max_seq_len=4096,",
    "train_batch_size=8,",
    "num_train_steps=1000, ",
    "learning_rate=2e-5,",
    "resources=JaxDistributedConfig(),",
    "This is the per-device batch size.",
)
_MINIGPT = (
    "optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)",
    "maxlen = 256",
    "mesh = jax.make_mesh((4, 2), ('batch', 'model'))",
)
_TRACE = ("tracing_steps = 30", "warmup_steps = 5")
#: By manifest.
RECIPES = {
    # 2e-5 and 2048 are the defaults of MaxText's sft.yml and base.yml.
    "maxtext-deepseek3-v6e-256": Recipe(
        lines=_MAXTEXT, model="deepseek-ai/DeepSeek-V3", data=(ULTRACHAT,), length=2048, steps=1000, batch=256,
        rate=2e-5, chips=256, topology="16x16", refused="DeepseekV3ForCausalLM",
    ),
    "maxtext-deepseek3-v6e-256-pathways": Recipe(
        lines=(*_MAXTEXT, "enable_single_controller=True"), model="deepseek-ai/DeepSeek-V3", data=(ULTRACHAT,),
        length=2048, steps=1000, batch=256, rate=2e-5, chips=256, topology="16x16", refused="DeepseekV3ForCausalLM",
    ),
    # 3e-5 is the default of MaxText's base.yml.
    "maxtext-gemma2-2b-v6e-8": Recipe(
        lines=(*_DEMO, "    participant TPU as TPU v6e-8 (2x4)", '  value: "gemma2-2b"'), model="google/gemma-2-2b",
        tokenizer="google/gemma-2-2b-it", data=(ULTRACHAT,), length=1024, steps=1000, batch=64, rate=3e-5, chips=8,
        topology="2x4", stages=_DEMO_STAGES,
    ),
    "maxtext-gemma2-9b-v6e-8": Recipe(
        lines=(*_DEMO, '  value: "gemma2-9b"  # or other supported models', '  value: "google/gemma-2-9b-it"'),
        model="google/gemma-2-9b", tokenizer="google/gemma-2-9b-it", data=(ULTRACHAT,), length=1024, steps=1000,
        batch=64, rate=3e-5, chips=8, topology="2x4", stages=_DEMO_STAGES,
    ),
    "maxtext-gemma2-9b-v6e-16": Recipe(
        lines=(*_DEMO, '  cloud.google.com/gke-tpu-topology: "4x4"  # 16 TPU chips'), model="google/gemma-2-9b",
        tokenizer="google/gemma-2-9b-it", data=(ULTRACHAT,), length=1024, steps=1000, batch=128, rate=3e-5, chips=16,
        topology="4x4", stages=_DEMO_STAGES,
    ),
    "spotjax-qwen3-0.6b-v5e-8": Recipe(
        lines=(*_SPOTJAX, "| Qwen3-0.6B | v5litepod-8 | Default |"), model="Qwen/Qwen3-0.6B",
        data=(("openai/gsm8k", "train"),), length=1024, steps=500, batch=8, rate=3e-6, chips=8, topology="2x4",
    ),
    "spotjax-qwen3-4b-v5e-8": Recipe(
        lines=(*_SPOTJAX, "| Qwen3-4B | v5litepod-8 |"), model="Qwen/Qwen3-4B", data=(("openai/gsm8k", "train"),),
        length=1024, steps=500, batch=8, rate=3e-6, chips=8, topology="2x4",
    ),
    "spotjax-qwen3-8b-v5e-16": Recipe(
        lines=(*_SPOTJAX, "| Qwen3-8B | v5litepod-16 |"), model="Qwen/Qwen3-8B", data=(("openai/gsm8k", "train"),),
        length=1024, steps=500, batch=16, rate=3e-6, chips=16, topology="4x4",
    ),
    # No slice is named: on the 16 chips of the manifest, 8 rows a device are 128.
    "marin-llama3.1-8b-tulu": Recipe(
        lines=(*_MARIN, 'get_instruction_dataset(dataset_name="allenai/tulu-3-sft-mixture")'),
        model="meta-llama/Meta-Llama-3.1-8B", tokenizer="meta-llama/Llama-3.1-8B-Instruct",
        data=(("allenai/tulu-3-sft-mixture", "train"),), length=4096, steps=1000, batch=128, rate=2e-5, chips=None,
        topology=None,
    ),
    "marin-llama3.1-8b-mixture": Recipe(
        lines=(*_MARIN, '"tulu": 0.5,', '"orca": 0.5,', 'dataset_name="Open-Orca/OpenOrca",'),
        model="meta-llama/Meta-Llama-3.1-8B", tokenizer="meta-llama/Llama-3.1-8B-Instruct",
        data=(("allenai/tulu-3-sft-mixture", "train"), ("Open-Orca/OpenOrca", "train")), weights=(0.5, 0.5),
        length=4096, steps=1000, batch=128, rate=2e-5, chips=None, topology=None,
    ),
    # The document's class of model is refused; the manifest has a published one.
    "minigpt-stories-v5e-8": Recipe(
        lines=(*_MINIGPT, "batch_size = 144 * jax.device_count() / 2", "num_epochs = 1"), model=None, data=(STORIES,),
        length=256, steps=None, batch=576, rate=1e-3, chips=8, topology="2x4", mesh=(4, 2), refused="MiniGPT",
    ),
    "minigpt-lora-v5e-8": Recipe(
        lines=(
            "lora_rank = 16", "lora_alpha = 2.0", "lora_max_steps = 400", "lora_batch_size = 80",
            "lora_optimizer = optax.adamw(1e-2)", 'tfds.load("tiny_shakespeare", split="train", as_supervised=False)',
        ),
        model=None, data=(("karpathy/tiny_shakespeare", "train"),), length=256, steps=400, batch=80, rate=1e-2,
        chips=8, topology="2x4", lora=(16, 2.0), mesh=(4, 2), refused="MiniGPT",
    ),
    "minigpt-trace-64-v5e-8": Recipe(
        lines=(*_MINIGPT, *_TRACE, "batch_size = 64"), model=None, data=(STORIES,), length=256, steps=35, batch=64,
        rate=1e-3, chips=8, topology="2x4", mesh=(4, 2), refused="MiniGPT",
    ),
    "minigpt-trace-256-v5e-8": Recipe(
        lines=(*_MINIGPT, *_TRACE, "batch_size = 256"), model=None, data=(STORIES,), length=256, steps=35, batch=256,
        rate=1e-3, chips=8, topology="2x4", mesh=(4, 2), refused="MiniGPT",
    ),
    "minigpt-trace-mesh-v5e-8": Recipe(
        lines=(*_MINIGPT, *_TRACE, "mesh = jax.make_mesh((jax.device_count(), 1), ('batch', 'model'))"), model=None,
        data=(STORIES,), length=256, steps=35, batch=256, rate=1e-3, chips=8, topology="2x4", mesh=(8, 1),
        refused="MiniGPT",
    ),
}  # fmt: skip


def plan_of(name: str) -> Plan:
    found = planned_jobs([SEEDS / f"{name}.yaml"], PROFILE, known=KnownInputs())
    assert found.errors == []
    (report,) = found.jobs
    return report.plan


def test_every_manifest_is_in_both_tables_and_every_file_of_the_page_exists() -> None:
    manifests = {path.stem for path in SEEDS.glob("*.yaml")}
    page = (SEEDS / "README.md").read_text()
    assert set(RECIPES) == manifests
    assert {Path(link).stem for link in re.findall(r"\]\(([^)/]+\.yaml)\)", page)} == manifests


def test_every_command_of_the_page_has_a_manifest_or_a_reason() -> None:
    rows = [
        row.split(" | ") for row in (SEEDS / "README.md").read_text().splitlines() if row.startswith("| ")
    ]
    for _, command, here in rows[1:]:
        assert ".yaml" in here or here.startswith("none: ") or "`export." in here, command


@pytest.mark.parametrize(("name", "recipe"), RECIPES.items(), ids=RECIPES)
def test_a_manifest_plans_to_what_the_document_says(name: str, recipe: Recipe) -> None:
    plan = plan_of(name)
    numbers, shape, mesh = plan.hyperparameters, plan.placement.shape, plan.mesh
    assert recipe.model is None or (plan.model.hugging_face and plan.model.hugging_face.repo) == recipe.model
    sources = [
        (source.hugging_face.repo, source.split) if source.hugging_face else (source.uri, None)
        for source in plan.data.train
    ]
    assert sources == list(recipe.data)
    assert [source.weight for source in plan.data.train] == list(recipe.weights)
    assert plan.data.max_seq_length == recipe.length
    assert (numbers.steps, numbers.global_batch_size, numbers.learning_rate) == (
        recipe.steps, recipe.batch, recipe.rate,
    )  # fmt: skip
    if recipe.chips is not None:
        assert (plan.chips, shape.topology) == (recipe.chips, recipe.topology)
    lora = plan.method.lora
    assert (lora and (lora.rank, lora.alpha)) == recipe.lora
    if recipe.mesh is not None:
        assert (mesh.data * mesh.fsdp, mesh.tensor) == recipe.mesh
    assert set(recipe.stages) <= set(plan.stages)


@pytest.mark.parametrize(
    ("name", "recipe"), [(name, each) for name, each in RECIPES.items() if each.tokenizer], ids=str
)
def test_a_tokenizer_of_another_repository_is_that_of_the_document(name: str, recipe: Recipe) -> None:
    tokenizer = plan_of(name).model.tokenizer
    assert tokenizer is not None
    assert tokenizer.hugging_face is not None
    assert tokenizer.hugging_face.repo == recipe.tokenizer


@pytest.mark.parametrize("architecture", sorted({each.refused for each in RECIPES.values() if each.refused}))
def test_a_model_without_a_family_is_refused_by_name(architecture: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": [architecture], "hidden_size": 7168}))
    with pytest.raises(CliError, match=rf"architectures: \['{architecture}'\] is not supported"):
        read_model_config(config)


def test_the_steps_of_the_demo_are_stages_prompts_and_manifests_of_a_server() -> None:
    plan = plan_of("maxtext-gemma2-2b-v6e-8")
    assert plan.evaluation.prompts == ["I love to"]
    assert plan.export.serving_account == "ft-cpu"


def test_the_recipe_for_spot_slices_saves_as_often_and_keeps_maxtexts_template() -> None:
    plan = plan_of("spotjax-qwen3-0.6b-v5e-8")
    assert (plan.placement.capacity, plan.checkpointing.every_steps) == ("Spot", 100)
    expected = (ROOT / "tests" / "maxtext_templates" / "math_qa.jinja").read_text()
    assert plan.data.chat_template == expected


@pytest.mark.parametrize("name", [name for name in RECIPES if "trace" in name])
def test_profiles_record_thirty_steps_after_five(name: str) -> None:
    profiling = plan_of(name).profiling
    assert profiling is not None
    assert (profiling.start_step, profiling.steps) == (6, 30)
