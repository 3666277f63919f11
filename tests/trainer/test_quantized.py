"""LoRA on a quantized base: the precision of each array, the effect on the model, and whole trainings."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.core.spmd import logical_axis_rules
from maxtext.utils import model_creation_utils

from finetune_contract import Outcome
from finetune_trainer import families
from finetune_trainer.checkpoints.weights import open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.engine import maxtext
from finetune_trainer.engine.lora import with_lora
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import engine_path, open_store
from finetune_trainer.training.session import optimizer_of
from finetune_trainer.training.settings import settings
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request
from tests.trainer.stages import Stages

LORA: dict[str, Any] = {"rank": 4, "alpha": 8.0}
ATTENTION = {**LORA, "target_modules": ["q_proj", "o_proj"]}
LINEAR = ("query", "key", "value", "out", "wi_0", "wi_1", "wo")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> ModelPlan:
    return families.read(write_model(tmp_path_factory.mktemp("model"), TinyModelSpec(std=0.125)))


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory, plan: ModelPlan) -> str:
    root = tmp_path_factory.mktemp("converted")
    folder = write_model(root / "model", TinyModelSpec(std=0.125))
    maxtext.prepare(plan)
    return streaming.convert(open_weights(folder, plan), plan, f"file://{root}/out", store=open_store()).items


def adapted(
    plan: ModelPlan, items: str, root: Path, lora: dict[str, Any], **numbers: str
) -> tuple[Any, Any, Any]:
    """Returns the model with adapters, the mesh and MaxText's configuration."""
    made = request(root, "Train", method={"lora": lora}, hyperparameters={"global_batch_size": 1, **numbers})
    chosen = settings(made, plan, steps=1, platform="cpu", output=str(root))
    config = maxtext.configure(plan, maxtext.SFT, **chosen, load_parameters_path=engine_path(items))
    model, mesh = model_creation_utils.from_pretrained(config)
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        return with_lora(model, mesh, config), mesh, config


def arrays(model: Any) -> Iterator[tuple[str, Any]]:
    for path, value in jax.tree_util.tree_leaves_with_path(nnx.state(model)):
        yield "/".join(str(getattr(part, "key", part)) for part in path), value


def layer(name: str) -> str:
    """Returns the layer's name in a path, such as ``query`` in ``decoder/layers/self_attention/query/kernel/…``."""
    return name.partition("/kernel")[0].rpartition("/")[2]


def logits(model: Any, mesh: Any, config: Any) -> np.ndarray:
    tokens = jnp.arange(6, 30)[None]
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        graph, state = nnx.split(model)
        run = jax.jit(
            lambda state: nnx.merge(graph, state)(
                decoder_input_tokens=tokens, decoder_positions=jnp.arange(24)[None],
                decoder_segment_ids=jnp.ones_like(tokens), enable_dropout=False,
            )
        )  # fmt: skip
        return np.asarray(run(state), np.float32)


@pytest.mark.parametrize(("kind", "dtype"), [("NF4", "uint4"), ("INT8", "int8")])
def test_every_linear_layer_is_held_in_few_bits_and_adapters_in_float32(
    plan: ModelPlan, items: str, tmp_path: Path, kind: str, dtype: str
) -> None:
    model, *_ = adapted(plan, items, tmp_path, {**ATTENTION, "quantization": kind}, weight_precision="BF16")
    found = dict(arrays(model))
    held = {layer(name): value for name, value in found.items() if "/qvalue" in name}
    assert set(held) == set(LINEAR)
    assert {value.dtype.name for value in held.values()} == {dtype}
    lora = {name: value.dtype.name for name, value in found.items() if "_lora_" in name}
    assert len(lora) == 4
    assert set(lora.values()) == {"float32"}
    scales = {layer(name): value.shape for name, value in found.items() if "/array/scale" in name}
    # [inputs / 16, layers, outputs], and for the output projection of attention [heads, layers, head_dim / 16, outputs]
    assert scales["wo"] == ((8, 2, 64) if kind == "NF4" else (1, 2, 64))
    assert scales["out"] == ((4, 2, 1, 64) if kind == "NF4" else (1, 2, 1, 64))


def test_without_quantization_adapters_on_a_bfloat16_base_are_float32_too(
    plan: ModelPlan, items: str, tmp_path: Path
) -> None:
    model, *_ = adapted(plan, items, tmp_path, LORA, weight_precision="BF16")
    found = {name: value.dtype.name for name, value in arrays(model)}
    assert {dtype for name, dtype in found.items() if "_lora_" in name} == {"float32"}
    assert {dtype for name, dtype in found.items() if "_lora_" not in name and "/kernel" in name} == {
        "bfloat16"
    }


