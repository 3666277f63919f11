"""Errors of the comparison."""


class NotComparableError(Exception):
    """The runs were not measured on the same rows. The message is for users, and ``fix`` is one remedy."""

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
