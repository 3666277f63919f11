"""Placeholders for the FineTuneJob whose model another one starts from (``model.fromJob``), as it is after success.

They are used where a manifest is planned without a cluster. Pure.
"""

from finetune_contract import RunFolder
from finetune_operator.objects import Object
from finetune_operator.planning import Plan

#: Placeholder for the uid, which the API server assigns.
UNKNOWN_UID = "00000000-0000-0000-0000-000000000000"


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


def without_checkpoint(job: Object) -> Object:
    """Returns the job without its choice of a checkpoint: which one the source exports is known only after it ends."""
    source = job["spec"]["model"]["fromJob"]
    model = {**job["spec"]["model"], "fromJob": {"name": source["name"]}}
    return {**job, "spec": {**job["spec"], "model": model}}
