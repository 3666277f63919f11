"""Renders the JobSets of a whole job before anything has run, for people to read.

Where a manifest is planned without a cluster, a placeholder stands for the FineTuneJob whose model another one starts
from (``model.fromJob``), as it is after success.
"""

from typing import Any

from finetune_contract import RunFolder, Stage
from finetune_operator.objects import Object
from finetune_operator.planning import Admission, Findings, Plan, admit
from finetune_operator.planning.stages import STAGES, EarlierFinding
from finetune_operator.rendering.jobset import render_jobset

#: Placeholder for the uid, which the API server assigns.
UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"
#: On a JobSet whose request is completed by the results of earlier stages.
KNOWN_LATER_ANNOTATION = "tpu-finetune.dev/known-later"

_STEPS = "number of steps (from Preflight)"
_SOURCE = "model (from the FineTuneJob that it starts from)"
_INPUTS = "commits and digests of the inputs (from Preflight)"
_CHOSEN = "mesh and tuning (from Preflight, by compiling)"
_SLICE = "slice (from Preflight)"
_SIZE = "host memory and disk (from the model's size, Preflight)"


def first_jobsets(plan: Plan) -> list[tuple[Stage, dict[str, Any]]]:
    """Returns every stage's first JobSet, of an offline plan, with what is known before anything has run.

    The request omits what only earlier stages can determine, and Convert and Export request the smallest host memory
    and disk; the annotation lists all of these values.
    """
    return [(stage, _render(plan, stage)) for stage in plan.stages]


def offline_admission(
    job: Object, profile: Object, template: Object | None = None, source: Object | None = None
) -> Admission:
    """Returns the admission of a manifest that was not submitted to an API server. Raises Refused.

    ``template`` is the ConfigMap that holds the job's chat template. ``source`` is the job whose model it starts from;
    any checkpoint of it is accepted as the requested one.
    """
    if source is not None:
        job = _without_checkpoint(job)
    metadata = {"uid": UNKNOWN_UID, **job["metadata"]}
    # A job that names no profile uses the given one, whichever profile is annotated as the default.
    named = {"profileRef": {"name": profile["metadata"]["name"]}, **job["spec"]}
    return admit({**job, "metadata": metadata, "spec": named}, [profile], template, source)


def _render(plan: Plan, stage: Stage) -> dict[str, Any]:
    jobset = render_jobset(plan, stage, 1, Findings())
    info = STAGES[stage]
    later: list[str] = [
        each
        for each in info.waits_for
        if each is not EarlierFinding.CONVERTED or Stage.CONVERT in plan.stages
    ]
    if info.sized_by_model:
        later.append(_SIZE)
    if plan.lineage:
        later.append(_SOURCE)
    if stage is not Stage.PREFLIGHT:
        later.append(_INPUTS)
        if plan.hyperparameters.steps is None:
            later.append(_STEPS)
    if stage.on_tpu and plan.memory is not None and plan.memory.source == "Compile":
        later.append(_CHOSEN)
    if stage.on_tpu and plan.memory is not None and plan.memory.candidates:
        later.append(_SLICE)
    if later:
        jobset["metadata"].setdefault("annotations", {})[KNOWN_LATER_ANNOTATION] = "; ".join(later)
    return jobset


def foreseen_source(plan: Plan) -> Object:
    """Returns the succeeded job of that plan. A job that exports only an adapter has no whole model."""
    whole = plan.method.lora is None or plan.export.content != "Adapter"
    base = (plan.lineage or {}).get("base", plan.model.address)
    return _succeeded(plan.run_folder, base, whole=whole)


def unknown_source(job: Object, profile: Object) -> Object:
    """Returns a placeholder for the job that ``job`` starts from, if only its name is known.

    Its run folder is in the same namespace, and its model is one that the profile's ``models.allow`` covers.
    """
    spec, metadata = profile["spec"], job["metadata"]
    allowed = spec.get("models", {}).get("allow") or ["unknown"]
    folder = RunFolder.of(
        spec["storage"]["artifacts"].rstrip("/"),
        metadata.get("namespace", "default"),
        job["spec"]["model"]["fromJob"]["name"],
        UNKNOWN_UID,
    )
    return _succeeded(folder, allowed[0], whole=True)


def _succeeded(folder: RunFolder, base: str, *, whole: bool) -> Object:
    conditions = [{"type": kind, "status": "True"} for kind in ("Finished", "Succeeded")]
    return {
        "metadata": {"uid": UNKNOWN_UID},
        "status": {
            "phase": "Succeeded",
            "conditions": conditions,
            "resolved": {"runFolder": folder.uri, "model": {"source": base}},
            "artifacts": [{"type": "HuggingFace", "uri": folder.model}] if whole else [],
        },
    }


def _without_checkpoint(job: Object) -> Object:
    """Returns the job without its choice of a checkpoint: which one the source exports is known only after it ends."""
    source = job["spec"]["model"]["fromJob"]
    model = {**job["spec"]["model"], "fromJob": {"name": source["name"]}}
    return {**job, "spec": {**job["spec"], "model": model}}
