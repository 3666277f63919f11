"""What the trainer knows of each method: one module for each, named after the method's type in lower case.

Such a module has ``METHOD``, its subclass of :class:`~.base.TrainingMethod`. Everything else asks :func:`method_of` and
never compares types.
"""

from importlib import import_module

from finetune_contract import MethodSpec
from finetune_trainer.methods.base import TrainingMethod


def method_class(kind: str) -> type[TrainingMethod]:
    """The class for a method's type, for example DPO."""
    found: type[TrainingMethod] = import_module(f"{__name__}.{kind.lower()}").METHOD
    return found


def method_of(spec: MethodSpec) -> TrainingMethod:
    """The request's method."""
    return method_class(spec.type)(spec)
