"""Training methods, one module per method, named after the method's type in lower case.

Each module defines ``METHOD``, its subclass of :class:`~.base.TrainingMethod`. All other code calls :func:`method_of`
and never compares types.
"""

from importlib import import_module

from finetune_contract import MethodSpec
from finetune_trainer.methods.base import TrainingMethod


def method_class(kind: str) -> type[TrainingMethod]:
    """Returns the class that implements a method's type, for example ``DPO``."""
    found: type[TrainingMethod] = import_module(f"{__name__}.{kind.lower()}").METHOD
    return found


def method_of(spec: MethodSpec) -> TrainingMethod:
    """Returns the method that a request specifies, with its options."""
    return method_class(spec.type)(spec)
