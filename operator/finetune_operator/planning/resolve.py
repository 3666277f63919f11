"""The merged spec, section by section, in the contract's terms."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import (
    DatasetSource,
    DataSpec,
    EvaluationSpec,
    ExportSpec,
    HubRef,
    Hyperparameters,
    LoraSpec,
    MethodSpec,
    ModelSource,
)
from finetune_operator.api import Reason
from finetune_operator.planning.errors import Refused

type Object = Mapping[str, Any]

DEFAULT_RANK = 16
_LEARNING_RATE = {"full": "2e-5", "lora": "2e-4"}
_WARMUP_RATIO = "0.03"


def _hub(source: Object) -> HubRef | None:
    hub = source.get("huggingFace")
    return HubRef(repo=hub["repo"], revision=hub.get("revision", "main")) if hub else None


def model(section: Object) -> ModelSource:
    """``spec.model``; a revision is a commit only once preflight has resolved it."""
    tokenizer = section.get("tokenizer")
    return ModelSource(
        hugging_face=_hub(section),
        uri=_folder(section.get("uri")),
        maxtext_model=section.get("maxtextModel"),
        tokenizer=ModelSource(hugging_face=_hub(tokenizer), uri=_folder(tokenizer.get("uri")))
        if tokenizer
        else None,
    )


def _folder(uri: str | None) -> str | None:
    return uri.rstrip("/") if uri else None


def data(section: Object) -> DataSpec:
    """``spec.datasets``."""
    return DataSpec(
        train=[_source("train", index, source) for index, source in enumerate(section["train"])],
        validation=[
            _source("validation", index, source) for index, source in enumerate(section.get("validation", ()))
        ],
        shuffle=section["shuffle"],
        max_seq_length=section["maxSeqLength"],
        packing=section["packing"],
    )


def _source(kind: str, index: int, source: Object) -> DatasetSource:
    hub = source.get("huggingFace", {})
    return DatasetSource(
        path=f"spec.datasets.{kind}[{index}]",
        name=source.get("name", f"{kind}-{index}"),
        hugging_face=_hub(source),
        config=hub.get("config"),
        split=hub.get("split", "train"),
        uri=source.get("uri"),
        format=source.get("format", "Auto"),
        columns=source.get("columns", {}),
        role_map=source.get("roleMap", {}),
        max_examples=source.get("maxExamples"),
    )


def method(section: Object) -> MethodSpec:
    """``spec.method``."""
    lora = section.get("lora")
    rank = lora.get("rank", DEFAULT_RANK) if lora is not None else 0
    return MethodSpec(
        train_on_prompt=section.get("sft", {}).get("trainOnPrompt", False),
        lora=None
        if lora is None
        else LoraSpec(
            rank=rank, alpha=float(lora.get("alpha", 2 * rank)), target_modules=lora.get("targetModules")
        ),
    )


def hyperparameters(spec: Object, global_batch: int) -> Hyperparameters:
    """``spec.hyperparameters``; several defaults depend on the method."""
    section = spec["hyperparameters"]
    kind = "lora" if "lora" in spec["method"] else "full"
    steps = section.get("steps")
    warmup_steps = section.get("warmupSteps")
    return Hyperparameters(
        steps=steps,
        epochs=None if steps is not None else float(section.get("epochs", 1)),
        global_batch_size=global_batch,
        gradient_accumulation_steps=section.get("gradientAccumulationSteps", 1),
        learning_rate=float(section.get("learningRate", _LEARNING_RATE[kind])),
        schedule=section["schedule"],
        warmup_steps=warmup_steps,
        warmup_ratio=None if warmup_steps is not None else float(section.get("warmupRatio", _WARMUP_RATIO)),
        weight_decay=float(section["weightDecay"]),
        max_grad_norm=float(section["maxGradNorm"]),
        optimizer=section["optimizer"],
        seed=section["seed"],
        compute_precision=section["computePrecision"],
        weight_precision=section.get("weightPrecision", "BF16" if kind == "lora" else "FP32"),
    )


def evaluation(spec: Object) -> EvaluationSpec:
    """``spec.evaluation``."""
    section = spec["evaluation"]
    if "everySteps" in section and not spec["datasets"].get("validation"):
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.evaluation.everySteps is set, but there is nothing to evaluate on: "
            "name rows in spec.datasets.validation, or remove everySteps.",
        )
    return EvaluationSpec(
        every_steps=section.get("everySteps"),
        prompts=list(section.get("prompts", ())),
        baseline=section["baseline"],
        max_new_tokens=section["generation"]["maxNewTokens"],
    )


def export(spec: Object) -> ExportSpec:
    """``spec.export``."""
    section = spec["export"]
    content = section.get("content", "Merged")
    if content != "Merged" and "lora" not in spec["method"]:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.export.content is {content}, but full fine-tuning makes no adapter: "
            "use Merged, or set spec.method.lora.",
        )
    return ExportSpec(
        content=content,
        dtype=section["dtype"],
        destinations=[destination["uri"].rstrip("/") for destination in section.get("destinations", ())],
    )
