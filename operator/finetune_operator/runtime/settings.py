"""The operator's settings, which are environment variables."""

import os
import socket
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from finetune_operator.cluster.connect import DEFAULT_FOLDER, ServiceAccountFolder


class SettingsError(Exception):
    """An environment variable has an invalid value. The message names the variable."""


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Seconds = Annotated[float, Field(gt=0, le=86400)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Settings(BaseModel):
    """Settings of the operator. Each field is read from the environment variable ``FINETUNE_<FIELD>`` in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    serviceaccount_dir: Annotated[Path, AfterValidator(Path.absolute)] = DEFAULT_FOLDER
    """Folder with the files token, ca.crt and namespace. Set it on a local cluster, where none is mounted."""
    namespaces: Annotated[list[str], BeforeValidator(_split)] = []
    """Namespaces to serve, separated by commas. Empty for all, which requires a ClusterRole."""
    workers: Annotated[int, Field(ge=1, le=64)] = 16
    """Number of concurrent reconciles, at most half of them in one namespace. A reconcile mostly waits for the API
    server and storage, and no longer counts after 0.5 s. More of them overload the API server rather than help."""
    resync_seconds: Seconds = 600
    """Interval in seconds at which all jobs are listed and live ones reconciled without an event, in case events were
    lost."""
    health_host: str = "0.0.0.0"  # noqa: S104
    """Address on which both ports listen: the kubelet and Prometheus connect from outside the pod."""
    health_port: Port = 8080
    """Port of /healthz and /readyz, for the kubelet. 0 selects a free port, which is logged."""
    metrics_port: Port = 9090
    """Port of /metrics, separate so that a network policy can distinguish Prometheus from the kubelet. 0 selects a free
    port, which is logged."""
    metrics_tls_dir: Path | None = None
    """Folder with tls.crt and tls.key, with which /metrics is served. Renewed files are used without a restart. Empty:
    plain HTTP."""
    metrics_client_auth: bool = False
    """Whether /metrics answers only clients with a certificate that ca.crt of the same folder has signed."""
    lease_name: str = "finetune-operator"
    """Name of the Lease. Only one of the operators with the same Lease is active."""
    operator_namespace: str | None = None
    """Namespace of the Lease and of the jobs' plans. Default: the service account's namespace."""
    identity: Annotated[str, Field(min_length=1, max_length=253)] = socket.gethostname()
    """Holder of the Lease. Default: the pod's name, which is unique and survives a restart of the container."""
    ledger: (
        Annotated[str, Field(pattern=r"^(gs://[a-z0-9][^\s]*|file:///[^\s]+)$", max_length=512)] | None
    ) = None
    """URI of the folder of the ledger, gs:// or file://, which contains the chip hours and cost of each attempt. No
    tenant may write there: a bucket of the operator's own. Empty: no ledger."""
    paused: bool = False
    """Whether no stage of any job is started. What runs continues, and is stopped as before by its user, deadlines and
    budgets."""
    webhook_url: Annotated[str, Field(pattern=r"^https?://[^\s@]+$", max_length=2048)] | None = None
    """URL to which notices of jobs are posted, https:// or http://, without credentials. Empty: none are sent."""
    webhook_key_file: Path | None = None
    """File with the keys that sign them, whsec_ and base64, one in each line. Read for each notice."""
    drain_seconds: Seconds = 20
    """Seconds after SIGTERM to finish reconciles; less than the pod's terminationGracePeriodSeconds of 30."""
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = "info"
    """Log level: debug, info, warning or error."""
    log_format: Annotated[Literal["json", "text"], BeforeValidator(_lower)] = "json"
    """Log format: json, or text for a terminal."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Reads the settings. An empty value counts as unset, since templates may write one.

        Raises:
            SettingsError: a variable has an invalid value.
        """
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

    @property
    def own_namespace(self) -> str:
        return self.operator_namespace or self.service_account.namespace()


def usage() -> str:
    """Returns the help text: every variable with its default and description."""
    lines = []
    for name, field in Settings.model_fields.items():
        # The host name differs between pods, so it is not shown as a default.
        default = "" if name == "identity" or field.default in (None, []) else f" [{field.default}]"
        meaning = " ".join((field.description or "").split())
        lines.append(textwrap.fill(f"FINETUNE_{name.upper()}{default}", 100))
        lines.append(textwrap.fill(meaning, 100, initial_indent="    ", subsequent_indent="    "))
    return "\n".join(lines)
