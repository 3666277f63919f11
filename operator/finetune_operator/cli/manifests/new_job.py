"""The manifest of a new job, from a few answers. Pure."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from finetune_contract import METHODS as EVALUATED
from finetune_operator.api import API_VERSION, MethodType
from finetune_operator.api.job import MAX_NAME_LENGTH
from finetune_operator.api.method import Quantization
from finetune_operator.cli.manifests.validate import validate_text
from finetune_operator.cli.yaml_text import yaml_text
from finetune_operator.objects import Object
from finetune_operator.planning.defaults import BUILT_IN, LORA, METHODS

_HUB = "hf://"
#: Ends of file names that no repository of the Hugging Face Hub has in practice: such an address is a local file.
_FILES = (".jsonl", ".json", ".gz", ".parquet", ".arrayrecord", ".txt", ".csv", ".safetensors")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: What the fields are set by, the inner ones first.
_FLAGS = (
    ("metadata.namespace", "--namespace"),
    ("metadata.name", "--name"),
    ("spec.profileRef", "--profile"),
    ("spec.model", "--model"),
    ("spec.datasets.validation", "--validation"),
    ("spec.datasets", "--dataset"),
    ("spec.hyperparameters.learningRate", "--learning-rate"),
    ("spec.hyperparameters.steps", "--steps"),
    ("spec.hyperparameters.epochs", "--epochs"),
    ("spec.method", "--method"),
)
#: Columns of the rows that a method learns from, and a mapping of columns as an example.
_ROWS = {
    MethodType.SFT: ("messages, or prompt and completion", "{prompt: question, completion: answer}"),
    MethodType.DPO: ("prompt, chosen and rejected", "{chosen: better, rejected: worse}"),
    MethodType.ORPO: ("prompt, chosen and rejected", "{chosen: better, rejected: worse}"),
}


#: That any chat model answers.
_PROMPT = "What can you help me with?"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What is known of a job from which a manifest is written. None and empty: not given, so that a default applies."""

    name: str | None = None
    """Default: from the model."""
    namespace: str | None = None
    """Default: that of the context in which the manifest is applied."""
    profile: str | None = None
    """Default: the default profile of the job's namespace."""
    model: str = ""
    """``OWNER/NAME`` or ``hf://OWNER/NAME``, each with ``@REVISION`` if wanted, or a URI. Required in a manifest."""
    datasets: Sequence[str] = ()
    """In the same forms; at least one in a manifest."""
    method: MethodType | None = None
    """Default: SFT."""
    lora: bool | None = None
    """Whether an adapter is trained instead of all weights. Default: true."""
    quantization: Quantization | None = None
    """Storage of the base model during LoRA."""
    validation: Sequence[str] = ()
    """Data to measure the loss on, in the same forms. Default: rows held back from ``datasets``."""
    learning_rate: float | None = None
    steps: int | None = None
    epochs: int | None = None

    @property
    def hyperparameters(self) -> Object:
        """The members of ``spec.hyperparameters`` that are given."""
        given = {"learningRate": self.learning_rate, "steps": self.steps, "epochs": self.epochs}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def tunes_fully(self) -> bool:
        return self.lora is False


def model_source(address: str) -> Object:
    """Returns ``spec.model`` of an address."""
    return _source(address, "models/")


def dataset_source(address: str) -> Object:
    """Returns an item of ``spec.datasets.train`` of an address."""
    return _source(address, "datasets/")


def _source(address: str, kind: str) -> Object:
    local = address.startswith(("/", ".", "~")) or address.lower().endswith(_FILES)
    if not address.startswith(_HUB) and ("://" in address or local):
        return {"uri": address}
    repo, _, revision = address.removeprefix(_HUB).removeprefix(kind).partition("@")
    return {"huggingFace": {"repo": repo} | ({"revision": revision} if revision else {})}


def name_for(model: str, method: MethodType) -> str:
    """Returns a valid name for a job that tunes the model: ``qwen3-0-6b-sft``."""
    place = model.removeprefix(_HUB).partition("@")[0]
    last = next((part for part in reversed(place.split("/")) if part), "")
    return with_suffix(re.sub(r"[^a-z0-9]+", "-", last.lower()), f"-{method.lower()}")


