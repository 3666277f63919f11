"""Address of the API server and credentials for it: the pod's service account, or a user's kubeconfig."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, list_kube_config_contexts, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from finetune_operator.cluster.port import ClusterError

#: Folder in which the kubelet mounts a pod's token, CA and namespace.
DEFAULT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCredentials(ClusterError):
    """There are no credentials for an API server; the message names the places that were searched."""


class UnknownContext(NoCredentials):
    """The kubeconfig has no such context."""

    def __init__(self, message: str, context: str, known: Sequence[str]) -> None:
        super().__init__(message)
        self.context = context
        self.known = known
        """Names of its contexts."""


class CredentialProgramFailed(NoCredentials):
    """The program that a kubeconfig names for credentials does not exist, or has failed."""


@dataclass(frozen=True, slots=True)
class UserContext:
    """A context of a kubeconfig."""

    name: str
    configuration: Configuration
    namespace: str
    """That of the context, or else ``default``."""


@dataclass(frozen=True, slots=True)
class ServiceAccountFolder:
    """A folder with ``token``, ``ca.crt`` and ``namespace``, as the kubelet mounts and rotates it.

    A local cluster writes the same three files, so the operator runs production's code path everywhere.
    """

    path: Path = DEFAULT_FOLDER

    @property
    def ca(self) -> Path:
        return self.path / "ca.crt"

    def token(self) -> str:
        """Returns the current token; the kubelet replaces the file before the token expires."""
        return (self.path / "token").read_text().strip()

    def namespace(self) -> str:
        """Returns the operator's own namespace. Raises NoCredentials."""
        try:
            return (self.path / "namespace").read_text().strip()
        except OSError as error:
            raise NoCredentials(f"{self.path / 'namespace'} cannot be read: {error.strerror}") from error

    def server(self, environ: Mapping[str, str] = os.environ) -> str:
        """Returns the URL of the API server, from the environment variables of every pod. Raises NoCredentials."""
        return str(self.configuration(environ).host)

    def configuration(self, environ: Mapping[str, str] = os.environ) -> Configuration:
        """Returns a client configuration that re-reads the token every minute. Raises NoCredentials."""
        configuration = Configuration()
        loader = InClusterConfigLoader(  # type: ignore[no-untyped-call]
            token_filename=str(self.path / "token"), cert_filename=str(self.ca), environ=environ
        )
        try:
            loader.load_and_set(configuration)  # type: ignore[no-untyped-call]
        except ConfigException as error:
            raise NoCredentials(
                f"no service account in {self.path}: {error} Run in a pod, or set FINETUNE_SERVICEACCOUNT_DIR to "
                "a folder with token, ca.crt and namespace, and also KUBERNETES_SERVICE_HOST and "
                "KUBERNETES_SERVICE_PORT."
            ) from error
        # Otherwise each request reads ~/.netrc and the proxy's variables, a tenth of what a request costs.
        configuration.client_session_kwargs = {"trust_env": False}
        return configuration


async def user_context(path: str | None = None, context: str | None = None) -> UserContext:
    """Returns a user's access from ``path``, else ``$KUBECONFIG``, else ``~/.kube/config``, as kubectl does.

    ``context`` names one of its contexts; None: the current one. Raises NoCredentials.
    """
    where = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
    configuration = Configuration()
    try:
        with _logged_errors() as logged:
            # persist_config: a command that only reads must not rewrite the user's kubeconfig.
            loader = await load_kube_config(  # type: ignore[no-untyped-call]
                config_file=path, context=context, client_configuration=configuration, persist_config=False
            )
        name = str(loader.current_context["name"])
        namespace = str((loader.current_context.get("context") or {}).get("namespace") or "default")
    except Exception as error:
        # The library does not check what it reads: a malformed file may raise a TypeError or a KeyError.
        known = _contexts(path)
        if context is not None and known and context not in known:
            raise UnknownContext(
                f'the kubeconfig {where} has no context "{context}"', context, known
            ) from error
        raise NoCredentials(f"no usable kubeconfig in {where}: {error or type(error).__name__}") from error
    if logged and not configuration.api_key and not configuration.cert_file:
        raise CredentialProgramFailed(f"the program that {where} names for credentials failed: {logged[-1]}")
    return UserContext(name, configuration, namespace)


def _contexts(path: str | None) -> Sequence[str]:
    """Returns the names of a kubeconfig's contexts; empty if it cannot be read."""
    try:
        contexts, _ = list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
        return [str(each["name"]) for each in contexts]
    except Exception:  # noqa: BLE001  as above
        return []


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """Yields what the library logs inside: it logs the error of a credential program, and continues without a token."""
    logged: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(load_kube_config.__module__)
    logger.addHandler(handler)
    try:
        yield logged
    finally:
        logger.removeHandler(handler)
