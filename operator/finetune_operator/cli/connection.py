"""A user's connection to a cluster: objects, their changes, and pod logs."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.rest import RESTResponse
from kubernetes.aio.config import ConfigException, list_kube_config_contexts

from finetune_operator.cli.errors import CliError, close_names
from finetune_operator.cli.user_client import UserClient
from finetune_operator.cluster.api_server_client import error_from
from finetune_operator.cluster.connect import NoCredentials, kubeconfig
from finetune_operator.cluster.port import (
    DEPLOYMENTS,
    JOBS,
    PODS,
    PROFILES,
    ClusterError,
    NotFound,
    Object,
    ResourceKind,
    Unavailable,
)

type Objects = Mapping[str, Object]
type Sleep = Callable[[float], Awaitable[None]]

#: Seconds after which the server ends a watch. A bookmark per minute shows in between that the connection is alive.
_WATCH_SECONDS = 290
_SILENCE_SECONDS = 100
_LONGEST_PAUSE = 15.0


def untroubled(_message: str | None) -> None:
    """Default callback for callers that do not show the connection state."""


class Connection:
    """The commands' access to a cluster. Calls raise :class:`ClusterError`."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str,
        *,
        user: str | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """``user`` is whom to impersonate; None: the user of the configuration."""
        self.namespace = namespace
        self.server = str(configuration.host)
        self._cluster = UserClient(configuration, user)
        self._api = ApiClient(configuration)
        self._headers = {"Impersonate-User": user} if user else {}
        self._sleep = sleep

    async def close(self) -> None:
        await self._cluster.close()
        await self._api.close()  # type: ignore[no-untyped-call]

    async def job(self, name: str) -> Object:
        """Returns the live job. Raises CliError with similar names if it does not exist."""
        try:
            return await self._cluster.get(JOBS, self.namespace, name)
        except NotFound:
            pass
        known = [job["metadata"]["name"] async for job in self.jobs()]
        raise CliError(
            f'There is no FineTuneJob "{name}" in namespace {self.namespace}.',
            fix=close_names(name, known)
            or f"{self.namespace} has no FineTuneJob; choose another namespace with -n.",
        )

    async def has_job(self, name: str) -> bool:
        """Whether the namespace has a job of this name."""
        try:
            await self._cluster.get(JOBS, self.namespace, name)
        except NotFound:
            return False
        return True

    async def jobs(self, *, everywhere: bool = False, selector: str | None = None) -> AsyncIterator[Object]:
        """Yields the jobs of the namespace, or of all. ``selector`` is a label selector as kubectl takes it."""
        async for job in self._listed(JOBS, None if everywhere else self.namespace, selector):
            yield job

    async def profiles(self) -> list[Object]:
        """Returns all profiles."""
        return [profile async for profile in self._listed(PROFILES, None)]

    async def deployments(self, namespace: str, selector: str) -> list[Object]:
        """Returns the Deployments of a namespace with matching labels."""
        return [each async for each in self._listed(DEPLOYMENTS, namespace, selector)]

    async def edit(self, name: str, patch: Object) -> Object:
        """Merges ``patch`` into the job and returns it. Raises Conflict if it names an outdated resourceVersion."""
        return await self._cluster.merge(JOBS, self.namespace, name, patch)

    async def _listed(
        self, kind: ResourceKind, namespace: str | None, selector: str | None = None
    ) -> AsyncIterator[Object]:
        """Yields objects page by page: ten thousand jobs have more bytes than the client takes at once."""
        try:
            async for page in self._cluster.selected(kind, namespace, selector):
                for item in page:
                    yield item
        except NotFound as error:
            raise CliError(
                f"The cluster at {self.server} does not serve {kind.plural}.",
                fix="Install the chart charts/finetune-operator, or choose another cluster with --context.",
            ) from error

    async def pods(self, labels: Mapping[str, str]) -> list[Object]:
        return list(await self._cluster.list(PODS, self.namespace, labels=labels))

    async def follow(
        self,
        kind: ResourceKind,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        trouble: Callable[[str | None], None] = untroubled,
    ) -> AsyncIterator[Objects]:
        """Yields the selected objects by name: their current state, and again after every change, without end.

        A lost connection is restored; ``trouble`` is called with the reason meanwhile, and with None afterwards.
        Raises ClusterError only for permanent errors (no permission, no such kind).
        """
        query = _selection(name, labels)
        path = f"{kind.prefix}/namespaces/{self.namespace}/{kind.plural}"
        pause = 1.0
        while True:
            try:
                async for objects in self._list_and_watch(path, query):
                    trouble(None)
                    pause = 1.0
                    yield objects
            except Unavailable as error:
                trouble(str(error))
            # Also after a watch that ended normally, so as not to overload a server that ends each at once.
            await self._sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def log(self, pod: str, *, follow: bool) -> AsyncIterator[str]:
        """Yields the log of a pod's only container by line, without line ends; with ``follow`` until it ends."""
        path = f"{PODS.prefix}/namespaces/{self.namespace}/pods/{pod}/log"
        silence = None if follow else _SILENCE_SECONDS
        async for line in self._lines(path, [("follow", str(follow).lower())], silence):
            yield line.decode(errors="replace").rstrip("\r\n")

    async def _list_and_watch(self, path: str, query: list[tuple[str, str]]) -> AsyncIterator[Objects]:
        content = b"".join([line async for line in self._lines(path, query, _SILENCE_SECONDS)])
        listed = json.loads(content)
        objects = {item["metadata"]["name"]: item for item in listed["items"]}
        yield dict(objects)
        watch = [
            *query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(_WATCH_SECONDS)),
            ("resourceVersion", listed["metadata"]["resourceVersion"]),
        ]
        try:
            async for line in self._lines(path, watch, _SILENCE_SECONDS):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return  # The resource version expired (410) or the server shuts down: list again.
                if event["type"] == "BOOKMARK":
                    continue
                changed = event["object"]
                if event["type"] == "DELETED":
                    objects.pop(changed["metadata"]["name"], None)
                else:
                    objects[changed["metadata"]["name"]] = changed
                yield dict(objects)
        except Unavailable:
            return  # The next list shows whether the server is actually unavailable.

    async def _lines(
        self, path: str, query: list[tuple[str, str]], silence: float | None
    ) -> AsyncIterator[bytes]:
        """Yields the response to one GET by line. Raises ClusterError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=silence)
        answer: RESTResponse | None = None
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                "GET",
                path,
                query_params=query,
                header_params={"Accept": "*/*", **self._headers},
                auth_settings=["BearerToken"],
            )
            answer = await self._api.call_api(method, url, header_params=headers, _request_timeout=timeout)
            if answer.status >= 400:
                content = await answer.read()  # type: ignore[no-untyped-call]
                raise error_from(answer.status, method, path, content, None)
            # aiohttp's readline rejects lines above 2 MiB, and an object in a watch may be larger.
            rest = b""
            async for chunk in answer.response.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                for line in whole:
                    yield line
            if rest:
                yield rest
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unavailable(f"GET {path}: {str(error) or 'no response in time'}") from error
        finally:
            if answer is not None:
                answer.response.close()


def _selection(name: str | None, labels: Mapping[str, str] | None) -> list[tuple[str, str]]:
    query = []
    if name:
        query.append(("fieldSelector", f"metadata.name={name}"))
    if labels:
        query.append(("labelSelector", ",".join(f"{key}={value}" for key, value in sorted(labels.items()))))
    return query


def _namespace_of_context(path: str | None, context: str | None) -> str:
    """Returns the context's namespace in the kubeconfig, as kubectl selects it."""
    try:
        contexts, active = list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
    except (ConfigException, OSError):
        return "default"
    chosen: Any = next((entry for entry in contexts if entry["name"] == context), active) or {}
    return str(chosen.get("context", {}).get("namespace") or "default")


