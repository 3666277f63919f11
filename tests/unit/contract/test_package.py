"""The package's names are imported when they are used."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import finetune_contract

MODULES = [import_module(f"finetune_contract.{name}") for name in finetune_contract._MODULES]
NAMES = [
    (module, name)
    for module in MODULES
    for name, value in vars(module).items()
    if name[0].isupper() and getattr(value, "__module__", "") == module.__name__
]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_every_name_of_a_module_is_the_packages(module: ModuleType, name: str) -> None:
    assert getattr(finetune_contract, name) is vars(module)[name]


def test_type_checkers_read_the_same_modules() -> None:
    imported = [
        statement.module
        for statement in ast.walk(ast.parse(inspect.getsource(finetune_contract)))
        if isinstance(statement, ast.ImportFrom) and [alias.name for alias in statement.names] == ["*"]
    ]
    assert sorted(map(str, imported)) == sorted(module.__name__ for module in MODULES)


@pytest.mark.parametrize("name", ["Nothing", "nothing"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(finetune_contract, name)


def test_the_name_of_a_stage_imports_no_model() -> None:
    code = "import sys; from finetune_contract import RunFolder, Stage; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
