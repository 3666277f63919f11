"""Keeps secrets out of records and logs: values of environment variables with suspicious names are redacted."""

from collections.abc import Mapping

_NAMES = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")
_SHORTEST = 6
BLOT = "[redacted]"


class Redactor:
    """Redacts the secret values of one environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        found = {
            value
            for name, value in environment.items()
            if any(word in name.upper() for word in _NAMES)
            and len(value) >= _SHORTEST
            and not value.startswith("/")
        }
        self._values = sorted(found, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """``text`` with each of the values replaced."""
        for value in self._values:
            text = text.replace(value, BLOT)
        return text
