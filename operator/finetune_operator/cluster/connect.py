"""Address of the API server and credentials for it: the pod's service account, or a user's kubeconfig."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_kube_config_from_dict
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from finetune_operator.cluster.credential_program import ProgramError, program_credentials
from finetune_operator.cluster.kubeconfig import KubeContext, impersonation, read_kubeconfig, token_of
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
    """A context of a kubeconfig, or a pod's service account."""

    name: str
    """Empty in a pod."""
    configuration: Configuration
    namespace: str
    """That of the context, else of the pod, else ``default``."""


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


async def user_context(
    path: str | None = None, context: str | None = None, user: str | None = None
) -> UserContext:
    """Returns a user's access from ``path``, else ``$KUBECONFIG``, else ``~/.kube/config``, as kubectl does.

    In a pod whose kubeconfig chooses no context, it is that of the pod's service account. Raises NoCredentials.

    Args:
        path: a kubeconfig.
        context: one of its contexts; None: the current one.
        user: whom to impersonate, instead of the one that the kubeconfig names; None: that one, if any.
    """
    where = path or os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        kubeconfig = read_kubeconfig(path)
        name = context or kubeconfig.current
        if not name and (pod := _pod()):
            configuration = pod.configuration()
            configuration.client_session_kwargs = {"headers": impersonation({"as": user})}
            return UserContext("", configuration, _pod_namespace() or "default")
        if context is not None and kubeconfig.contexts and context not in kubeconfig.contexts:
            raise UnknownContext(
                f'the kubeconfig {where} has no context "{context}"', context, list(kubeconfig.contexts)
            )
        if name not in kubeconfig.contexts:
            raise ValueError(f'there is no context "{name}"' if name else "there is no current context")
        chosen = kubeconfig.context(name, user)
        configuration = await _configuration(chosen)
    except ClusterError:
        raise
    except ProgramError as error:
        raise CredentialProgramFailed(
            f"the program that {where} names for credentials failed: {error}"
        ) from error
    except Exception as error:
        # Neither the library nor the reader checks every type: a malformed file may raise a TypeError or a KeyError.
        raise NoCredentials(f"no usable kubeconfig in {where}: {error or type(error).__name__}") from error
    return UserContext(name, configuration, chosen.namespace or _pod_namespace() or "default")


async def _configuration(chosen: KubeContext) -> Configuration:
    user, cluster = dict(chosen.user), chosen.cluster
    if token := token_of(user):
        user = {**user, "token": token}
    given = {"token", "username", "client-certificate", "client-certificate-data"}
    if (program := user.pop("exec", None)) and not given & user.keys():
        user |= await program_credentials(program, cluster)
    configuration = Configuration()
    names = {"cluster": "c", "user": "u"}
    await load_kube_config_from_dict(  # type: ignore[no-untyped-call]
        {
            "current-context": "x",
            "contexts": [{"name": "x", "context": names}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user}],
        },
        client_configuration=configuration,
    )
    configuration.client_session_kwargs = {"headers": impersonation(user)}
    return configuration


def _pod() -> ServiceAccountFolder | None:
    """Returns the service account of the pod that the command runs in; None outside of a pod."""
    folder = ServiceAccountFolder(DEFAULT_FOLDER)
    known = os.environ.get("KUBERNETES_SERVICE_HOST") and os.environ.get("KUBERNETES_SERVICE_PORT")
    return folder if known and (folder.path / "token").is_file() else None


def _pod_namespace() -> str:
    """Returns the namespace of the pod that the command runs in; empty outside of a pod."""
    pod = _pod()
    try:
        return os.environ.get("POD_NAMESPACE") or pod.namespace() if pod else ""
    except NoCredentials:
        return ""
