"""Every family through the real stages, in shapes that no model of MaxText's catalog has: training lowers the loss, and
transformers (and PEFT) compute the loss that our evaluation reports from the exported folders."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finetune_contract import (
    ConvertOutcome,
    EvaluateOutcome,
    ExportOutcome,
    PreflightOutcome,
    StageRequest,
    TrainOutcome,
)
from finetune_trainer.data.examples import Examples
from finetune_trainer.process.processes import Processes
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.reference import Reference
from tests.trainer.requests import request
from tests.trainer.stages import Stages

pytestmark = pytest.mark.reference

#: Weights are large enough that every part of the function matters; the vocabulary is odd; heads do not fill the width.
BASE = TinyModelSpec(std=0.125, vocab=509, context=256)
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "mscale": 0.707, "mscale_all_dim": 0.707,
}  # fmt: skip
FAMILIES = {
    "llama": {"family": "llama", "head_dim": 32, "hidden": 72, "heads": 3, "kv_heads": 1, "config": {"rope_parameters": LLAMA3}},
    "llama-tied": {"family": "llama", "tied": True, "hidden": 72, "heads": 6, "kv_heads": 2, "layers": 3},
    "qwen3": {"family": "qwen3", "tied": False, "head_dim": 32, "kv_heads": 1, "heads": 3, "hidden": 72},
    "qwen2": {"family": "qwen2", "tied": True, "hidden": 72, "heads": 6, "kv_heads": 2, "head_dim": 12, "layers": 3},
    "gemma2": {"family": "gemma2", "hidden": 72, "config": {"sliding_window": 8, "query_pre_attn_scalar": 18}},
    "gemma3": {"family": "gemma3", "layers": 7, "hidden": 72, "config": {"sliding_window": 8}},
    "mistral": {"family": "mistral", "hidden": 72, "head_dim": 24},
    "mixtral": {"family": "mixtral", "hidden": 72, "layers": 3},
    "qwen3-moe": {"family": "qwen3-moe", "hidden": 72, "intermediate": 48},
    "deepseek2": {"family": "deepseek2", "hidden": 72, "layers": 3, "heads": 3, "intermediate": 96, "config": {"rope_scaling": YARN}, "spelling": "v4"},
}  # fmt: skip
FULL: dict[str, Any] = {}
LORA = {"lora": {"rank": 4, "alpha": 8.0}}
QLORA = {"lora": {"rank": 4, "alpha": 8.0, "quantization": "INT8"}}
ATTENTION_ONLY = {"lora": {"rank": 2, "alpha": 4.0, "target_modules": ["q_proj", "v_proj"]}}
CASES = [
    ("llama", ATTENTION_ONLY),
    ("llama-tied", FULL),
    ("gemma2", LORA),
]
#: The other method of each family, and further families, in `make test-thorough`: a case takes half a minute.
THOROUGH = [
    ("llama", FULL), ("qwen2", LORA), ("gemma3", FULL), ("deepseek2", FULL), ("qwen2", FULL), ("qwen3", FULL), ("gemma2", FULL), ("gemma3", LORA), ("deepseek2", LORA), ("mistral", FULL),
    *((name, QLORA) for name in ("llama", "qwen2", "qwen3", "gemma2", "gemma3", "mistral")),
    ("mixtral", FULL), ("mixtral", LORA), ("qwen3-moe", FULL), ("qwen3-moe", LORA),
]  # fmt: skip
STEPS = 6


def run_name(family: str, method: dict[str, Any]) -> str:
    kind = "qlora" if "quantization" in method.get("lora", {}) else "lora" if method else "full"
    return f"{family}-{kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The exported folders of one training, and the loss that Evaluate reported."""

    folders: dict[str, Path]
    loss: float


@pytest.fixture(scope="module")
def exports() -> dict[str, Exported]:
    """Exports of the cases so far, for a single call of the reference at the end."""
    return {}


@pytest.fixture(scope="module")
def prepared(stages: Stages) -> dict[str, str]:
    """Addresses of converted models by family, filled when a model is first used."""
    return {}


def changes(family: str, root: Path) -> dict[str, Any]:
    return {
        "model": {"uri": f"file://{root}/models/shaped-{family}"},
        "hyperparameters": {"steps": STEPS, "learning_rate": 5e-3, "schedule": "Constant"},
        "data": {"max_seq_length": 48},
        "checkpointing": {"every_steps": 100},
        "evaluation": {"baseline": False, "prompts": []},
    }


