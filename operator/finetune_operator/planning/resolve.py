"""Translates the merged spec into the contract's records, section by section."""

import itertools
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from finetune_contract import (
    METHODS,
    PREFERENCE_TYPES,
    BenchmarkSpec,
    CheckpointPolicy,
    DatasetSpec,
    DataSpec,
    DestinationSpec,
    EvaluationDatasetSpec,
    EvaluationSpec,
    ExportSpec,
    GateSpec,
    HubDestinationSpec,
    HubRef,
    ModelSource,
    ProfilingSpec,
    SmokeSpec,
    SplitSpec,
)
from finetune_operator.api import Reason
from finetune_operator.planning.chat_template import template_arguments
from finetune_operator.planning.defaults import (
    DATASET,
    EXPORT,
    GENERATION,
    HUB,
    HUB_DESTINATION,
    PROFILING,
    SMOKE,
    filled,
)
from finetune_operator.planning.errors import Refused

type Object = Mapping[str, Any]

#: Methods that compare pairs of answers, as text for messages.
_PREFERENCE = " or ".join(PREFERENCE_TYPES)
#: Metrics of a method that can rank checkpoints.
_RANKING = ("loss", "perplexity")
#: Names of the API's metrics in ``<dataset>/<metric>``.
METRIC_NAMES: Mapping[str, str] = {
    "Loss": "loss",
    "ExactMatch": "exact_match",
    "TokenF1": "token_f1",
    "RougeL": "rouge_l",
}


def _hub(source: Object) -> HubRef | None:
    hub = source.get("huggingFace")
    return HubRef(repo=hub["repo"], revision=filled(hub, HUB)["revision"]) if hub else None


def model(section: Object) -> ModelSource:
    """Resolves ``spec.model``. A revision is a commit only after preflight has resolved it."""
    tokenizer = section.get("tokenizer")
    return ModelSource(
        hugging_face=_hub(section),
        uri=_folder(section.get("uri")),
        orbax=section.get("orbax", {}).get("uri"),
        maxtext_model=section.get("maxtextModel"),
        tokenizer=ModelSource(hugging_face=_hub(tokenizer), uri=_folder(tokenizer.get("uri")))
        if tokenizer
        else None,
    )


def _folder(uri: str | None) -> str | None:
    return uri.rstrip("/") if uri else None


def data(spec: Object, *, length_asked: bool, created: date | None) -> DataSpec:
    """Resolves ``spec.datasets``. Its chat template is already text (:func:`.chat_template.with_chat_template`).

    ``length_asked`` says whether the job itself sets maxSeqLength, instead of a default. ``created`` is the day of the
    job's creation, which templates print as the current date; None if the trainer image does not support it.
    """
    section, check, kind = spec["datasets"], spec["preflight"]["dataset"], spec["method"]["type"]
    most_evaluated = spec["evaluation"]["maxExamples"]
    if check != "Full" and "steps" not in spec["hyperparameters"]:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.preflight.dataset is {check}, so the rows that make up an epoch are not counted: "
            "set spec.hyperparameters.steps, or use Full.",
        )
    packing = section.get("packing", kind not in PREFERENCE_TYPES)
    if packing and kind in PREFERENCE_TYPES:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.datasets.packing is true, but {kind} compares whole answers, which are never packed: leave it out.",
        )
    split = section.get("splitFromTrain")
    train = [_source("train", index, source) for index, source in enumerate(section["train"])]
    validation = [
        first_rows(_source("validation", index, source), most_evaluated)
        for index, source in enumerate(section.get("validation", ()))
    ]
    for source in (*train, *validation):
        _refuse_format_of_another_method(source, kind)
    return DataSpec(
        train=train,
        validation=validation,
        shuffle=section["shuffle"],
        max_seq_length=section["maxSeqLength"],
        max_seq_length_asked=length_asked,
        packing=packing,
        split_from_train=SplitSpec(
            fraction=float(split["fraction"]),
            seed=split.get("seed", spec["hyperparameters"]["seed"]),
            max_examples=most_evaluated,
        )
        if split
        else None,
        chat_template=section.get("chatTemplate", {}).get("inline"),
        chat_template_arguments=template_arguments(spec),
        chat_template_date=created,
        check=check,
    )


