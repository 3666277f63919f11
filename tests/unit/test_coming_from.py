"""docs/coming-from.md: short tables, whose fields and commands exist, with a reason where there is no counterpart."""

import re
from itertools import groupby
from typing import Any

import pytest

from devcluster.layout import ROOT
from finetune_contract.engine import key_fault
from tests.unit.test_documented_commands import COMMANDS, SCHEMAS

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
PROGRAMS = ("MaxText with xpk or Cluster Toolkit", "SpotJAX", "Marin", "axolotl", "TRL", "LLaMA-Factory")


def rows_of(program: str) -> list[list[str]]:
    """Returns the cells of the section's table, without its head."""
    section = PAGE.split(f"## {program}\n")[1].split("\n## ")[0]
    tables = [
        list(lines) for table, lines in groupby(section.splitlines(), lambda line: line[:1] == "|") if table
    ]
    assert len(tables) == 1
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[0][2:]]


ROWS = [(program, *row) for program in PROGRAMS for row in rows_of(program)]


def field_at(path: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the schema of a field, such as ``datasets.train[].uri``; None if there is none."""
    field: dict[str, Any] | None = schema
    for name in path.split("."):
        field = field.get("properties", {}).get(name.removesuffix("[]")) if field else None
        if field and name.endswith("[]"):
            field = field.get("items")
    return field


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_table_has_at_most_forty_rows_of_three_cells(program: str) -> None:
    rows = rows_of(program)
    assert 10 < len(rows) <= 40
    assert {len(row) for row in rows} == {3}


@pytest.mark.parametrize(("program", "theirs", "here", "differs"), ROWS)
def test_a_row_names_what_exists_or_why_there_is_nothing(
    program: str, theirs: str, here: str, differs: str
) -> None:
    named = re.findall(r"`([^`]+)`", here)
    if here == "none":
        assert differs
        return
    assert named, "a counterpart is in backquotes"
    assert re.sub(r"`[^`]+`|[ ,]", "", here) == "", "nothing but fields and commands"
    for name in named:
        path, _, value = name.partition(": ")
        if path.startswith("finetune "):
            assert path.split()[1] in COMMANDS
        elif path.startswith("engineOverrides."):
            assert key_fault(path.split(".")[1]) is None
        else:
            fields = [field for schema in SCHEMAS.values() if (field := field_at(path, schema))]
            assert fields, name
            assert not value or value in fields[0]["enum"], name


def test_a_field_of_a_profile_is_marked() -> None:
    for program, theirs, here, differs in ROWS:
        for path in re.findall(r"`([^`:]+)[^`]*`", here):
            if not path.startswith(("finetune ", "engineOverrides.")):
                only_profile = field_at(path, SCHEMAS["finetunejobs"]) is None
                assert not only_profile or differs.startswith("profile"), (program, theirs)
