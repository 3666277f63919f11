"""``finetune-stage compile``: what the train step of any model needs on any slice, without a job, weights or a TPU.

Log lines go to standard error; standard output ends with the answer as JSON.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from finetune_contract import MeshSpec, SliceShape, StageRequest
from finetune_trainer import families
from finetune_trainer.compiled.asking import Asking, NoCompiler
from finetune_trainer.compiled.question import Candidate, Measured
from finetune_trainer.errors import StageError
from finetune_trainer.storage import open_store


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 where it fits, 78 where it does not."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.quantization and not options.lora:
        parser.error("--quantization is of the base under LoRA: name a rank with --lora")
    candidate = _candidate(options)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            request = _request(options, candidate, scratch)
            plan = families.read(options.model)
            with Asking(request, plan, options.model, open_store(), os.environ) as asking:
                answer = asking(candidate)
        except StageError as error:
            print(f"{error.reason}: {error}", file=sys.stderr)
            return int(error.code)
        except NoCompiler as error:
            print(error, file=sys.stderr)
            return 69
    print(answer.to_json())
    return 0 if isinstance(answer, Measured) else 78


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="finetune-stage compile", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, type=Path, help="folder with the model's config.json")
    add("--slice", required=True, help="family and topology: v6e:4x4, v5p:2x2x1")
    add("--slices", type=int, default=1, help="how many of them (default %(default)s)")
    add("--chips-per-host", type=int, default=4, help="(default %(default)s)")
    add("--batch", required=True, type=int, help="rows per step over all chips")
    add("--length", type=int, default=2048, help="tokens per row (default %(default)s)")
    add(
        "--method",
        choices=("SFT", "DPO", "ORPO"),
        default="SFT",
        help="pairs: half of a row is for the prompt",
    )
    add("--accumulation", type=int, default=1, help="forward passes for a batch (default %(default)s)")
    add("--lora", type=int, help="LoRA of this rank instead of full fine-tuning")
    add("--quantization", choices=("NF4", "INT8"), help="of the base under LoRA")
    add("--tensor", type=int, default=1, help="chips that share a row (default %(default)s)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of MaxText; may be repeated")
    return parser


def _candidate(options: argparse.Namespace) -> Candidate:
    family, _, topology = options.slice.partition(":")
    chips = 1
    for side in topology.split("x"):
        chips *= int(side)
    devices = chips * (2 if family == "tpu7x" else 1)
    hosts = max(1, chips // options.chips_per_host)
    shape = SliceShape(
        name=options.slice, family=family, topology=topology, hosts=hosts, chips=chips, devices=devices
    )
    mesh = MeshSpec(
        hosts=hosts, chips_per_host=chips // hosts, slices=options.slices, data=options.slices,
        fsdp=devices // options.tensor, tensor=options.tensor,
    )  # fmt: skip
    return Candidate(slice=shape, mesh=mesh, global_batch=options.batch)


def _request(options: argparse.Namespace, candidate: Candidate, scratch: str) -> StageRequest:
    """What a job's preflight would have been asked."""
    source = {"path": "", "name": "data", "uri": f"file://{scratch}"}
    method: dict[str, object] = {"type": options.method}
    if options.lora:
        rank, held = options.lora, options.quantization
        method["lora"] = {"rank": rank, "alpha": 2.0 * rank, "quantization": held}
    if options.method != "SFT":
        method[options.method.lower()] = {"max_prompt_length": options.length // 2}
    return StageRequest.model_validate(
        {
            "job": {"namespace": "", "name": "by-hand", "uid": "by-hand"},
            "stage": "Preflight",
            "attempt": 1,
            "run_folder": f"file://{scratch}",
            "cache": f"file://{scratch}",
            "use_cache": "Off",
            "model": {"uri": f"file://{options.model.resolve()}"},
            "data": {
                "train": [source],
                "max_seq_length": options.length,
                "packing": options.method == "SFT",
            },
            "method": method,
            "hyperparameters": {
                "steps": 1,
                "global_batch_size": options.batch,
                "gradient_accumulation_steps": options.accumulation,
                "learning_rate": 1e-5,
                "weight_precision": "BF16" if options.lora else "FP32",
            },
            "mesh": candidate.mesh,
            "checkpointing": {"every_steps": 1, "keep_last": 1},
            "evaluation": {},
            "export": {"content": "Merged", "dtype": "BF16"},
            "engine_overrides": dict(each.partition("=")[::2] for each in options.set),
        },
        extra="forbid",
    )