def with_suffix(stem: str, suffix: str) -> str:
    """Returns a valid name that ends with ``suffix``. ``stem``, of characters that a name may have, is shortened."""
    bare = stem.strip("-")
    whole = bare if bare[:1].isalpha() else f"job-{bare}"
    return whole[: MAX_NAME_LENGTH - len(suffix)].rstrip("-") + suffix


def manifest_text(new: NewJob) -> str:
    """Returns the manifest, with comments that name what to set next. It need not be valid: see :func:`faults`."""
    method = new.method or MethodType.SFT
    name = new.name or name_for(new.model, method)
    metadata = {"name": name} | ({"namespace": new.namespace} if new.namespace else {})
    head = yaml_text({"apiVersion": API_VERSION, "kind": "FineTuneJob", "metadata": metadata})
    kind = "full fine-tuning" if new.tunes_fully else "LoRA"
    title = f"# {method.value}, {kind}. All fields: `kubectl explain finetunejob.spec --recursive`\n"
    return title + head + "spec:\n" + "".join(f"  {line}\n" for line in _spec(new, method))


def _spec(new: NewJob, method: MethodType) -> Iterator[str]:
    defaults, rows = METHODS[method], _ROWS[method]
    if new.profile is None:
        yield "# Default: the namespace's default profile. `finetune profiles` shows which it is, and what you may use."
        yield "# profileRef: {name: PROFILE}"
    else:
        yield from _lines({"profileRef": {"name": new.profile}})
    yield from _lines({"model": model_source(new.model)})
    yield "# For gated models and private data, a token in a Secret of the job's namespace:"
    yield "# huggingFaceTokenSecretRef: {name: hf, key: token}"
    yield "datasets:"
    yield f"  # Rows have {rows[0]}; columns maps these names to those of the data."
    yield from _lines({"train": [dataset_source(each) for each in new.datasets]}, "  ")
    yield f"  #   columns: {rows[1]}"
    if new.validation:
        yield "  # Rows to measure the loss on."
        yield from _lines({"validation": [dataset_source(each) for each in new.validation]}, "  ")
    else:
        yield "  # Rows that are held back from training to measure the loss on."
        yield from _lines({"splitFromTrain": {"fraction": 0.05}}, "  ")
    yield f"  # Longest sequence in tokens. Default: {BUILT_IN['datasets']['maxSeqLength']}."
    yield "  # maxSeqLength: 2048"
    lora = {"rank": LORA["rank"]} | ({"quantization": new.quantization.value} if new.quantization else {})
    yield from _lines({"method": {"type": method.value} | ({} if new.tunes_fully else {"lora": lora})})
    length = {"epochs": 1} if new.steps is None else {}
    yield from _lines({"hyperparameters": {**length, **new.hyperparameters}})
    if new.learning_rate is None:
        rate = defaults.learning_rate if new.tunes_fully else defaults.lora_learning_rate
        yield f"  # Default: {rate:g}."
        yield f"  # learningRate: {rate:g}"
    yield "# Default: the cheapest slice of the profile on which the training fits."
    yield "# resources: {tpu: v6e-4}"
    yield "evaluation:"
    rows_measured = "rows of validation" if new.validation else "held-back rows"
    yield f"  # On the {rows_measured}, Evaluate measures {', '.join(EVALUATED[method.value].metrics)} of the base"
    yield "  # model and the tuned one, which `finetune compare` needs. Both answer these prompts: name some of yours."
    yield "  # It holds the slice for some minutes; without prompts, datasets, benchmarks and gates it does not run."
    yield from _lines({"prompts": [_PROMPT]}, "  ")


def _lines(content: Object, indent: str = "") -> Iterator[str]:
    return (f"{indent}{line}" for line in yaml_text(content).rstrip("\n").split("\n"))


def faults(text: str, namespace: str | None) -> list[tuple[str, str]]:
    """Returns what the API server would refuse in a manifest, as pairs of the flag to correct and a message.

    A fault that no flag decides has the path of its field. ``namespace`` is the manifest's.
    """
    found = (
        []
        if namespace is None or _NAMESPACE.fullmatch(namespace)
        else [("--namespace", f'must be lower-case letters, digits and "-", at most 63, not "{namespace}"')]
    )
    for problem in validate_text(text, file=""):
        flag = next((flag for path, flag in _FLAGS if problem.path.startswith(path)), problem.path)
        flag = flag or "the manifest"
        found.append((flag, problem.message + (f". {problem.fix}" if problem.fix else "")))
    return found
