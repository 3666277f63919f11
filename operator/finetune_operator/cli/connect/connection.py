"""A user's connection to a cluster: objects, their changes, and pod logs."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus

from kubernetes.aio.client import Configuration

from finetune_operator.cli.errors import CliError, close_names
from finetune_operator.cluster.port import (
    ACCESS_REVIEWS,
    JOBS,
    PODS,
    PROFILES,
    NotFound,
    Rejected,
    ResourceKind,
    Unavailable,
)
from finetune_operator.cluster.requests import JSON, METADATA_LIST, Query, Request
from finetune_operator.cluster.streams import SILENCE_SECONDS, StreamingClient
from finetune_operator.objects import Object

type Objects = Mapping[str, Object]
type Sleep = Callable[[float], Awaitable[None]]
type Renew = Callable[[], Awaitable[Configuration]]

#: In ``metadata.managedFields`` of what a command has edited.
_FIELD_MANAGER = "finetune"
_LONGEST_PAUSE = 15.0
#: Refusals of credentials in a row, over half a minute, from which they count as expired for good. A server that starts
#: may refuse a valid token.
_MOST_REFUSALS = 6


class Connection(StreamingClient):
    """The commands' access to a cluster and to a namespace in it. Calls raise :class:`ClusterError`."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str,
        *,
        context: str = "",
        options: Sequence[str] = (),
        renew: Renew | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Connects to the API server of the configuration.

        Args:
            configuration: the API server and the credentials.
            namespace: of the jobs.
            context: name of the kubeconfig's context; empty in a pod.
            options: with which another command reaches the same cluster as the same user.
            renew: returns a configuration with new credentials; None: there are no others.
            sleep: waits between two requests.
        """
        super().__init__(configuration)
        self.namespace = namespace
        self.context = context
        self.options = options
        self.server = str(configuration.host)
        self._new_credentials = renew
        self._pause = sleep

    async def job(self, name: str) -> Object:
        """Returns the live job. Raises CliError with similar names if it does not exist."""
        with suppress(NotFound):
            if name:  # Without a name, the path is that of the list.
                return await self.get(JOBS, self.namespace, name)
        try:
            known = [each async for each in self.names()]
            none = f"{self.namespace} has no FineTuneJob; choose another namespace with -n."
        except Rejected:  # A caller may see single jobs alone.
            known, none = [], "Choose another namespace with -n."
        raise CliError(
            f'There is no FineTuneJob "{name}" in namespace {self.namespace}.',
            fix=close_names(name, known) or none,
        )

    async def names(self) -> AsyncIterator[str]:
        """Yields the names of the namespace's jobs, without reading the jobs."""
        async for job in self._listed(JOBS, self.namespace, accept=METADATA_LIST):
            yield str(job["metadata"]["name"])

    async def has_job(self, name: str) -> bool:
        """Whether the namespace has a job of this name."""
        try:
            await self.get(JOBS, self.namespace, name)
        except NotFound:
            return False
        return True

    def jobs(self, *, everywhere: bool = False, selector: str | None = None) -> AsyncIterator[Object]:
        """Yields the jobs of the namespace, or of all. ``selector`` is a label selector as kubectl takes it."""
        return self._listed(JOBS, None if everywhere else self.namespace, selector)

    async def profiles(self) -> list[Object]:
        """Returns all profiles."""
        return [profile async for profile in self._listed(PROFILES, None)]

    async def served(self, kind: ResourceKind) -> bool:
        """Whether the cluster serves the kind in its version, as discovery shows to every user."""
        try:
            lines = [line async for line in self.lines(kind.prefix, (), SILENCE_SECONDS)]
        except NotFound:
            return False
        try:
            return any(each["name"] == kind.plural for each in json.loads(b"\n".join(lines))["resources"])
        except ValueError as error:
            raise Unavailable(f"GET {kind.prefix}: the response is not JSON") from error
        except (LookupError, TypeError) as error:
            raise Unavailable(f"GET {kind.prefix}: the response is not a list of resources") from error

    async def may(
        self, verb: str, kind: ResourceKind, subresource: str = "", *, everywhere: bool = False
    ) -> bool:
        """Whether the caller may do this in the namespace; ``everywhere``: with objects of the cluster."""
        asked = {"verb": verb, "group": kind.group, "resource": kind.plural, "subresource": subresource}
        if not everywhere:
            asked["namespace"] = self.namespace
        review = {
            "apiVersion": f"{ACCESS_REVIEWS.group}/{ACCESS_REVIEWS.version}",
            "kind": "SelfSubjectAccessReview",
            "metadata": {},
            "spec": {"resourceAttributes": asked},
        }
        answer = await self.create(ACCESS_REVIEWS, review)
        return bool((answer.get("status") or {}).get("allowed"))

    async def edit(self, name: str, patch: Object, *, namespace: str | None = None) -> Object:
        """Merges ``patch`` into the job and returns it. Raises Conflict if it names an outdated resourceVersion."""
        manager = [("fieldManager", _FIELD_MANAGER)]
        return await self.call(
            Request("patch", JOBS, namespace or self.namespace, name, query=manager, body=patch)
        )

    async def remove(self, kind: ResourceKind, found: Object) -> None:
        """Deletes the object. Does nothing if it is gone."""
        metadata = found["metadata"]
        await self.delete(
            kind, metadata.get("namespace"), metadata["name"], uid=metadata["uid"], foreground=False
        )

    async def _listed(
        self, kind: ResourceKind, namespace: str | None, selector: str | None = None, *, accept: str = JSON
    ) -> AsyncIterator[Object]:
        """Yields objects page by page: ten thousand jobs have more bytes than the client takes at once."""
        selectors = [("labelSelector", selector)] if selector else []
        try:
            async for page in self._pages(kind, namespace, selectors, accept=accept):
                for item in page:
                    yield item
        except NotFound as error:
            raise CliError(
                f"The cluster at {self.server} does not serve {kind.plural}.",
                fix="Install the chart charts/finetune-operator, or choose another cluster with --context.",
            ) from error

    async def pods(self, labels: Mapping[str, str]) -> list[Object]:
        return list(await self.list(PODS, self.namespace, labels=labels))

    async def follow(
        self,
        kind: ResourceKind,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        trouble: Callable[[str | None], None] = lambda _: None,
    ) -> AsyncIterator[Objects]:
        """Yields the selected objects by name: their current state, and again after every change, without end.

        A lost connection is restored; ``trouble`` is called with the reason meanwhile, and with None afterwards.
        Credentials that have expired are renewed. Raises ClusterError only for permanent errors (no permission, no such
        kind, credentials that are refused again and again).
        """
        query = _selection(name, labels)
        path = kind.path(self.namespace)
        pause, refusals = 1.0, 0
        while True:
            try:
                async for objects in self._list_and_watch(path, query):
                    trouble(None)
                    pause, refusals = 1.0, 0
                    yield objects
            except Unavailable as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    refusals += 1
                    if refusals == _MOST_REFUSALS:
                        raise
                    await self._renew_credentials()
                trouble(str(error))
            # Also after a watch that ended normally, so as not to overload a server that ends each at once.
            await self._pause(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def log(self, pod: str, *, follow: bool) -> AsyncIterator[str]:
        """Yields the log of a pod's only container by line, without line ends; with ``follow`` until it ends."""
        path = PODS.path(self.namespace, pod, "log")
        silence = None if follow else SILENCE_SECONDS
        query = [("follow", str(follow).lower())]
        for renewed in (False, True):
            try:
                async for line in self.lines(path, query, silence):
                    yield line.decode(errors="replace").rstrip("\r\n")
            except Unavailable as error:
                if renewed or error.status != HTTPStatus.UNAUTHORIZED:
                    raise
                await self._renew_credentials()
            else:
                return

    async def _renew_credentials(self) -> None:
        if self._new_credentials is not None:
            self._configuration.api_key = (await self._new_credentials()).api_key

    async def _list_and_watch(self, path: str, query: Query) -> AsyncIterator[Objects]:
        content = b"".join([line async for line in self.lines(path, query, SILENCE_SECONDS)])
        try:
            listed = json.loads(content)
            objects = {item["metadata"]["name"]: item for item in listed["items"]}
        except (ValueError, LookupError, TypeError) as error:
            raise Unavailable(f"GET {path}: the response is not a list of objects") from error
        yield dict(objects)
        try:
            async for kind, changed in self.changes(path, query, listed["metadata"]["resourceVersion"]):
                if kind == "DELETED":
                    objects.pop(changed["metadata"]["name"], None)
                else:
                    objects[changed["metadata"]["name"]] = changed
                yield dict(objects)
        except Unavailable:
            return  # The next list shows whether the server is actually unavailable.


def _selection(name: str | None, labels: Mapping[str, str] | None) -> list[tuple[str, str]]:
    query = []
    if name:
        query.append(("fieldSelector", f"metadata.name={name}"))
    if labels:
        query.append(("labelSelector", ",".join(f"{key}={value}" for key, value in sorted(labels.items()))))
    return query