def _refuse_format_of_another_method(source: DatasetSpec, kind: str) -> None:
    """Raises Refused for a format that the method cannot train on; preflight would only find it in the first row."""
    where = f"{source.path}.format is {source.format}"
    if kind not in PREFERENCE_TYPES and source.format == "Preference":
        raise Refused(
            Reason.INVALID_SPEC,
            f"{where}, but {kind} does not learn from pairs of answers: set spec.method.type to "
            f"{_PREFERENCE}, or train on "
            "the better answers with format: PromptCompletion and columns: {completion: chosen}.",
        )
    if kind in PREFERENCE_TYPES and source.format not in {"Auto", "Preference"}:
        raise Refused(
            Reason.INVALID_SPEC,
            f"{where}, but {kind} learns from pairs of answers: use rows with chosen and rejected, and set format: "
            "Preference or leave it out.",
        )


def _source(kind: str, index: int, source: Object, root: str = "spec.datasets.") -> DatasetSpec:
    hub = source.get("huggingFace", {})
    defaulted = {**DATASET, **hub, **source}
    return DatasetSpec(
        path=f"{root}{kind}[{index}]",
        name=source.get("name", f"{kind}-{index}"),
        hugging_face=_hub(source),
        config=hub.get("config"),
        split=defaulted["split"],
        uri=source.get("uri"),
        format=defaulted["format"],
        columns=source.get("columns", {}),
        role_map=source.get("roleMap", {}),
        max_examples=source.get("maxExamples"),
        weight=float(source["weight"]) if "weight" in source else None,
    )


def evaluation(spec: Object) -> EvaluationSpec:
    """Resolves ``spec.evaluation``. Raises Refused."""
    section = spec["evaluation"]
    if "everySteps" in section and not _on_validation(spec):
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.evaluation.everySteps is set, but there is nothing to evaluate on: "
            "set spec.datasets.validation or splitFromTrain, or remove everySteps.",
        )
    datasets = [
        EvaluationDatasetSpec(
            source=first_rows(_source("datasets", index, source, "spec.evaluation."), section["maxExamples"]),
            metrics=list(source.get("metrics", ("Loss",))),
        )
        for index, source in enumerate(section.get("datasets", ()))
    ]
    for dataset in datasets:
        _refuse_pairs_that_nothing_compares(dataset, spec["method"]["type"])
    benchmarks = [
        BenchmarkSpec(
            path=f"spec.evaluation.benchmarks[{index}]",
            name=benchmark["name"],
            uri=_folder(benchmark.get("uri")),
            limit=benchmark.get("limit"),
        )
        for index, benchmark in enumerate(section.get("benchmarks", ()))
    ]
    measured = _on_validation(spec)
    for dataset in datasets:
        measured += [f"{dataset.source.name}/{name}" for name in _measured_on(dataset, spec)]
    if twice := [name for name in measured if measured.count(name) > 1]:
        raise Refused(
            Reason.INVALID_SPEC,
            f"two metrics would be called {twice[0]}: give all of spec.datasets.validation and "
            "spec.evaluation.datasets names of their own.",
        )
    named = {each.rpartition("/")[0] for each in measured}
    if taken := [each for each in benchmarks if each.name in named]:
        raise Refused(
            Reason.INVALID_SPEC,
            f"{taken[0].path} is called {taken[0].name}, as a dataset is: give the dataset another name.",
        )
    generation = filled(section["generation"], GENERATION)
    return EvaluationSpec(
        every_steps=section.get("everySteps"),
        datasets=datasets,
        benchmarks=benchmarks,
        prompts=list(section.get("prompts", ())),
        baseline=section["baseline"],
        max_new_tokens=generation["maxNewTokens"],
        temperature=float(generation["temperature"]),
        top_k=generation["topK"],
        gates=_gates(section, measured, [each.name for each in benchmarks]),
    )


