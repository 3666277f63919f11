"""``finetune init``: writes the manifest of a new job, or of one that is like another."""

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from finetune_operator.api import API_VERSION, MethodType
from finetune_operator.cli.documents import read_documents
from finetune_operator.cli.errors import WRONG_ARGUMENT, CliError
from finetune_operator.cli.manifests.new_job import (
    NewJob,
    dataset_source,
    faults,
    manifest_text,
    model_source,
    name_for,
    with_suffix,
)
from finetune_operator.cli.questions import Questions
from finetune_operator.cli.yaml_text import yaml_text
from finetune_operator.objects import Object

if TYPE_CHECKING:
    from finetune_operator.cli.connect.connection import Connection

#: Flags whose values are places of models and data.
_ADDRESSES = ("--model", "--dataset", "--validation")
#: Valid answers, for checks of one answer alone.
_ANY = NewJob(name="a", model="a/b", datasets=("a/b",))
#: Members of a spec that say what happens to one job, now or once, or that name its own run folder.
_OF_ONE_JOB = ("suspend", "cancel", "retry", "resumeFrom")
#: Keys by which a tool finds the objects that it has applied: it would delete or change the copy, too.
_OF_TOOLS = ("app.kubernetes.io/instance", "app.kubernetes.io/managed-by")
_DOMAINS_OF_TOOLS = (
    "kubectl.kubernetes.io",
    "argocd.argoproj.io",
    "kustomize.toolkit.fluxcd.io",
    "helm.toolkit.fluxcd.io",
    "meta.helm.sh",
)


def new_manifest(given: NewJob, questions: Questions | None) -> str:
    """Returns the manifest of a new job.

    Where model or data are not given, ``questions`` ask for everything that is not given; None: no person can be asked.
    With both, the rest has defaults, so that a command line has one result in a terminal and in a script.

    Raises:
        CliError: a flag is missing, contradicts another one, or has a value that the API server would refuse.
    """
    if given.tunes_fully and given.quantization:
        raise CliError(
            "--quantization is for LoRA: full fine-tuning changes the weights themselves.",
            fix="Remove --quantization or --no-lora.",
            code=WRONG_ARGUMENT,
        )
    _refuse_two_lengths(given)
    missing = [flag for flag, each in (("--model", given.model), ("--dataset", given.datasets)) if not each]
    new = given
    if missing:
        if questions is None:
            raise CliError(
                f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.",
                fix="Give a value, such as --model Qwen/Qwen3-0.6B --dataset gs://BUCKET/chat.jsonl. "
                "Questions are asked only at a terminal.",
                code=WRONG_ARGUMENT,
            )
        new = _answered(given, questions)
    text = manifest_text(new)
    _refuse_faults(text, new.namespace)
    return text


def _refuse_two_lengths(given: NewJob) -> None:
    if given.steps is not None and given.epochs is not None:
        raise CliError(
            "--steps and --epochs both set the length of the training.",
            fix="Leave one out.",
            code=WRONG_ARGUMENT,
        )


def _answered(given: NewJob, ask: Questions) -> NewJob:
    """Asks for what is not given, except for the namespace and a quantization."""
    so_far = replace(
        given,
        name=given.name or _ANY.name,
        model=given.model or _ANY.model,
        datasets=given.datasets or _ANY.datasets,
    )
    _refuse_faults(manifest_text(so_far), given.namespace)
    model = given.model or ask.text(
        "Model (OWNER/NAME on the Hugging Face Hub, or gs://…)",
        lambda answer: _fault("--model", replace(_ANY, model=answer)),
    )
    datasets = list(given.datasets) or _asked_datasets(ask)
    method = given.method or MethodType(ask.choice("Method", [*MethodType], MethodType.SFT.value))
    lora = given.lora
    if lora is None:
        lora = bool(given.quantization) or ask.confirm(
            "LoRA (no: full fine-tuning, which needs several times the memory)", default=True
        )
    name = given.name or ask.text(
        "Name", lambda answer: _fault("--name", replace(_ANY, name=answer)), name_for(model, method)
    )
    profile = given.profile or ask.text(
        "Profile (`finetune profiles` lists them; empty: the default one)",
        lambda answer: _fault("--profile", replace(_ANY, profile=answer)) if answer else "",
        "",
    )
    return replace(
        given,
        name=name,
        profile=profile or None,
        model=model,
        datasets=datasets,
        method=method,
        lora=lora,
    )


def _asked_datasets(ask: Questions) -> list[str]:
    def fault(answer: str) -> str:
        return _fault("--dataset", replace(_ANY, datasets=(answer,)))

    found = [ask.text("Training data (gs://…/rows.jsonl, or OWNER/NAME on the Hugging Face Hub)", fault)]
    while more := ask.text(
        "More training data (empty: no more)", lambda each: fault(each) if each else "", ""
    ):
        found.append(more)
    return found


def _fault(flag: str, new: NewJob) -> str:
    """Returns what is wrong with the answer for one flag; empty if nothing is."""
    return next((said for named, said in faults(manifest_text(new), None) if named == flag), "")


