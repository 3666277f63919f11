"""The package's names are imported when they are used."""

import ast
import inspect
import subprocess
import sys

import pytest

import finetune_contract

NAMES = [
    alias.name
    for statement in ast.walk(ast.parse(inspect.getsource(finetune_contract)))
    if isinstance(statement, ast.ImportFrom) and str(statement.module).startswith("finetune_contract.")
    for alias in statement.names
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    assert getattr(finetune_contract, name) is not None


@pytest.mark.parametrize("name", ["Nothing", "nothing"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(finetune_contract, name)


def test_the_name_of_a_stage_imports_no_model() -> None:
    code = "import sys; from finetune_contract import RunFolder, Stage; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
