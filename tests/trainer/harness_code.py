"""Static analysis of the Python code of lm-evaluation-harness's own tasks: what a function would use if it ran.

``python -m tests.trainer.harness_code`` counts the tasks that can be used, and prints why the others cannot.
"""

import ast
import collections
import warnings
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from lm_eval import tasks
from lm_eval.tasks._yaml_loader import load_yaml

from finetune_contract import BenchmarkSpec
from finetune_trainer.errors import StageError
from finetune_trainer.evaluation import benchmark_groups, benchmarks

ROOT = Path(tasks.__file__).resolve().parent

#: Names that execute text as code, load a program, or access anything beyond the machine.
FORBIDDEN = (
    "eval", "exec", "compile", "__import__", "subprocess.*", "multiprocessing.*", "os.system", "os.popen", "os.exec*",
    "os.spawn*", "importlib.import_module", "importlib.util.*", "runpy.*", "ctypes.*", "pickle.*", "joblib.*",
    "sympy.parsing.*", "sympy.sympify", "sympy.S", "math_verify.*", "latex2sympy*", "numexpr.*", "simpleeval.*",
    "evaluate.load", "evaluate.combine", "evaluate.EvaluationSuite*", "datasets.load_metric", "datasets.load_dataset",
    "huggingface_hub.*", "*.from_pretrained", "transformers.pipeline", "bert_score.*", "comet.*", "torch.load", "torch.hub.*",
    "nltk.download", "requests.*", "urllib.request.*", "httpx.*", "openai.*", "anthropic.*", "socket.*",
)  # fmt: skip


class Module:
    def __init__(self, path: Path) -> None:
        self.path = path
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            tree = ast.parse(path.read_text())
        #: The nodes that run when the module is imported, and the node that each of its names refers to.
        self.imported: list[ast.AST] = []
        self.defined: dict[str, ast.AST] = {}
        self._read(tree.body)
        self.aliases: dict[str, str] = {}
        self.ours: dict[str, tuple[Path, str | None]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    self.aliases[each.asname or each.name.partition(".")[0]] = (
                        each.name if each.asname else each.name.partition(".")[0]
                    )
                    if found := self._file(each.name, 0):
                        self.ours[each.asname or each.name] = (found, None)
            elif isinstance(node, ast.ImportFrom):
                for each in node.names:
                    name, module = each.asname or each.name, node.module or ""
                    self.aliases[name] = f"{module}.{each.name}"
                    if found := self._file(f"{module}.{each.name}".lstrip("."), node.level):
                        self.ours[name] = (found, None)
                    elif found := self._file(module, node.level):
                        self.ours[name] = (found, each.name)

    def _read(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.defined[node.name] = node
                self.imported += node.decorator_list
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
                for part in ("body", "orelse", "finalbody"):
                    self._read(getattr(node, part, []))
                for handler in getattr(node, "handlers", []):
                    self._read(handler.body)
                self.imported += [
                    each
                    for each in ast.iter_child_nodes(node)
                    if not isinstance(each, ast.stmt | ast.excepthandler)
                ]
            else:
                self.imported.append(node)

    def _file(self, name: str, level: int) -> Path | None:
        if level:
            base = self.path.parents[level - 1]
        elif name.startswith("lm_eval.tasks."):
            base, name = ROOT, name.removeprefix("lm_eval.tasks.")
        else:
            # a sibling module: the harness adds some folders to sys.path
            base = self.path.parent
        file = base / f"{name.replace('.', '/')}.py"
        return file.resolve() if name and file.exists() else None

    def dotted(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before or '?'}.{node.attr}"
        return None


@cache
def module(path: Path) -> Module:
    return Module(path)


@cache
def mentions(path: Path, name: str | None) -> tuple[frozenset[str], frozenset[tuple[Path, str | None]]]:
    """Returns the forbidden names that a function or class uses, and the harness's own names that it refers to.

    For the name None, those of the module's import.
    """
    here = module(path)
    if name is not None and name not in here.defined:
        return frozenset(), frozenset({here.ours[name]} if name in here.ours else ())
    nodes = here.imported if name is None else [here.defined[name]]
    found: set[str] = set()
    further: set[tuple[Path, str | None]] = {(path, None)}
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            further |= {(here.ours[each.asname or each.name][0], None) for each in node.names
                        if (each.asname or each.name) in here.ours}  # fmt: skip
        dotted = here.dotted(node)
        if dotted is None:
            continue
        if any(fnmatchcase(dotted, each) for each in FORBIDDEN):
            found.add(dotted)
        if isinstance(node, ast.Name):
            if node.id in here.defined:
                further.add((path, node.id))
            if node.id in here.ours:
                further |= {here.ours[node.id], (here.ours[node.id][0], None)}
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in here.ours
        ):
            further.add((here.ours[node.value.id][0], node.attr))
    return frozenset(found), frozenset(further)


@cache
def uses(place: str) -> frozenset[str]:
    """Returns the forbidden names that ``folder/module.function`` and everything that it calls use."""
    where, _, function = place.rpartition(".")
    start, _, absolute = where.partition("lm_eval.tasks.")
    path = ROOT / f"{(absolute or start).replace('.', '/')}.py"
    todo: list[tuple[Path, str | None]] = [(path.resolve(), None), (path.resolve(), function)]
    seen: set[tuple[Path, str | None]] = set()
    found: set[str] = set()
    while todo:
        if (each := todo.pop()) not in seen:
            seen.add(each)
            forbidden, further = mentions(*each)
            found |= forbidden
            todo += further
    return frozenset(found)


def known_tasks() -> dict[str, tuple[str, dict]]:
    """Returns the file and the configuration of each task by its name; functions are given by their places."""
    return {
        name: (str(entry.yaml_path), load_yaml(entry.yaml_path, resolve_func=False))
        for name, entry in benchmark_groups.known().items()
        if entry.kind is benchmark_groups.Kind.TASK
    }


def main() -> None:
    every = known_tasks()
    refused: collections.Counter[str] = collections.Counter()
    for name, (file, _) in every.items():
        try:
            benchmarks.resolved(BenchmarkSpec(path="", name=name), Path(file))
        except StageError as error:
            refused[error.what] += 1
    print(f"{len(every)} tasks, of which {refused.total()} are refused:")
    for why, number in refused.most_common():
        print(f"{number:6} {why}")


if __name__ == "__main__":
    main()
