"""The width of rows suits the TPU's attention kernel, but sequences are truncated at the user's length."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from maxtext.configs import types

from devcluster.fixtures.chat_data import write_data
from finetune_contract import Outcome, Stage, StageRequest, StageResult
from finetune_trainer import families
from finetune_trainer.data.remarks import of_width
from finetune_trainer.engine import widths
from finetune_trainer.errors import StageError
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages import preflight, resumption
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from finetune_trainer.training.engine_config import engine_settings
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request

#: Lengths that users set: multiples of 512, of 128 and of neither, and lengths below a block.
LENGTHS = (
    64,
    127,
    128,
    129,
    192,
    200,
    256,
    384,
    500,
    512,
    513,
    640,
    768,
    1000,
    1024,
    1152,
    1500,
    2000,
    3000,
    4000,
)


def taken(width: int, **sizes: int) -> bool:
    """Whether the kernel accepts rows of this width as MaxText calls it, traced forward and backward."""
    each = {name: min(sizes.get(f"sa_{name}", 512), width) for name in (
        "block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute",
        "block_q_dq", "block_kv_dq",
    )}  # fmt: skip
    try:
        kernel = splash.make_splash_mha(
            mask=masks.MultiHeadMask([masks.CausalMask((width, width))] * 2),
            head_shards=1, q_seq_shards=1, block_sizes=splash.BlockSizes(**each),
        )  # fmt: skip
        heads = jax.ShapeDtypeStruct((2, width, 128), jnp.bfloat16)
        segments = jax.ShapeDtypeStruct((width,), jnp.int32)

        def loss(query: Any, key: Any, value: Any, ids: Any) -> Any:
            return kernel(query, key, value, splash.SegmentIds(q=ids, kv=ids)).astype(jnp.float32).sum()

        jax.eval_shape(jax.grad(loss, argnums=(0, 1, 2)), heads, heads, heads, segments)
    except (ValueError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize("length", [length for length in LENGTHS if length >= 128])
def test_the_kernel_takes_the_width_and_no_narrower_one(length: int) -> None:
    width = widths.row_width(length, {})
    assert taken(width)
    assert not any(taken(narrower) for narrower in range(length, width, 64))


@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        (640, dict.fromkeys(["q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq"], 128)),
        (700, dict.fromkeys(["q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq"], 256)),
        (1100, {"q": 1024, "q_dkv": 1024}),
    ],
)  # fmt: skip
def test_the_users_block_sizes_decide(length: int, sizes: dict[str, int]) -> None:
    chosen = {f"sa_block_{name}": size for name, size in sizes.items()}
    width = widths.row_width(length, chosen)
    assert taken(width, **chosen)
    assert not any(taken(narrower, **chosen) for narrower in range(length, width, 64))


def test_block_sizes_of_windows_count_too() -> None:
    assert widths.row_width(640, {"local_sa_block_q": 128}) == 1024
    small = {name: 128 for name in widths.DECIDING if name.startswith("sa_")}
    assert widths.row_width(640, small) == 640
    assert widths.row_width(640, {**small, "local_sa_block_kv": 512}) == 1024


@given(st.integers(1, 20_000), st.lists(st.integers(1, 4096), max_size=3))
@settings(deadline=None)
def test_a_row_holds_its_sequence_whatever_the_blocks(length: int, sizes: list[int]) -> None:
    chosen = dict(zip(("sa_block_q", "sa_block_kv", "local_sa_block_q"), sizes, strict=False))
    width = widths.row_width(length, chosen)
    assert width >= length
    assert width == length or width % 128 == 0


def test_plain_attention_takes_any_width() -> None:
    assert widths.row_width(1000, {"attention": "dot_product"}) == 1000
    assert widths.row_width(100, {}) == 100
    assert widths.row_width(100, {"attention": "flash"}) == 128


def test_the_defaults_are_maxtexts() -> None:
    sizes = {
        name: types.MaxTextConfig.model_fields[name].default for name in widths.DECIDING if "block" in name
    }
    assert set(sizes.values()) == {512, None}
    assert all(size is None for name, size in sizes.items() if name.startswith("local_"))


@pytest.mark.parametrize("longest", [200, 1000, 3968, 8064, 131_072])
def test_few_programs_serve_texts_of_any_length(longest: int) -> None:
    found: dict[int, int] = {}
    for length in range(1, longest + 1):
        width = widths.bucket(length, {}, longest=longest)
        assert width >= length
        found.setdefault(width, length)
    assert len(found) <= 20
    assert max(found) == widths.row_width(longest, {})
    for width, shortest in found.items():
        assert width <= max(64, 2 * shortest)
        assert width <= max(1536, 1.5 * shortest)
        assert width < 128 or width > 4096 or taken(width)


def context(root: Path, **changes: Any) -> StageContext:
    write_model(root / "models/qwen3", TinyModelSpec())
    write_data(root / "data", train=40, evaluation=4)
    made = request(root, "Preflight", **changes)
    return StageContext(
        request=made, store=open_store(), processes=Processes(count=1, index=0), stopper=ImmediateStop(), scratch=root,
    )  # fmt: skip


def test_packed_rows_are_wider_than_the_longest_sequence_and_filled(tmp_path: Path) -> None:
    here = context(tmp_path, data={"max_seq_length": 200, "packing": True})
    data = here.training_data()
    batch = data.rows.batch(range(len(data.rows)), len(data.rows))
    assert batch["inputs"].shape[1] == 256
    used = (batch["inputs_segmentation"] > 0).sum(axis=1)
    assert used.max() > 200, "the whole row is used"
    assert batch["inputs_position"].max() < 200, "no sequence is longer than the user's limit"


def test_rows_of_one_sequence_are_padded_and_cut_where_the_user_said(tmp_path: Path) -> None:
    here = context(tmp_path, data={"max_seq_length": 130})
    row = json.dumps({"prompt": "why", "completion": "so " * 200})
    (tmp_path / "data/train.jsonl").write_text(f"{row}\n{row}\n")
    data = here.training_data()
    batch = data.rows.batch([0], 1)
    assert batch["inputs"].shape == (1, 256)
    assert (batch["inputs_segmentation"] > 0).sum() == 129
    assert data.reports[0].truncated_rows == 2


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("method", ["SFT", "DPO", "ORPO"])
def test_all_that_depends_on_the_width_agrees(length: int, method: str, tmp_path: Path) -> None:
    options = {} if method == "SFT" else {"max_prompt_length": length // 3}
    made = request(tmp_path, "Train", data={"max_seq_length": length}, method={"type": method, **options})
    width = widths.of_rows(made)
    if method != "SFT":
        prompts, answers = widths.of_pairs(made)
        assert prompts + answers == width
        assert answers == length - length // 3
        assert prompts >= length // 3
    assert width >= length


def test_the_engine_gets_the_width(tmp_path: Path) -> None:
    plan = families.read(write_model(tmp_path / "model", TinyModelSpec(context=4096)))
    made = request(tmp_path, "Train", data={"max_seq_length": 1000})
    assert {engine_settings(made, plan, steps=1, platform=name, output="")["max_target_length"]
            for name in ("cpu", "tpu")} == {1024}  # fmt: skip
    narrow = made.model_copy(update={"engine_overrides": {"attention": "dot_product"}})
    assert engine_settings(narrow, plan, steps=1, platform="tpu", output="")["max_target_length"] == 1000


def of_request(root: Path, **data: Any) -> StageRequest:
    return request(root, "Preflight", data=data)


def test_a_remark_says_what_the_padding_costs(tmp_path: Path) -> None:
    def remarks(length: int, packing: bool, context: int = 8192) -> list[tuple[str, str]]:
        made = of_request(tmp_path, max_seq_length=length, packing=packing)
        return [(each.level, each.text) for each in of_width(made, widths.of_rows(made), context)]

    assert remarks(1024, False) == []
    ((level, text),) = remarks(640, False)
    assert level == "Problem"
    assert "maxSeqLength 1,024 costs no more" in text
    ((level, _),) = remarks(1000, False)
    assert level == "Note"
    ((level, text),) = remarks(640, True)
    assert level == "Note"
    assert "packing fills the whole row" in text
    ((_, text),) = remarks(1000, False, context=1000)
    assert "costs no more" not in text


@pytest.mark.parametrize("packing", [True, False])
def test_a_run_continues_only_with_packed_rows_of_the_same_width(packing: bool, tmp_path: Path) -> None:
    """With other overrides, the kernel may need rows of another width, into which the same sequences are packed
    differently."""
    here = context(tmp_path, data={"max_seq_length": 640, "packing": packing})
    begun = here.request.model_copy(
        update={"job": here.request.job.model_copy(update={"uid": "another"}), "data": here.request.data}
    )
    outcome = preflight.run(here)
    attempt = f"{here.folder.attempts}/prep-1"
    now = datetime.now(UTC)
    result = StageResult(
        attempt=1,
        stage=Stage.PREFLIGHT,
        outcome=Outcome.SUCCEEDED,
        started=now,
        finished=now,
        details=outcome,
        exit_code=0,
    )
    here.store.write(f"{attempt}/request.json", begun.to_json())
    here.store.write(f"{attempt}/result.json", result.to_json())
    resumption.check(here, outcome)
    narrower = outcome.model_copy(update={"row_width": 640})
    if packing:
        with pytest.raises(StageError, match=r"width of rows \(1024, now 640\)"):
            resumption.check(here, narrower)
    else:
        resumption.check(here, narrower)
