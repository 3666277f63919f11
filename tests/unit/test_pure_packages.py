"""The pure packages keep nothing between two calls: no lock, and no module global that changes.

Caches of tables and schemas that are fixed with the release are the exception.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import finetune_operator

ROOT = Path(finetune_operator.__file__).parent
PURE = (
    "lifecycle",
    "planning",
    "rendering",
    "api",
    "catalog",
    "results/report",
    "results/comparison",
    "results/pages",
)
#: Where functions may be cached: the catalogue, the schemas, and tables and scripts of the release.
CACHED = ("api/", "catalog/", "planning/estimate/published_models.py", "results/pages/document.py")
#: Modules for programs with several threads or tasks.
CONCURRENT = {
    "threading",
    "_thread",
    "asyncio",
    "concurrent",
    "contextvars",
    "multiprocessing",
    "queue",
    "weakref",
}
CACHES = {"cache", "lru_cache", "cached"}
CONTAINERS = {
    "dict",
    "list",
    "set",
    "bytearray",
    "OrderedDict",
    "defaultdict",
    "deque",
    "Counter",
    "ChainMap",
}
#: Types without methods that change: what is empty stays so.
READ_ONLY = ("Object", "Mapping")
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft",
    "remove", "setdefault", "update",
}  # fmt: skip


def sources() -> dict[str, ast.Module]:
    """The modules of the pure packages, by path below the operator's package."""
    files = [file for package in PURE for file in sorted((ROOT / package).rglob("*.py"))]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text()) for file in files}


def name_of(node: ast.AST) -> str:
    """``popitem`` of ``plans.popitem()``, ``cache`` of ``@functools.cache`` or of ``@cache()``."""
    match node:
        case ast.Call(func=func):
            return name_of(func)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def globals_of(module: ast.Module) -> dict[str, tuple[ast.expr | None, str]]:
    """Value and type of each of the module's global variables."""
    found: dict[str, tuple[ast.expr | None, str]] = {}
    for node in module.body:
        match node:
            case ast.Assign(targets=targets, value=value):
                found |= {target.id: (value, "") for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                found[name] = value, ast.unparse(annotation)
    return found


def stateful_classes(modules: dict[str, ast.Module]) -> set[str]:
    """Names of classes that set attributes of their instances: no records."""
    return {
        node.name
        for module in modules.values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.FunctionDef) and part.name == "__init__" for part in node.body)
        and not any("Error" in name_of(base) or "Exception" in name_of(base) for base in node.bases)
    }


def root_of(node: ast.expr) -> str:
    """``plans`` of ``plans[uid].steps``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def changes(module: ast.Module) -> Iterator[str]:
    """Yields the module's global variables that its functions change."""
    known = globals_of(module)
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        # A parameter or local variable of that name is another one.
        own = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        own |= {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for node in ast.walk(function):
            match node:
                case ast.Global(names=names):
                    yield from names
                case (ast.Subscript() | ast.Attribute()) as target if not isinstance(target.ctx, ast.Load):
                    if (name := root_of(target)) in known and name not in own:
                        yield name
                case ast.Call(func=ast.Attribute(value=value, attr=attr)) if attr in MUTATORS:
                    if (name := root_of(value)) in known and name not in own:
                        yield name


def state(path: str, module: ast.Module, stateful: set[str]) -> Iterator[str]:
    """Yields what the module could keep between two calls."""
    for node in ast.walk(module):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names if each.name.partition(".")[0] in CONCURRENT)
            case ast.ImportFrom(module=str(name)) if name.partition(".")[0] in CONCURRENT:
                yield name
            case ast.ClassDef(body=body):
                for part in body:
                    value = part.value if isinstance(part, ast.Assign | ast.AnnAssign) else None
                    if isinstance(value, ast.Call) and name_of(value) in CONTAINERS | stateful:
                        yield f"{node.name}: {ast.unparse(value)}"
    for name, (value, annotation) in globals_of(module).items():
        empty = isinstance(value, ast.Dict | ast.List) and not (
            value.keys if isinstance(value, ast.Dict) else value.elts
        )
        if empty and not annotation.startswith(READ_ONLY):
            yield f"{name} is empty"
        if isinstance(value, ast.Call) and name_of(value) in CONTAINERS | stateful:
            yield f"{name} = {ast.unparse(value)}"
    yield from changes(module)
    if not path.startswith(CACHED):
        for node in module.body:
            parts = [node, *(node.body if isinstance(node, ast.ClassDef) else ())]
            functions = [part for part in parts if isinstance(part, ast.FunctionDef)]
            yield from (
                f"@{name_of(decorator)} {function.name}"
                for function in functions
                for decorator in function.decorator_list
                if name_of(decorator) in CACHES
            )


def test_no_pure_package_keeps_anything() -> None:
    modules = sources()
    stateful = stateful_classes(modules)
    kept = [f"{path}: {what}" for path, module in modules.items() for what in state(path, module, stateful)]
    assert kept == []


@pytest.mark.parametrize(
    "text",
    [
        "from threading import Lock",
        "import asyncio",
        "PLANS = {}",
        "PLANS: dict[str, int] = {}",
        "PLANS = OrderedDict()",
        "PLANS = collections.defaultdict(list)",
        "KEPT = Plans()\nclass Plans:\n    def __init__(self): self.plans = {}",
        "PLANS = {1: 2}\ndef f(key, plan): PLANS[key] = plan",
        "PLANS = {1: 2}\ndef f(key): del PLANS[key]",
        "PLANS = {1: 2}\ndef f(key): return PLANS.setdefault(key, 1)",
        "PLANS = {1: []}\ndef f(key): PLANS[key].append(1)",
        "COUNT = 0\ndef f():\n    global COUNT\n    COUNT += 1",
        "class Plans:\n    kept = dict()",
        "@cache\ndef plan(job): ...",
        "@functools.lru_cache(maxsize=64)\ndef plan(job): ...",
    ],
)
def test_state_is_found(text: str) -> None:
    module = ast.parse(text)
    assert list(state("planning/plan.py", module, stateful_classes({"": module})))


@pytest.mark.parametrize(
    "text",
    [
        "NAMES = {1: 'a'}\ndef f(key): return NAMES[key]",
        "NAMES = {1: 'a'}\ndef f(NAMES): NAMES[1] = 'b'",
        "LIMIT = Decimal('Infinity')",
        "def f():\n    @cache\n    def g(x): ...\n    made = {}\n    made[1] = g(1)",
    ],
)
def test_what_changes_nothing_is_no_state(text: str) -> None:
    module = ast.parse(text)
    assert list(state("planning/plan.py", module, stateful_classes({"": module}))) == []
