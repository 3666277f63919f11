"""Helpers for tests of tenants: a tenant's user and accounts, and the state that another tenant must not change.

A tenant is a user with Kubernetes' role ``edit`` in one namespace, which includes the chart's roles for people, and
with the right to create JobSets there; and everything that runs in that namespace as ``ft-cpu`` or ``ft-train``.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.cloud import storage

from devcluster import samples
from tests.bucket_grants import ARTIFACTS, CACHE, DATA, MODELS
from tests.doubles.bucketproxy import BucketProxy
from tests.doubles.local_cluster import LocalCluster
from tests.integration import fake_trainer
from tests.integration.jobs import Object, condition, condition_of, job_path

#: Profile whose stages take no time.
PROFILE = "tenants"
#: Profile whose training lasts until it is released.
LASTING = "tenants-lasting"
#: Profile whose stages match no node.
UNPLACED = "tenants-unplaced"
LASTING_IMAGE = "localhost/trainer-double:lasting"
JOBSETS = {"apiGroups": ["jobset.x-k8s.io"], "resources": ["jobsets"], "verbs": ["*"]}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a kubectl command."""

    refused: bool
    text: str


@dataclass(frozen=True, slots=True)
class Tenant:
    """One team: its user in the API server, and its accounts in the store."""

    cluster: LocalCluster
    proxy: BucketProxy
    namespace: str

    @property
    def user(self) -> str:
        return f"user-of-{self.namespace}"

    @property
    def artifacts(self) -> str:
        """The team's folder, without a slash at the end."""
        return f"gs://{ARTIFACTS}/{self.namespace}"

    @property
    def cache(self) -> str:
        return f"gs://{CACHE}/{self.namespace}"

    def ask(self, *arguments: str, stdin: Object | None = None) -> Answer:
        """Runs kubectl as the tenant's user."""
        command = (str(self.cluster.kubectl_program), f"--kubeconfig={self.cluster.kubeconfig}")
        done = subprocess.run(
            (*command, f"--as={self.user}", *arguments),
            input=None if stdin is None else json.dumps(stdin),
            capture_output=True,
            text=True,
            check=False,
        )
        return Answer(refused=done.returncode != 0, text=done.stdout + done.stderr)

    def create(self, manifest: Object) -> Answer:
        return self.ask("create", "-f", "-", stdin=manifest)

    def succeed(self, *arguments: str, stdin: Object | None = None) -> str:
        """Like ``ask``, for a command that the tenant has the right to run. Returns the output."""
        answer = self.ask(*arguments, stdin=stdin)
        assert not answer.refused, answer.text
        return answer.text

    def make(self, manifest: Object) -> None:
        """Creates an object that the tenant has the right to create."""
        self.succeed("create", "-f", "-", stdin=manifest)

    def job(self, name: str, profile: str = PROFILE, **spec: Any) -> Object:
        """A job that keeps to the profile."""
        model = {"uri": f"gs://{MODELS}/tiny"}
        data = {"train": [{"uri": f"gs://{DATA}/train.jsonl"}], "maxSeqLength": 64}
        return fake_trainer.job(self.namespace, name, profile, **({"model": model, "datasets": data} | spec))

    def bucket(self, name: str, account: str = "ft-cpu") -> storage.Bucket:
        """The bucket, with the rights of a pod that the tenant starts in its namespace."""
        return samples.client(self.proxy.endpoint(f"{self.namespace}/{account}")).bucket(name)

    def path(self, job: str) -> str:
        return job_path(self.namespace, job)

    def settled(self, job: str) -> Object:
        """The job after the operator has observed it once more, and with it the present children and run folder."""
        seen = self.cluster.get(self.path(job))
        seconds = seen["spec"].get("childTTLSecondsAfterFinished", 86_400) + 1
        edit = json.dumps({"spec": {"childTTLSecondsAfterFinished": seconds}})
        self.succeed("patch", "finetunejob", job, "-n", self.namespace, "--type=merge", f"--patch={edit}")
        generation = self.cluster.get(self.path(job))["metadata"]["generation"]

        def seen_again(found: Object) -> bool:
            # conditions that depend on an unreadable run folder keep their observedGeneration
            conditions = found.get("status", {}).get("conditions", ())
            return bool(max((each["observedGeneration"] for each in conditions), default=0) >= generation)

        return self.cluster.wait(self.path(job), seen_again)

    def invalid(self, job: str) -> Object:
        """The condition Valid of a job that the operator does not admit."""
        found = self.cluster.wait(self.path(job), lambda each: condition(each, "Valid") == "False")
        return condition_of(found, "Valid")


