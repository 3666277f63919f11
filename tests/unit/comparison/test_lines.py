"""Files of one record per line, with garbage in between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune_contract import EvaluatedRow
from finetune_operator.results.lines import parse_lines
from tests.unit.comparison.runs import row

GOOD = row(1, 2.5, base=3.0).to_json().encode()


def parse(content: bytes, most_lines: int = 100) -> tuple[int, int, str]:
    records: list[EvaluatedRow] = []
    rejected = parse_lines(
        content,
        lambda line: records.append(EvaluatedRow.model_validate_json(line)),
        most_lines=most_lines,
        line_bytes=1000,
    )
    return len(records), rejected.number, rejected.first_fault


@pytest.mark.parametrize(
    ("content", "records", "rejected", "fault"),
    [
        (b"", 0, 0, ""),
        (GOOD, 1, 0, ""),
        (GOOD + b"\n\n \r\n" + GOOD + b"\r\n", 2, 0, ""),
        (GOOD + b"\nnull\n" + GOOD, 2, 1, "line 2: Input should be an object"),
        (b"{}\n{}\n" + GOOD, 1, 2, "line 1: kind: Field required"),
        (b"\xff\xfe\x00\n" + GOOD, 1, 1, "line 1: Invalid JSON"),
        (b"[" * 900 + b"\n" + GOOD, 1, 1, "line 1: Invalid JSON"),
        (GOOD + b" " * 990 + b"x\n" + GOOD, 1, 1, "line 1: longer than 1,000 bytes"),
        (GOOD.replace(b"Validation", b"Secret"), 0, 1, "line 1: kind: Input should be"),
    ],
)
def test_valid_lines_are_records_and_others_are_counted(
    content: bytes, records: int, rejected: int, fault: str
) -> None:
    found = parse(content)
    assert found[:2] == (records, rejected)
    assert found[2].startswith(fault)
    assert bool(found[2]) == bool(rejected)


def test_too_many_lines_are_not_parsed() -> None:
    with pytest.raises(ValueError, match="more than 100 lines"):
        parse(b"\n" * 101)


@given(st.binary(max_size=300))
def test_any_bytes_are_read(content: bytes) -> None:
    records, rejected, _ = parse(content.replace(b"\n", b" ") + b"\n" + GOOD)
    assert records + rejected in (1, 2)
