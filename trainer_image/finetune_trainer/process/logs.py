"""What a stage logs: as text on standard error, or as Cloud Logging reads it on standard output."""

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from finetune_contract import StageRequest
from finetune_contract.log_line import LOG_FORMAT_VARIABLE, log_line
from finetune_trainer.errors import encodable

_LOG = logging.getLogger(__name__)


class LogLineFormatter(logging.Formatter):
    """One line for each record, with its traceback; ``redact`` replaces secrets before they are escaped."""

    def __init__(self, redact: Callable[[str], str], labels: Mapping[str, str]) -> None:
        super().__init__()
        self._redact = redact
        self._labels = labels

    def format(self, record: logging.LogRecord) -> str:
        return log_line(
            severity=record.levelname,
            time=datetime.fromtimestamp(record.created, UTC),
            logger=record.name,
            message=self._redact(encodable(super().format(record))),
            labels=self._labels,
        )


class OnceEach(logging.Filter):
    """Passes each text once."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        fresh = said not in self._passed
        if len(self._passed) < 1000:  # A text that differs each time fills no memory.
            self._passed.add(said)
        return fresh


def configure(request: StageRequest, environment: Mapping[str, str], redact: Callable[[str], str]) -> None:
    """Logs this package from INFO, and libraries from WARNING.

    JSON goes to standard output: GKE's agent gives other lines on standard error the severity ERROR.
    """
    if environment.get(LOG_FORMAT_VARIABLE) == "json":
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(LogLineFormatter(redact, _labels(request)))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("finetune_trainer").setLevel(logging.INFO)
    # Without the right to ask for the kind of a bucket, gcsfs warns at each access, hundreds of times.
    logging.getLogger("gcsfs").addFilter(OnceEach())
    _LOG.info(
        "%s, attempt %d.%d of job %s/%s",
        request.stage,
        request.attempt,
        request.restart,
        request.job.namespace,
        request.job.name,
    )


def _labels(request: StageRequest) -> dict[str, str]:
    """The labels of the operator's own lines about an attempt."""
    return {
        "namespace": request.job.namespace,
        "job": request.job.name,
        "stage": request.stage.value,
        "attempt": str(request.attempt),
    }
