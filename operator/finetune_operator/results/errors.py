"""Errors of what reads and compares runs."""


class ResultsError(Exception):
    """The records cannot be shown. The message is for users, and ``fix`` is one remedy."""

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


class NotComparableError(ResultsError):
    """The runs were not measured on the same rows."""
