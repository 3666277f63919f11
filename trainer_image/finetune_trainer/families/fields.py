"""Typed access to config.json. Errors about unsupported values include the path, the value and the expected value."""

import math
from collections.abc import Mapping
from typing import NoReturn

from finetune_contract.exit_codes import ExitCode
from finetune_trainer.errors import StageError

#: Largest accepted integer; a larger size in a config file is an error.
LARGEST = 2**31 - 1


class Fields:
    """A JSON object in a config file. ``where`` is its path for messages. JSON null counts as absent.

    All accessors raise ``StageError`` 64 if the value has the wrong type or is out of range.
    """

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self._values = values
        self.where = where

    def refuse(self, name: str, expected: str, fix: str, *, what: str = "is not supported") -> NoReturn:
        """Raises ``StageError`` 64 for the value of a key."""
        actual = repr(self._values.get(name)) if name in self._values else "nothing"
        raise StageError(
            ExitCode.BAD_REQUEST,
            "UnsupportedModelConfig",
            what,
            where=f"{self.where}: {name}",
            actual=actual,
            expected=expected,
            fix=fix,
        )

    def get(self, name: str) -> object:
        return self._values.get(name)

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def integer(
        self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = LARGEST
    ) -> int:
        """Returns an integer from ``minimum`` to ``maximum``. An absent key yields ``default`` unless that is None."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)  # Python's JSON parser accepts NaN and Infinity
            or value != int(value)
            or not minimum <= value <= maximum
        ):
            self.refuse(
                name, f"an integer from {minimum} to {maximum}", "Correct config.json.", what="is invalid"
            )
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a finite number above zero."""
        value = self._values.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.refuse(name, "a number above 0", "Correct config.json.", what="is invalid")
        return float(value)

    def optional_number(self, name: str, default: float | None) -> float | None:
        """Like ``number``, but an explicit null in the file yields None instead of the default."""
        if name in self._values and self._values[name] is None:
            return None
        if name not in self._values and default is None:
            return None
        return self.number(name, default)

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "true or false", "Correct config.json.", what="is invalid")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            self.refuse(name, "a string", "Correct config.json.", what="is invalid")
        return value

    def table(self, name: str) -> "Fields | None":
        """Returns a nested object; None if the key is absent."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(name, "an object", "Correct config.json.", what="is invalid")
        return Fields(value, f"{self.where}: {name}")

    def must_be_off(self, name: str, why: str) -> None:
        """Rejects a switch that adds something that the engine's model lacks. ``why`` explains it in the message."""
        if self._values.get(name):
            self.refuse(name, "false or absent", why)
