"""``status.resolved``: what decides the result, once resolved."""

from collections.abc import Mapping
from typing import Any

from finetune_contract import DatasetReport, HyperparametersSpec, MethodSpec
from finetune_operator.api.method import ResolvedHyperparameters
from finetune_operator.lifecycle.preflight_memory import host_requests_status, memory_status
from finetune_operator.lifecycle.progress import decimal
from finetune_operator.planning import Findings, Plan
from finetune_operator.planning.stored_plan import plan_name

type Object = Mapping[str, Any]


def resolved_status(plan: Plan, findings: Findings) -> Object:
    """From the plan, completed by what preflight found out."""
    shape, mesh = plan.placement.shape, plan.mesh
    steps = findings.preflight.steps if findings.preflight else plan.hyperparameters.steps
    resolved: dict[str, Any] = {
        "specHash": plan.spec_hash,
        "profile": {"name": plan.profile_name, "hash": plan.profile_hash},
        "plan": {"name": plan_name(plan.job.uid), "digest": plan.digest},
        "model": _model(plan, findings),
        "hyperparameters": {
            **_training(plan.hyperparameters),
            "perDeviceBatchSize": decimal(plan.hyperparameters.microbatch_size / mesh.devices),
        },
        "method": _method(plan.method),
        "resources": {
            "tpu": shape.name,
            "accelerator": shape.accelerator,
            "topology": shape.topology,
            "machineType": shape.machine_type,
            "chips": plan.chips,
            "hosts": shape.hosts * mesh.slices,
            "slices": mesh.slices,
            "capacity": plan.placement.capacity,
            "controller": mesh.controller,
            "why": plan.placement.why,
        },
        "memory": memory_status(plan, findings),
        "checkpoint": plan.exported_checkpoint,
        "images": _images(plan),
        "serviceAccounts": {"tpu": plan.service_account_tpu, "cpu": plan.service_account_cpu},
        "runFolder": plan.run_folder.uri,
        "cache": plan.cache.uri,
    }
    if steps is not None:
        resolved["hyperparameters"]["steps"] = steps
    resolved |= host_requests_status(plan, findings)
    if findings.preflight:
        if findings.preflight.max_seq_length is not None:
            resolved["hyperparameters"]["maxSeqLength"] = findings.preflight.max_seq_length
        resolved["datasets"] = [
            dataset_status(report, findings.preflight.report)
            for report in (
                *findings.preflight.train,
                *findings.preflight.validation,
                *findings.preflight.evaluation,
            )
        ]
        if findings.preflight.benchmarks:
            resolved["benchmarks"] = [
                {"name": each.name, "revision": each.revision, "rows": each.rows}
                for each in findings.preflight.benchmarks
            ]
    return resolved


def _training(numbers: HyperparametersSpec) -> Object:
    """Every number of the training that both the request and the status know, under the same name."""
    values = {
        str(field.alias): getattr(numbers, name)
        for name, field in ResolvedHyperparameters.model_fields.items()
        if name in HyperparametersSpec.model_fields
    }
    if numbers.warmup_steps is None and numbers.warmup_ratio is None:
        values["warmupRatio"] = 0.0
    return {
        name: decimal(value) if isinstance(value, float) else value
        for name, value in values.items()
        if value is not None
    }


def _method(method: MethodSpec) -> Object:
    if method.lora is None:
        return {"type": method.type}
    lora = {"loraRank": method.lora.rank, "loraAlpha": decimal(method.lora.alpha)}
    quantization = {"quantization": method.lora.quantization} if method.lora.quantization else {}
    return {"type": method.type, **lora, **quantization}


def _images(plan: Plan) -> Object:
    images = {"trainer": plan.image} | ({"cpu": plan.cpu_image} if plan.cpu_image else {})
    if plan.pathways is None:
        return images
    return images | {"pathwaysServer": plan.pathways.server, "pathwaysProxy": plan.pathways.proxy}


def _model(plan: Plan, findings: Findings) -> Object:
    found = findings.preflight.model if findings.preflight else None
    lineage = {"fromJob": dict(plan.lineage)} if plan.lineage else {}
    if found is None:
        return {"source": plan.model.address, **lineage}
    return lineage | {
        "source": found.source,
        "revision": found.revision,
        "architecture": found.architecture,
        "parameters": found.parameters,
        "maxtextModel": found.maxtext_model,
        "layout": found.layout,
    }


def dataset_status(report: DatasetReport, uri: str) -> Object:
    """One of ``status.resolved.datasets``; counts only where every row was read."""
    told: dict[str, Any] = {"name": report.name, "revision": report.revision, "reportURI": uri}
    if report.format:
        # "PromptCompletion of messages" is one for the reader of the report.
        told["format"] = report.format.partition(" ")[0]
    if report.checked != "Full":
        return told
    rows = max(1, report.rows)
    truncated = 100 * min(max(0, report.truncated_rows), rows) / rows
    told |= {
        "rows": report.rows,
        "tokens": report.tokens,
        "truncatedPercent": decimal(round(truncated, 2)),
        "droppedRows": report.dropped_rows,
    }
    if report.weight is not None and report.sequences is not None:
        told |= {"sequences": report.sequences, "epochSequences": report.epoch_sequences}
    return told
