"""A job's plan for programs: ``finetune plan -o json``. docs/command-line.md describes the fields."""

from dataclasses import fields
from typing import Any

from pydantic.alias_generators import to_camel

from finetune_operator.api import exact
from finetune_operator.cli.manifests.plan_report import PlanReport
from finetune_operator.planning import Plan
from finetune_operator.planning.considered import ConsideredSlice
from finetune_operator.planning.estimate.step_memory import StepMemory
from finetune_operator.planning.estimate.training_memory import (
    HIGHEST_ERROR,
    LOWEST_ERROR,
    MEDIAN_ERROR,
    TrainingMemory,
)
from finetune_operator.rendering.memory import largest_piece
from finetune_operator.rendering.pathways import HEAD_CORES, HEAD_GB

#: Version of the whole output. A new field does not change it; a field that is removed or gets another meaning does.
FACTS_VERSION = 1


def facts(report: PlanReport) -> dict[str, Any]:
    """Returns a job's plan for programs, with the names of status.resolved. What is not known is null."""
    plan = report.plan
    shape, numbers = plan.placement.shape, plan.hyperparameters
    found: dict[str, Any] = {
        "job": plan.job.name,
        "namespace": plan.job.namespace,
        "profile": {"name": plan.profile_name, "hash": plan.profile_hash},
        "stages": [stage.value for stage in plan.stages],
        "resources": {
            "tpu": shape.name,
            "accelerator": shape.accelerator,
            "topology": shape.topology,
            "machineType": shape.machine_type,
            "chips": plan.chips,
            "hosts": shape.hosts * plan.mesh.slices,
            "slices": plan.mesh.slices,
            "capacity": plan.placement.capacity,
            "controller": plan.mesh.controller,
            "why": plan.placement.why,
        },
        "parallelism": {"data": plan.mesh.data, "fsdp": plan.mesh.fsdp, "tensor": plan.mesh.tensor},
        "hyperparameters": {
            to_camel(name): value
            for name, value in numbers.model_dump(mode="json", exclude_none=True).items()
        },
        "runFolder": plan.run_folder.uri,
        "cache": plan.cache.uri,
        "image": plan.image,
        **({"cpuImage": plan.cpu_image} if plan.cpu_image else {}),
        "queues": {name: queue for name, queue in queues_of(plan).items() if queue},
        "memory": {
            "source": plan.memory.source if plan.memory else "Off",
            "candidates": [each.slice.name for each in plan.memory.candidates] if plan.memory else [],
            "perDevice": _memory(report.memory_on(shape)),
        },
        "hostMemory": {} if (most := largest_piece(plan)) is None else {"largestPiece": most},
        "chatTemplate": plan.data.chat_template,
        "checkpoint": plan.exported_checkpoint,
        "considered": [_considered(each, report) for each in report.considered],
        "model": {
            "source": plan.model.address,
            "parameters": report.model.parameters if report.model else None,
            "published": report.published,
        },
        "steps": {
            "value": report.steps.steps if report.steps else None,
            "atMost": report.steps is not None and report.steps.at_most,
        },
        "cpuStages": [
            {"stage": each.stage.value, "memoryGiB": each.memory_gib, "diskGiB": each.disk_gib}
            for each in report.cpu
        ],
        "time": {
            "source": "Arithmetic",
            "secondsPerStep": _interval(report.step_seconds),
            "trainingSeconds": _interval(_least(report, report.training_seconds)),
            "pastRuns": _past(report),
        },
        "cost": _cost(report),
        "unknown": [{"what": what, "learn": learn} for what, learn in report.unknown],
    }
    if report.monthly_chip_hours is not None:
        found["monthlyChipHours"] = report.monthly_chip_hours
    if plan.pathways is not None:
        found["pathways"] = {
            "server": plan.pathways.server,
            "proxy": plan.pathways.proxy,
            "scratch": plan.pathways.scratch,
            "instanceType": plan.pathways.instance_type,
            "head": {"cores": HEAD_CORES, "memoryGB": HEAD_GB},
            "workers": plan.placement.shape.hosts * plan.mesh.slices,
        }
    return found


def queues_of(plan: Plan) -> dict[str, str | None]:
    """Returns the names of the job's queues and of its priority."""
    queues = plan.queues
    return {"tpu": queues.tpu, "cpu": queues.cpu, "priority": queues.priority_class}


def _memory(memory: TrainingMemory | None) -> dict[str, Any] | None:
    if memory is None:
        return None
    parts = memory.parts
    return {
        "state": memory.state,
        **{each.name: parts and getattr(parts, each.name) for each in fields(StepMemory)},
        "peak": parts and parts.peak,
        "usable": memory.usable,
        "headroom": memory.headroom,
        "rematPolicy": memory.remat,
        "logitPieces": memory.pieces,
        "errorPercent": {"median": MEDIAN_ERROR, "low": LOWEST_ERROR, "high": HIGHEST_ERROR},
    }


def _considered(each: ConsideredSlice, report: PlanReport) -> dict[str, Any]:
    shape = each.shape
    memory = report.memory_on(shape)
    return {
        "tpu": shape.name if shape else None,
        "topology": shape.topology if shape else None,
        "flavor": each.flavor,
        "capacity": each.capacity,
        "pricePerHour": None if each.hourly_price is None else str(each.hourly_price),
        "chosen": each.chosen,
        "next": each.next,
        "why": each.why,
        "stateBytes": memory.state if memory else None,
        "peakBytes": memory.parts.peak if memory and memory.parts else None,
        "usableBytes": memory.usable if memory else None,
    }


def _least(report: PlanReport, value: float | None) -> float | None:
    """Returns a lower bound that holds for the known number of steps; None if there may be fewer."""
    return None if report.steps is None or report.steps.at_most else value


def _past(report: PlanReport) -> dict[str, Any] | None:
    """Returns what past trainings of the shape took, by the ledger; None if it contains none or is not read."""
    past, total = report.past, report.past_seconds
    if past is None:
        return None
    return {
        "attempts": past.attempts,
        "jobs": past.jobs,
        "steps": {"low": past.fewest_steps, "high": past.most_steps},
        "secondsPerStep": _range(past.low, past.median, past.high),
        "trainingSeconds": _range(*total) if total else None,
        "chipHours": _range(*map(report.chip_hours, total)) if total else None,
    }


def _range(low: float, median: float, high: float) -> dict[str, float]:
    return {
        name: float(f"{value:.6g}") for name, value in {"low": low, "median": median, "high": high}.items()
    }


def _interval(low: float | None) -> dict[str, float | None]:
    return {"low": None if low is None else float(f"{low:.6g}"), "high": None}


def _cost(report: PlanReport) -> dict[str, Any]:
    plan, seconds = report.plan, _least(report, report.training_seconds)
    price = plan.placement.chip_hour_price
    low = None if price is None or seconds is None else float(f"{report.chip_hours(seconds) * price:.6g}")
    most = plan.budget.cost.most if plan.budget.cost else None
    return {
        "source": "chipHourPrice",
        "currency": plan.currency,
        "perHour": None if price is None else str(exact(price) * plan.chips),
        # A budget below the least cost is no upper end: the training does not start.
        "training": {"low": low, "high": None if most is None or (low or 0.0) > most else most},
    }
