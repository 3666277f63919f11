"""Structured logs: one JSON object per line, as Cloud Logging reads them, with the job and without credentials."""

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from finetune_operator.reconcile.keys import JobKey, PlanKey

#: Key that the current task reconciles: a job, a profile or a stored plan. None outside a reconcile.
current_key: ContextVar[object] = ContextVar("current_key", default=None)
#: Labels of a line from ``extra`` of the logging call.
_EXTRA_LABELS = ("stage", "attempt")

#: Bearer headers, JSON web tokens, Hugging Face tokens, Google access tokens, passwords in URLs.
_SECRETS = re.compile(
    r"(?i:(?P<scheme>bearer\s+))[^\s\"',]+"
    r"|(?P<user>[a-z+]{1,20}://[^\s/:@]+:)[^\s/@]+(?=@)"
    r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|hf_[A-Za-z0-9]{8,}"
    r"|ya29\.[\w-]+"
)


def redacted(text: str) -> str:
    """Returns the text with everything that resembles a credential replaced."""
    return _SECRETS.sub(lambda match: f"{match['scheme'] or match['user'] or ''}[redacted]", text)


def _labels(record: logging.LogRecord) -> dict[str, str]:
    key = current_key.get()
    job = {"namespace": key.namespace, "job": key.name} if isinstance(key, JobKey | PlanKey) else {}
    extra = {name: str(record.__dict__[name]) for name in _EXTRA_LABELS if name in record.__dict__}
    return job | extra


class _Formatter(logging.Formatter):
    def message_of(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return redacted(text)


class JsonFormatter(_Formatter):
    """Cloud Logging moves ``severity``, ``time`` and the labels to fields of the entry; the rest is its payload."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "severity": record.levelname,
            "logger": record.name,
            "message": self.message_of(record),
        }
        if key := current_key.get():
            fields["key"] = str(key)
        if labels := _labels(record):
            fields["logging.googleapis.com/labels"] = labels
        return json.dumps(fields)


class TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        key = current_key.get()
        return f"{stamp} {record.levelname:<7} {f'[{key}] ' if key else ''}{self.message_of(record)}"


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Configures the root logger. Libraries log warnings and above, or everything at level debug.

    The default stream is stdout: GKE's agent gives lines on stderr the severity ERROR unless they state another one.
    """
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.getLogger("finetune_operator").setLevel(level.upper())
    # kopf logs at ERROR that it will retry a request, with the whole response; the age of the watches shows the
    # relevant part.
    logging.getLogger("kopf").setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
