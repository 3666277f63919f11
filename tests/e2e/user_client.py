"""A client that acts as a user in the end-to-end tests: apply, watch and delete objects, read the run folder."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.cloud import storage

from devcluster import samples
from finetune_contract import Progress, RunFolder, Stage, StageResult

type Object = dict[str, Any]

#: Seconds. A job with the tiny model takes about 30 s on two idle cores, and several times that under load.
PATIENCE = 240.0


class JobStalledError(AssertionError):
    """An awaited state was not reached in time; the message describes the job."""


@dataclass(frozen=True, slots=True)
class UserClient:
    """One namespace of the cluster and its object store."""

    kubectl_binary: Path
    kubeconfig: Path
    namespace: str
    gcs_endpoint: str

    # --- the API server -------------------------------------------------------------------------------------

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            [
                self.kubectl_binary,
                f"--kubeconfig={self.kubeconfig}",
                f"--namespace={self.namespace}",
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout if done.returncode == 0 else done.stderr

    def apply(self, manifest: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def apply_profile(self, name: str, **spec: Any) -> None:
        """The profile `local` under another name, with parts of its spec replaced or added."""
        local = self.get("finetuneprofile", "local")
        self.apply(
            {
                "apiVersion": local["apiVersion"],
                "kind": local["kind"],
                "metadata": {"name": name},
                "spec": {**local["spec"], **spec},
            }
        )

    def delete(self, kind: str, name: str) -> None:
        self.kubectl("delete", kind, name, "--wait=false")

    def get(self, kind: str, name: str) -> Object:
        found: Object = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def list(self, kind: str, **labels: str) -> list[Object]:
        selector = ",".join(f"tpu-finetune.dev/{key}={value}" for key, value in labels.items())
        items: list[Object] = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]
        return items

    def watch(self, kind: str, name: str | None = None, patience: float = PATIENCE) -> Iterator[Object]:
        """Yields the current state of one object, or of all objects of a kind, and each reported change."""
        process = subprocess.Popen(
            [
                self.kubectl_binary,
                f"--kubeconfig={self.kubeconfig}",
                f"--namespace={self.namespace}",
                *(
                    "get",
                    kind,
                    *([name] if name else []),
                    "--watch",
                    "-o",
                    "json",
                    f"--request-timeout={int(patience)}s",
                ),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            for document in _documents(process.stdout):
                yield from document["items"] if document["kind"] == "List" else [document]
        finally:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()

    def wait(
        self,
        name: str,
        until: Callable[[Object], bool],
        *,
        kind: str = "finetunejob",
        patience: float = PATIENCE,
    ) -> Object:
        """The first state of the object that satisfies ``until``."""
        last: Object = {}
        for last in self.watch(kind, name, patience):
            if until(last):
                return last
        raise JobStalledError(
            f"{kind} {name}: not reached in {patience:.0f} s; status: {json.dumps(last.get('status'), indent=1)}"
        )

    def finish(self, name: str, patience: float = PATIENCE) -> Object:
        """The job once it has ended, one way or the other."""
        return self.wait(name, lambda job: condition(job, "Finished") == "True", patience=patience)

    def succeed(self, name: str, patience: float = PATIENCE) -> Object:
        """The job once it has succeeded; a failed job fails the test, which then shows the status."""
        job = self.finish(name, patience)
        assert job["status"]["phase"] == "Succeeded", json.dumps(job["status"], indent=1)
        return job

    # --- object storage -------------------------------------------------------------------------------------

    def store(self) -> storage.Client:
        return samples.client(self.gcs_endpoint)

    def read(self, uri: str) -> bytes | None:
        """Content of a ``gs://`` or ``file://`` object, None when there is none."""
        if uri.startswith("file://"):
            path = Path(uri.removeprefix("file://"))
            return path.read_bytes() if path.exists() else None
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        blob = self.store().bucket(bucket).get_blob(name)
        return blob.download_as_bytes() if blob else None

    def write(self, uri: str, content: bytes) -> None:
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        self.store().bucket(bucket).blob(name).upload_from_string(content)

    def download(self, uri: str, folder: Path) -> Path:
        """The objects below ``uri`` as files below ``folder``."""
        return samples.download(uri, folder, self.gcs_endpoint)

    def upload(self, folder: Path, uri: str) -> str:
        bucket, _, prefix = uri.removeprefix("gs://").partition("/")
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = f"{prefix}/{path.relative_to(folder)}"
                self.store().bucket(bucket).blob(name).upload_from_filename(str(path))
        return uri

    def result(self, job: Object, stage: Stage, number: int = 1, restart: int = 0) -> StageResult:
        content = self.read(folder_of(job).result(stage.short, number, restart))
        assert content is not None, f"no result of {stage}-{number}.{restart} in {folder_of(job).uri}"
        return StageResult.model_validate_json(content)

    def losses(self, job: Object) -> dict[int, str]:
        """Step -> training loss as text, as in the metrics file. A step that was repeated must have the same loss."""
        content = self.read(folder_of(job).metrics) or b""
        losses: dict[int, str] = {}
        for line in content.splitlines():
            row = json.loads(line, parse_float=str)
            if "loss" in row and "step" in row:
                known = losses.setdefault(row["step"], row["loss"])
                assert known == row["loss"], f"step {row['step']} was repeated with another loss"
        return losses

    def wait_for_step(self, job: Object, step: int, patience: float = PATIENCE) -> Progress:
        """The progress record once training has passed ``step``; object storage sends no events."""
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            content = self.read(folder_of(job).progress)
            if content and (progress := Progress.model_validate_json(content)).step >= step:
                return progress
            time.sleep(0.05)
        raise JobStalledError(
            f"training of {job['metadata']['name']} did not reach step {step} in {patience:.0f} s"
        )


