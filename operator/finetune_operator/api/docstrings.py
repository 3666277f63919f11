"""Docstrings below fields and below the members of enums, which the interpreter does not keep.

They are read from the source when a schema is made, so that they cost nothing where models only validate.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import ModuleType


def docstrings_below(owner: type) -> Mapping[str, str]:
    """Returns the docstrings below the assignments in the body of a class of a module, by name, each on one line."""
    return _of_module(sys.modules[owner.__module__]).get(owner.__qualname__, {})


@cache
def _of_module(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    classes = (node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef))
    return {each.name: dict(_documented(each)) for each in classes}


def _documented(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, below in pairwise(node.body):
        match statement, below:
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())
