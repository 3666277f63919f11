"""Settings of the engine (MaxText) that a job may override, and their allowed values: ``engine_settings.csv``.

The operator validates ``spec.engineOverrides`` against this table before it admits a job; the trainer validates its
request against the same table. A setting missing from the table is refused, so a new engine adds none silently.
"""

import csv
import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import AfterValidator

type Value = bool | int | float | str

#: Least similarity (difflib's ratio) at which a name is suggested for a misspelled one.
_ALIKE = 0.75
#: Number of misspelled settings per job for which a name is suggested. Each costs a comparison with many names, and the
#: operator validates the jobs of all tenants in one thread.
_SUGGESTIONS = 3
#: Largest accepted number: no device can address a larger size, and JAX's integers are 32 bits wide.
_LARGEST = 2**31 - 1
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,15})")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]{0,19})(\.[0-9]{0,40})?([eE][-+]?[0-9]{1,3})?")
_NUMBER_TYPE = re.compile(r"(?P<kind>int|float)(?P<low>>=?[0-9.]+)?(?P<high><=?[0-9.]+)?")
#: Type of the settings of a ``custom`` remat policy; each says what happens to one activation.
_ACTIVATION = "remat|device|offload"


class SettingClass(StrEnum):
    """Who may set a setting."""

    ALLOWED = "Allowed"
    """A job may set it to a value of the setting's type."""
    DECIDED = "Decided"
    """A field of the API or the trainer itself sets it."""
    DANGEROUS = "Dangerous"
    """Neither a job nor a profile may set it: it reaches beyond the job, or breaks its recovery or accounting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    kind: SettingClass
    type: str
    """Type of an allowed setting: ``bool``, ``int``, ``float``, a number with bounds (``int>=1``, ``float>=0<1``), or
    the choices (``full|minimal``). Never free text, so no value can be a path or address. Empty for other classes."""
    note: str
    """Allowed: what the setting does. Decided: what decides it, a path in a job's spec or a part of the product.
    Dangerous: the effect that a job must not have."""


class FaultKind(StrEnum):
    """Why an override is refused."""

    UNKNOWN = "Unknown"
    NOT_ALLOWED = "NotAllowed"
    INVALID = "Invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideFault:
    """One refused override."""

    key: str
    kind: FaultKind
    what: str
    """The problem, as a clause: ``MaxText has no such setting``."""
    actual: str = ""
    expected: str = ""
    fix: str
    """The remedy, as a full sentence."""

    def __str__(self) -> str:
        values = f": found {self.actual}, expected {self.expected}" if self.expected else ""
        return f"spec.engineOverrides.{self.key}: {self.what}{values}. {self.fix}"


@cache
def engine_settings() -> Mapping[str, Setting]:
    """Returns every setting of the pinned engine by name, sorted."""
    text = files("finetune_contract").joinpath("engine_settings.csv").read_text(encoding="utf-8")
    return {
        row["key"]: Setting(
            name=row["key"], kind=SettingClass(row["class"]), type=row["type"], note=row["note"]
        )
        for row in csv.DictReader(text.splitlines())
    }


def closest_setting(key: str) -> str | None:
    """Returns the setting most similar to a misspelled ``key``, among those with the same first letter.

    None if no setting is similar enough.
    """
    names = [name for name in engine_settings() if name[:1] == key[:1]]
    close = difflib.get_close_matches(key, names, n=1, cutoff=_ALIKE)
    return close[0] if close else None


def key_fault(key: str, *, suggest: bool = True) -> OverrideFault | None:
    """Returns why ``key`` may not be overridden with any value and under any profile; None if it may be.

    If ``suggest``, the fault of a misspelled key suggests the most similar setting.
    """
    root, dot, _ = key.partition(".")
    setting = engine_settings().get(root)
    if setting is None:
        close = closest_setting(root) if suggest else None
        fix = f"Did you mean {close}?" if close else "Remove it."
        return OverrideFault(key=key, kind=FaultKind.UNKNOWN, what="MaxText has no such setting", fix=fix)
    if setting.kind is SettingClass.ALLOWED:
        what, fix = f"{root} has no settings of its own", f"Set {root} to {describe_type(setting)}."
        return OverrideFault(key=key, kind=FaultKind.INVALID, what=what, fix=fix) if dot else None
    reason, _, field = setting.note.partition("; use ")
    if setting.kind is SettingClass.DECIDED:
        what, field = f"{reason} decides it", reason if reason.startswith("spec.") else ""
    else:
        what = f"a job may not set it, because it {reason}"
    return OverrideFault(
        key=key,
        kind=FaultKind.NOT_ALLOWED,
        what=what,
        fix=f"Remove it and set {field}." if field else "Remove it; no profile can allow it.",
    )


def override_faults(overrides: Mapping[str, str]) -> Iterator[OverrideFault]:
    """Yields all faults of a job's ``engineOverrides``, sorted by key."""
    unknown = 0
    for key in sorted(overrides):
        if (fault := key_fault(key, suggest=unknown < _SUGGESTIONS)) is not None:
            unknown += fault.kind is FaultKind.UNKNOWN
            yield fault
            continue
        text, setting = overrides[key], engine_settings()[key]
        if parse_value(setting, text) is None:
            yield OverrideFault(
                key=key,
                kind=FaultKind.INVALID,
                what="MaxText does not accept this value",
                actual=repr(text[:100]) if text != text.strip() or not text else text[:100],
                expected=describe_type(setting),
                fix=_closest_choice(setting, text),
            )
        elif setting.type == _ACTIVATION and overrides.get("remat_policy") != "custom":
            yield OverrideFault(
                key=key,
                kind=FaultKind.INVALID,
                what="only remat_policy custom reads it",
                actual=f"remat_policy {overrides.get('remat_policy', 'left out')}"[:100],
                expected="custom",
                fix="Set remat_policy: custom, or remove it.",
            )