def test_the_moments_of_an_adapter_on_a_bfloat16_base_are_float32(
    plan: ModelPlan, items: str, tmp_path: Path
) -> None:
    model, mesh, config = adapted(plan, items, tmp_path, LORA, weight_precision="BF16")
    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        made, _ = optimizer_of(config, model)
        state = nnx.Optimizer(model, made, wrt=nnx.LoRAParam).opt_state
    moments = {str(leaf.dtype) for leaf in jax.tree.leaves(state) if leaf.ndim}
    assert moments == {"float32"}


def test_fewer_bits_change_the_model_a_little(plan: ModelPlan, items: str, tmp_path: Path) -> None:
    whole = logits(*adapted(plan, items, tmp_path, LORA, compute_precision="FP32", weight_precision="FP32"))
    off = {}
    for kind in ("INT8", "NF4"):
        lora = {**LORA, "quantization": kind}
        made = adapted(plan, items, tmp_path, lora, compute_precision="FP32", weight_precision="FP32")
        off[kind] = float(np.sqrt(np.mean(np.square(logits(*made) - whole))) / whole.std())
    assert 0 < off["INT8"] < 0.03
    assert off["INT8"] < off["NF4"] < 0.3


@pytest.mark.parametrize(
    ("kind", "layers"),
    [
        ("NF4", 2),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in (("NF4", 7), ("INT8", 7), ("INT8", 3))),
    ],
)
def test_every_layer_of_gemma_3_learns_on_a_quantized_base(kind: str, layers: int, tmp_path: Path) -> None:
    """The layers are scanned in blocks of six; those after the last complete block are computed separately."""
    gemma = families.read(
        write_model(tmp_path / "model", TinyModelSpec(family="gemma3", std=0.125, layers=layers))
    )
    maxtext.prepare(gemma)
    weights = open_weights(tmp_path / "model", gemma)
    items = streaming.convert(weights, gemma, f"file://{tmp_path}/out", store=open_store()).items
    exact = {"compute_precision": "FP32", "weight_precision": "FP32"}
    whole = logits(*adapted(gemma, items, tmp_path, LORA, **exact))
    model, mesh, config = adapted(gemma, items, tmp_path, {**LORA, "quantization": kind}, **exact)
    off = float(np.sqrt(np.mean(np.square(logits(model, mesh, config) - whole))) / whole.std())
    assert 0 < off < (0.05 if kind == "INT8" else 0.5)
    assert {layer(name) for name, _ in arrays(model) if "/qvalue" in name} == set(LINEAR)
    still = [name for name, norm in adapter_gradients(model, mesh, config).items() if norm == 0]
    assert still == []


def adapter_gradients(model: Any, mesh: Any, config: Any) -> dict[str, float]:
    """Returns the norm of the gradient of each adapter's second half, layer by layer."""
    tokens = jnp.arange(6, 30)[None]
    graph, adapters, rest = nnx.split(model, nnx.LoRAParam, ...)

    @jax.jit
    def gradients(adapters: Any) -> Any:
        def loss(adapters: Any) -> jax.Array:
            result = nnx.merge(graph, adapters, rest, copy=True)(
                decoder_input_tokens=tokens, decoder_positions=jnp.arange(24)[None],
                decoder_segment_ids=jnp.ones_like(tokens), enable_dropout=False,
            )  # fmt: skip
            return jnp.square(result[..., :7]).mean()

        return jax.grad(loss)(adapters)

    with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
        found = gradients(adapters)
    norms = {}
    for path, value in jax.tree_util.tree_leaves_with_path(found):
        name = "/".join(str(getattr(part, "key", part)) for part in path)
        if "_lora_b" in name:
            scanned = value.ndim == 3
            for number, each in enumerate(np.moveaxis(value, 1, 0) if scanned else [value]):
                norms[f"{name} {number}"] = float(np.linalg.norm(each))
    return norms


