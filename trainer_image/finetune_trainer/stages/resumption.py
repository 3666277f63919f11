"""Continuing in the run folder of another job: what determines the result must be the same there."""

import re
from collections.abc import Iterator

from pydantic import ValidationError

from finetune_contract import (
    ContractUnsupported,
    DatasetReport,
    ExitCode,
    ModelSource,
    PreflightOutcome,
    StageRequest,
    StageResult,
)
from finetune_trainer.errors import StageError
from finetune_trainer.stages.context import StageContext

_REQUEST = re.compile(r"/(prep-(\d+)(?:\.(\d+))?)/request\.json$")
#: What a run may change when it continues: its length.
_FREE = {"steps", "epochs"}


def check(context: StageContext, found: PreflightOutcome) -> None:
    """Compares this job with the newest preflight of another job in the same folder, if there is one.

    Both the request and what preflight ``found`` are compared. Raises ``StageError`` 64 naming what differs.
    """
    for attempt in _preflights(context):
        folder = f"{context.folder.attempts}/{attempt}"
        before = _read(context, f"{folder}/request.json")
        if before.job.uid == context.request.job.uid:
            continue
        differs = [*_asked(before, context.request)]
        result = context.store.read_or_none(f"{folder}/result.json")
        details = None if result is None else StageResult.model_validate_json(result).details
        if isinstance(details, PreflightOutcome):
            differs += _found(details, found, packing=before.data.packing)
        if differs:
            raise _mismatch(before.job.name, differs)
        return


def _preflights(context: StageContext) -> Iterator[str]:
    """Names of preflight attempts, the newest first."""
    listed = (_REQUEST.search(entry.uri) for entry in context.store.entries(context.folder.attempts))
    found = sorted(((int(each[2]), int(each[3] or 0), each[1]) for each in listed if each), reverse=True)
    return (name for _, _, name in found)


def _read(context: StageContext, uri: str) -> StageRequest:
    try:
        return StageRequest.read(context.store.read(uri))
    except (ContractUnsupported, ValidationError) as error:
        actual = str(error)
        if isinstance(error, ValidationError):
            actual = error.errors(include_url=False, include_input=False)[0]["msg"]
        raise StageError(
            ExitCode.BAD_REQUEST, "ResumeMismatch", "another release started the run", where=uri, actual=actual,
            expected="a request of this release",
            fix="Continue with the trainer image that started it, or start from the beginning.",
        ) from error  # fmt: skip


def _asked(before: StageRequest, now: StageRequest) -> Iterator[str]:
    for place, old, new in (
        ("model", _where(before.model), _where(now.model)),
        ("method", before.method, now.method),
        *((f"datasets.{name}", getattr(before.data, name), getattr(now.data, name)) for name in
          ("split_from_train", "shuffle", "packing", "chat_template", "chat_template_arguments")),
        ("datasets.train", [each.model_copy(update={"digest": None}) for each in before.data.train],
         [each.model_copy(update={"digest": None}) for each in now.data.train]),
        *((f"hyperparameters.{name}", getattr(before.hyperparameters, name), getattr(now.hyperparameters, name))
          for name in type(now.hyperparameters).model_fields if name not in _FREE),
    ):  # fmt: skip
        if old != new:
            yield f"{place} ({_short(old)}, now {_short(new)})"


def _found(before: PreflightOutcome, now: PreflightOutcome, *, packing: bool) -> Iterator[str]:
    if before.model.revision != now.model.revision:
        yield f"the model's content ({before.model.revision}, now {now.model.revision})"
    if before.max_seq_length != now.max_seq_length:
        yield f"datasets.maxSeqLength ({before.max_seq_length}, now {now.max_seq_length})"
    if packing and before.row_width != now.row_width:
        # packing makes other rows of the same sequences
        yield (
            f"the width of rows ({before.row_width}, now {now.row_width}), which engineOverrides of the kernel decide"
        )
    old, new = _revisions(before.train), _revisions(now.train)
    yield from (f"the content of {path} ({old[path]}, now {new[path]})" for path in old.keys() & new.keys()
                if old[path] != new[path])  # fmt: skip


def _revisions(reports: list[DatasetReport]) -> dict[str, str]:
    return {report.path: report.revision for report in reports}


def _where(model: ModelSource) -> tuple[str, str | None]:
    return model.address, model.tokenizer.address if model.tokenizer else None


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _mismatch(job: str, differs: list[str]) -> StageError:
    return StageError(
        ExitCode.BAD_REQUEST, "ResumeMismatch", f"this training differs from the one that {job} started",
        where="spec.resumeFrom.runFolder", actual="; ".join(differs)[:480],
        expected="the same except for steps and epochs",
        fix="Make them the same, or remove resumeFrom to start from the beginning.",
    )  # fmt: skip
