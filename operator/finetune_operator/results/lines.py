"""Parses files of one JSON record per line, of which any line may be garbage."""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO

from pydantic import ValidationError


@dataclass(frozen=True, slots=True)
class RejectedLines:
    """The lines of a file that are not valid records."""

    number: int = 0
    first_fault: str = ""
    """Number of the first of them and what is wrong with it; empty if there is none."""


def parse_lines(
    content: bytes, take: Callable[[bytes], object], *, most_lines: int, line_bytes: int
) -> RejectedLines:
    """Calls ``take`` with each line that is not blank. A line for which it raises ValueError is rejected.

    Args:
        content: the file.
        take: parses one line and keeps the record.
        most_lines: maximum number of lines.
        line_bytes: maximum length of a line; longer ones are rejected without being parsed.

    Raises:
        ValueError: there are more lines. The message names the limit.
    """
    if content.count(b"\n") > most_lines:
        raise ValueError(f"more than {most_lines:,} lines")
    rejected, first_fault = 0, ""
    for number, line in enumerate(BytesIO(content), start=1):
        try:
            if len(line) - line.endswith(b"\n") > line_bytes:
                raise ValueError(f"longer than {line_bytes:,} bytes")
            if record := line.strip():
                take(record)
        except ValueError as error:
            rejected += 1
            first_fault = first_fault or f"line {number}: {fault_of(error)}"
    return RejectedLines(rejected, first_fault)


def fault_of(error: ValueError, document: str = "") -> str:
    """Returns what is wrong with a record: of a ValidationError the first error and the field that has it.

    ``document`` names the whole record, if the error is about no field.
    """
    if not isinstance(error, ValidationError):
        return str(error)[:128]
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"])[:128] or document
    return f"{field}: {first['msg'][:128]}" if field else str(first["msg"])[:128]