def _refuse_pairs_that_nothing_compares(dataset: EvaluationDatasetSpec, kind: str) -> None:
    where = dataset.source.path
    if not dataset.pairs:
        if pairs := [name for name in ("chosen", "rejected") if name in dataset.source.columns]:
            raise Refused(
                Reason.INVALID_SPEC,
                f"{where}.columns.{pairs[0]} is for pairs of answers: set format: Preference beside it.",
            )
        return
    if kind not in PREFERENCE_TYPES:
        raise Refused(
            Reason.INVALID_SPEC,
            f"{where}.format is Preference, but {kind} compares no answers: measure pairs in a job of method "
            f"{_PREFERENCE}.",
        )
    if dataset.metrics != ["Loss"]:
        raise Refused(
            Reason.INVALID_SPEC,
            f"{where}.metrics is {', '.join(dataset.metrics)}, but pairs of answers have Loss alone, which measures "
            "reward_accuracy and reward_margin, too: leave metrics out.",
        )


def _measured_on(dataset: EvaluationDatasetSpec, spec: Object) -> Sequence[str]:
    if dataset.pairs:
        return METHODS[spec["method"]["type"]].metrics
    return [METRIC_NAMES[metric] for metric in dataset.metrics]


def _on_validation(spec: Object) -> list[str]:
    """Returns the metrics on the validation rows: over all sets, and the loss of each set if there are several."""
    sets = spec["datasets"].get("validation", ())
    if not sets and not spec["datasets"].get("splitFromTrain"):
        return []
    names = [_source("validation", index, each).name for index, each in enumerate(sets)]
    return [
        *METHODS[spec["method"]["type"]].metrics,
        *(f"{name}/loss" for name in names if len(names) > 1),
    ]


def _gates(section: Object, measured: Sequence[str], benchmarks: Sequence[str]) -> list[GateSpec]:
    """Resolves the gates. Raises Refused for an unknown metric, except a benchmark's, which preflight determines."""
    gates = section.get("gates", ())
    for index, gate in enumerate(gates):
        if gate["metric"] not in measured and gate["metric"].partition("/")[0] not in benchmarks:
            raise Refused(
                Reason.INVALID_SPEC,
                f"spec.evaluation.gates[{index}].metric is {gate['metric']}, which this job does not measure. "
                f"It measures {', '.join(measured) or 'nothing'}. Name the metric in spec.evaluation.datasets"
                f"{'' if 'loss' in measured else ', or rows in spec.datasets.validation'}.",
            )
    return [
        GateSpec(
            metric=gate["metric"],
            op=gate["op"],
            value=_decimal(gate, "value"),
            delta_from_baseline=_decimal(gate, "deltaFromBaseline"),
        )
        for gate in gates
    ]


def _decimal(section: Object, name: str) -> float | None:
    return float(section[name]) if name in section else None


def first_rows(source: DatasetSpec, rows: int) -> DatasetSpec:
    """Returns ``source`` limited to its first ``rows`` rows."""
    return source.model_copy(update={"max_examples": min(rows, source.max_examples or rows)})


def checkpointing(spec: Object) -> CheckpointPolicy:
    """Resolves ``spec.checkpointing``. The best checkpoints are kept if training measures which are best."""
    section, evaluated = spec["checkpointing"], spec["evaluation"].get("everySteps")
    every, keep, by = section["everySteps"], section["keep"], section.get("bestBy", {})
    wanted = keep.get("best", 0) > 0 or bool(by) or spec["export"].get("checkpoint") == "Best"
    metric = by.get("metric", "loss")
    ranking = [each for each in METHODS[spec["method"]["type"]].metrics if each in _RANKING]
    if metric not in ranking:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.checkpointing.bestBy.metric is {metric}, but training measures "
            f"{' and '.join(ranking)} on spec.datasets.validation. Use one of them.",
        )
    known = evaluated is not None and every % evaluated == 0
    if wanted and not known:
        raise Refused(
            Reason.INVALID_SPEC,
            f"the best checkpoint is asked for, but not every checkpoint (spec.checkpointing.everySteps: {every}) is "
            f"measured (spec.evaluation.everySteps: {evaluated or 'not set'}). "
            "Set evaluation.everySteps to checkpointing.everySteps or a part of it, and name rows in "
            "spec.datasets.validation.",
        )
    return CheckpointPolicy(
        every_steps=every,
        every_seconds=section["everySeconds"],
        keep_last=keep["last"],
        keep_best=keep.get("best", 1) if known else 0,
        best_metric=metric,
        best_mode=by.get("mode", "Min"),
    )


