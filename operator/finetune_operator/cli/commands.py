"""All commands: each module registers its own, in the order in which ``--help`` shows them."""

import sys
from importlib.util import find_spec, module_from_spec

from finetune_operator.cli.manifests import commands as _manifests  # isort: skip  # noqa: F401
from finetune_operator.cli.jobs import commands as _jobs  # isort: skip  # noqa: F401
from finetune_operator.cli.doctor import commands as _doctor  # isort: skip  # noqa: F401
from finetune_operator.cli.results import commands as _results  # isort: skip  # noqa: F401
from finetune_operator.cli.jobs import edit_commands as _edits  # isort: skip  # noqa: F401
from finetune_operator.cli.app import app

__all__ = ["app"]


def _without_init(*names: str) -> None:
    """Makes packages available for the import of their modules, without executing their ``__init__``.

    A package that is imported already stays as it is. A package inside another one follows it in ``names``.
    """
    for name in names:
        if name in sys.modules or (spec := find_spec(name)) is None:
            continue
        sys.modules[name] = module_from_spec(spec)
        above, _, last = name.rpartition(".")
        if above:
            setattr(sys.modules[above], last, sys.modules[name])


# The packages themselves import 400 further modules: a synchronous client, and the logins of several clouds.
_without_init("kubernetes", "kubernetes.aio")
