"""What the trainer knows of each method: one module for each, which bears the method's type in lower case.

Such a module has the class ``Entry``, a :class:`~.base.Method`. Everything else asks :func:`method_of` and never
compares types.
"""

from importlib import import_module

from finetune_contract import MethodSpec
from finetune_trainer.methods.base import Method


def entry(kind: str) -> type[Method]:
    """By the method's type, for example DPO."""
    found: type[Method] = import_module(f"{__name__}.{kind.lower()}").Entry
    return found


def method_of(spec: MethodSpec) -> Method:
    """The request's method."""
    return entry(spec.type)(spec)
