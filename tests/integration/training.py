"""Helpers for tests that disrupt training: a long training, its pods and processes, and its end."""

from pathlib import Path

from finetune_contract import RunFolder
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import PROFILE, Object, await_file, job_path, phase

PREEMPTED = {"preemption": 1, "infrastructure": 0, "user": 0}
FAULT = {"preemption": 0, "infrastructure": 1, "user": 0}


def started(
    cluster: LocalCluster, namespace: str, name: str, *, profile: str = PROFILE, tpu: str = "v6e-8"
) -> RunFolder:
    """Starts a job and returns its run folder once it trains; on two hosts unless ``tpu`` is another slice."""
    cluster.apply(fake_trainer.job(namespace, name, profile, resources={"tpu": tpu}))
    running = cluster.wait(
        job_path(namespace, name),
        lambda job: phase("Running")(job) and job["status"]["stage"] == "Train",
        seconds=90,
    )
    run = RunFolder(running["status"]["resolved"]["runFolder"])
    await_file(run.request("train", 1))
    return run


def pods_of(cluster: LocalCluster, namespace: str) -> list[Object]:
    found = cluster.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector="tpu-finetune.dev/stage=Train")
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def processes(uid: str) -> list[int]:
    """Ids of the training processes of the job with that uid, the first host's first."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        variables = dict(each.partition(b"=")[::2] for each in environment)
        if uid.encode() in variables.get(b"FINETUNE_REQUEST", b"") and entry.name.isdecimal():
            found.append((variables.get(b"TPU_WORKER_ID", b"0"), int(entry.name)))
    return [pid for _, pid in sorted(found)]


def trained(job: Object) -> Object:
    """The status of the stage Train."""
    found: Object = next(stage for stage in job["status"]["stages"] if stage["name"] == "Train")
    return found


def end(cluster: LocalCluster, namespace: str) -> Object:
    """Returns the job once training has succeeded, in an attempt that takes no time. Ignores later stages."""
    done = cluster.wait(
        job_path(namespace, "job"),
        lambda job: phase("Failed")(job) or trained(job)["phase"] == "Succeeded",
        seconds=120,
    )
    assert done["status"]["phase"] != "Failed", done["status"]["summary"]
    return done


def quick(cluster: LocalCluster, runs: Path) -> None:
    """Makes stages of attempts that start from now on take no time."""
    cluster.add_image(fake_trainer.IMAGE, fake_trainer.install(runs / "bin"))
