"""The captured blocks of docs/walkthrough.md, by name: which fields of which object or record each one shows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finetune_contract import Stage
from tests.walkthrough.page import as_json, as_yaml, selected
from tests.walkthrough.recording import Recording

type Object = dict[str, Any]
type Block = Callable[[Recording], str]

_POD = "spec replicatedJobs template spec template spec"
_CONDITION = ("type", "status", "reason", "message")


def _job(state: Callable[[Object], bool], *paths: str) -> Block:
    """Fields of the first state of the job whose status satisfies ``state``."""
    return lambda recording: as_yaml(selected(recording.job(state), paths))


def _jobset(stage: Stage, *paths: str) -> Block:
    return lambda recording: as_yaml(selected(recording.jobset(stage), paths))


def _record(path: str, *fields: str) -> Block:
    """Fields of a JSON file in the run folder."""
    return lambda recording: as_json(selected(recording.records[path], fields))


def _conditions(*types: str) -> Sequence[str]:
    return [f"status conditions[{','.join(types)}] {field}" for field in _CONDITION]


def _applied(recording: Recording) -> str:
    job = recording.jobs[0]
    spec = ("model", "datasets", "method", "hyperparameters", "evaluation")
    return as_yaml(
        selected(job, ["apiVersion", "kind", "metadata name", "metadata namespace", "metadata uid"])
        | {"spec": selected(job["spec"], spec)}
    )


def _plan(recording: Recording) -> str:
    return as_yaml(
        selected(
            recording.plan,
            [
                "apiVersion", "kind", "metadata name", "metadata namespace", "metadata labels tpu-finetune.dev/job",
                "metadata labels tpu-finetune.dev/job-uid", "immutable", "data profile-name", "data profile.json",
                "data spec.json", "data run-folder", "data cache", "data contract", "data digest",
            ],
        )
    )  # fmt: skip


def _progress(recording: Recording) -> str:
    half = next(state for state in recording.progress if state["step"] > state["total_steps"] / 2)
    return as_json(
        selected(
            half,
            [
                "attempt", "step", "total_steps", "metrics loss", "metrics learning_rate", "step_time_p50",
                "tokens_per_second", "seconds", "updated",
            ],
        )
    )  # fmt: skip


def _events(recording: Recording) -> str:
    fields = ["type", "reason", "message"]
    return as_yaml({"kind": "EventList", "items": [selected(event, fields) for event in recording.events]})


def _jobsets(recording: Recording) -> str:
    rows = [("JobSet", "pod", "service account", "requests", "node")]
    for stage in Stage:
        jobset = recording.jobset(stage)
        (group,) = jobset["spec"]["replicatedJobs"]
        pod = group["template"]["spec"]["template"]["spec"]
        requests = pod["containers"][0]["resources"]["requests"]
        rows.append(
            (
                jobset["metadata"]["name"],
                recording.pod(stage)["metadata"]["name"],
                pod["serviceAccountName"],
                ", ".join(f"{name}: {amount}" for name, amount in requests.items()),
                recording.pod(stage)["spec"]["nodeName"],
            )
        )
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    return "".join(
        "".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in rows
    )


def _succeeded(stage: Stage) -> Callable[[Object], bool]:
    def check(status: Object) -> bool:
        return any(
            each["name"] == stage and each["phase"] == "Succeeded" for each in status.get("stages", ())
        )

    return check


def _started(status: Object) -> bool:
    return "stages" in status and status["stages"][0]["phase"] == "Running"


def _finished(status: Object) -> bool:
    return "completionTime" in status


BLOCKS: Mapping[str, Block] = {
    "job": _applied,
    "plan": _plan,
    "admitted": _job(
        _started, "status phase", "status stage", "status summary", "status resolved plan",
        "status resolved profile", "status resolved runFolder", "status resolved resources tpu",
        "status resolved resources hosts", "status resolved resources why", *_conditions("Valid", "DataReady"),
        "status stages name", "status stages phase",
    ),
    "preflight-jobset": _jobset(
        Stage.PREFLIGHT, "apiVersion", "kind", "metadata name", "metadata labels tpu-finetune.dev/job",
        "metadata labels tpu-finetune.dev/job-uid", "metadata labels tpu-finetune.dev/stage",
        "metadata labels tpu-finetune.dev/attempt", "metadata annotations", "metadata ownerReferences kind",
        "metadata ownerReferences name", "metadata ownerReferences controller", "spec replicatedJobs name",
        f"{_POD} containers image", f"{_POD} containers command",
        f"{_POD} containers env[FINETUNE_REQUEST] name", f"{_POD} containers env[FINETUNE_REQUEST] value",
    ),
    "preflight-request": _record(
        "attempts/prep-1/request.json", "version", "job", "stage", "attempt", "run_folder", "model",
        "hyperparameters steps", "hyperparameters global_batch_size", "hyperparameters learning_rate", "mesh",
    ),
    "preflight-result": _record(
        "attempts/prep-1/result.json", "stage", "attempt", "outcome", "exit_code", "details model revision",
        "details model architecture", "details steps", "details fingerprint", "details conversion",
    ),
    "preflight-done": _job(
        _succeeded(Stage.PREFLIGHT), "status phase", "status stage", "status resolved datasets name",
        "status resolved datasets rows", "status resolved datasets tokens", *_conditions("DataReady"),
        "status stages[Preflight] name", "status stages[Preflight] phase", "status stages[Preflight] jobSet",
    ),
    "convert-result": _record(
        "attempts/conv-1/result.json", "stage", "outcome", "details manifest fingerprint", "details manifest items",
        "details manifest export_proven",
    ),
    "train-jobset": _jobset(
        Stage.TRAIN, "metadata name", "spec failurePolicy maxRestarts", "spec failurePolicy rules",
        "spec replicatedJobs name", "spec replicatedJobs template spec podFailurePolicy",
    ),
    "train-progress": _progress,
    "train-result": _record(
        "attempts/train-1/result.json", "stage", "outcome", "details step", "details first_loss", "details last_loss",
        "details evaluation_loss", "details checkpoints step", "details tokens",
    ),
    "evaluate-result": _record(
        "attempts/eval-1/result.json", "stage", "outcome", "details baseline loss", "details tuned loss",
        "details samples",
    ),
    "export-result": _record(
        "attempts/export-1/result.json", "stage", "outcome", "details artifacts type", "details artifacts uri",
        "details manifest",
    ),
    "finished": _job(
        _finished, "status phase", "status summary",
        "status artifacts type", "status artifacts uri", "status attempts total", "status attempts preemption",
        "status attempts infrastructure", "status attempts user", *_conditions("Succeeded", "Finished"),
        "status stages name", "status stages startTime", "status stages completionTime",
    ),
    "events": _events,
    "jobsets": _jobsets,
}  # fmt: skip
