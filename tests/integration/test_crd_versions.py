"""Two versions of the API served together, migration of what is stored, and a rollback to the older schema."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from finetune_operator.cluster.port import ClusterError
from tests.documents import blocks
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import Object

NAME = "finetunejobs.tpu-finetune.dev"
CRD = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"
OLD, NEW = "v1alpha1", "v1beta1"


def path(version: str, namespace: str, name: str) -> str:
    return f"/apis/tpu-finetune.dev/{version}/namespaces/{namespace}/finetunejobs/{name}"


def with_versions(crd: Object, *, stored: str) -> Object:
    """The CRD with both versions, which have the same schema."""
    (old,) = crd["spec"]["versions"]
    versions = [deepcopy(old) | {"name": name, "storage": name == stored} for name in (OLD, NEW)]
    return {"spec": {"conversion": {"strategy": "None"}, "versions": versions}}


def with_field(crd: Object) -> Object:
    """The CRD of a later release, in which a job has one more field."""
    (version,) = deepcopy(crd["spec"]["versions"])
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    fields["laterField"] = {"type": "string", "maxLength": 10}
    return {"spec": {"versions": [version]}}


def with_later_field(job: Object) -> Object:
    return job | {"spec": job["spec"] | {"laterField": "kept"}}


def migrate(cluster: LocalCluster) -> None:
    """Writes every job in the version that is stored now, as docs/upgrades.md does."""
    for job in json.loads(cluster.kubectl("get", NAME, "-A", "-o", "json"))["items"]:
        # An empty patch writes an object that is stored in another version.
        cluster.patch(path(OLD, job["metadata"]["namespace"], job["metadata"]["name"]), {})
    stored = next(each["name"] for each in cluster.get(CRD)["spec"]["versions"] if each["storage"])
    cluster.kubectl(
        *("patch", "crd", NAME, "--subresource=status", "--type=merge"),
        *("-p", json.dumps({"status": {"storedVersions": [stored]}})),
    )


def served(cluster: LocalCluster) -> list[str]:
    """The versions of the API in discovery, from which clients choose."""
    return [each["version"] for each in cluster.get("/apis/tpu-finetune.dev")["versions"]]


def until[T](read: Callable[[], T], good: Callable[[T], bool]) -> T:
    """Returns what ``read`` returns once it is ``good``: a schema takes effect a moment after it is accepted."""
    deadline = time.monotonic() + 30
    while not good(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)  # can only be polled
    return found


@pytest.fixture
def installed(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Object]:
    """The CRD, which is restored at the end."""
    # kubectl would ask for the version that it has cached, in the tests that follow, too.
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path))
    crd = cluster.get(CRD)
    yield crd
    if len(cluster.get(CRD)["spec"]["versions"]) > 1:
        cluster.patch(CRD, with_versions(crd, stored=OLD))
        migrate(cluster)
    cluster.patch(CRD, {"spec": crd["spec"]})
    until(lambda: served(cluster), lambda versions: versions == [OLD])


def test_a_second_version_is_served_with_the_first_and_can_be_withdrawn_after_a_migration(
    cluster: LocalCluster, installed: Object, namespace: str
) -> None:
    cluster.start("operator")
    older = fake_trainer.job(namespace, "older", "nobody")
    cluster.apply(older)
    cluster.patch(CRD, with_versions(installed, stored=NEW))
    until(lambda: cluster.find(path(NEW, namespace, "older")), bool)
    until(lambda: served(cluster), lambda versions: versions == [NEW, OLD])
    newer = fake_trainer.job(namespace, "newer", "nobody") | {"apiVersion": f"tpu-finetune.dev/{NEW}"}
    cluster.create(path(NEW, namespace, ""), newer)
    for name in ("older", "newer"):
        one, other = (cluster.get(path(version, namespace, name)) for version in (OLD, NEW))
        assert one["spec"] == other["spec"]
        assert (one["apiVersion"], other["apiVersion"]) == tuple(
            f"tpu-finetune.dev/{version}" for version in (OLD, NEW)
        )
    # The operator knows v1alpha1 alone.
    cluster.wait(path(NEW, namespace, "newer"), lambda job: "conditions" in job.get("status", {}))

    assert cluster.get(CRD)["status"]["storedVersions"] == [OLD, NEW]
    with pytest.raises(ClusterError, match="storedVersions"):
        cluster.patch(CRD, {"spec": installed["spec"]})
    cluster.patch(CRD, with_versions(installed, stored=OLD))
    stored = [cluster.get(path(OLD, namespace, name)) for name in ("older", "newer")]
    migrate(cluster)
    written = [cluster.get(path(OLD, namespace, name)) for name in ("older", "newer")]
    assert [each["metadata"]["resourceVersion"] for each in written] != [
        each["metadata"]["resourceVersion"] for each in stored
    ], "an empty patch writes what is stored in another version"
    cluster.patch(CRD, {"spec": installed["spec"]})
    until(lambda: cluster.find(path(NEW, namespace, "newer")), lambda found: found is None)
    assert cluster.get(path(OLD, namespace, "newer"))["spec"] == newer["spec"] | dict.fromkeys(
        ("suspend", "cancel", "planOnly"), False
    )
    # Until its list of versions is removed, kubectl asks for the version that it has used in the migration. (The whole
    # name with the group makes kubectl renew the list by itself.)
    until(lambda: served(cluster), lambda versions: versions == [OLD])
    with pytest.raises(AssertionError, match="the server could not find the requested resource"):
        cluster.kubectl("get", "finetunejob", "-n", namespace, "newer")
    (removal,) = [
        each.text for each in blocks("bash") if each.page == "upgrades.md" and "rm -rf" in each.text
    ]
    subprocess.run(["bash", "-euc", removal], check=True)
    assert "newer" in cluster.kubectl("get", "finetunejob", "-n", namespace, "newer")


def test_a_rollback_hides_fields_of_the_later_release_and_the_next_write_removes_them(
    cluster: LocalCluster, installed: Object, namespace: str
) -> None:
    # An operator of another test would write the job's status.
    cluster.stop("operator")
    later, earlier = with_field(installed), {"spec": installed["spec"]}

    def release(crd: Object) -> None:
        """Installs the CRD; returns when its schema is in effect."""
        cluster.patch(CRD, crd)
        field = crd is later
        probe = with_later_field(fake_trainer.job(namespace, "probe", "nobody"))
        until(
            lambda: cluster.kubectl(
                *("create", "--dry-run=server", "--validate=ignore", "-o", "json", "-f", "-"),
                stdin=json.dumps(probe),
            ),
            lambda made: ("laterField" in json.loads(made)["spec"]) is field,
        )

    def seen() -> object:
        return cluster.get(job)["spec"].get("laterField")

    job = path(OLD, namespace, "rolled-back")
    release(later)
    cluster.apply(with_later_field(fake_trainer.job(namespace, "rolled-back", "nobody")))
    release(earlier)
    assert seen() is None
    release(later)
    assert seen() == "kept", "nobody has written the object"
    release(earlier)
    cluster.patch(job, {"metadata": {"labels": {"written": "under-the-earlier-schema"}}})
    release(later)
    assert seen() is None
