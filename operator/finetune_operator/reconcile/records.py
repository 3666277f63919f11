"""Parses files of the store as the records that their names indicate."""

from pydantic import BaseModel, ValidationError

from finetune_contract import Failure, Outcome, StageResult, TrainOutcome
from finetune_contract.versions import CONTRACT_VERSION, major_of


class MalformedRecordError(Exception):
    """A file is not a valid record of the kind that its name indicates."""


class NewerRecordError(Exception):
    """A file is a record of a newer major version of the contract."""


def parsed[T: BaseModel](uri: str, content: bytes, model: type[T]) -> T:
    """Parses ``content`` as a record of type ``model``.

    Raises MalformedRecordError or NewerRecordError, with a message that names ``uri`` and does not end in a period.
    """
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        major = major_of(content)
        if major is not None and major > CONTRACT_VERSION.major:
            raise NewerRecordError(
                f"{uri} was written under version {major} of the contract, and this operator supports up to "
                f"{CONTRACT_VERSION}. Upgrade the operator"
            ) from error
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise MalformedRecordError(
            f"{uri} is not a valid {model.__name__}: {where[:128]}: {first['msg'][:256]}"
        ) from error


def result_in_brief(record: StageResult) -> StageResult:
    """Returns the part of a result that is still needed after a later attempt has started.

    That is everything of a success; otherwise, the failure without its evidence, and the steps that training reached.
    """
    if record.outcome is Outcome.SUCCEEDED:
        return record
    details = record.details
    reached = (
        TrainOutcome(
            step=details.step, total_steps=details.total_steps, start_step=details.start_step, end_ids=[]
        )
        if isinstance(details, TrainOutcome)
        else None
    )
    failure = record.failure and failure_in_brief(record.failure)
    return record.model_copy(update={"details": reached, "failure": failure})


def failure_in_brief(record: Failure) -> Failure:
    """Returns the record without its evidence, the last lines of a log."""
    return record.model_copy(update={"evidence": ""}) if record.evidence else record