def override_values(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Returns the typed values, as MaxText's command line would parse them.

    Raises:
        ValueError: ``override_faults`` finds a fault.
    """
    for fault in override_faults(overrides):
        raise ValueError(str(fault))
    settings = engine_settings()
    parsed = {key: parse_value(settings[key], text) for key, text in overrides.items()}
    return {key: value for key, value in parsed.items() if value is not None}


def parse_value(setting: Setting, text: str) -> Value | None:
    """Parses ``text`` as a value of an allowed setting. None if it is not a valid value."""
    if setting.type == "bool":
        return _BOOLEANS.get(text.lower())
    if (number := _NUMBER_TYPE.fullmatch(setting.type)) is None:
        return text if text in setting.type.split("|") else None
    if number["kind"] == "int":
        value: int | float = int(text) if _INTEGER.fullmatch(text) else math.inf
    else:
        value = float(text) if _FLOAT.fullmatch(text) else math.inf
    return value if abs(value) <= _LARGEST and _within(value, number["low"], number["high"]) else None


def describe_type(setting: Setting) -> str:
    """Describes a setting's type for users: ``true or false``, ``an integer >= 1``, ``one of full, minimal``."""
    if setting.type == "bool":
        return "true or false"
    if (number := _NUMBER_TYPE.fullmatch(setting.type)) is None:
        return f"one of {', '.join(setting.type.split('|'))}"
    kind = "an integer" if number["kind"] == "int" else "a number"
    bounds = [re.sub(r"([<>]=?)", r"\1 ", bound) for bound in (number["low"], number["high"]) if bound]
    return f"{kind} {' and '.join(bounds)}".strip()


def _closest_choice(setting: Setting, text: str) -> str:
    close = difflib.get_close_matches(text, setting.type.split("|"), n=1, cutoff=_ALIKE)
    return f"Did you mean {close[0]}?" if close and "|" in setting.type else "Correct the value."


def _within(value: float, low: str | None, high: str | None) -> bool:
    above = low is None or (value >= float(low[2:]) if low.startswith(">=") else value > float(low[1:]))
    below = high is None or (value <= float(high[2:]) if high.startswith("<=") else value < float(high[1:]))
    return above and below


#: Settings that preflight may choose by compiling; a request's ``tuning`` may hold no others.
TUNED = frozenset({"remat_policy", "decoder_layer_input", "num_vocab_tiling"})


def _tuned(tuning: dict[str, str | int]) -> dict[str, str | int]:
    foreign = sorted(set(tuning) - TUNED)
    if foreign:
        raise ValueError(f"preflight chooses {', '.join(sorted(TUNED))} only, not {', '.join(foreign)}"[:300])
    for fault in override_faults({key: str(value) for key, value in tuning.items()}):
        raise ValueError(str(fault))
    return tuning


Tuning = Annotated[dict[str, str | int], AfterValidator(_tuned)]
"""Engine settings that preflight chose. The record that carries them is stored where the job's own service account may
write, so they are validated like a job's overrides."""
