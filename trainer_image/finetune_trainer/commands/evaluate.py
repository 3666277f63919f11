"""``finetune-stage evaluate``: measures any folder in Hugging Face format, without a job.

Log lines go to standard error; standard output ends with the result.
"""

import argparse
import contextlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from finetune_contract import ExitCode, StageRequest
from finetune_trainer.commands.request_by_hand import request_by_hand
from finetune_trainer.errors import StageError, faults
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import SigtermHandler, exit_now
from finetune_trainer.storage import engine_path, open_store


def main(arguments: Sequence[str]) -> int:
    """Runs the command. Returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.getLogger("absl").setLevel(logging.WARNING)
    scratch = Path(tempfile.mkdtemp(prefix="finetune-evaluate-"))
    try:
        with _standard_output_to_error():
            result = _evaluate(options, scratch)
    except StageError as error:
        print(f"{error.reason}: {error}", file=sys.stderr)
        return int(error.code)
    except ValidationError as error:
        print(f"BadRequest: these arguments are invalid:\n{faults(error)}", file=sys.stderr)
        return int(ExitCode.BAD_REQUEST)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"loss {result['loss']:.6f}   perplexity {result['perplexity']:.4f}   {result['tokens']} tokens"
        )
        for sample in result["samples"]:
            print(f"\n> {sample['prompt']}\n{sample['answer']}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="finetune-stage", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("evaluate", help="loss of a model on a dataset, and answers to prompts")
    command.add_argument(
        "--model", required=True, type=_address, help="folder in Hugging Face format (path, file:// or gs://)"
    )
    command.add_argument(
        "--data", required=True, type=_address, help="JSON lines with messages, or prompt and completion"
    )
    command.add_argument("--adapter", type=_address, help="PEFT LoRA folder to merge into the model first")
    command.add_argument(
        "--max-seq-length", type=int, default=2048, help="longer rows are truncated (default %(default)s)"
    )
    command.add_argument(
        "--precision",
        choices=("BF16", "FP32"),
        default="BF16",
        help="dtype of the computation (default %(default)s)",
    )
    command.add_argument(
        "--batch-size", type=int, default=8, help="rows per batch on each device (default %(default)s)"
    )
    command.add_argument(
        "--prompt", action="append", default=[], help="prompt to answer with greedy decoding; may be repeated"
    )
    command.add_argument("--max-new-tokens", type=int, default=128)
    command.add_argument(
        "--train-on-prompt", action="store_true", help="also count the tokens of prompts in the loss"
    )
    command.add_argument("--json", action="store_true", help="one JSON object instead of text")
    # Only for the list of commands: `main.run` passes its arguments to commands.compile.
    commands.add_parser("compile", help="show the memory of a train step on a slice, without a TPU")
    return parser


def _address(text: str) -> str:
    return text.rstrip("/") if "://" in text else f"file://{Path(text).resolve()}"


@contextlib.contextmanager
def _standard_output_to_error() -> Iterator[None]:
    """Redirects what the engine and libraries print to standard error; standard output is for the result."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _evaluate(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    import jax

    from finetune_trainer.checkpoints.weights import open_weights
    from finetune_trainer.conversion import streaming
    from finetune_trainer.conversion.merging import merged_folder
    from finetune_trainer.engine import maxtext
    from finetune_trainer.evaluation.models import load
    from finetune_trainer.stages.context import StageContext, late_environment
    from finetune_trainer.stages.evaluate import batches_of, collect, measure, row_capacity_of
    from finetune_trainer.training.engine_config import evaluation_config

    late_environment(os.environ)
    request = _request(options, scratch, devices=jax.device_count())
    context = StageContext(
        request=request,
        store=open_store(),
        processes=Processes(count=1, index=0),
        stopper=SigtermHandler(lambda: exit_now(130)),
        scratch=scratch,
    )
    model = context.model(weights=True)
    plan = context.plan(model)
    maxtext.prepare(plan)
    work = collect(context, plan)
    weights = open_weights(model.path, plan, where=model.source)
    if options.adapter:
        folder = merged_folder(weights, plan, options.adapter, scratch, context.store)
        weights = open_weights(folder, plan)
    items = streaming.convert(weights, plan, f"file://{scratch}/converted", store=context.store).items
    parameters = engine_path(items)
    room = row_capacity_of(request, plan)
    loaded = load(evaluation_config(room, folder=context.folder.uri, parameters=parameters))
    measured = measure(context, loaded, room, work, batches_of(context, work))
    assert measured.result is not None
    return {
        **measured.result.model_dump(),
        "samples": [
            {"prompt": prompt, "answer": answer}
            for prompt, answer in zip(options.prompt, measured.answers, strict=True)
        ],
    }


def _request(options: argparse.Namespace, scratch: Path, *, devices: int) -> StageRequest:
    """The request that a job's Evaluate stage would have."""
    data = {"path": "--data", "name": "data", "uri": options.data}
    return request_by_hand(
        "Evaluate",
        scratch,
        model={"uri": options.model},
        data={"train": [data], "validation": [data], "max_seq_length": options.max_seq_length},
        method={"type": "SFT", "train_on_prompt": options.train_on_prompt},
        hyperparameters={
            "global_batch_size": options.batch_size * devices,
            "compute_precision": options.precision,
        },
        mesh={"hosts": 1, "chips_per_host": devices, "fsdp": devices},
        evaluation={"prompts": options.prompt, "max_new_tokens": options.max_new_tokens},
    )
