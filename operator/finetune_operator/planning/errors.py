"""How planning says no."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from finetune_operator.api import Reason


class Refused(Exception):
    """The job cannot run as it stands; looked at again when the job or a profile changes.

    ``message`` is a whole sentence: where, saw, expected, one fix.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def with_contact(refused: Refused, owner: object) -> Refused:
    """The refusal with whom to ask at its end. ``owner``: that of the profile's spec, if it names one."""
    told = owner if isinstance(owner, Mapping) else {}
    whom = told.get("contact") or told.get("team") or "the owner of the profile"
    stop = "" if refused.message.endswith((".", "?")) else "."
    return Refused(refused.reason, f"{refused.message}{stop} Ask {whom}.")


@contextmanager
def naming_contact(profile: Mapping[str, Any]) -> Iterator[None]:
    """Refusals from within end with whom to ask, as the spec of a profile says."""
    try:
        yield
    except Refused as error:
        raise with_contact(error, profile.get("owner")) from error
