"""``finetune-stage compile``: what the programs of any model need on any slice, without a job, weights or a TPU.

Log lines go to standard error. Standard output is JSON, a line for each answer: of the train step, or of each program
that is named; with ``--choose`` the one line that a job's preflight would report.
"""

import argparse
import logging
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from finetune_contract import METHODS, PREFERENCE_TYPES, LoraSpec, MeshSpec, SliceShape, StageRequest
from finetune_contract.tpu import chips_of_topology
from finetune_trainer import families
from finetune_trainer.commands.request_by_hand import request_by_hand
from finetune_trainer.compiled.check import check_memory
from finetune_trainer.compiled.compile_client import CompileClient, CompilerUnavailable
from finetune_trainer.compiled.compile_protocol import (
    KINDS,
    Answer,
    Candidate,
    CompileFailure,
    MemoryExceeded,
    SliceProgram,
)
from finetune_trainer.engine.chips import CHIPS, is_slice, topologies
from finetune_trainer.errors import StageError
from finetune_trainer.families import ModelPlan
from finetune_trainer.methods import method_class
from finetune_trainer.storage import open_store
from finetune_trainer.training.settings import per_device_batch_size

#: The command's option for each field of a job's spec.
_OPTIONS = {
    "spec.hyperparameters.globalBatchSize": "--batch",
    "spec.method.lora.quantization": "--quantization",
    "spec.engineOverrides.": "--set ",
}


def main(arguments: Sequence[str]) -> int:
    """Runs ``finetune-stage compile`` with these arguments and returns the exit code.

    0 if everything fits, 78 if something does not, 64 if settings, model or a program are refused, 76 if a compiler
    flag is refused, 69 if something could not be compiled. Arguments that do not parse raise SystemExit.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.quantization and not options.lora:
        parser.error("--quantization applies to the base model under LoRA: set a rank with --lora")
    if options.method in PREFERENCE_TYPES and options.length < 2:
        parser.error("--length: a pair's row has at least 2 tokens, one of the prompt and one of the answer")
    candidate = _candidate(options)
    if candidate.mesh.devices != candidate.slice.devices * options.slices:
        parser.error(
            f"--tensor {options.tensor} does not divide the {candidate.slice.devices} devices of a slice"
        )
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("finetune_trainer").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            request = _request(options, candidate, scratch)
            plan = families.read(options.model)
            return _choose(options, request, plan) if options.choose else _answer(options, request, plan)
        except StageError as error:
            print(f"{error.reason}: {_cli_message(error)}", file=sys.stderr)
            return int(error.code)
        except CompilerUnavailable as error:
            print(error, file=sys.stderr)
            return 69


def _answer(options: argparse.Namespace, request: StageRequest, plan: ModelPlan) -> int:
    candidate, programs = _candidate(options), _programs(options, request, plan)
    answers: list[Answer] = []
    with CompileClient(request, plan, options.model, open_store(), os.environ) as asking:
        for program in programs:
            answers.append(asking(candidate.model_copy(update={"program": program})))
            print(answers[-1].to_json(), flush=True)
    return _code(answers)


def _choose(options: argparse.Namespace, request: StageRequest, plan: ModelPlan) -> int:
    outcome = check_memory(
        request, plan, options.model, open_store(), os.environ,
        programs=lambda: _programs(options, request, plan),
    )  # fmt: skip
    assert outcome is not None
    print(outcome.to_json())
    if outcome.unknown:
        print(outcome.unknown, file=sys.stderr)
        return 69
    if outcome.uncompiled:
        print(f"Not compiled, or not in time: {'; '.join(outcome.uncompiled)}", file=sys.stderr)
        return 69
    return 0


def _code(answers: Sequence[Answer]) -> int:
    """The exit code of the most urgent answer: what does not fit, what is refused, what may succeed later."""
    if any(isinstance(answer, MemoryExceeded) for answer in answers):
        return 78
    refused = [answer for answer in answers if isinstance(answer, CompileFailure)]
    if not refused:
        return 0
    return 64 if any(answer.certain for answer in refused) else 69


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="finetune-stage compile", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, type=_folder, help="folder on this machine with the model's config.json")
    add("--slice", required=True, type=_slice, help="family and topology: v6e:4x4, v5p:2x2x1")
    add("--slices", type=_count, default=1, help="number of slices (default %(default)s)")
    add("--chips-per-host", type=_count, default=4, help="(default %(default)s)")
    add("--batch", required=True, type=_count, help="rows per step over all chips")
    add("--length", type=_count, default=2048, help="tokens per row (default %(default)s)")
    add(
        "--method",
        choices=tuple(METHODS),
        default="SFT",
        help="pairs: half of a row is reserved for the prompt",
    )
    add("--accumulation", type=_count, default=1, help="forward passes for a batch (default %(default)s)")
    add("--lora", type=_count, help="LoRA of this rank instead of full fine-tuning")
    add("--quantization", choices=("NF4", "INT8"), help="quantization of the base model under LoRA")
    add("--tensor", type=_count, help="chips that share a row (default 1)")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="setting of MaxText; may be repeated")
    add(
        "--choose",
        action="store_true",
        help="compile what preflight compiles if a job sets neither remat policy nor mesh, and choose like preflight",
    )
    add(
        "--program",
        action="append",
        default=[],
        choices=KINDS,
        help="program to compile; default: Train, the train step, which --choose always compiles first; may be "
        "repeated",
    )
    add(
        "--texts",
        type=_count,
        default=64,
        help="number of prompts of Generate or texts of Likelihood (default %(default)s)",
    )
    add("--width", type=_count, default=512, help="tokens per prompt or text (default %(default)s)")
    add("--new-tokens", type=_count, default=128, help="tokens per answer (default %(default)s)")
    return parser


def _programs(options: argparse.Namespace, request: StageRequest, plan: ModelPlan) -> list[SliceProgram]:
    """Returns the programs that ``--program`` names, as a job with such rows and texts runs them."""
    names = options.program or ["Train"]
    asked = [SliceProgram(kind=kind) for kind in KINDS if kind in names]
    made = [program for program in asked if not program.of_texts]
    if made == asked:
        return made
    from finetune_trainer.stages.evaluate import sampling_of  # imports MaxText, which takes seconds
    from finetune_trainer.stages.slice_programs import ProgramRecorder, kernel_settings

    # Programs depend on the texts' lengths only, so any token ids do.
    text = [0] * options.width
    recorder = ProgramRecorder(kernel_settings(request), plan.context_length)
    if "Generate" in names:
        recorder.answers([text] * options.texts, sampling_of(request))
    if "Likelihood" in names:
        recorder.likelihoods([(text, [0])] * options.texts)
    return [*made, *recorder.programs]


def _folder(text: str) -> Path:
    if (Path(text) / "config.json").is_file():
        return Path(text)
    raise argparse.ArgumentTypeError(
        f"{text} is not a folder with a config.json; for a model of the hub: hf download OWNER/NAME config.json "
        "--local-dir NAME"
    )


def _slice(text: str) -> str:
    family, _, topology = text.partition(":")
    if not re.fullmatch(rf"(?:{'|'.join(CHIPS)}):[1-9]\d*x[1-9]\d*(?:x[1-9]\d*)?", text):
        raise argparse.ArgumentTypeError(
            f"{text} is not FAMILY:TOPOLOGY, for example v6e:2x2 for the slice v6e-4 of a job; families are "
            f"{', '.join(sorted(CHIPS))}"
        )
    if not is_slice(family, topology):
        raise argparse.ArgumentTypeError(
            f"{family} has no slice {topology}; its topologies are {topologies(family)}"
        )
    return text


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a number above 0")


def _cli_message(error: StageError) -> str:
    """A job's message, with this command's options and the shell's variables in place of fields and flags."""
    if error.reason == "CompilerFlagRefused":
        return (
            f"LIBTPU_INIT_ARGS or XLA_FLAGS of this shell: the TPU compiler rejects a flag (found {error.actual}). "
            "Correct or remove it."
        )
    text = str(error)
    for field, option in _OPTIONS.items():
        text = text.replace(field, option)
    return text


