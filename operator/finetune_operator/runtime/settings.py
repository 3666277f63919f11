"""What can be set about the operator: environment variables, each with its reason."""

import os
import socket
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from finetune_operator.cluster.connect import DEFAULT_FOLDER, ServiceAccountFolder


class SettingsError(Exception):
    """An environment variable has a value that cannot be used; the message names it."""


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Seconds = Annotated[float, Field(gt=0, le=86400)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Settings(BaseModel):
    """Each field is the environment variable ``FINETUNE_<FIELD>`` in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    serviceaccount_dir: Annotated[Path, AfterValidator(Path.absolute)] = DEFAULT_FOLDER
    """token, ca.crt and namespace; another folder on a local cluster, where nothing is mounted."""
    namespaces: Annotated[list[str], BeforeValidator(_split)] = []
    """Comma separated; empty: all, which needs a ClusterRole."""
    workers: Annotated[int, Field(ge=1, le=64)] = 16
    """Jobs handled at once, at most half of them of one namespace. A reconcile mostly waits for the API server and
    storage, and one that waits for more than 2 s no longer counts; 8 keep 1,000 jobs moving and stay polite."""
    resync_seconds: Seconds = 600
    """How often all live jobs are looked at without an event: the net below lost events."""
    health_host: str = "0.0.0.0"  # noqa: S104
    """Where both ports listen: the kubelet and Prometheus come from outside the pod."""
    health_port: Port = 8080
    """/healthz and /readyz, for the kubelet. 0: a free port, told in the log."""
    metrics_port: Port = 9090
    """/metrics on a port of its own, so that a network policy can tell Prometheus from the kubelet."""
    lease_name: str = "finetune-operator"
    """Of the operators that name the same Lease, one works."""
    operator_namespace: str | None = None
    """Where the Lease and the plans of jobs are. Default: the service account's namespace."""
    identity: Annotated[str, Field(min_length=1, max_length=253)] = socket.gethostname()
    """Holder of the Lease. The pod's name: it outlives a restart of the container, and no two pods share it."""
    drain_seconds: Seconds = 20
    """After SIGTERM, for the jobs in hand; below the pod's terminationGracePeriodSeconds of 30."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = "info"
    """debug, info, warning or error."""
    log_format: Annotated[Literal["json", "text"], BeforeValidator(_lower)] = "json"
    """json, or text for a person at a terminal."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Raises SettingsError, which names the variable. Empty values count as absent, as templates write them."""
        values = {
            name: environ[variable]
            for name in cls.model_fields
            if environ.get(variable := f"FINETUNE_{name.upper()}")
        }
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            variable = f"FINETUNE_{str(first['loc'][0]).upper()}"
            raise SettingsError(f"{variable}={environ.get(variable)!r}: {first['msg']}") from error

    @property
    def service_account(self) -> ServiceAccountFolder:
        return ServiceAccountFolder(self.serviceaccount_dir)


def usage() -> str:
    """Every variable with its default and meaning, for people."""
    lines = []
    for name, field in Settings.model_fields.items():
        # The host's name differs from pod to pod and is no default that one could rely on.
        default = "" if name == "identity" or field.default in (None, []) else f" [{field.default}]"
        meaning = " ".join((field.description or "").split())
        lines.append(textwrap.fill(f"FINETUNE_{name.upper()}{default}", 100))
        lines.append(textwrap.fill(meaning, 100, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)