def convert(stages: Stages, family: str, prepared: dict[str, str]) -> str:
    if family not in prepared:
        write_model(
            stages.root / "models" / f"shaped-{family}",
            TinyModelSpec(**{**_fields(BASE), **FAMILIES[family]}),
        )
        asked = changes(family, stages.root)
        checked = stages.run("Preflight", f"{family}-base", **asked)
        assert isinstance(checked.details, PreflightOutcome), checked.failure
        made = stages.run("Convert", f"{family}-base", **asked)
        assert isinstance(made.details, ConvertOutcome), made.failure
        assert made.details.manifest.export_proven
        assert made.details.manifest.fingerprint == checked.details.fingerprint
        prepared[family] = made.details.manifest.items
    return prepared[family]


@pytest.mark.parametrize(
    ("family", "method"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.thorough) for case in THOROUGH)],
    ids=[run_name(*case) for case in [*CASES, *THOROUGH]],
)
def test_a_family_is_trained_evaluated_and_exported(
    stages: Stages,
    prepared: dict[str, str],
    exports: dict[str, Exported],
    family: str,
    method: dict[str, Any],
) -> None:
    asked = {
        **changes(family, stages.root),
        "method": method,
        "converted": convert(stages, family, prepared),
    }
    run = run_name(family, method)
    trained = stages.run("Train", run, **asked)
    assert isinstance(trained.details, TrainOutcome), trained.failure
    losses = [float(loss) for loss in stages.losses(run).values()]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.05
    # an unchanged layer would have failed the stage, but some experts may get no token
    assert [name for name in trained.details.unchanged if ".experts." not in name] == []
    evaluated = stages.run("Evaluate", run, train_step=STEPS, **asked).details
    assert isinstance(evaluated, EvaluateOutcome)
    assert evaluated.tuned is not None
    if method is not QLORA:  # Evaluate uses the unquantized base
        assert evaluated.tuned.loss == pytest.approx(trained.details.evaluation_loss, rel=1e-6)
    content = "Both" if method else "Merged"
    exported = stages.run(
        "Export", run, train_step=STEPS, **asked, export={"content": content, "dtype": "FP32"}
    ).details
    assert isinstance(exported, ExportOutcome)
    folders = {each.name: Path(each.uri.removeprefix("file://")) for each in exported.artifacts}
    exports[run] = Exported(folders=folders, loss=evaluated.tuned.loss)


@pytest.fixture
def judged(stages: Stages, exports: dict[str, Exported]) -> Iterator[dict[str, float]]:
    """Transformers' loss on the validation set of every exported folder, by its name."""
    family = next(iter(exports)).rpartition("-")[0]  # all have the same tokenizer
    made = request(stages.root, "Evaluate", **changes(family, stages.root))
    tokens = validation_tokens(made, stages.root)
    rows = [tokens.read(index) for index in range(len(tokens))]
    folders = {f"{run} {kind}": path for run, each in exports.items() for kind, path in each.folders.items()}
    with closing(Reference(folders, [row.ids.tolist() for row in rows], stages.root / "judged")) as reference:
        yield {
            name: token_loss(reference.logits(name), [(row.ids, row.trained) for row in rows])
            for name in folders
        }


def test_transformers_and_peft_find_the_loss_that_evaluation_reports(
    exports: dict[str, Exported], judged: dict[str, float]
) -> None:
    reported = {name: exports[name.rpartition(" ")[0]].loss for name in judged}
    assert judged
    # exported in float32, because rounding to bfloat16 changes the loss by 1e-3, whether or not the function is correct
    assert judged == pytest.approx(reported, rel=1e-4)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _fields(spec: TinyModelSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def validation_tokens(made: StageRequest, scratch: Path) -> Examples:
    context = StageContext(
        request=made, store=open_store(), processes=Processes(count=1, index=0),
        stopper=None, scratch=scratch,  # type: ignore[arg-type]  # nothing here is stopped
    )  # fmt: skip
    (data,) = context.validation_data()
    return data.rows.tokens


def token_loss(logits: list[np.ndarray], rows: list[tuple[np.ndarray, np.ndarray]]) -> float:
    """Returns the mean loss in nats per trained token, computed in float64."""
    total, count = 0.0, 0
    for values, (ids, trained) in zip(logits, rows, strict=True):
        wide = values[:-1].astype(np.float64)
        normal = np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1)) + wide.max(-1)
        nats = normal - wide[np.arange(len(ids) - 1), ids[1:]]
        total += float(nats[trained[1:]].sum())
        count += int(trained[1:].sum())
    return total / count
