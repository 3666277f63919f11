"""Connects a command to the cluster that its options select, and explains why that or a call fails."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from kubernetes.aio.client import Configuration

from finetune_operator.cli.connect.connection import Connection
from finetune_operator.cli.errors import CliError, close_names
from finetune_operator.cli.text import one_line
from finetune_operator.cluster.connect import (
    CredentialProgramFailed,
    NoCredentials,
    UnknownContext,
    user_context,
)
from finetune_operator.cluster.port import ClusterError, Unavailable


@asynccontextmanager
async def connect(
    *, path: str | None, context: str | None, namespace: str | None, user: str | None = None
) -> AsyncIterator[Connection]:
    """Connects for the duration of one command. Converts every ClusterError inside to a CliError."""
    connection: Connection | None = None

    async def renew() -> Configuration:
        return (await user_context(path, context, user)).configuration

    try:
        found = await user_context(path, context, user)
        try:
            connection = Connection(
                found.configuration,
                namespace or found.namespace,
                context=found.name,
                options=_options(path, found.name, user),
                renew=renew,
            )
        except (OSError, ValueError) as error:
            raise NoCredentials(
                f"the certificates that the kubeconfig names cannot be used: {error}"
            ) from error
        yield connection
    except ClusterError as error:
        _explain(error, connection)
    finally:
        if connection is not None:
            await connection.close()


def _options(path: str | None, context: str, user: str | None) -> list[str]:
    """The options of one command for another, which may run in another folder and after a change of the context."""
    file = str(Path(path).expanduser().absolute()) if path else None
    given = {"--kubeconfig": file, "--context": context, "--as": user}
    return [word for option, value in given.items() if value for word in (option, value)]


def _explain(error: ClusterError, connection: Connection | None) -> NoReturn:
    said = one_line(error)
    if isinstance(error, UnknownContext):
        raise CliError(said, fix=close_names(error.context, error.known)) from error
    if isinstance(error, CredentialProgramFailed):
        raise CliError(
            said,
            fix="Log in again, or install that program (GKE: gcloud auth login; gcloud components install "
            "gke-gcloud-auth-plugin).",
        ) from error
    if isinstance(error, NoCredentials) or connection is None:
        raise CliError(
            said,
            fix="Set KUBECONFIG or give --kubeconfig FILE; `make up` starts a local cluster and prints an export line.",
        ) from error
    if error.status == 401:
        raise CliError(
            f"The cluster at {connection.server} does not accept your credentials.",
            fix="Log in again (GKE: gcloud container clusters get-credentials CLUSTER), or choose another --context.",
        ) from error
    if error.status == 403:
        raise CliError(
            said,
            fix=f"Ask for a role in namespace {connection.namespace} that allows this, or choose another with -n.",
        ) from error
    if isinstance(error, Unavailable):
        raise CliError(
            f"The cluster at {connection.server} does not respond: {said}",
            fix="Check that it runs and that KUBECONFIG, --kubeconfig or --context selects the intended cluster.",
        ) from error
    raise CliError(said) from error
