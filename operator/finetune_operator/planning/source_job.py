"""Model of another job (``spec.model.fromJob``): resolved once, at admission, and kept in the job's plan.

Its location follows from the run folder that the operator gave the other job. The record of the export, which that
job's own account can write, only proves that the model exists.
"""

from finetune_contract import RunFolder
from finetune_operator.api import Reason
from finetune_operator.api.uris import is_storage_uri
from finetune_operator.objects import Object
from finetune_operator.planning.errors import Refused
from finetune_operator.planning.merge import lookup

_PATH = "spec.model.fromJob"


def source_name(spec: Object) -> str | None:
    """Returns the name of the job whose model a job's spec starts from; None if it starts from none."""
    name = lookup(spec, "model.fromJob.name")
    return name if isinstance(name, str) else None


def with_source_model(spec: Object, source: Object | None) -> Object:
    """Returns ``spec`` with the model as a folder, and with its lineage.

    ``source`` is the FineTuneJob that the spec names; None if it does not exist. Raises Refused if it has no such
    model, with the reason SourceJobRunning as long as it may still produce one by itself.
    """
    name = source_name(spec)
    if name is None:
        return spec
    if source is None:
        raise Refused(
            Reason.SOURCE_JOB_NOT_FOUND,
            f'{_PATH}: there is no FineTuneJob "{name}" in the job\'s namespace. '
            "This job starts by itself as soon as that one exists and has succeeded.",
        )
    status = source.get("status") or {}
    _refuse_unfinished(name, status, cancelled=lookup(source, "spec.cancel") is True)
    model = _exported_model(name, status)
    _refuse_other_checkpoint(spec["model"]["fromJob"], status, model.get("step"))
    before = lookup(status, "resolved.model") or {}
    lineage = {
        "name": name,
        "uid": source["metadata"]["uid"],
        "base": lookup(before, "fromJob.base") or before.get("source"),
        "step": model.get("step"),
        "digest": model.get("digest"),
    }
    others = {key: value for key, value in spec["model"].items() if key != "fromJob"}
    kept = {key: value for key, value in lineage.items() if value is not None}
    return {**spec, "model": {**others, "uri": model["uri"], "fromJob": kept}}


def _refuse_unfinished(name: str, status: Object, *, cancelled: bool) -> None:
    ended = {each["type"]: each["status"] for each in status.get("conditions", ())}
    if ended.get("Finished") != "True":
        raise Refused(
            Reason.SOURCE_JOB_RUNNING,
            f'{_PATH}: FineTuneJob "{name}" has not ended yet ({status.get("phase", "Pending")}). '
            "This job starts by itself as soon as that one has succeeded.",
        )
    if ended.get("Succeeded") != "True" and cancelled:
        raise _unusable(
            f'FineTuneJob "{name}" is cancelled and has made no model, and it cannot be retried. '
            "Create the job with another model."
        )
    if ended.get("Succeeded") != "True":
        raise _unusable(
            f'FineTuneJob "{name}" has ended as {status.get("phase", "Failed")} and has made no model. Correct it and '
            "raise its spec.retry.generation: this job starts by itself as soon as that one has succeeded. "
            "Or create the job with another model."
        )


def _exported_model(name: str, status: Object) -> Object:
    """Returns the entry of ``status.artifacts`` for the complete model in the run folder of the job ``name``.

    Raises Refused if there is none: copies elsewhere do not count, since the job's own account can name any location.
    """
    models = [
        each
        for each in status.get("artifacts", ())
        if each["type"] == "HuggingFace" and not each["uri"].startswith("hf:")
    ]
    if not models:
        raise _unusable(
            f'FineTuneJob "{name}" has exported no whole model, only an adapter. Set spec.export.content of that job '
            "to Both and retry it from Export: this job starts by itself as soon as that one has succeeded."
        )
    uri = RunFolder(lookup(status, "resolved.runFolder") or "").model
    found = next((each for each in models if each["uri"] == uri), None)
    if found is None or not is_storage_uri(uri):
        raise _unusable(
            f'FineTuneJob "{name}" names {models[0]["uri"]!r} as its model, and its run folder has it in {uri!r} '
            "only. Retry it from Export: this job continues when it has succeeded. Or name the model in "
            "spec.model.uri."
        )
    return dict(found)


def _refuse_other_checkpoint(requested: Object, status: Object, exported: int | None) -> None:
    """Raises Refused unless the wanted checkpoint was exported: only the exported one is available as a model."""
    wanted = requested.get("checkpoint")
    if wanted is None:
        return
    step = requested.get("step") if wanted == "Step" else _tagged(status, wanted)
    if step is not None and step == exported:
        return
    has = (
        f"the checkpoint of step {exported}" if exported is not None else "a checkpoint that it does not name"
    )
    what = (
        f"that of step {step}"
        if step is not None
        else f"its {wanted.lower()} checkpoint, which its status does not name,"
    )
    remedy = (
        f"Set spec.export.checkpoint of that job to {wanted} and retry it from Export, or leave checkpoint out here."
        if wanted != "Step" and step is not None
        else "Leave checkpoint out to start from what was exported."
    )
    raise _unusable(
        f'FineTuneJob "{requested["name"]}" has exported {has}, and {what} is requested. {remedy}'
    )


def _tagged(status: Object, tag: str) -> int | None:
    return next((each["step"] for each in status.get("checkpoints", ()) if tag in each.get("tags", ())), None)


def _unusable(what: str) -> Refused:
    return Refused(Reason.SOURCE_JOB_UNUSABLE, f"{_PATH}: {what}")
