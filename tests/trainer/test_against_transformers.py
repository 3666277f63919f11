"""Every family, in shapes that no model of MaxText's catalog has: the converted model, the tuned and exported model and
the adapter compute what transformers (and PEFT) compute from the same files.

The tests compare logits and not weights, because a wrong rotary factor, query scale or output scale leaves the weights
of every round trip exact."""

import json
import math
import re
import shutil
from collections.abc import Container, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from flax.core.spmd import logical_axis_rules
from safetensors.numpy import load_file, save_file

from finetune_contract import ExitCode
from finetune_trainer import export, families
from finetune_trainer.checkpoints import mapping
from finetune_trainer.checkpoints.reading import CheckpointReader
from finetune_trainer.checkpoints.weights import Weights, open_weights
from finetune_trainer.conversion import streaming
from finetune_trainer.engine import maxtext
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation.models import LoadedModel, load, with_adapter
from finetune_trainer.families import ModelPlan
from finetune_trainer.storage import engine_path, open_store
from finetune_trainer.verification import conversion_check, numpy_reference
from finetune_trainer.verification.forward import Forward
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.full_forward import FullForward
from tests.trainer.reference import Reference, difference

pytestmark = pytest.mark.reference

#: Random logits have a standard deviation of about 1; measured differences are below 1e-5.
TOLERANCE = 1e-4
#: Longer than the sliding windows below; the second row is padded in a batch.
LENGTHS = (40, 23)
WINDOW = {"sliding_window": 8}
LLAMA3 = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 16, "beta_fast": 4, "beta_slow": 1,
    "mscale": 0.707, "mscale_all_dim": 0.707,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
GEMMA3_LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
#: Weights are large enough that every part of the function affects the logits; the size of the vocabulary is odd.
BASE = TinyModelSpec(std=0.125, vocab=509)
CASES = {
    "qwen3": replace(BASE),
    "qwen3, untied, head_dim 128, 1 kv head, float16": replace(
        BASE, tied=False, head_dim=128, kv_heads=1, heads=3, hidden=72, layers=3, dtype="float16", spelling="v4"
    ),
    "qwen3, linear rope": replace(BASE, config={"rope_parameters": {**LINEAR, "rope_theta": 1e6}}),
    "qwen2, 3 layers, 1 kv head": replace(BASE, family="qwen2", layers=3, heads=3, kv_heads=1, head_dim=32, hidden=96),
    "qwen2, tied, width 72, linear rope, shards": replace(
        BASE, family="qwen2", tied=True, heads=3, kv_heads=3, head_dim=24, hidden=72, shards=2, spelling="v4",
        dtype="float32", config={"rope_theta": 1e6, "rope_scaling": LINEAR},
    ),
    "llama, head_dim 128": replace(BASE, family="llama", head_dim=128, layers=3),
    "llama, tied, head_dim 24, float32": replace(
        BASE, family="llama", tied=True, head_dim=24, layers=3, dtype="float32"
    ),
    "llama 3.2's rope, shards": replace(
        BASE, family="llama", spelling="v4", config={"rope_scaling": LLAMA3}, shards=3
    ),
    "llama, linear rope": replace(BASE, family="llama", config={"rope_parameters": {**LINEAR, "rope_theta": 1e4}}),
    "mistral": replace(BASE, family="mistral", head_dim=24, hidden=72),
    "mixtral": replace(BASE, family="mixtral", hidden=72, layers=3, config={"num_experts_per_tok": 3}),
    "qwen3 moe": replace(BASE, family="qwen3-moe", intermediate=48, layers=3),
    "deepseek2": replace(BASE, family="deepseek2", intermediate=96, layers=3, head_dim=24, hidden=72, heads=3),
    "deepseek2, yarn": replace(
        BASE, family="deepseek2", layers=4, spelling="v4",
        config={"rope_scaling": YARN, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5},
    ),
    "gemma2": replace(BASE, family="gemma2", config=WINDOW),
    "gemma2, own query scale, width 72": replace(
        BASE, family="gemma2", layers=4, hidden=72, config={**WINDOW, "query_pre_attn_scalar": 18}
    ),
    "gemma3, linear rope, 8 layers, width 72": replace(
        BASE, family="gemma3", layers=8, hidden=72, config={**WINDOW, "rope_parameters": GEMMA3_LINEAR}
    ),
    "gemma3, 27b's query scale, 13 layers": replace(
        BASE, family="gemma3", layers=13, hidden=96, config={**WINDOW, "query_pre_attn_scalar": 24}
    ),
    "gemma3, fewer layers than a block": replace(BASE, family="gemma3", layers=4, spelling="v4", config=WINDOW),
    "gemma3, as 270M and 1B: 1 kv head, heads that do not fill the width, a block and a layer": replace(
        BASE, family="gemma3", layers=7, hidden=72, heads=4, kv_heads=1, head_dim=32, spelling="v4", config=WINDOW
    ),
    "gemma3 with images": replace(BASE, family="gemma3-multimodal", layers=7, spelling="v4", config=WINDOW),
    "gemma3 with images, as transformers 5 names its tensors": replace(
        BASE, family="gemma3-multimodal", layers=7, config=WINDOW
    ),
}  # fmt: skip
LORA_CASES = [
    "qwen3, untied, head_dim 128, 1 kv head, float16",
    "llama, tied, head_dim 24, float32",
    "qwen2, 3 layers, 1 kv head",
    "mistral",
    "mixtral",
    "qwen3 moe",
    "deepseek2",
    "gemma2, own query scale, width 72",
    "gemma3, linear rope, 8 layers, width 72",
    "gemma3 with images",
    "gemma3 with images, as transformers 5 names its tensors",
]
#: Each architecture once. Its other cases are compared with transformers in every run, and by their parts in the
#: thorough one.
COMMON = {
    "qwen3, untied, head_dim 128, 1 kv head, float16",
    "qwen2, tied, width 72, linear rope, shards",
    "llama 3.2's rope, shards",
    "mistral",
    "mixtral",
    "qwen3 moe",
    "deepseek2",
    "gemma2, own query scale, width 72",
    "gemma3, linear rope, 8 layers, width 72",
}
COMMON_LORA = {
    "qwen3, untied, head_dim 128, 1 kv head, float16",
    "mixtral",
    "deepseek2",
    "gemma3, linear rope, 8 layers, width 72",
}
RANK, ALPHA = 4, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    folder: Path
    plan: ModelPlan
    weights: Weights
    items: str


