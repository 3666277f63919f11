"""How planning says no."""

from finetune_operator.api import Reason


class Refused(Exception):
    """The job cannot run as it stands; looked at again when the job or a profile changes.

    ``message`` is a whole sentence: where, saw, expected, one fix.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
