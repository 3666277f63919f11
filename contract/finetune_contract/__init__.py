"""The data that the operator and the trainer exchange.

The operator passes one :class:`StageRequest` to a stage in its environment. The trainer answers with files in
the run folder (:mod:`.layout`): a :class:`StageResult` per attempt, while it runs a :class:`StageProgress` record and
during training a :class:`Progress` record, and with an exit code (:class:`ExitCode`). Neither side imports the other.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from finetune_contract.data_report import *
    from finetune_contract.exit_codes import *
    from finetune_contract.failure import *
    from finetune_contract.layout import *
    from finetune_contract.method import *
    from finetune_contract.progress import *
    from finetune_contract.request import *
    from finetune_contract.result import *
    from finetune_contract.rows import *
    from finetune_contract.stages import *
    from finetune_contract.versions import *

#: Modules with these names, searched in this order: a command that needs a stage's name imports no model.
_MODULES = (
    "stages",
    "exit_codes",
    "layout",
    "versions",
    "failure",
    "method",
    "progress",
    "rows",
    "request",
    "result",
    "data_report",
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports the module of a name when the name is first used."""
        # Other names are those of submodules, which the interpreter imports itself.
        if name[0].isupper():
            for each in _MODULES:
                module = import_module(f"{__name__}.{each}")
                if name in vars(module):
                    globals()[name] = vars(module)[name]
                    return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
