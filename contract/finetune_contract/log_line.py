"""A line of a trainer's log as Cloud Logging reads it, and the same line for people.

The variable of the pod selects the form: ``json``, or text without it.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

LOG_FORMAT_VARIABLE = "FINETUNE_LOG_FORMAT"
_START = '{"severity": "'


def log_line(*, severity: str, time: datetime, logger: str, message: str, labels: Mapping[str, str]) -> str:
    """Returns one JSON object, without a line end.

    Cloud Logging moves severity, time and labels to fields of the entry.
    """
    fields = {
        "severity": severity,
        "time": time.astimezone(UTC).isoformat(timespec="milliseconds"),
        "logger": logger,
        "message": message,
        "logging.googleapis.com/labels": dict(labels),
    }
    return json.dumps(fields, ensure_ascii=False)


def readable(text: str) -> str:
    """Returns the text with each line of :func:`log_line` as a person reads it; other lines stay as they are."""
    if _START not in text:
        return text
    return "\n".join(map(_readable, text.split("\n")))


def _readable(line: str) -> str:
    if not line.startswith(_START):
        return line
    try:
        fields = json.loads(line)
        moment = datetime.fromisoformat(fields["time"]).strftime("%Y-%m-%d %H:%M:%S,%f")[:-3]
        return f"{moment} {fields['severity'][:1]} {fields['logger']}: {fields['message']}"
    except (ValueError, LookupError, TypeError, RecursionError):
        # Of another program, or cut.
        return line
