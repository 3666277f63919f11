"""Starts the cluster from nothing, or repairs one in any state: every step may be repeated at any time."""

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devcluster import (
    build,
    controlplane,
    gcs,
    install,
    jobset,
    kueue,
    kwok,
    nodeagent,
    operator_process,
    pki,
    ports,
    webhooks,
)
from devcluster.errors import LocalClusterError
from devcluster.kube import Kube
from devcluster.layout import StateFolder
from devcluster.options import Options
from devcluster.supervisor import Supervisor
from finetune_operator.objects import Object

type Say = Callable[[str], None]


class ClusterStarter:
    """Starts one cluster through its supervisor. One instance per supervisor."""

    def __init__(self, state: StateFolder, supervisor: Supervisor) -> None:
        self.state = state
        self.options = Options()
        self.supervisor = supervisor
        self._programs: Mapping[str, Path] = {}
        self._ports: Mapping[str, int] = {}
        self._kube: Kube | None = None
        self._account: str | None = None
        self._renewal: asyncio.Task[None] | None = None
        self.operator_server: int | None = None
        """The port at which the operator finds the API server, if it is another one than the API server's own."""
        self._busy = asyncio.Lock()

    @property
    def ports(self) -> Mapping[str, int]:
        return self._ports

    async def up(
        self, options: Options, *, operator: bool, extra: Sequence[str] = (), report_progress: Say
    ) -> None:
        """Starts and installs everything, including the optional components of ``extra``. Returns when it is ready.

        Components that run already continue. Raises LocalClusterError.
        """
        async with self._busy:
            started = time.monotonic()
            self._programs = {**self._programs, **build.ensure(extra)}
            self._prepare()
            await self._adopt(options)
            report_progress(f"control plane: starting, state in {self.state.root}")
            store = asyncio.create_task(self._object_store())
            try:
                await self._etcd()
                await self.start("kube-apiserver")
                report_progress(f"API server ready after {time.monotonic() - started:.1f} s")
                self._account = await self._installed()
                report_progress("CRDs, RBAC of the operator and profile `local` installed")
                # after the CRDs: the garbage collector discovers new kinds only every 30 s
                await asyncio.gather(
                    self.start("kube-controller-manager"),
                    self.start("kube-scheduler"),
                    self._jobset(),
                    self._kueue(wanted="kueue" in extra),
                    self._kwok(wanted="kwok" in extra),
                    self.start("node-agent"),
                    store,
                )
                report_progress("controllers, nodes and object store ready")
            finally:
                store.cancel()
            if operator:
                await self.start_operator()
                report_progress("operator ready")
            else:
                await self.supervisor.stop("operator")
            report_progress(f"up after {time.monotonic() - started:.1f} s")

    async def start(self, name: str) -> None:
        """Starts one component that was stopped. Raises LocalClusterError."""
        if name == "operator":
            await self.start_operator()
        elif name == "gcs":
            await self._object_store()
        elif name == "node-agent":
            await self.supervisor.start(nodeagent.agent(self.state, self.options, self._ports))
        elif name in _PROGRAMS:
            await self.supervisor.start(_PROGRAMS[name](self.state, self._programs, self._ports))
        else:
            raise LocalClusterError(f"no component {name}")

    async def start_operator(self) -> None:
        """Starts the operator as its own ServiceAccount."""
        if self._account is None:
            raise LocalClusterError(
                "the chart is not installed, so the operator has no account; run `up` first"
            )
        await operator_process.write_credentials(self._admin(), self.state, self._account)
        if self._renewal is None:
            renewal = operator_process.keep_credentials(self._admin(), self.state, self._account)
            self._renewal = asyncio.create_task(renewal)
        ports = dict(self._ports)
        if self.operator_server is not None:
            ports["kube-apiserver"] = self.operator_server
        await self.supervisor.start(operator_process.operator(self.state, ports, self.options.store))

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewal
        await self.supervisor.close()
        if self._kube is not None:
            await self._kube.close()

    def _prepare(self) -> None:
        """Creates certificates, ports and kubeconfigs, once per supervisor, as running programs keep using them."""
        if self._kube is not None:
            return
        pki.ensure(self.state.pki)
        self._ports = ports.assign(self.state)
        for user in pki.IDENTITIES:
            text = pki.kubeconfig(self.state.pki, user, controlplane.address(self._ports))
            path = self.state.kubeconfig if user == "admin" else self.state.user_kubeconfig(user)
            path.touch(mode=0o600)
            path.write_text(text)
        for folder in (self.state.logs, self.state.buckets, self.state.pods):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.state.images.exists():
            self.state.images.write_text("{}")
        context = ssl.create_default_context(cafile=str(self.state.pki / "ca.crt"))
        context.load_cert_chain(self.state.pki / "admin.crt", self.state.pki / "admin.key")
        self.supervisor.trust(context)
        self._kube = Kube.of(self.state.kubeconfig)

    async def _adopt(self, options: Options) -> None:
        """Applies ``options`` to nodes and operator from now on.

        Raises LocalClusterError if that would end a running pod.
        """
        differing = set(self.options.differing(options))
        # the operator may be replaced at any time; a node agent ends its pods with it
        if "operator_code" in differing:
            await self.supervisor.stop("operator")
        if differing - {"operator_code"} and "node-agent" in self.supervisor.running():
            pods = await self._admin().list("/api/v1/pods", fieldSelector="status.phase=Running")
            if pods:
                names = ", ".join(pod["metadata"]["name"] for pod in pods[:3])
                raise LocalClusterError(
                    f"the cluster was started with other options ({', '.join(sorted(differing))}), "
                    f"and changing them would end running pods ({names}); wait for them, or run `down` first"
                )
            await self.supervisor.stop("node-agent")
        self.options = options
        known = json.loads(self.state.images.read_text())
        self.state.images.write_text(json.dumps(known | nodeagent.images(self.state, options), indent=1))

    def _admin(self) -> Kube:
        assert self._kube is not None, "_prepare() comes first"
        return self._kube

    async def _etcd(self) -> None:
        try:
            await self.start("etcd")
        except LocalClusterError as error:
            raise LocalClusterError(
                f"{error}\nIf the machine crashed, its data may be damaged; `down --purge` deletes it."
            ) from error

    async def _object_store(self) -> None:
        await self.supervisor.start(gcs.fake_gcs(self.state, self._programs, self._ports))
        await gcs.create_buckets(self.supervisor.session, self._ports)

    async def _jobset(self) -> None:
        await self.start("jobset")
        await self._call(jobset.webhooks(self.state, self._ports))

    async def _kueue(self, *, wanted: bool) -> None:
        kube = self._admin()
        if wanted:
            manifests = kueue.manifests()
            await install.namespace(kube, kueue.NAMESPACE)
            await install.apply_all(kube, manifests)
            await install.established(kube, install.crds(manifests))
            await self.start("kueue")
            await self._call(kueue.webhooks(self.state, self._ports))
        elif "kueue" not in self.supervisor.running():
            for path in kueue.webhook_paths():
                await kube.delete(path)

    async def _call(self, configurations: Sequence[Object]) -> None:
        """Makes the API server call these webhooks, once they are served."""
        kube = self._admin()
        await webhooks.until_served(self.supervisor.session, self.supervisor.tls, configurations)
        await install.apply_all(kube, configurations)

    async def _kwok(self, *, wanted: bool) -> None:
        if wanted:
            await install.kwok_rbac(self._admin())
            await self.start("kwok")

    async def _installed(self) -> str:
        """Installs everything that an administrator applies. Returns the name of the operator's account."""
        kube = self._admin()
        manifests = jobset.manifests()
        await install.apply_all(kube, manifests)
        account = await install.chart(kube, self._programs)
        await install.established(kube, install.crds(manifests))
        await install.node_agent_rbac(kube)
        await install.namespace(kube, "default", stages=True)
        await install.profile(kube)
        return account


_PROGRAMS = {
    "etcd": controlplane.etcd,
    "kube-apiserver": controlplane.apiserver,
    "kube-controller-manager": controlplane.controller_manager,
    "kube-scheduler": controlplane.scheduler,
    "jobset": jobset.controller,
    "kueue": kueue.controller,
    "kwok": kwok.controller,
}