def admit(cluster: LocalCluster, namespace: str, user: str) -> None:
    """Grants the user the role ``edit`` and all rights on JobSets in the namespace."""
    role = "rbac.authorization.k8s.io/v1"
    subject = {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
    cluster.apply(
        {
            "apiVersion": role,
            "kind": "Role",
            "metadata": {"name": "jobsets", "namespace": namespace},
            "rules": [JOBSETS],
        }
    )
    for name, kind in (("edit", "ClusterRole"), ("jobsets", "Role")):
        cluster.apply(
            {
                "apiVersion": role,
                "kind": "RoleBinding",
                "metadata": {"name": name, "namespace": namespace},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
                "subjects": [subject],
            }
        )


def profile(name: str, image: str = fake_trainer.IMAGE, **spec: Any) -> Object:
    """A profile with mode Strict and the store's buckets."""
    double: Object = fake_trainer.profile(name, folder=samples.FIXTURES)
    places = {"read": [f"gs://{MODELS}/*", f"gs://{DATA}/*"]}
    return {
        **double,
        "spec": {
            **double["spec"],
            "namespaces": ["*"],
            "images": {"trainer": image},
            "storage": {"artifacts": f"gs://{ARTIFACTS}", "cache": f"gs://{CACHE}"},
            "constraints": {"mode": "Strict", "uris": places},
            **spec,
        },
    }


@dataclass(frozen=True, slots=True)
class TenantState:
    """The state of a tenant that another tenant must not change."""

    job: Mapping[str, Any]
    children: Mapping[str, str]
    objects: Mapping[str, Any]
    operator: Any
    """Process id: the operator has not been restarted."""

    @classmethod
    def of(cls, tenant: Tenant, job: str) -> "TenantState":
        cluster = tenant.cluster
        return cls(
            job=_lasting(cluster.get(tenant.path(job))),
            children=_children(cluster, tenant.namespace),
            objects=stored(cluster, tenant.namespace),
            operator=cluster.status()["operator"]["pid"],
        )


def _lasting(job: Object) -> Mapping[str, Any]:
    """The spec and status without times and fields that change with time."""
    status = job["status"]
    return {
        "spec": {k: v for k, v in job["spec"].items() if k != "childTTLSecondsAfterFinished"},
        "phase": status["phase"],
        "stage": status.get("stage"),
        "stages": [
            {name: stage.get(name) for name in ("name", "phase", "attempt", "jobSet", "reason")}
            for stage in status["stages"]
        ],
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]},
        "attempts": status["attempts"],
        # specHash is a digest of the spec, which is edited to make the operator reconcile once more
        "resolved": {name: each for name, each in status["resolved"].items() if name != "specHash"},
        "failure": status.get("failure"),
    }


def _children(cluster: LocalCluster, namespace: str) -> dict[str, str]:
    paths = (
        f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets",
        f"/api/v1/namespaces/{namespace}/pods",
    )
    return {
        f"{path}/{each['metadata']['name']}": f"{each['metadata']['uid']} {each['metadata'].get('deletionTimestamp')}"
        for path in paths
        for each in cluster.list(path)
    }


def stored(cluster: LocalCluster, namespace: str) -> dict[str, Any]:
    """Everything in the team's folders: name -> generation and checksum."""
    client = samples.client(cluster.gcs)
    return {
        f"{bucket}/{blob.name}": (blob.generation, blob.crc32c, blob.size)
        for bucket in (ARTIFACTS, CACHE)
        for blob in client.list_blobs(bucket, prefix=f"{namespace}/")
    }


def replaced(spec: Object, path: Sequence[str], value: Any) -> Object:
    """``spec`` with one field set."""
    (first, *rest) = path
    inner = value if not rest else replaced(spec.get(first, {}), rest, value)
    return {**spec, first: inner}
