"""Structured logs: one JSON object per line, with the current job and without credentials."""

import json
import logging
import re
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

#: Key that the current task reconciles: a job as namespace/name, or finetuneprofile/name. None outside a reconcile.
current_job: ContextVar[str | None] = ContextVar("current_job", default=None)

#: Bearer headers, JSON web tokens, Hugging Face tokens, Google access tokens, passwords in URLs.
_SECRETS = re.compile(
    r"(?i:(?P<scheme>bearer\s+))[^\s\"',]+"
    r"|(?P<user>[a-z+]+://[^\s/:@]+:)[^\s/@]+(?=@)"
    r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|hf_[A-Za-z0-9]{8,}"
    r"|ya29\.[\w-]+"
)


def redacted(text: str) -> str:
    """Returns the text with everything that resembles a credential replaced."""
    return _SECRETS.sub(lambda match: f"{match['scheme'] or match['user'] or ''}[redacted]", text)


class _Formatter(logging.Formatter):
    def message_of(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return redacted(text)


class JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.message_of(record),
        }
        if job := current_job.get():
            fields["job"] = job
        return json.dumps(fields)


class TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        job = current_job.get()
        return f"{stamp} {record.levelname:<7} {f'[{job}] ' if job else ''}{self.message_of(record)}"


def configure(level: str, form: str, stream: TextIO = sys.stderr) -> None:
    """Configures the root logger. Libraries log warnings and above, or everything at level debug."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
    logging.getLogger("finetune_operator").setLevel(level.upper())
    # kopf logs at ERROR that it will retry a request, with the whole response; the age of the watches shows the
    # relevant part.
    logging.getLogger("kopf").setLevel(logging.DEBUG if level == "debug" else logging.WARNING)
