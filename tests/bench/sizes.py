"""Models of real sizes through the stages, on this machine: seconds and peak memory of each stage.

    python -m tests.bench.sizes [--work FOLDER] [llama-8b:8 qwen3-14b:4 gemma-27b:7 llama-70b:2 …]

Each argument is a model and a number of layers; all other values of its config.json are the published ones, and its
weights are random. Preflight, Convert with its proof, two steps of LoRA at length 128 on a bfloat16 base, Evaluate and
an export in several shards are the real stages, each in a process of its own; training uses two CPU devices with FSDP.
``llama-70b`` is only converted and exported. Memory is anonymous and shared memory, including what is swapped out but
not mapped files, which the kernel can drop. Takes up to an hour, and disk space of five times a model's size; training
a bfloat16 base on CPU devices needs nine bytes of memory for each parameter, five of them for the CPU's float32 copies:
swap space helps on a machine that has less memory. With one layer, llama-8b has 1.3 billion parameters, qwen3-14b 1.9
and gemma-27b 1.8, most of them embeddings.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import samples
from devcluster.layout import ROOT
from finetune_contract import RunFolder, StageResult
from tests.bench.trainer import write_data
from tests.trainer.requests import request

_LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False,
    "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
_QWEN3: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "hidden_act": "silu", "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 151936,
}  # fmt: skip
_GEMMA3: Mapping[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attention_bias": False,
    "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024, "sliding_window_pattern": 6, "vocab_size": 262208, "torch_dtype": "bfloat16",
}  # fmt: skip
#: The published dimensions of each model.
MODELS: Mapping[str, Mapping[str, Any]] = {
    "llama-8b": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 32,
    },
    "qwen3-14b": _QWEN3 | {
        "hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40, "num_key_value_heads": 8,
        "num_hidden_layers": 40,
    },
    "gemma-27b": _GEMMA3 | {
        "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 16,
        "num_hidden_layers": 62, "head_dim": 128, "query_pre_attn_scalar": 168,
    },
    "llama-70b": _LLAMA | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8,
        "num_hidden_layers": 80,
    },
}  # fmt: skip
#: The model that is only converted and exported.
_NOT_TRAINED = "llama-70b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    seconds: float
    gigabytes: float
    """The peak anonymous and shared memory of the process."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", default=["llama-8b:8", "qwen3-14b:4", "gemma-27b:7", "llama-70b:2"]
    )
    parser.add_argument("--work", type=Path, help="where the models lie; default: a temporary folder")
    options = parser.parse_args()
    print(
        "| model | layers | source, GB | stage | s | s for each GB | peak memory, GB |\n|---|---|---|---|---|---|---|"
    )
    for word in options.models:
        name, _, layers = word.partition(":")
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            work = Path(folder)
            _data(work / "data")
            size = _model(work / "models/qwen3", name, int(layers))
            for stage, cost in _stages(work, name):
                print(
                    f"| {name} | {layers} of {MODELS[name]['num_hidden_layers']} | {size / 1e9:.2f} | {stage} "
                    f"| {cost.seconds:.0f} | {cost.seconds / (size / 1e9):.1f} | {cost.gigabytes:.2f} |",
                    flush=True,
                )


def _stages(work: Path, name: str) -> Iterator[tuple[str, Cost]]:
    settings: dict[str, Any] = {
        "method": {"lora": {"rank": 16, "alpha": 32.0}},
        "hyperparameters": {
            "steps": 2, "global_batch_size": 2, "learning_rate": 1e-4, "compute_precision": "BF16",
            "weight_precision": "BF16",
        },
        "data": {"max_seq_length": 128},
        "mesh": {"hosts": 1, "chips_per_host": 2, "fsdp": 2},
        "checkpointing": {"every_steps": 2},
        "evaluation": {"max_new_tokens": 4},
    }  # fmt: skip
    yield "Preflight", _stage(work, "Preflight", **settings)[0]
    cost, converted = _stage(work, "Convert", **settings)
    yield "Convert, with its proof", cost
    if name == _NOT_TRAINED:
        target = work / "run/train/checkpoints/2/model_params"
        target.parent.mkdir(parents=True)
        target.symlink_to(converted.removeprefix("file://"))
        yield "Export of all weights", _stage(work, "Export", **(settings | {"method": {}}), train_step=2)[0]
        return
    settings["converted"] = converted
    yield "Train, 2 steps", _stage(work, "Train", **settings)[0]
    yield "Evaluate", _stage(work, "Evaluate", train_step=2, **settings)[0]
    yield "Export, merged", _stage(work, "Export", train_step=2, **settings)[0]


def _stage(work: Path, stage: str, **changes: Any) -> tuple[Cost, str]:
    """Runs a stage and returns its cost, and the address of the converted model if the stage is Convert."""
    made = request(work, stage, **changes)
    python = Path(samples.trainer_python())
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "FINETUNE_REQUEST": made.to_json(), "TMPDIR": str(work),
        "TERMINATION_MESSAGE_PATH": str(work / "termination"),
        # devices whose memory is swapped out reach a collective late; XLA's default treats that as a fault after 40 s
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={2 if stage in ('Train', 'Evaluate') else 1} "
        "--xla_cpu_collective_call_terminate_timeout_seconds=3600",
    }  # fmt: skip
    with (work / f"{stage}.log").open("wb") as log:
        started = time.monotonic()
        process = subprocess.Popen(
            [str(python.with_name("finetune-stage"))], env=environment, stdout=log, stderr=log, cwd=ROOT
        )
        most = _watched(process)
    if process.returncode:
        sys.exit(
            f"{stage} failed with {process.returncode}:\n{(work / f'{stage}.log').read_text(errors='replace')[-3000:]}"
        )
    path = RunFolder(made.run_folder).result(made.stage.short, made.attempt).removeprefix("file://")
    details = StageResult.model_validate_json(Path(path).read_bytes()).details
    items = details.manifest.items if details is not None and details.kind == "Convert" else ""
    return Cost(seconds=time.monotonic() - started, gigabytes=most / 1e9), items


def _watched(process: "subprocess.Popen[bytes]") -> int:
    """Waits for the process, and returns the peak memory of it and its children in bytes."""
    most = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            most[0] = max(most[0], sum(_held(pid) for pid in _family(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    process.wait()
    ended.set()
    watcher.join()
    return most[0]


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _held(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    held = ("RssAnon:", "RssShmem:", "VmSwap:")
    lines = (line.split() for line in status.splitlines() if line.startswith(held))
    return sum(int(line[1]) * 1024 for line in lines)


def _model(folder: Path, name: str, layers: int) -> int:
    """Writes the model with this number of layers, and returns the bytes of its weights."""
    config = {**MODELS[name], "num_hidden_layers": layers}
    subprocess.run(
        [samples.trainer_python(), "-m", "tests.bench.random_weights", folder, json.dumps(config)],
        check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _data(folder: Path) -> None:
    write_data(folder)
    for file in folder.glob("*.jsonl"):
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[:8]))


if __name__ == "__main__":
    main()
