"""Translates ``spec.model`` and entries of datasets into the contract's records."""

from finetune_contract import DatasetSpec, HubRef, ModelSource
from finetune_operator.api import Model
from finetune_operator.api.common import HubModelRef
from finetune_operator.api.data import HubDatasetRef, TrainDataset, ValidationDataset
from finetune_operator.api.evaluation import EvaluationDataset
from finetune_operator.planning.defaults import DATASET, HUB
from finetune_operator.planning.errors import invalid_spec

type Dataset = TrainDataset | ValidationDataset | EvaluationDataset


def resolve_model(section: Model) -> ModelSource:
    """Resolves ``spec.model``. A revision is a commit only after preflight has resolved it."""
    tokenizer = section.tokenizer
    return ModelSource(
        hugging_face=hub_ref(section.hugging_face),
        uri=folder_uri(section.uri),
        orbax=section.orbax.uri if section.orbax else None,
        maxtext_model=section.maxtext_model,
        tokenizer=ModelSource(hugging_face=hub_ref(tokenizer.hugging_face), uri=folder_uri(tokenizer.uri))
        if tokenizer
        else None,
    )


def hub_ref(reference: HubModelRef | HubDatasetRef | None) -> HubRef | None:
    return HubRef(repo=reference.repo, revision=reference.revision or HUB["revision"]) if reference else None


def folder_uri(uri: str | None) -> str | None:
    return uri.rstrip("/") if uri else None


def dataset_source(
    kind: str,
    index: int,
    source: Dataset,
    root: str = "spec.datasets.",
) -> DatasetSpec:
    hub = source.hugging_face
    columns = source.columns.to_document() if source.columns else {}
    ignore = columns.pop("ignore", [])
    if both := sorted(set(ignore) & set(columns.values())):
        raise invalid_spec(
            f"{root}{kind}[{index}].columns maps {both[0]} and lists it under ignore: remove one of the two.",
        )
    return DatasetSpec(
        path=f"{root}{kind}[{index}]",
        name=source_name(kind, index, source),
        hugging_face=hub_ref(hub),
        config=hub.config if hub else None,
        split=(hub and hub.split) or DATASET["split"],
        uri=source.uri,
        format=source.format or DATASET["format"],
        columns=columns,
        ignore=ignore,
        separator=source.separator,
        role_map=source.role_map or {},
        max_examples=source.max_examples,
        weight=source.weight if isinstance(source, TrainDataset) else None,
    )


def source_name(kind: str, index: int, source: Dataset) -> str:
    return source.name or f"{kind}-{index}"


def first_rows(source: DatasetSpec, rows: int) -> DatasetSpec:
    """Returns ``source`` limited to its first ``rows`` rows."""
    return source.model_copy(update={"max_examples": min(rows, source.max_examples or rows)})