def _candidate(options: argparse.Namespace) -> Candidate:
    family, _, topology = options.slice.partition(":")
    chips = chips_of_topology(topology)
    devices = chips * CHIPS[family].devices
    hosts = max(1, chips // options.chips_per_host)
    shape = SliceShape(
        name=options.slice, family=family, topology=topology, hosts=hosts, chips=chips, devices=devices
    )
    mesh = MeshSpec(
        hosts=hosts, chips_per_host=chips // hosts, slices=options.slices, data=options.slices,
        fsdp=devices // (options.tensor or 1), tensor=options.tensor or 1,
    )  # fmt: skip
    return Candidate(slice=shape, mesh=mesh, global_batch=options.batch)


def _request(options: argparse.Namespace, candidate: Candidate, scratch: str) -> StageRequest:
    """The request that a job's preflight would have. Raises ``StageError`` 64 for a batch that does not divide."""
    source = {"path": "", "name": "data", "uri": f"file://{scratch}"}
    rank = options.lora
    lora = LoraSpec(rank=rank, alpha=2.0 * rank, quantization=options.quantization) if rank else None
    request = request_by_hand(
        "Preflight",
        scratch,
        model={"uri": f"file://{options.model.resolve()}"},
        data={
            "train": [source],
            "max_seq_length": options.length,
            "packing": options.method not in PREFERENCE_TYPES,
        },
        method=method_class(options.method).example(options.length, lora).spec,
        hyperparameters={
            "global_batch_size": options.batch,
            "gradient_accumulation_steps": options.accumulation,
            "weight_precision": "BF16" if options.lora else "FP32",
        },
        mesh=candidate.mesh,
        evaluation={"max_new_tokens": options.new_tokens},
        memory={
            "source": "Compile",
            "slice": candidate.slice,
            "choose_parallelism": options.tensor is None,
        },
        engine_overrides=dict(each.partition("=")[::2] for each in options.set),
    )
    per_device_batch_size(request.hyperparameters, request.mesh)
    return request