def shaped(**sizes: int) -> ModelPlan:
    fields = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "head_dim": 64, **sizes}
    return families.resolve(
        {"architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 1, "num_hidden_layers": 2, **fields}
    )


BLOCKS = [({}, 64), ({"head_dim": 96}, 32), ({"head_dim": 80}, 16), ({"intermediate_size": 528}, 16)]


@pytest.mark.parametrize(("sizes", "block"), BLOCKS)
def test_blocks_are_as_large_as_fits(sizes: dict[str, int], block: int, tmp_path: Path) -> None:
    made = request(tmp_path, "Train", method={"lora": {**LORA, "quantization": "NF4"}})
    chosen = settings(made, shaped(**sizes), steps=1, platform="cpu", output="/x")["lora"]
    assert (chosen["lora_weight_qtype"], chosen["lora_tile_size"]) == ("nf4", block)
    assert math.gcd(*(size for size in sizes.values()), 64) % block == 0


def test_sizes_that_no_block_divides_are_refused_with_what_fits(tmp_path: Path) -> None:
    plan = shaped(hidden_size=72)
    made = request(tmp_path, "Train", method={"lora": {**LORA, "quantization": "NF4"}})
    with pytest.raises(StageError, match=r"hidden_size 72.*Use INT8"):
        settings(made, plan, steps=1, platform="cpu", output="/x")
    fits = request(tmp_path, "Train", method={"lora": {**LORA, "quantization": "INT8"}})
    assert settings(fits, plan, steps=1, platform="cpu", output="/x")["lora"]["lora_weight_qtype"] == "int8"


def test_a_quantized_base_is_divided_among_the_devices(stages: Stages, converted: str) -> None:
    """Otherwise every chip would have all of it, and preflight would compile another program than training runs."""
    told = stages.root / "placements.json"
    made = request(
        stages.root, "Train", "divided", converted=converted, method={"lora": {**LORA, "quantization": "NF4"}},
        hyperparameters={"steps": 1, "weight_precision": "BF16"}, evaluation={"prompts": []},
        mesh={"hosts": 1, "chips_per_host": 2, "fsdp": 2},
    )  # fmt: skip
    running = stages.start(
        fault=("record_shardings", str(told)), FINETUNE_REQUEST=made.to_json(),
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )  # fmt: skip
    assert running.wait() == 0, running.log[-4000:]
    shares = json.loads(told.read_text())
    held = {name: share for name, share in shares.items() if "/array/" in name}
    assert {name.partition("/kernel/")[0].rpartition("/")[2] for name in held} == set(LINEAR)
    assert set(held.values()) == {0.5}
    assert {share for name, share in shares.items() if "_lora_" in name} == {1.0}


@pytest.mark.parametrize("kind", ["NF4", pytest.param("INT8", marks=pytest.mark.thorough)])
def test_a_training_resumes_to_the_digit_and_exports_what_evaluation_judged(
    stages: Stages, converted: str, kind: str
) -> None:
    asked = {
        "converted": converted, "method": {"lora": {**LORA, "quantization": kind}}, "checkpointing": {"every_steps": 50},
        "hyperparameters": {"steps": 40, "learning_rate": 2e-2, "weight_precision": "BF16"}, "evaluation": {"prompts": []},
    }  # fmt: skip
    run = f"quantized-{kind}"
    trained = stages.run("Train", run, **asked)
    first = stages.run("Train", f"{run}-stopped", stop_at=8, **asked)
    second = stages.run("Train", f"{run}-stopped", attempt=2, **asked)
    assert trained.outcome is Outcome.SUCCEEDED, trained.failure
    assert first.outcome is Outcome.STOPPED
    assert second.outcome is Outcome.SUCCEEDED
    assert stages.losses(f"{run}-stopped") == stages.losses(run)
    losses = [float(loss) for loss in stages.losses(run).values()]
    assert losses[-1] < losses[0] - 0.5

    evaluated = stages.run("Evaluate", run, train_step=40, **asked).details
    exported = stages.run(
        "Export", run, train_step=40, **asked, export={"content": "Both", "dtype": "FP32"}
    ).details
    assert evaluated is not None
    assert evaluated.kind == "Evaluate"
    assert evaluated.tuned is not None
    assert exported is not None
    assert exported.kind == "Export"
    # on the full-precision base, not on the quantized one that training used
    assert evaluated.tuned.loss != trained.details.evaluation_loss  # type: ignore[union-attr]
    assert evaluated.tuned.loss == pytest.approx(trained.details.evaluation_loss, rel=0.1)  # type: ignore[union-attr]
    folders = {artifact.type: artifact.uri for artifact in exported.artifacts}
    merged = stages.evaluate(folders["HuggingFace"])["loss"]
    assert merged == pytest.approx(evaluated.tuned.loss, rel=2e-3)
    on_base = stages.evaluate(f"file://{stages.root}/models/qwen3", "--adapter", folders["Adapter"])["loss"]
    assert on_base == pytest.approx(merged, rel=1e-5)