def _documents(lines: Iterator[str]) -> Iterator[Object]:
    """The JSON documents of kubectl's watch output, each as soon as it is complete."""
    buffered: list[str] = []
    for line in lines:
        buffered.append(line)
        if line.rstrip() == "}":
            yield json.loads("".join(buffered))
            buffered.clear()


def condition(job: Object, kind: str) -> str | None:
    """Status of one condition."""
    return next((c["status"] for c in job.get("status", {}).get("conditions", []) if c["type"] == kind), None)


def reason(job: Object, kind: str) -> str:
    """Reason of one condition."""
    return next((c["reason"] for c in job.get("status", {}).get("conditions", []) if c["type"] == kind), "")


def message(job: Object, kind: str) -> str:
    """Message of one condition."""
    return next((c["message"] for c in job.get("status", {}).get("conditions", []) if c["type"] == kind), "")


def stage_of(job: Object, stage: Stage) -> Object:
    """The entry of ``status.stages``."""
    found: Object = next(entry for entry in job["status"]["stages"] if entry["name"] == stage)
    return found


def folder_of(job: Object) -> RunFolder:
    return RunFolder(job["status"]["resolved"]["runFolder"])


def finetune_job(name: str, *, lora: bool = False, **spec: Any) -> Object:
    """A small job on the tiny model and the capitals data; ``spec`` replaces or adds top-level parts."""
    defaults: Object = {
        "profileRef": {"name": "local"},
        "model": {"uri": "gs://ft-models.invalid/tiny-qwen3"},
        "datasets": {
            "train": [{"uri": "gs://ft-data.invalid/capitals/train.jsonl"}],
            "validation": [{"uri": "gs://ft-data.invalid/capitals/eval.jsonl"}],
            "maxSeqLength": 64,
        },
        "method": {"type": "SFT", **({"lora": {"rank": 4, "alpha": 8}} if lora else {})},
        "hyperparameters": {
            "steps": 20,
            "globalBatchSize": 8,
            "learningRate": 1e-2,
            "computePrecision": "FP32",
        },
        "resources": {"accelerator": "tpu-v6e-slice", "topology": "2x2"},
        "evaluation": {"prompts": ["What is the capital of France?"]},
    }
    return {
        "apiVersion": "tpu-finetune.dev/v1alpha1",
        "kind": "FineTuneJob",
        "metadata": {"name": name},
        "spec": {**defaults, **spec},
    }