@asynccontextmanager
async def connect(
    *, path: str | None, context: str | None, namespace: str | None, user: str | None = None
) -> AsyncIterator[Connection]:
    """Connects for the duration of one command. Converts every ClusterError inside to a CliError."""
    connection: Connection | None = None
    try:
        configuration = await kubeconfig(path, context)
        connection = Connection(configuration, namespace or _namespace_of_context(path, context), user=user)
        yield connection
    except ClusterError as error:
        _explain(error, connection)
    finally:
        if connection is not None:
            await connection.close()


def _explain(error: ClusterError, connection: Connection | None) -> NoReturn:
    if isinstance(error, NoCredentials) or connection is None:
        raise CliError(
            str(error),
            fix="Set KUBECONFIG or give --kubeconfig FILE; `make up` starts a local cluster and prints an export line.",
        ) from error
    if error.status == 401:
        raise CliError(
            f"The cluster at {connection.server} does not accept your credentials.",
            fix="Log in again (GKE: gcloud container clusters get-credentials CLUSTER), or choose another --context.",
        ) from error
    if error.status == 403:
        raise CliError(
            str(error),
            fix=f"Ask for a role in namespace {connection.namespace} that allows this, or choose another with -n.",
        ) from error
    if isinstance(error, Unavailable):
        raise CliError(
            f"The cluster at {connection.server} does not respond: {error}",
            fix="Check that it runs and that KUBECONFIG, --kubeconfig or --context selects the intended cluster.",
        ) from error
    raise CliError(str(error)) from error