@pytest.fixture(scope="module")
def rows() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(6, 500, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def reference(workdir: Path, rows: list[list[int]]) -> Iterator[Reference]:
    folders = {name: write_model(workdir / name, spec) for name, spec in CASES.items()}
    with closing(Reference(folders, rows, workdir / "reference")) as judged:
        yield judged


@pytest.fixture(scope="module")
def cases(workdir: Path, reference: Reference) -> dict[str, Case]:
    """Converted models by name. A case is converted when it is first used, which takes half a second."""
    return {}


@pytest.fixture
def case(request: pytest.FixtureRequest, cases: dict[str, Case], workdir: Path) -> Case:
    name: str = request.param
    folder = workdir / name
    plan = families.read(folder)
    maxtext.prepare(plan)  # needed each time: this process switches between many plans
    if name not in cases:
        weights = open_weights(folder, plan)
        converted = streaming.convert(weights, plan, f"file://{workdir}/{name} converted", store=open_store())
        assert converted.size_bytes > plan.parameters
        cases[name] = Case(folder=folder, plan=plan, weights=weights, items=converted.items)
    return cases[name]


@pytest.fixture(autouse=True)
def _unload() -> Iterator[None]:
    yield
    jax.clear_caches()


def each_of(names: Iterable[str], common: Container[str]) -> pytest.MarkDecorator:
    """The cases, of which the thorough run alone has those that are not common."""
    cases = [
        pytest.param(name, id=name, marks=() if name in common else pytest.mark.thorough) for name in names
    ]
    return pytest.mark.parametrize("case", cases, indirect=True)


every_case = each_of(CASES, CASES)


@every_case
def test_the_converted_model_is_transformers_model(
    case: Case, rows: list[list[int]], reference: Reference, tmp_path: Path
) -> None:
    """The model is restored completely by MaxText."""
    forward = FullForward(case.items, case.plan, rows=len(rows), length=max(LENGTHS), scratch=tmp_path)
    assert difference(forward.logits(rows), reference.logits(case.folder.name)) < TOLERANCE


@each_of(CASES, COMMON)
def test_block_by_block_the_converted_model_computes_the_same(
    case: Case, rows: list[list[int]], reference: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finetune_trainer.verification.forward.VOCABULARY", 200)
    found = list(Forward(CheckpointReader(case.items), case.plan, scratch=tmp_path).logits(rows))
    assert len(found) == math.ceil(case.plan.vocab_size / 200)
    assert difference(joined(found), reference.logits(case.folder.name)) < TOLERANCE


@every_case
def test_the_judge_of_the_proof_is_right(case: Case, rows: list[list[int]], reference: Reference) -> None:
    found = numpy_reference.NumpyReference(case.folder, case.weights.read, rows).logits(200)
    assert difference(joined(list(found)), reference.logits(case.folder.name)) < TOLERANCE


@every_case
def test_conversion_and_back_is_exact(case: Case, tmp_path: Path) -> None:
    tensors, rounded = conversion_check.round_trip(
        case.weights, CheckpointReader(case.items), case.plan, scratch=tmp_path
    )
    assert tensors == len(case.plan.tensors())
    # proof._allowed: the query scale of float32 Llamas and Gemma's norms near zero may change in float32's last bit
    assert rounded == 0 or case.weights.dtypes == {"F32"} or case.plan.norm_offset


@each_of(CASES, COMMON)
def test_a_fully_tuned_model_is_exported_as_it_was_trained(case: Case, tmp_path: Path) -> None:
    """The "tuned" model has another seed, so every tensor differs from the source's."""
    spec = replace(CASES[case.folder.name], seed=1, dtype="bfloat16", shards=1)
    tuned = write_model(tmp_path / "tuned", spec)
    trained = open_weights(tuned, case.plan)
    items = streaming.convert(trained, case.plan, f"file://{tmp_path}/trained", store=open_store()).items
    out = build(case, items, tmp_path, lora=None, content="Merged", dtype="BF16")["model"]
    exported = open_weights(out, families.read(out))
    for name in trained.text:
        found, wanted = exported.read(name), trained.read(name)
        if case.plan.norm_offset and name.endswith("norm.weight"):
            # stored as 1 + weight in float32, which does not preserve the last bit of a weight near zero
            assert np.allclose(
                found.astype(np.float32), wanted.astype(np.float32), rtol=2**-8, atol=2**-23
            ), name
        else:
            assert np.array_equal(found, wanted), name
    assert {t.name for t in exported.foreign.values()} == {t.name for t in case.weights.foreign.values()}
    source = json.loads((case.folder / "config.json").read_text())
    config = json.loads((out / "config.json").read_text())
    for part in (source, source.get("text_config", {}), config, config.get("text_config", {})):
        assert part.pop("torch_dtype", part.pop("dtype", None)) in {
            "bfloat16",
            CASES[case.folder.name].dtype,
            None,
        }
    assert config == source
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        assert (out / file).read_bytes() == (case.folder / file).read_bytes()
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in out.iterdir())


@each_of(LORA_CASES, COMMON_LORA)
def test_the_export_for_maxtext_is_transformers_model(
    case: Case, rows: list[list[int]], reference: Reference, tmp_path: Path
) -> None:
    """MaxText's own format has one array for each layer."""
    out = build(case, case.items, tmp_path, lora=None, content="Merged", orbax=True)["orbax"]
    forward = FullForward(
        f"file://{out}/items", case.plan, rows=len(rows), length=max(LENGTHS), scratch=tmp_path, scanned=False
    )
    assert difference(forward.logits(rows), reference.logits(case.folder.name)) < TOLERANCE
    listed = {
        entry["path"]: entry["size"] for entry in json.loads((out / "manifest.json").read_text())["files"]
    }
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    assert listed == {name: path.stat().st_size for name, path in files.items() if name != "manifest.json"}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in files.values())


