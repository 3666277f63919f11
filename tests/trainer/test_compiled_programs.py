"""Every program that a job runs on a slice, compiled by the real TPU compiler, for small models of every family.

By default a sample is compiled; FINETUNE_COMPILE_ALL=1 compiles all of them, which takes hours."""

import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jax.errors import JaxRuntimeError
from jax.stages import Lowered

from finetune_contract import StageRequest
from finetune_trainer import families
from finetune_trainer.compiled import compiler as compiling
from finetune_trainer.compiled.compile_protocol import (
    Answer,
    Candidate,
    CompileFailure,
    CompileSuccess,
    SliceProgram,
)
from finetune_trainer.compiled.compiler import Compiler, devices_of
from finetune_trainer.engine import maxtext
from finetune_trainer.families import Family
from tests.trainer.requests import request

ALL = os.environ.get("FINETUNE_COMPILE_ALL") == "1"
#: The most programs that the sample may compile: each takes seconds, and the suite runs for every change.
MOST = 40

_TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 8192,
}  # fmt: skip
_EXPERTS = {"num_experts_per_tok": 2, "norm_topk_prob": True, "moe_intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "sliding_window": 512, "query_pre_attn_scalar": 16},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"], "sliding_window": 512, "query_pre_attn_scalar": 16,
        "num_hidden_layers": 6,
    },
    "mixtral": {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, **_EXPERTS},
    "deepseek2": {
        "architectures": ["DeepseekV2ForCausalLM"], "n_routed_experts": 4, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16, "v_head_dim": 16, **_EXPERTS, "norm_topk_prob": False,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
}  # fmt: skip
LENGTHS = (192, 640, 768, 1000, 1152, 1500, 3000)
LORA = {"lora": {"rank": 4, "alpha": 8.0}}
METHODS: dict[str, dict[str, Any]] = {
    "sft": {},
    "lora": LORA,
    "dpo": {"type": "DPO", "max_prompt_length": 100},
    "qlora": {"lora": {"rank": 4, "alpha": 8.0, "quantization": "INT8"}},
    "orpo": {"type": "ORPO", "max_prompt_length": 100},
}
TRAIN = SliceProgram(kind="Train")
SLICES = {"v5e": "2x2", "v5p": "2x2x1", "v6e": "2x2"}
#: Includes widths beyond Gemma's window, where whole forward passes replace the KV cache.
PROGRAMS = (
    SliceProgram(kind="Generate", width=1024, count=40, longest=8000, new_tokens=128),
    SliceProgram(kind="Generate", width=64, count=3, longest=8000, new_tokens=16, temperature=1.0, top_k=20),
    SliceProgram(kind="Likelihood", width=1536, count=40, longest=8192),
    SliceProgram(kind="Likelihood", width=64, count=5, longest=8192),
    SliceProgram(kind="Loss"),
    SliceProgram(kind="TrainingLoss"),
)


@pytest.fixture(scope="module", autouse=True)
def tpu(libtpu: Path) -> Iterator[None]:
    """Runs the compiler in this process, so that no request has to start one.

    Fails if the tests compile more programs than the sample may have.
    """
    compile_one, compiled = Lowered.compile, itertools.count()

    def counted(lowered: Any, *arguments: Any, **named: Any) -> Any:
        program = compile_one(lowered, *arguments, **named)
        assert ALL or next(compiled) < MOST
        return program

    with pytest.MonkeyPatch.context() as patch:
        for name in ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
            patch.setenv(name, "1")
        patch.setenv("TPU_LIBRARY_PATH", str(libtpu))
        patch.setattr(Lowered, "compile", counted)
        yield


def asked(
    family: str, length: int, method: str, chips: str, **changes: Any
) -> tuple[StageRequest, Candidate]:
    overrides = {"remat_policy": "full", "num_vocab_tiling": "1", **changes.pop("engine_overrides", {})}
    precision = "BF16" if "lora" in METHODS[method] else "FP32"
    base: dict[str, Any] = {
        "mesh": {"hosts": 1, "chips_per_host": 4, "fsdp": 4},
        "method": METHODS[method],
        "engine_overrides": overrides,
        "hyperparameters": {
            "compute_precision": "BF16",
            "weight_precision": precision,
            "global_batch_size": 4,
        },
        "data": {"max_seq_length": length, "packing": method == "sft"},
    }
    made = request(Path("/tmp"), "Preflight", **{**base, **changes})
    shape = {
        "name": f"{chips}-4", "family": chips, "topology": SLICES[chips], "hosts": 1, "chips": 4, "devices": 4
    }  # fmt: skip
    return made, Candidate.model_validate({"slice": shape, "mesh": made.mesh, "global_batch": 4})


def answer(
    family: str, length: int, method: str, chips: str, program: SliceProgram = TRAIN, **changes: Any
) -> Answer:
    plan = families.resolve(_TINY | FAMILIES[family])
    maxtext.prepare(plan)
    made, candidate = asked(family, length, method, chips, **changes)
    return Compiler(plan, made).answer(candidate.model_copy(update={"program": program}))


#: Families whose programs are compiled in every run: a block of its own for each layer, alternating windows, experts.
USUAL = ("llama", "gemma2", "mixtral")


