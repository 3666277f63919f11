"""Translates ``spec.evaluation`` into the contract's record."""

from collections.abc import Mapping, Sequence

from finetune_contract import (
    METHODS,
    PREFERENCE_TYPES,
    BenchmarkSpec,
    EvaluationDatasetSpec,
    EvaluationSpec,
    GateSpec,
)
from finetune_operator.api import MethodType
from finetune_operator.api.evaluation import EvaluationMetric
from finetune_operator.planning.defaulted import DefaultedEvaluation, DefaultedJobSpec
from finetune_operator.planning.errors import invalid_spec
from finetune_operator.planning.sections.sources import dataset_source, first_rows, folder_uri, source_name

#: Names of the API's metrics in ``<dataset>/<metric>``.
_METRIC_NAMES: Mapping[str, str] = {
    "Loss": "loss",
    "ExactMatch": "exact_match",
    "TokenF1": "token_f1",
    "RougeL": "rouge_l",
}


def resolve_evaluation(spec: DefaultedJobSpec) -> EvaluationSpec:
    """Resolves ``spec.evaluation``: sources, benchmarks and gates.

    Raises Refused for periodic evaluation without validation rows, for datasets that the method cannot measure, for
    ambiguous names, and for gates on metrics that the job does not measure.
    """
    section, on_validation = spec.evaluation, _on_validation(spec)
    if section.every_steps is not None and not on_validation:
        raise invalid_spec(
            "spec.evaluation.everySteps is set, but there is nothing to evaluate on: "
            "set spec.datasets.validation or splitFromTrain, or remove everySteps.",
        )
    datasets = [
        EvaluationDatasetSpec(
            source=first_rows(
                dataset_source("datasets", index, source, "spec.evaluation."), section.max_examples
            ),
            metrics=list(source.metrics or (EvaluationMetric.LOSS,)),
        )
        for index, source in enumerate(section.datasets or ())
    ]
    for dataset in datasets:
        _refuse_pairs_that_nothing_compares(dataset, spec.method.type)
    benchmarks = [
        BenchmarkSpec(
            path=f"spec.evaluation.benchmarks[{index}]",
            name=benchmark.name,
            uri=folder_uri(benchmark.uri),
            limit=benchmark.limit,
        )
        for index, benchmark in enumerate(section.benchmarks or ())
    ]
    measured = [
        *on_validation,
        *(
            f"{dataset.source.name}/{name}"
            for dataset in datasets
            for name in _measured_on(dataset, spec.method.type)
        ),
    ]
    _refuse_ambiguous_names(measured, benchmarks)
    return EvaluationSpec(
        every_steps=section.every_steps,
        datasets=datasets,
        benchmarks=benchmarks,
        prompts=list(section.prompts or ()),
        baseline=section.baseline,
        max_new_tokens=section.generation.max_new_tokens,
        temperature=section.generation.temperature,
        top_k=section.generation.top_k,
        gates=_gates(section, measured, [benchmark.name for benchmark in benchmarks]),
    )


def _refuse_ambiguous_names(measured: Sequence[str], benchmarks: Sequence[BenchmarkSpec]) -> None:
    """Raises Refused if two metrics, or a dataset and a benchmark, have the same name.

    ``measured`` are the metrics on datasets, ``<dataset>/<metric>`` or the metric's name alone.
    """
    if twice := [name for name in measured if measured.count(name) > 1]:
        raise invalid_spec(
            f"two metrics would have the name {twice[0]}: give all of spec.datasets.validation and "
            "spec.evaluation.datasets names of their own.",
        )
    datasets = {name.rpartition("/")[0] for name in measured}
    if taken := [benchmark for benchmark in benchmarks if benchmark.name in datasets]:
        raise invalid_spec(
            f"{taken[0].path} has the name of a dataset, {taken[0].name}: give the dataset another name.",
        )


def _refuse_pairs_that_nothing_compares(dataset: EvaluationDatasetSpec, kind: MethodType) -> None:
    where = dataset.source.path
    if not dataset.pairs:
        if pairs := [name for name in ("chosen", "rejected") if name in dataset.source.columns]:
            raise invalid_spec(
                f"{where}.columns.{pairs[0]} is for pairs of answers: set format: Preference beside it.",
            )
        return
    if kind not in PREFERENCE_TYPES:
        raise invalid_spec(
            f"{where}.format is Preference, but {kind} compares no answers: measure pairs in a job of method "
            f"{' or '.join(PREFERENCE_TYPES)}.",
        )
    if dataset.metrics != ["Loss"]:
        raise invalid_spec(
            f"{where}.metrics is {', '.join(dataset.metrics)}, but pairs of answers have Loss alone, which measures "
            "reward_accuracy and reward_margin, too: leave metrics out.",
        )


def _measured_on(dataset: EvaluationDatasetSpec, kind: MethodType) -> Sequence[str]:
    if dataset.pairs:
        return METHODS[kind].metrics
    return [_METRIC_NAMES[metric] for metric in dataset.metrics]


def _on_validation(spec: DefaultedJobSpec) -> list[str]:
    """Returns the metrics on the validation rows: over all sets, and the loss of each set if there are several."""
    sets = spec.datasets.validation or ()
    if not sets and spec.datasets.split_from_train is None:
        return []
    names = [source_name("validation", index, each) for index, each in enumerate(sets)]
    return [
        *METHODS[spec.method.type].metrics,
        *(f"{name}/loss" for name in names if len(names) > 1),
    ]


def _gates(
    section: DefaultedEvaluation, measured: Sequence[str], benchmarks: Sequence[str]
) -> list[GateSpec]:
    """Resolves the gates. Raises Refused for an unknown metric, except a benchmark's, which preflight determines."""
    gates = section.gates or ()
    for index, gate in enumerate(gates):
        if gate.metric not in measured and gate.metric.partition("/")[0] not in benchmarks:
            raise invalid_spec(
                f"spec.evaluation.gates[{index}].metric is {gate.metric}, which this job does not measure. "
                f"It measures {', '.join(measured) or 'nothing'}. Name the metric in spec.evaluation.datasets"
                f"{'' if 'loss' in measured else ', or rows in spec.datasets.validation'}.",
            )
    return [GateSpec(**dict(gate)) for gate in gates]
