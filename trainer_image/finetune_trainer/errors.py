"""The exception that ends a stage deliberately; ``main`` makes the failure record and the exit code from it."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from finetune_contract.exit_codes import ExitCode
from finetune_contract.failure import Failure

_MESSAGE_LIMIT = 1024
_FIELD_LIMIT = 512
_NEW_CONTENT = "Create a job of another name for the new content, and do not change inputs while a job runs."


def require_unchanged(digest: str | None, found: str, *, where: str, uri: str) -> None:
    """Raises ``StageError`` 65 if an input is not what preflight found. ``digest``: preflight's; None if unknown."""
    if digest in (None, found):
        return
    raise StageError(
        ExitCode.BAD_DATA,
        "InputChanged",
        f"{uri} has changed since preflight checked it",
        where=where,
        actual=f"content {found[:12]}",
        expected=f"content {str(digest)[:12]}",
        fix=_NEW_CONTENT,
    )


def replaced(uri: str, where: str) -> "StageError":
    """``StageError`` 65: a file of an input is not the one that was listed and verified."""
    return StageError(
        ExitCode.BAD_DATA, "InputChanged", f"{uri} was replaced or removed while the stage was reading it", where=where,
        actual="another version, or no file", expected="the version that was listed at the start", fix=_NEW_CONTENT,
    )  # fmt: skip


@contextmanager
def reading_listed(where: str) -> Iterator[None]:
    """Context for reading files at the version that was listed: raises ``replaced`` for one that is missing by now."""
    try:
        yield
    except StageError as error:
        if error.code is not ExitCode.INPUT_MISSING:
            raise
        raise replaced(error.where, where) from error


def encodable(text: str) -> str:
    """The text, with lone surrogates (inputs may contain them) escaped: no record accepts them."""
    return text.encode(errors="backslashreplace").decode()


def _clip(text: str, limit: int) -> str:
    text = encodable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def faults(error: ValidationError) -> str:
    """What is wrong with a document, one line per location. Omits the values, which may be secrets."""
    return "\n".join(
        f"  {'.'.join(str(part) for part in fault['loc']) or 'the document'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False)
    )


class StageError(Exception):
    """A failure that the user or an administrator can act on.

    ``what`` is one sentence without its final stop; ``where`` names path, row or field; ``actual`` and ``expected`` are
    short values; ``fix`` is one concrete action. ``str()`` joins them to the message that users read.
    """

    def __init__(
        self,
        code: ExitCode,
        reason: str,
        what: str,
        *,
        where: str = "",
        actual: str = "",
        expected: str = "",
        fix: str = "",
    ) -> None:
        self.code = code
        self.reason = reason
        self.what = what
        self.where = where
        self.actual = actual
        self.expected = expected
        self.fix = fix
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.actual and self.expected:
            text += f" (found {self.actual}, expected {self.expected})"
        elif self.actual or self.expected:
            text += f" (found {self.actual})" if self.actual else f" (expected {self.expected})"
        return f"{text}. {self.fix}" if self.fix else f"{text}."

    def failure(self, *, host: int = 0, evidence: str = "") -> Failure:
        """The record for ``failure.json``; long texts are clipped to the contract's bounds."""
        return Failure(
            code=self.code,
            reason=self.reason,
            message=_clip(str(self), _MESSAGE_LIMIT),
            where=_clip(self.where, _FIELD_LIMIT),
            actual=_clip(self.actual, _FIELD_LIMIT),
            expected=_clip(self.expected, _FIELD_LIMIT),
            fix=_clip(self.fix, _FIELD_LIMIT),
            evidence=encodable(evidence)[-4096:],
            host=host,
        )
