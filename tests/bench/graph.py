"""The import graph of each package: its number of files, depth and number of edges.

    python -m tests.bench.graph [finetune_operator finetune_trainer …]

An edge is an import of one module of a package by another; depth is the length in modules of the longest chain of such
imports. A subpackage counts as one module.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping

import grimp

from devcluster.layout import ROOT

_ROOTS = {
    "finetune_operator": "operator", "finetune_contract": "contract", "finetune_storage": "storage",
    "finetune_trainer": "trainer_image", "devcluster": ".",
}  # fmt: skip

type Edges = Mapping[str, frozenset[str]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("packages", nargs="*", default=list(_ROOTS))
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / folder) for folder in _ROOTS.values()]
    print("| package | files | depth | edges |\n|---|---|---|---|")
    for root in options.packages:
        graph = grimp.build_graph(root)
        for package in packages(graph, root):
            edges = inside(graph, package)
            print(f"| {package} | {len(edges)} | {depth(edges)} | {sum(map(len, edges.values()))} |")


def packages(graph: grimp.ImportGraph, root: str) -> Iterator[str]:
    """Yields the names of all packages below ``root`` that contain modules, outer ones first."""
    yield root
    for child in sorted(graph.find_children(root)):
        if graph.find_children(child):
            yield from packages(graph, child)


def inside(graph: grimp.ImportGraph, package: str) -> Edges:
    """Returns, for each direct child of the package, the names of the other children that it imports."""
    children = graph.find_children(package)
    owner = {module: child for child in children for module in {child, *graph.find_descendants(child)}}
    edges: dict[str, set[str]] = {child: set() for child in children}
    for module, child in owner.items():
        for imported in graph.find_modules_directly_imported_by(module):
            if owner.get(imported, child) != child:
                edges[child].add(owner[imported])
    return {child: frozenset(imported) for child, imported in edges.items()}


def depth(edges: Edges) -> int:
    """Returns the number of modules on the longest chain; a cycle ends where a module occurs again."""

    def longest(module: str, above: frozenset[str]) -> int:
        if module not in known:
            below = [longest(each, above | {module}) for each in edges[module] - above]
            known[module] = 1 + max(below, default=0)
        return known[module]

    known: dict[str, int] = {}
    return max((longest(module, frozenset()) for module in edges), default=0)


if __name__ == "__main__":
    main()
