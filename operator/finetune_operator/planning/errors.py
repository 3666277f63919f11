"""Refusals of planning."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from finetune_operator.api import Reason


class Refused(Exception):
    """The job cannot run in its current form; it is planned again when the job or a profile changes.

    ``message`` is a complete sentence: the field, its value, what is expected, and one fix.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def invalid_spec(message: str) -> Refused:
    """Returns the refusal of a job that could run under no profile."""
    return Refused(Reason.INVALID_SPEC, message)


def with_contact(refused: Refused, owner: object) -> Refused:
    """Returns the refusal with a contact appended. ``owner`` is that of the profile's spec; None if it names none."""
    stop = "" if refused.message.endswith((".", "?")) else "."
    return Refused(refused.reason, f"{refused.message}{stop} Ask {whom_to_ask(owner)}.")


def whom_to_ask(owner: object) -> str:
    """Returns whom a message names, by the ``owner`` of a profile's spec; None if that names none."""
    named = owner if isinstance(owner, Mapping) else {}
    return str(named.get("contact") or named.get("team") or "the owner of the profile")


@contextmanager
def naming_contact(profile: Mapping[str, Any]) -> Iterator[None]:
    """Appends the contact from the spec of a profile to refusals raised inside the block."""
    try:
        yield
    except Refused as error:
        raise with_contact(error, profile.get("owner")) from error
