"""CPU of the API server for each write that a job causes.

    python -m tests.bench.writes [--objects 150]

The objects are those of a real job after its first reconcile. The status is written a second time with a schema that
tracks the ownership of each of its fields, as it would without ``x-kubernetes-map-type: atomic``. Prints a Markdown
table: medians of five rounds, each with as many writes as objects, by eight clients.
"""

import argparse
import asyncio
import copy
import json
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from devcluster.kube import Kube
from finetune_operator.objects import Object
from tests.bench.measure import cpu_seconds
from tests.bench.scale.load import without_controllers
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer

_GROUP = "/apis/tpu-finetune.dev/v1alpha1/namespaces"
_CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/finetunejobs.tpu-finetune.dev"
_PROFILE = "bench"
_CLIENTS, _ROUNDS = 8, 5
#: Seconds until every request meets a changed schema: the API server installs it after the answer to the change.
_SCHEMA_SECONDS = 5

type Write = Callable[[str], Awaitable[object]]


class Bench:
    """Writes ``count`` objects of a kind at once, and measures the API server meanwhile."""

    def __init__(self, cluster: LocalCluster, kube: Kube, count: int) -> None:
        self.cluster, self.kube = cluster, kube
        self._names = [f"j{number}" for number in range(count)]
        self._server = cluster.status()["kube-apiserver"]["pid"]

    async def cpu(self, write: Write) -> float:
        """Returns milliseconds per write."""
        clients = asyncio.Semaphore(_CLIENTS)

        async def one(name: str) -> None:
            async with clients:
                await write(name)

        before = cpu_seconds(self._server)
        await asyncio.gather(*map(one, self._names))
        return 1e3 * (cpu_seconds(self._server) - before) / len(self._names)

    async def creations(self, path: str, template: Object) -> float:
        """Returns the median of creating copies of an object."""

        async def create(name: str) -> object:
            namespace = spaces[-1]
            metadata = {
                "name": name,
                "namespace": namespace,
                "labels": template["metadata"].get("labels", {}),
            }
            body = {**template, "metadata": metadata}
            return await self.kube.create(path.format(namespace), body)

        figures, spaces = [], []
        for _ in range(_ROUNDS):
            spaces.append(self.cluster.namespace("writes"))
            figures.append(await self.cpu(create))
        return statistics.median(figures)

    async def statuses(self, status: Object) -> float:
        """Returns the median of replacing the status of jobs."""
        namespace = self.cluster.namespace("writes")
        path = f"{_GROUP}/{namespace}/finetunejobs"
        await self.cpu(lambda name: self.kube.create(path, fake_trainer.job(namespace, name, _PROFILE)))
        figures = []
        for number in range(_ROUNDS):
            patch = [{"op": "replace", "path": "/status", "value": {**status, "summary": f"Round {number}."}}]

            async def write(name: str, patch: list[Object] = patch) -> object:
                return await self.kube.patch(f"{path}/{name}/status", patch, "application/json-patch+json")

            figures.append(await self.cpu(write))
        # The first round creates the status.
        return statistics.median(figures[1:])


async def _sample(cluster: LocalCluster, kube: Kube, folder: Path) -> dict[str, Object]:
    """Returns the objects of a job after its first reconcile, by kind."""
    cluster.start("operator")
    cluster.apply(fake_trainer.profile(_PROFILE, folder))
    namespace = cluster.namespace("sample")
    job = f"{_GROUP}/{namespace}/finetunejobs"
    await kube.create(job, fake_trainer.job(namespace, "sample", _PROFILE))
    found = await asyncio.to_thread(
        cluster.wait, f"{job}/sample", lambda each: "phase" in each.get("status", {})
    )
    cluster.stop("operator")
    uid = found["metadata"]["uid"]
    (jobset,) = await kube.list(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets")
    (plan,) = await kube.list("/api/v1/configmaps", labelSelector=f"tpu-finetune.dev/job-uid={uid}")
    return {"job": found, "jobset": jobset, "plan": plan}


async def _measure(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="writes-") as temporary:
        folder = Path(temporary)
        with LocalCluster.started(folder / "cluster", warm=False) as cluster:
            without_controllers(cluster)
            async with Kube.of(cluster.kubeconfig) as kube:
                made = await _sample(cluster, kube, folder)
                bench, status = Bench(cluster, kube, count), made["job"]["status"]
                rows = {
                    "the plan's ConfigMap": await bench.creations(
                        "/api/v1/namespaces/{}/configmaps", made["plan"]
                    ),
                    "JobSet": await bench.creations(
                        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets", made["jobset"]
                    ),
                    "FineTuneJob": await bench.creations(
                        _GROUP + "/{}/finetunejobs", fake_trainer.job("", "", _PROFILE)
                    ),
                    f"status of {len(json.dumps(status))} bytes": await bench.statuses(status),
                }
                crd = await kube.get(_CRD)
                versions = copy.deepcopy(crd["spec"]["versions"])
                del versions[0]["schema"]["openAPIV3Schema"]["properties"]["status"]["x-kubernetes-map-type"]
                await kube.patch(_CRD, {"spec": {"versions": versions}})
                await asyncio.sleep(_SCHEMA_SECONDS)
                rows["the same with ownership by field"] = await bench.statuses(status)
    print("| write | API server's CPU, ms |\n|---|---|")
    for name, figure in rows.items():
        print(f"| {name} | {figure:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=150)
    asyncio.run(_measure(parser.parse_args().objects))


if __name__ == "__main__":
    main()
