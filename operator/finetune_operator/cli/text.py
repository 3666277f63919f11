"""Pure functions that format numbers and times."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

_BAR = 24
#: Colors, and commands to a terminal such as those that move its cursor.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CENTS = 2


def cell(value: object) -> str:
    """Returns a cell of a table: a text of another program on one line, ``-`` if there is none."""
    return "-" if value is None else one_line(value) or "-"


def duration(seconds: float) -> str:
    """Formats a duration: ``8 s``, ``1 min 05 s``, ``2 h 05 min``, ``3 d 4 h``. A negative one becomes ``0 s``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def step_time(seconds: float) -> str:
    """Formats the time of a step with three digits: ``412 ms``, ``1.25 s``; a minute and more as a duration."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)


def instant(value: object) -> datetime | None:
    """Parses a Kubernetes timestamp; None for any other value."""
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def elapsed(start: object, end: object, now: datetime) -> timedelta | None:
    """Returns the time from ``start`` to ``end``, or to ``now`` without an end; None without a start."""
    began = instant(start)
    if began is None:
        return None
    return (instant(end) or now) - began


def bar(done: float, total: float) -> str:
    """Returns a progress bar of fixed width; empty if the total is unknown."""
    if total <= 0:
        return ""
    filled = round(_BAR * min(1.0, max(0.0, done / total)))
    return "━" * filled + "╌" * (_BAR - filled)


def count(number: float) -> str:
    """Formats a count with enough digits to recognize it: ``494 M``, ``1.5 B``, ``3,412``."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            value = number / size
            return f"{value:.3g} {unit}"
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Formats bytes in binary units: ``5.1 GiB``."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def part_of_size(done: float, total: float) -> str:
    """Formats a part of a number of bytes, in the unit of the whole: ``1.9 of 6.2 GiB``."""
    whole = size(total)
    unit = whole.rpartition(" ")[2]
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    return f"{done / scale:.{0 if unit == 'B' else 1}f} of {whole}"


def number(value: object, digits: int = 3) -> str:
    """Formats a metric: shortens numbers and decimal strings, returns anything else unchanged."""
    try:
        return f"{float(str(value)):.{digits}f}"
    except ValueError:
        return str(value)


def money(amount: Decimal) -> str:
    """Formats an amount with all its digits, at least cents: ``1.20``, ``0.0125``."""
    exponent = amount.as_tuple().exponent
    return f"{amount:f}" if isinstance(exponent, int) and exponent < -_CENTS else f"{amount:.{_CENTS}f}"


def one_line(value: object) -> str:
    """Returns a text of another program on one line, without control characters."""
    return "".join(each for each in " ".join(str(value).split()) if each.isprintable())


def printable(value: str) -> str:
    """Returns a text of another program without colors, and control characters other than line ends and tabs."""
    plain = _ESCAPE_SEQUENCE.sub("", value)
    return "".join(each for each in plain if each.isprintable() or each in "\n\t")


def plain(value: Any) -> Any:
    """Returns a JSON value in which every text, and every key, is on one line and without control characters."""
    if isinstance(value, str):
        return value if value.isprintable() else printable(value).replace("\n", " ").replace("\t", " ")
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def escaped(text: str, escape: Callable[[str], str]) -> str:
    """Returns a document with ``escape`` applied to its control characters other than line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else escape(each) for each in text)


def metric(status: Mapping[str, Any], name: str) -> object | None:
    """Returns the value of one entry of ``progress.metrics``; None if there is none."""
    entries = (status.get("progress") or {}).get("metrics") or []
    return next((entry.get("value") for entry in entries if entry.get("name") == name), None)