def cloned(job: Object, name: str, **replaced: Object) -> Object:
    """Returns the manifest of a job named ``name`` with the spec, labels and annotations of ``job``.

    What belongs to that job alone is left out: its status, what was requested of it (suspension, a retry, a
    cancellation), the run folder that it resumes, and the marks of tools that applied it. ``replaced`` are members of
    the spec.
    """
    metadata = job["metadata"]
    kept = {field: _own(metadata.get(field) or {}) for field in ("labels", "annotations")}
    spec = {key: value for key, value in job["spec"].items() if key not in _OF_ONE_JOB}
    if spec.get("planOnly") is False:  # The API server adds it.
        del spec["planOnly"]
    return {
        "apiVersion": API_VERSION,
        "kind": "FineTuneJob",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            **{field: values for field, values in kept.items() if values},
        },
        "spec": {**spec, **replaced},
    }


def _own(marks: Object) -> Object:
    """Returns the labels or annotations that no tool keeps for itself."""
    return {
        key: value
        for key, value in marks.items()
        if key not in _OF_TOOLS and key.partition("/")[0] not in _DOMAINS_OF_TOOLS
    }


def next_names(name: str) -> Iterator[str]:
    """Yields names for copies of a job: ``bot-2``, ``bot-3`` … for ``bot``, and ``bot-8`` … for ``bot-7``."""
    numbered = re.fullmatch(r"(.+)-(\d{1,6})", name)
    stem, last = (numbered[1], int(numbered[2])) if numbered else (name, 1)
    return (with_suffix(stem, f"-{number}") for number in count(last + 1))


async def cloned_manifest(connection: "Connection", source: str, given: NewJob) -> str:
    """Returns the manifest of a job that is like ``source``, under a name that is free.

    Raises:
        CliError: there is no such job, the name is taken, or the result is not valid.
    """
    if given.method or given.lora is not None or given.quantization:
        raise CliError(
            "--method, --lora and --quantization do not go with --from, which takes the method of the other job.",
            fix="Edit spec.method in the manifest.",
            code=WRONG_ARGUMENT,
        )
    _refuse_two_lengths(given)
    job = await connection.job(source)
    name = given.name or await _free_name(connection, source)
    if given.name and await connection.has_job(given.name):
        raise CliError(
            f'FineTuneJob "{given.name}" exists already in namespace {connection.namespace}.',
            fix="Choose another --name, or leave it out.",
        )
    replaced: dict[str, Object] = {}
    if given.profile:
        replaced["profileRef"] = {"name": given.profile}
    if given.model:
        replaced["model"] = model_source(given.model)
    if given.datasets or given.validation:
        replaced["datasets"] = _other_datasets(job["spec"]["datasets"], given)
    if changed := given.hyperparameters:
        lengths = {"steps", "epochs"} if changed.keys() & {"steps", "epochs"} else set()
        before = job["spec"].get("hyperparameters") or {}
        kept = {key: value for key, value in before.items() if key not in lengths}
        replaced["hyperparameters"] = {**kept, **changed}
    manifest = cloned(job, name, **replaced)
    text = f"# As FineTuneJob {source}. Model, data, method and hyperparameters cannot be changed later.\n"
    if manifest["spec"].get("planOnly"):
        text += "# planOnly: true ends the job after Preflight: remove it to train.\n"
    text += yaml_text(manifest)
    _refuse_faults(text, None)
    return text


def _other_datasets(before: Object, given: NewJob) -> Object:
    changed = dict(before)
    if given.datasets:
        changed["train"] = [dataset_source(each) for each in given.datasets]
    if given.validation:
        changed.pop("splitFromTrain", None)
        changed["validation"] = [dataset_source(each) for each in given.validation]
    return changed


async def _free_name(connection: "Connection", source: str) -> str:
    for name in next_names(source):
        if not await connection.has_job(name):
            return name
    raise AssertionError("names do not end")


def _refuse_faults(text: str, namespace: str | None) -> None:
    if found := faults(text, namespace):
        code = WRONG_ARGUMENT if all(where.startswith("--") for where, _ in found) else 1
        local = any(where in _ADDRESSES and "must be gs://" in said for where, said in found)
        fix = (
            "Jobs read no files of this machine: `gcloud storage cp FILE gs://BUCKET/` uploads them."
            if local
            else ""
        )
        raise CliError("\n".join(f"{where}: {said}" for where, said in found), fix=fix, code=code)


def show_next(text: str, file: Path | None, write: Callable[[str], None]) -> None:
    """Prints the commands that come next after a manifest."""
    place = "FILE" if file is None else shlex.quote(str(file))
    job = next(read_documents(text)).content["metadata"]["name"]
    write(f"Wrote {file}. Next:" if file else "Next, with the manifest in a file:")
    write(f"  finetune validate -f {place}")
    write(f"  finetune plan -f {place}")
    write(f"  kubectl apply -f {place}")
    write(f"  finetune watch {job}")
