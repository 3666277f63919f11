"""Translates ``spec.datasets`` into the contract's record."""

from datetime import date

from finetune_contract import PREFERENCE_TYPES, DatasetSpec, DataSpec, SplitSpec
from finetune_operator.api import MethodType
from finetune_operator.api.policies import DatasetCheck
from finetune_operator.planning.defaulted import DefaultedJobSpec
from finetune_operator.planning.errors import invalid_spec
from finetune_operator.planning.sections.chat_template import template_arguments
from finetune_operator.planning.sections.sources import dataset_source, first_rows


def resolve_data(spec: DefaultedJobSpec, *, length_explicit: bool, created: date | None) -> DataSpec:
    """Resolves ``spec.datasets``. Its chat template is already text (:func:`.chat_template.with_chat_template`).

    ``length_explicit`` says whether the job itself sets maxSeqLength, instead of a default. ``created`` is the day of
    the job's creation, which templates print as the current date; None if the trainer image does not support it.
    """
    section, check, kind = spec.datasets, spec.preflight.dataset, spec.method.type
    most_evaluated = spec.evaluation.max_examples
    if check is not DatasetCheck.FULL and spec.hyperparameters.steps is None:
        raise invalid_spec(
            f"spec.preflight.dataset is {check}, so the rows that make up an epoch are not counted: "
            "set spec.hyperparameters.steps, or use Full.",
        )
    packing = kind not in PREFERENCE_TYPES if section.packing is None else section.packing
    if packing and kind in PREFERENCE_TYPES:
        raise invalid_spec(
            f"spec.datasets.packing is true, but {kind} compares whole answers, which are never packed: leave it out.",
        )
    split, template = section.split_from_train, section.chat_template
    train = [dataset_source("train", index, source) for index, source in enumerate(section.train)]
    validation = [
        first_rows(dataset_source("validation", index, source), most_evaluated)
        for index, source in enumerate(section.validation or ())
    ]
    for source in (*train, *validation):
        _refuse_format_of_another_method(source, kind)
    return DataSpec(
        train=train,
        validation=validation,
        dedupe=section.dedupe,
        shuffle=section.shuffle,
        max_seq_length=section.max_seq_length,
        max_seq_length_explicit=length_explicit,
        packing=packing,
        split_from_train=SplitSpec(
            fraction=split.fraction,
            seed=spec.hyperparameters.seed if split.seed is None else split.seed,
            max_examples=most_evaluated,
        )
        if split
        else None,
        chat_template=template.inline if template else None,
        chat_template_arguments=template_arguments(template),
        chat_template_date=created,
        check=check,
    )


def _refuse_format_of_another_method(source: DatasetSpec, kind: MethodType) -> None:
    """Raises Refused for a format that the method cannot train on; preflight would only find it in the first row."""
    where = f"{source.path}.format is {source.format}"
    if kind not in PREFERENCE_TYPES and source.format == "Preference":
        raise invalid_spec(
            f"{where}, but {kind} does not learn from pairs of answers: set spec.method.type to "
            f"{' or '.join(PREFERENCE_TYPES)}, or train on "
            "the better answers with format: PromptCompletion and columns: {completion: chosen, ignore: [rejected]}.",
        )
    if kind in PREFERENCE_TYPES and source.format not in {"Auto", "Preference"}:
        raise invalid_spec(
            f"{where}, but {kind} learns from pairs of answers: use rows with chosen and rejected, and set format: "
            "Preference or leave it out.",
        )
