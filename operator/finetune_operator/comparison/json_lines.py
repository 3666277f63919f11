"""Parses files of one JSON record per line, of which any line may be garbage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLines[T]:
    """The records of a file."""

    records: Sequence[T]
    rejected: int
    """Number of lines that are not valid records."""
    first_fault: str
    """Number of the first rejected line and what is wrong with it; empty if there is none."""


def parsed_lines[T: BaseModel](
    content: bytes, model: type[T], *, most_lines: int, line_bytes: int
) -> ParsedLines[T]:
    """Parses each line as a record of type ``model``; blank lines are skipped.

    Args:
        content: the file.
        model: type of the records.
        most_lines: maximum number of lines.
        line_bytes: maximum length of a line; longer ones are rejected without being parsed.

    Raises:
        ValueError: there are more lines. The message names the limit.
    """
    if content.count(b"\n") > most_lines:
        raise ValueError(f"more than {most_lines:,} lines")
    records: list[T] = []
    rejected, first_fault = 0, ""
    for number, line in numbered_lines(content, line_bytes):
        try:
            if line is None:
                raise ValueError(f"longer than {line_bytes:,} bytes")
            records.append(model.model_validate_json(line))
        except ValueError as error:
            rejected += 1
            first_fault = first_fault or f"line {number}: {_reason(error)}"
    return ParsedLines(records=records, rejected=rejected, first_fault=first_fault)


def numbered_lines(content: bytes, line_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """Yields number and content of each line that is not blank; None as the content of one that is too long."""
    begin, number = 0, 0
    while begin < len(content):
        end = content.find(b"\n", begin)
        end = len(content) if end < 0 else end
        number += 1
        if end - begin > line_bytes:
            yield number, None
        elif line := content[begin:end].strip():
            yield number, line
        begin = end + 1


def _reason(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where[:64]}: {first['msg'][:128]}" if where else str(first["msg"])[:128]
