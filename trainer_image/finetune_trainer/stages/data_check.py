"""What preflight checks of the data: all rows, the first rows of each source, or only that the source exists."""

from collections.abc import Sequence
from typing import Literal

from finetune_contract import DataReport, DatasetDetails, DatasetReport, DatasetSpec, EvaluationDatasetSpec
from finetune_trainer.data import remarks, report
from finetune_trainer.data.batches import steps_for
from finetune_trainer.data.dataset import Dataset
from finetune_trainer.data.sources import open_source
from finetune_trainer.evaluation.questions import questions
from finetune_trainer.stages.context import StageContext

#: Rows that are read of each source for a sample.
SAMPLE_ROWS = 1000


def check(context: StageContext) -> DataReport:
    """Checks the data as the request asks.

    Raises ``StageError`` 64, 65, 66, 69 or 77 that says what to change. Unless every row is read, the request must
    specify the steps.
    """
    match context.request.data.check:
        case "Full":
            return _full(context)
        case "Sample":
            return _sample(context)
        case "Off":
            return _located(context)


def _full(context: StageContext) -> DataReport:
    train, validation = context.training_data(), context.validation_data()
    h = context.request.hyperparameters
    steps = h.steps or steps_for(train.epoch, h.epochs or 1.0, h.global_batch_size)
    found = _report(context, steps, train, validation, "Full")
    return found.model_copy(
        update={
            "epoch_sequences": train.epoch,
            "epochs_shown": round(steps * h.global_batch_size / train.epoch, 4),
        }
    )


def _sample(context: StageContext) -> DataReport:
    data = context.request.data

    def read_sources(sources: Sequence[DatasetSpec], name: str) -> Dataset:
        first = [
            source.model_copy(update={"max_examples": min(source.max_examples or SAMPLE_ROWS, SAMPLE_ROWS)})
            for source in sources
        ]
        return context.dataset(name, first, use_cache=False)

    train = read_sources(data.train, "train")
    validation = [read_sources([source], source.name) for source in data.validation]
    return _report(context, _requested_steps(context), train, validation, "Sample")


def _located(context: StageContext) -> DataReport:
    """Reads no row; resolves revisions, so that all stages use the same."""
    data = context.request.data
    return _empty(context, _requested_steps(context), "Off").model_copy(
        update={
            "train": [DatasetDetails(report=located(context, source)) for source in data.train],
            "validation": [DatasetDetails(report=located(context, source)) for source in data.validation],
            "remarks": list(remarks.of_tokenizer(context.tokenizer, context.renderer)),
        }
    )


def checked(context: StageContext, dataset: EvaluationDatasetSpec) -> DatasetDetails:
    """Checks that the Evaluate stage can use one of evaluation.datasets, before hours of training are spent.

    With ``preflight.dataset`` Off the dataset is only located.
    """
    if context.request.data.check == "Off":
        return DatasetDetails(report=located(context, dataset.source))
    (found,) = _details(context.evaluation_data(dataset), "Full")
    if set(dataset.metrics) - {"Loss"}:
        questions(dataset.source, context.renderer, context.store, context.scratch)
    return found


def located(context: StageContext, source: DatasetSpec) -> DatasetReport:
    """The source's address and current content revision; no row is read."""
    found = open_source(source, context.store, context.scratch)
    return DatasetReport(
        path=source.path, name=source.name, uri=found.uri, revision=found.revision, format="",
        checked="Off", rows=0, tokens=0, trained_tokens=0, weight=source.weight,
    )  # fmt: skip


def _requested_steps(context: StageContext) -> int:
    steps = context.request.hyperparameters.steps
    assert steps is not None, "the operator sets the steps if the rows are not counted"
    return steps


def _report(
    context: StageContext,
    steps: int,
    train: Dataset,
    validation: Sequence[Dataset],
    checked: Literal["Full", "Sample"],
) -> DataReport:
    leaks = report.leaks(train, validation)
    described = [_details(data, checked) for data in (train, *validation)]
    every = [each.report for some in described for each in some]
    pieces = [piece for data in (train, *validation) for piece in data.pieces]
    used = {piece.source.use.path: piece.source.use for piece in pieces if piece.source.use is not None}
    data, ends = context.request.data, context.trained_ends(train)
    return _empty(context, steps, checked).model_copy(
        update={
            "remarks": [
                *remarks.of_tokenizer(context.tokenizer, context.renderer),
                *remarks.of_ends(train.rows.tokens, ends, data.max_seq_length),
                *remarks.of_counts(every, leaks),
                *remarks.of_rows([each for some in described for each in some]),
                *remarks.of_unread(
                    [each for some in described for each in some],
                    {source.name: source.ignore for source in (*data.train, *data.validation)},
                ),
            ],
            "end_ids": ends,
            "train": described[0],
            "validation": [each for some in described[1:] for each in some],
            "leaks": leaks,
            "samples": [row for piece in pieces for row in report.samples(piece, context.tokenizer)],
            "prepared": list(used.values()),
        }
    )


def _details(data: Dataset, checked: Literal["Full", "Sample"]) -> list[DatasetDetails]:
    unknown = {"sequences": None, "epoch_sequences": None} if checked == "Sample" else {}
    reports = [each.model_copy(update={"checked": checked, **unknown}) for each in data.reports]
    return [report.details(piece, each) for piece, each in zip(data.pieces, reports, strict=True)]


def _empty(context: StageContext, steps: int, checked: Literal["Full", "Sample", "Off"]) -> DataReport:
    request = context.request
    return DataReport(
        job=request.job.name,
        max_seq_length=request.data.max_seq_length,
        packing=request.data.packing,
        checked=checked,
        epochs=request.hyperparameters.epochs,
        steps=steps,
        global_batch_size=request.hyperparameters.global_batch_size,
    )
