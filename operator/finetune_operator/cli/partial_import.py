"""Imports modules of a package without what the package itself imports."""

import sys
from importlib.util import find_spec, module_from_spec


def without_init(*names: str) -> None:
    """Makes the packages available for the import of their modules, without executing their ``__init__``.

    A package that is imported already stays as it is. A package inside another one follows it in ``names``.
    """
    for name in names:
        if name in sys.modules or (spec := find_spec(name)) is None:
            continue
        sys.modules[name] = module_from_spec(spec)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, sys.modules[name])