def profiling(spec: Object) -> ProfilingSpec | None:
    """Resolves ``spec.profiling``. None: nothing is profiled."""
    if not spec.get("profiling"):
        return None
    section = filled(spec["profiling"], PROFILING)
    return ProfilingSpec(start_step=section["startStep"], steps=section["steps"])


def smoke(spec: Object) -> SmokeSpec | None:
    """Resolves ``spec.preflight.smoke``. None: preflight trains no miniature of the model."""
    section = spec["preflight"].get("smoke")
    return None if section is None else SmokeSpec.model_validate(filled(section, SMOKE))


def export(spec: Object, service_account: str) -> ExportSpec:
    """Resolves ``spec.export``. The manifests for serving run as ``service_account``. Raises Refused."""
    section = spec["export"]
    if "HuggingFace" not in section["formats"]:
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.export.formats has no HuggingFace: the other formats are made beside it. Add HuggingFace.",
        )
    content = filled(section, EXPORT)["content"]
    if content != "Merged" and "lora" not in spec["method"]:
        raise Refused(
            Reason.INVALID_SPEC,
            f"spec.export.content is {content}, but full fine-tuning makes no adapter: "
            "use Merged, or set spec.method.lora.",
        )
    if content == "Adapter" and "OrbaxParams" in section["formats"]:
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.export.content is Adapter, but the format OrbaxParams holds the merged model: "
            "use Both, or leave OrbaxParams out.",
        )
    serves = section.get("serving", {}).get("enabled", False)
    if content == "Adapter" and serves:
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.export.content is Adapter, but the manifests of spec.export.serving serve the merged model: "
            "use Both, or leave serving out.",
        )
    destinations = [
        _destination(index, destination) for index, destination in enumerate(section.get("destinations", ()))
    ]
    _refuse_overlap(destinations)
    return ExportSpec(
        content=content,
        dtype=section["dtype"],
        orbax="OrbaxParams" in section["formats"],
        destinations=destinations,
        serving_account=service_account if serves else None,
    )


def _refuse_overlap(destinations: Sequence[DestinationSpec]) -> None:
    """Raises Refused if a destination would overwrite what the export writes to another one."""
    for first, second in itertools.permutations(destinations, 2):
        one, other = (each.uri or f"hf://{each.hub.repo if each.hub else ''}" for each in (first, second))
        if one == other and second.path > first.path:
            raise Refused(
                Reason.INVALID_SPEC, f"{second.path} is the same place as {first.path}: leave one out."
            )
        if other.startswith(f"{one}/"):
            raise Refused(
                Reason.INVALID_SPEC,
                f"{second.path} lies in the folder of {first.path}, which its export would replace in part: choose "
                "folders beside each other.",
            )


def _destination(index: int, destination: Object) -> DestinationSpec:
    path = f"spec.export.destinations[{index}]"
    hub = destination.get("huggingFaceHub")
    if hub is None:
        return DestinationSpec(path=path, uri=destination["uri"].rstrip("/"))
    return DestinationSpec(
        path=f"{path}.huggingFaceHub",
        hub=HubDestinationSpec(
            repo=hub["repo"],
            private=filled(hub, HUB_DESTINATION)["private"],
            token_variable=f"HF_UPLOAD_TOKEN_{index}",
        ),
    )


def upload_tokens(spec: Object) -> dict[str, tuple[str, str]]:
    """Maps environment variables to the name and key of the Secret with a destination's token, never to its value."""
    tokens: dict[str, tuple[str, str]] = {}
    for index, destination in enumerate(spec["export"].get("destinations", ())):
        hub = destination.get("huggingFaceHub")
        if hub is None:
            continue
        secret = hub.get("tokenSecretRef") or spec.get("huggingFaceTokenSecretRef")
        if secret is None:
            raise Refused(
                Reason.INVALID_SPEC,
                f"spec.export.destinations[{index}].huggingFaceHub has no token to write with: name a Secret in its "
                "tokenSecretRef, or in spec.huggingFaceTokenSecretRef.",
            )
        tokens[f"HF_UPLOAD_TOKEN_{index}"] = (secret["name"], secret.get("key", "token"))
    return tokens
