"""Address of the API server and credentials for it: the pod's service account, or a user's kubeconfig."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_kube_config
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from finetune_operator.cluster.port import ClusterError

#: Folder in which the kubelet mounts a pod's token, CA and namespace.
DEFAULT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCredentials(ClusterError):
    """There are no credentials for an API server; the message names the places that were searched."""


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


async def kubeconfig(path: str | None = None, context: str | None = None) -> Configuration:
    """Returns a user's configuration from ``path``, else ``$KUBECONFIG``, else ``~/.kube/config``.

    Raises NoCredentials.
    """
    configuration = Configuration()
    try:
        # persist_config: a command that only reads must not rewrite the user's kubeconfig.
        await load_kube_config(  # type: ignore[no-untyped-call]
            config_file=path, context=context, client_configuration=configuration, persist_config=False
        )
    except (ConfigException, OSError) as error:
        where = path or os.environ.get("KUBECONFIG", "~/.kube/config")
        raise NoCredentials(f"no usable kubeconfig in {where}: {error}") from error
    return configuration