@pytest.mark.parametrize("case", ["mistral"], indirect=True, ids=str)
def test_a_converted_model_that_is_not_there_is_reported_as_that(case: Case, tmp_path: Path) -> None:
    with pytest.raises(StageError) as error:
        FullForward(f"file://{tmp_path}/gone", case.plan, rows=1, length=8, scratch=tmp_path)
    assert (error.value.code, error.value.reason) == (ExitCode.INPUT_MISSING, "ConvertedModelUnreadable")


@pytest.fixture(scope="module")
def adapted(workdir: Path) -> dict[str, dict[str, Path]]:
    """Exports of the LoRA cases, collected for a single call of the reference at the end."""
    return {}


@pytest.fixture(scope="module")
def engine_logits() -> dict[str, list[np.ndarray]]:
    return {}


@each_of(LORA_CASES, COMMON_LORA)
def test_an_adapter_and_the_merged_model_are_exported(
    case: Case,
    rows: list[list[int]],
    adapted: dict[str, dict[str, Path]],
    engine_logits: dict[str, list[np.ndarray]],
    workdir: Path,
) -> None:
    name = case.folder.name
    params = random_adapter(case.plan, workdir / f"{name} adapter", workdir)
    engine_logits[name] = adapted_logits(case, params, rows, workdir)
    out = build(
        case,
        params,
        workdir / f"{name} export",
        lora=export.LoraConfig(rank=RANK, alpha=ALPHA),
        content="Both",
    )
    config = json.loads((out["adapter"] / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(case.folder)
    assert (config["r"], config["lora_alpha"]) == (RANK, ALPHA)
    assert config["target_modules"] == sorted(case.plan.lora_modules)
    adapted[name] = out


def test_engine_transformers_and_peft_agree_on_adapted_models(
    adapted: dict[str, dict[str, Path]],
    engine_logits: dict[str, list[np.ndarray]],
    reference: Reference,
    rows: list[list[int]],
    workdir: Path,
) -> None:
    folders = {f"{name} {kind}": path for name, kinds in adapted.items() for kind, path in kinds.items()}
    assert set(adapted) >= COMMON_LORA
    with closing(Reference(folders, rows, workdir / "adapted")) as judged:
        for name, found in engine_logits.items():
            assert difference(found, reference.logits(name)) > 0.1, "the adapter must change the model"
            assert difference(found, judged.logits(f"{name} model")) < TOLERANCE
            assert difference(found, judged.logits(f"{name} adapter")) < TOLERANCE


def test_an_adapter_of_another_rank_is_refused(
    cases: dict[str, Case], adapted: dict[str, dict[str, Path]], workdir: Path
) -> None:
    name = LORA_CASES[0]
    maxtext.prepare(cases[name].plan)
    lora = export.LoraConfig(rank=RANK + 1, alpha=ALPHA)
    params = f"file://{workdir}/{name} adapter"
    with pytest.raises(Exception, match=r"adapters of rank 5"):
        build(cases[name], params, workdir / "refused", lora=lora, content="Adapter")


def test_the_proof_refuses_an_engine_that_computes_something_else(
    cases: dict[str, Case], rows: list[list[int]], tmp_path: Path
) -> None:
    """The weights are the same and converted exactly, but Llama 3's rotary scaling is missing."""
    good = cases["llama 3.2's rope, shards"]
    forgetful = replace(good.plan, llama3_scaling=None)
    maxtext.prepare(forgetful)
    with pytest.raises(Exception, match=r"computes a different function .* logits within 0\.001"):
        conversion_check.check_conversion(good.weights, good.items, forgetful, rows, scratch=tmp_path)


def test_the_proof_refuses_a_conversion_of_other_weights(
    cases: dict[str, Case], rows: list[list[int]], tmp_path: Path
) -> None:
    good = cases["qwen3"]
    maxtext.prepare(good.plan)
    other = write_model(tmp_path / "other", replace(CASES["qwen3"], seed=5))
    with pytest.raises(Exception, match=r"a round trip of conversion changes model\.\S+"):
        conversion_check.check_conversion(
            open_weights(other, good.plan), good.items, good.plan, rows, scratch=tmp_path
        )


@pytest.mark.parametrize(
    ("case", "tensor"),
    [
        ("llama, head_dim 128", "model.embed_tokens.weight"),
        ("llama, head_dim 128", "model.layers.2.post_attention_layernorm.weight"),
        ("llama, head_dim 128", "model.layers.2.self_attn.q_proj.weight"),
        ("qwen3 moe", "model.layers.2.mlp.experts.3.down_proj.weight"),
        ("gemma3, linear rope, 8 layers, width 72", "model.layers.5.mlp.down_proj.weight"),
        ("gemma3, linear rope, 8 layers, width 72", "model.layers.7.mlp.down_proj.weight"),
    ],
    indirect=["case"],
    ids=str,
)
def test_the_proof_names_the_tensor_of_which_a_single_value_differs(
    case: Case, tensor: str, rows: list[list[int]], tmp_path: Path
) -> None:
    """The value that differs is the last one of the last tensor of a stack."""
    changed = shutil.copytree(case.folder, tmp_path / "changed")
    tensors = load_file(changed / "model.safetensors")
    tensors[tensor].flat[-1] += 1
    save_file(tensors, changed / "model.safetensors")
    with pytest.raises(
        StageError, match=rf"a round trip of conversion changes {re.escape(tensor)} .*found 1 of \d+ values"
    ):
        conversion_check.check_conversion(
            open_weights(changed, case.plan), case.items, case.plan, rows, scratch=tmp_path
        )


WITH_EXPERTS = pytest.mark.parametrize("case", ["mixtral", "qwen3 moe", "deepseek2"], indirect=True, ids=str)


@WITH_EXPERTS
def test_a_model_with_experts_is_proven(case: Case, rows: list[list[int]], tmp_path: Path) -> None:
    found = conversion_check.check_conversion(case.weights, case.items, case.plan, rows, scratch=tmp_path)
    assert found.logit_difference < 1e-4


@WITH_EXPERTS
def test_a_choice_of_experts_that_the_scores_rule_out_fails_the_proof(
    case: Case, rows: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert case.plan.experts is not None
    number = case.plan.experts.number

    class Elsewhere(numpy_reference.NumpyReference):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.experts = [layer and [others(row) for row in layer] for layer in self.experts]

    def others(row: np.ndarray) -> np.ndarray:
        return np.array([np.setdiff1d(np.arange(number), one)[: len(one)] for one in row])

    monkeypatch.setattr(numpy_reference, "NumpyReference", Elsewhere)
    with pytest.raises(Exception, match=r"computes a different function .* off by nan"):
        conversion_check.check_conversion(case.weights, case.items, case.plan, rows, scratch=tmp_path)


def test_of_two_experts_with_nearly_the_same_score_either_is_right(
    cases: dict[str, Case], rows: list[list[int]], tmp_path: Path
) -> None:
    """Engine and reference may round differently: with float32, most models of many layers and experts show that."""
    spec = replace(CASES["qwen3 moe"], dtype="float32", shards=1)
    folder = write_model(tmp_path / "tied", spec)
    tensors = load_file(folder / "model.safetensors")
    for name, router in tensors.items():
        if name.endswith("mlp.gate.weight"):
            router[1] = router[0] * np.float32(1 + 2**-22)
    save_file(tensors, folder / "model.safetensors")
    plan = families.read(folder)
    maxtext.prepare(plan)
    weights = open_weights(folder, plan)
    items = streaming.convert(weights, plan, f"file://{tmp_path}/converted", store=open_store()).items
    forward = Forward(CheckpointReader(items), plan, scratch=tmp_path)
    chosen = numpy_reference.NumpyReference(folder, weights.read, rows).experts
    # only in the last layer, so that the swap changes no other layer's choice of experts
    last = [np.where(one <= 1, 1 - one, one) for one in chosen[-1] or ()]
    swapped = [~np.isin([0, 1], one).all() & np.isin(one, [0, 1]).any() for one in np.concatenate(last)]
    assert any(swapped)
    logits, other = (joined(list(forward.logits(rows, each))) for each in (chosen, [*chosen[:-1], last]))
    assert all(np.isfinite(each).all() for each in other)
    assert difference(other, logits) > TOLERANCE


def test_the_proof_reports_what_it_compared(
    cases: dict[str, Case], rows: list[list[int]], tmp_path: Path
) -> None:
    good = cases["qwen3"]
    maxtext.prepare(good.plan)
    found = conversion_check.check_conversion(good.weights, good.items, good.plan, rows, scratch=tmp_path)
    assert found.sentence.startswith("24 tensors identical after conversion and back; on 2 rows of ")
    assert found.loss == pytest.approx(found.numpy_loss, rel=1e-6)


# --- helpers ----------------------------------------------------------------------------------------------------------


def joined(parts: list[tuple[int, list[np.ndarray]]]) -> list[np.ndarray]:
    """Returns the logits of the whole vocabulary for each row."""
    starts = np.cumsum([0, *(part[0].shape[1] for _, part in parts[:-1])])
    assert [start for start, _ in parts] == starts.tolist()
    return [np.concatenate(each, axis=-1) for each in zip(*(part for _, part in parts), strict=True)]


def build(
    case: Case,
    params: str,
    out: Path,
    *,
    lora: export.LoraConfig | None,
    content: export.Content,
    dtype: str = "FP32",
    orbax: bool = False,
) -> dict[str, Path]:
    return export.build(
        export.ExportInputs(
            source=case.folder,
            tokenizer=case.folder,
            weights=case.weights,
            plan=case.plan,
            params=params,
            lora=lora,
            content=content,
            dtype=dtype,  # type: ignore[arg-type]
            facts=export.CardFacts(name="test", base_model=str(case.folder), base_revision="1"),
            orbax=orbax,
        ),
        out,
        out / "scratch",
        open_store(),
    )


def random_adapter(plan: ModelPlan, folder: Path, scratch: Path) -> str:
    """A LoRA checkpoint as Tunix writes it, with random values in both halves."""
    config = maxtext.configure(
        plan, weight_dtype="float32", run_name="lora", base_output_directory=str(scratch)
    )
    rng = np.random.default_rng(3)
    shapes = plan.tensors()
    tree: dict[str, object] = {}
    for parameter in mapping.parameters(plan, config):
        *_, module, kind = parameter.names[0].split(".")
        if module not in plan.lora_modules or kind != "weight":
            continue
        out, into = shapes[parameter.names[0]]
        layers = (len(parameter.names),) if parameter.stacked else ()
        for suffix, shape in (("_lora_a", (into, *layers, RANK)), ("_lora_b", (RANK, *layers, out))):
            node = tree
            *path, last = parameter.key.split("-")[1:]
            for part in path:
                node = node.setdefault(part, {})  # type: ignore[assignment]
            node[last + suffix] = {"value": jnp.asarray(rng.standard_normal(shape) * 0.1, jnp.float32)}
    with ocp.StandardCheckpointer() as writer:
        writer.save(folder, tree)
    return f"file://{folder}"


def adapted_logits(case: Case, params: str, rows: list[list[int]], scratch: Path) -> list[np.ndarray]:
    """Returns the engine's logits with the adapter applied, as evaluation computes them."""
    config = maxtext.configure(
        case.plan, maxtext.SFT, run_name="lora", base_output_directory=str(scratch),
        load_parameters_path=engine_path(case.items), weight_dtype="float32", dtype="float32",
        attention="dot_product", per_device_batch_size=len(rows), max_target_length=max(LENGTHS),
        lora={
            "enable_lora": True, "lora_rank": RANK, "lora_alpha": ALPHA,
            "lora_module_path": case.plan.lora_module_path(), "lora_restore_path": engine_path(params),
        },
    )  # fmt: skip
    loaded: LoadedModel = with_adapter(load(config), config)
    tokens = np.zeros((len(rows), max(LENGTHS)), np.int32)
    segments = np.zeros_like(tokens)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], segments[i, : len(row)] = row, 1
    positions = jnp.broadcast_to(jnp.arange(max(LENGTHS)), tokens.shape)
    with jax.set_mesh(loaded.mesh), logical_axis_rules(config.logical_axis_rules):
        graph, state = nnx.split(loaded.model)

        @jax.jit  # without jit it takes ten times as long
        def run(state: object) -> object:
            return nnx.merge(graph, state)(
                decoder_input_tokens=jnp.asarray(tokens), decoder_positions=positions,
                decoder_segment_ids=jnp.asarray(segments), enable_dropout=False,
            )  # fmt: skip

        output = run(state)
    values = np.asarray(output[0] if isinstance(output, tuple) else output, np.float32)
    return [values[i, : len(row)] for i, row in enumerate(rows)]