def sample(whole: Sequence[tuple[Any, ...]], chosen: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
    """Returns parameters: all, or those chosen, of which the thorough run alone has the less usual families."""
    if ALL:
        return whole
    return [
        pytest.param(
            *each, marks=() if each[0] in USUAL else pytest.mark.thorough, id="-".join(map(str, each))
        )
        for each in chosen
    ]


#: Families of experts, whose base model cannot be quantized.
OF_EXPERTS = ("mixtral", "qwen3-moe", "deepseek2")


def every(*others: Iterable[Any]) -> list[Any]:
    """Returns each combination of a family, a method that can train it, and the values of ``others``."""
    return [
        (family, method, *rest)
        for family, method, *rest in itertools.product(FAMILIES, METHODS, *others)
        if not (method == "qlora" and family in OF_EXPERTS)
    ]


STEPS = sample(
    [(family, length, method, chips) for family, method, length, chips in every(LENGTHS, SLICES)],
    [
        (family, LENGTHS[i % 7], list(METHODS)[i % 5], list(SLICES)[i % 3])
        for i, family in enumerate(FAMILIES)
    ],
)


@pytest.mark.parametrize(("family", "length", "method", "chips"), STEPS)
def test_every_length_trains_with_every_family_and_method(
    family: str, length: int, method: str, chips: str
) -> None:
    found = answer(family, length, method, chips)
    assert isinstance(found, CompileSuccess), found


def test_every_family_is_compiled() -> None:
    assert {families.resolve(_TINY | each).family for each in FAMILIES.values()} == set(Family)


OTHERS = sample(
    every(SLICES, PROGRAMS),
    [
        *((family, "sft", "v6e", PROGRAMS[0]) for family in ("qwen3", "gemma2", "gemma3")),
        *((family, "lora", "v5e", PROGRAMS[1]) for family in ("mixtral", "qwen3-moe", "deepseek2")),
        ("qwen3", "orpo", "v5p", PROGRAMS[2]),
        ("gemma2", "dpo", "v6e", PROGRAMS[4]),
        ("deepseek2", "lora", "v6e", PROGRAMS[5]),
        ("llama", "dpo", "v6e", SliceProgram(kind="Reference")),
    ],
)


@pytest.mark.parametrize(("family", "method", "chips", "program"), OTHERS, ids=str)
def test_every_evaluation_compiles_with_every_family(
    family: str, method: str, chips: str, program: SliceProgram
) -> None:
    found = answer(family, 1000, method, chips, program)
    assert isinstance(found, CompileSuccess), found
    assert (found.rows is not None) == (program.count > 0)


def test_no_weights_are_gathered_for_each_token() -> None:
    """The devices share the weight matrices and add up what each has computed; only activations are transferred."""
    wide = _TINY | {"hidden_size": 1024, "intermediate_size": 3072, "head_dim": 128, "vocab_size": 8192}
    plan = families.resolve(wide | FAMILIES["qwen3"])
    maxtext.prepare(plan)
    made, candidate = asked("qwen3", 256, "sft", "v5e")
    program, rows = SliceProgram(kind="Generate", width=128, count=8, longest=8000, new_tokens=32), 8
    evaluation = Compiler(plan, made).evaluation(candidate, devices_of(candidate), adapter=True)
    text = evaluation.generator(program).lowered(program.width, rows).compile().as_text()
    gathered = list(sizes_gathered(text, program.new_tokens))
    smallest = plan.hidden_size * plan.kv_heads * plan.head_dim
    assert gathered, "activations are gathered, so the text was parsed"
    assert max(gathered) < smallest, gathered


def sizes_gathered(text: str, trips: int) -> Iterator[int]:
    """Yields the number of elements that each all-gather returns in the loop that runs ``trips`` times, including those
    of the loops inside it. ``text``: of an optimized program."""
    parts = {
        re.split(r"[ %]+", part.removeprefix("ENTRY "))[1]: part
        for part in re.split(r"^(?=(?:ENTRY )?%[\w.\-]+ \()", text, flags=re.MULTILINE)[1:]
    }
    loops = re.findall(r"condition=%([\w.\-]+), body=%([\w.\-]+)", text)
    (body,) = (body for condition, body in loops if f" constant({trips})" in parts[condition])
    reached, todo = {body}, [body]
    while todo:
        called = parts.keys() & set(re.findall(r"%([\w.\-]+)", parts[todo.pop()])) - reached
        reached |= called
        todo += called
    for gathered in re.findall(r" = (.*?) all-gather(?:-start)?\(", "".join(parts[each] for each in reached)):
        for dimensions in re.findall(r"\w+\[([\d,]+)\]", gathered):
            yield math.prod(int(size) for size in dimensions.split(","))


BLOCKS = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")


def test_a_kernels_blocks_that_the_compiler_refuses_are_the_users() -> None:
    found = answer(
        "qwen3", 4096, "sft", "v6e", engine_overrides={f"sa_block_{name}": "100" for name in BLOCKS}
    )
    assert isinstance(found, CompileFailure), found
    assert found.certain, found.message


@pytest.mark.parametrize(
    ("message", "certain"),
    [
        ("INVALID_ARGUMENT: Unknown flag: --xla_tpu_no_such_flag", False),
        ("INVALID_ARGUMENT: No such compile option: 'xla_tpu_none'", False),
        ("INTERNAL: the compiler met a fault of its own", False),
        ("UNIMPLEMENTED: int4 dots with this layout", True),
        ("INTERNAL: Mosaic failed to compile TPU kernel: Bad lhs type", True),
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack", True),
    ],
)
def test_what_the_program_is_refused_for_is_distinguished_from_what_the_platform_sets(
    message: str, certain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise JaxRuntimeError(message)

    monkeypatch.setattr(compiling.AbstractTraining, "lower_step", refuse)
    found = answer("qwen3", 128, "sft", "v6e")
    assert isinstance(found, CompileFailure), found
    assert found.certain is certain
