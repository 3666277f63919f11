"""``finetune plan``: shows what a job would do, without a cluster."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from finetune_contract import DatasetSpec, MethodSpec, ModelSource, PreferenceMethod
from finetune_operator.api import MethodType, exact, options_of
from finetune_operator.cli.checks import PlannedJob, in_namespace, placed, planned, schema_problems
from finetune_operator.cli.context import profile_for
from finetune_operator.cli.documents import is_text
from finetune_operator.cli.errors import CliError
from finetune_operator.cli.manifests import Object, of_kind, parse, read, shown_name
from finetune_operator.cli.text import money
from finetune_operator.planning import Plan
from finetune_operator.planning.slices.pathways import Pathways
from finetune_operator.planning.source_job import source_name
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering import KNOWN_LATER_ANNOTATION
from finetune_operator.rendering.memory import largest_piece
from finetune_operator.rendering.offline_source import UNKNOWN_UID
from finetune_operator.rendering.pathways import HEAD_CORES, HEAD_GB


class Dumper(yaml.SafeDumper):
    """Quotes strings such as ``2e-5`` and ``y``, which kubectl would read as a number and a boolean."""


def _quoted(dumper: Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_text(text) else "'")


Dumper.add_representer(str, _quoted)


def show_plan(
    file: Path,
    profile_file: Path | None,
    output: Literal["text", "json", "yaml"],
    namespace: str | None = None,
) -> str:
    """Returns the plan of the one job in ``file``. ``namespace`` applies to a job whose manifest names none.

    Raises:
        CliError: the job would be refused. The message is that of validate or of the operator.
    """
    job, profile, objects = _inputs(file, profile_file, namespace)
    found = planned(shown_name(file), job, profile, objects)
    match output:
        case "yaml":
            text = yaml.dump_all(found.jobsets, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)
            return str(text).rstrip("\n")
        case "json":
            return json.dumps(_facts(found.plan) | {"jobSets": found.jobsets}, indent=2)
        case "text":
            return "\n".join(_page(found))


def _inputs(
    file: Path, profile_file: Path | None, namespace: str | None
) -> tuple[Object, Object, Sequence[Object]]:
    """Returns the job, its profile, and all objects in both files."""
    name, text = shown_name(file), read(file)
    objects = parse(text, name)
    written = of_kind(objects, "FineTuneJob")
    if written or any(each["kind"].lower() == "finetunejob" for each in objects):
        _refuse_problems(text, name)
    # The file may also contain the jobs that the job starts from.
    sources = {source_name(job["spec"]) for job in written}
    jobs = [job for job in written if job["metadata"]["name"] not in sources]
    if len(jobs) != 1:
        raise CliError(
            f"{name}: contains {len(written) or 'no'} FineTuneJob{'s' if len(written) > 1 else ''}; plan takes one.",
            fix="" if written else "Name the job's manifest with -f, once, and the profile's with --profile.",
        )
    if profile_file is not None:
        name, text = shown_name(profile_file), read(profile_file)
        objects += parse(text, name)
    profiles = of_kind(parse(text, name), "FineTuneProfile")
    if not profiles:
        raise CliError(
            f"{name}: contains no FineTuneProfile, which defines where the job may run.",
            fix="Give --profile FILE; `kubectl get finetuneprofile NAME -o yaml` prints that of a cluster.",
        )
    _refuse_problems(text, name)
    return in_namespace(jobs[0], namespace), _chosen(jobs[0], profiles), placed(objects, namespace)


def _refuse_problems(text: str, name: str) -> None:
    if problems := schema_problems(text, name):
        raise CliError("\n".join(problems))


def _chosen(job: Object, profiles: Sequence[Object]) -> Object:
    profile = profile_for(job, profiles)
    if profile is None and "profileRef" not in job["spec"]:
        raise CliError(
            f"The job names no profile and there are {len(profiles)} to choose from.",
            fix="Set spec.profileRef.",
        )
    # The operator's own code refuses any other profile with its reason.
    return profile or profiles[0]


def _facts(plan: Plan) -> dict[str, Any]:
    """Returns the plan for programs, with the names of status.resolved."""
    shape, numbers = plan.placement.shape, plan.hyperparameters
    facts: dict[str, Any] = {
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
        "hyperparameters": numbers.model_dump(mode="json", exclude_none=True),
        "runFolder": plan.run_folder.uri,
        "cache": plan.cache.uri,
        "image": plan.image,
        **({"cpuImage": plan.cpu_image} if plan.cpu_image else {}),
        "queues": {name: queue for name, queue in _queues(plan).items() if queue},
        "memory": {
            "source": plan.memory.source if plan.memory else "Off",
            "candidates": [each.slice.name for each in plan.memory.candidates] if plan.memory else [],
        },
        "hostMemory": {} if (most := largest_piece(plan)) is None else {"largestPiece": most},
        "checkpoint": plan.exported_checkpoint,
    }
    if plan.pathways is not None:
        facts["pathways"] = {
            "server": plan.pathways.server,
            "proxy": plan.pathways.proxy,
            "scratch": plan.pathways.scratch,
            "instanceType": plan.pathways.instance_type,
            "head": {"cores": HEAD_CORES, "memoryGB": HEAD_GB},
            "workers": plan.placement.shape.hosts * plan.mesh.slices,
        }
    return facts


def _page(found: PlannedJob) -> Iterator[str]:
    plan, jobsets = found.plan, found.jobsets
    shape, mesh, numbers = plan.placement.shape, plan.mesh, plan.hyperparameters
    yield f"{plan.job.name}, with profile {plan.profile_name}"
    yield ""
    on_tpu = f"{_slices(plan)}{shape.name} {shape.topology}"
    for stage, jobset in zip(plan.stages, jobsets, strict=True):
        where = on_tpu if stage.on_tpu else "CPU"
        name = jobset["metadata"]["name"]
        yield f"  {stage.value:<10} {where:<{max(12, len(on_tpu))}} {name:<36} {STAGES[stage].description}"
    yield ""
    yield _row(
        "TPU",
        f"{plan.chips} chips of {_slices(plan)}{shape.accelerator} {shape.topology}, {_hosts(plan)}, "
        f"{plan.placement.capacity}",
    )
    yield _row("", plan.placement.why)
    yield _row("Controller", _controller(plan))
    if plan.pathways is not None:
        for line in _pathways(plan, plan.pathways):
            yield _row("", line)
    if queues := " · ".join(f"{name}: {queue}" for name, queue in _queues(plan).items() if queue):
        yield _row("Queue", queues)
    yield _row("Mesh", f"data {mesh.data} x fsdp {mesh.fsdp} x tensor {mesh.tensor}")
    yield _row(
        "Batch",
        f"{numbers.global_batch_size} rows per step over {mesh.devices} devices, "
        f"up to {plan.data.max_seq_length} tokens each, padded to a width that the TPU's attention kernel accepts",
    )
    yield _row(
        "Length",
        f"{numbers.steps} steps"
        if numbers.steps
        else f"{numbers.epochs:g} epoch{'' if numbers.epochs == 1 else 's'}; Preflight counts the steps",
    )
    yield _row("Method", _method(plan))
    yield _row("Model", _model(plan))
    for label, sources in (("Train on", plan.data.train), ("Validate on", plan.data.validation)):
        for source in sources:
            yield _row(label, _dataset(source))
    if split := plan.data.split_from_train:
        yield _row("Validate on", f"{100 * split.fraction:g} % of the training rows, held back")
    yield _row("Checkpoints", _checkpoints(plan))
    yield _row("Memory", _memory(plan))
    yield _row("Host memory", _host_memory(plan))
    yield _row("Disk", _disk(plan))
    if tried := plan.smoke:
        yield _row(
            "Smoke test", f"{tried.steps} steps on {tried.examples} rows of each source, within Preflight"
        )
    yield from _money(plan)
    yield _row("Run folder", _of_any_uid(plan.run_folder.uri))
    yield _row("Cache", f"{plan.cache.uri} ({plan.use_cache})")
    yield _row("Image", plan.image)
    if plan.cpu_image:
        yield _row("CPU image", f"{plan.cpu_image} for Convert and Export")
    later = sorted({note for jobset in jobsets for note in _later(jobset)})
    if later:
        yield _row("Known later", "; ".join(later))
    if found.remark:
        yield _row("Not checked", found.remark)


def _queues(plan: Plan) -> dict[str, str | None]:
    queues = plan.queues
    return {"tpu": queues.tpu, "cpu": queues.cpu, "priority": queues.priority_class}


def _money(plan: Plan) -> Iterator[str]:
    if plan.placement.chip_hour_price is not None:
        price = exact(plan.placement.chip_hour_price)
        cost = f"{money(price * plan.chips)} {plan.currency} per hour"
        yield _row("Price", f"{cost} ({plan.chips} chips x {money(price)})")
    ceilings = ((plan.budget.chip_hours, "chip hours"), (plan.budget.cost, plan.currency))
    limits = [f"at most {each.most:.10g} {unit} ({each.path})" for each, unit in ceilings if each is not None]
    if limits:
        yield _row("Budget", ", ".join(limits))


def _checkpoints(plan: Plan) -> str:
    saved = plan.checkpointing
    every = f"every {saved.every_steps} steps" + (
        f" or {saved.every_seconds} s" if saved.every_seconds else ""
    )
    best = f" and the best {saved.keep_best}" if saved.keep_best else ""
    exported = "the best" if plan.exported_checkpoint == "Best" else "the last"
    return f"{every}; the last {saved.keep_last}{best} are kept, {exported} is exported"


def _host_memory(plan: Plan) -> str:
    most = largest_piece(plan)
    need = (
        "Convert and Export need memory for the model's largest piece (a tensor, in most models the embeddings, or one "
        "projection of all experts of a layer)"
    )
    if most is None:
        return f"{need}, which Preflight reads"
    limit = f"cpuPool.maxMemory {plan.cpu_pool.max_memory}"
    return (
        f"{need}; {limit} is enough for one of {most / 1e9:.2f} billion parameters, and Preflight checks it"
    )


def _disk(plan: Plan) -> str:
    need = "Convert and Export need scratch space for weights and the exported model"
    if plan.cpu_pool.max_ephemeral_storage is None:
        return f"{need}, whose sizes Preflight reads"
    limit = f"cpuPool.maxEphemeralStorage {plan.cpu_pool.max_ephemeral_storage}"
    return f"{need}; {limit} is the most that each may request, and Preflight checks it"


def _memory(plan: Plan) -> str:
    if plan.memory is None:
        return "not checked (preflight.memory: Off)"
    if plan.memory.source == "Analytic":
        return "Preflight adds up the sizes of parameters and optimizer state before a slice is claimed"
    return "Preflight compiles the train step and all other programs of the job for the slice, before one is claimed"


def _row(label: str, value: str) -> str:
    return f"{label:<12} {value}"


def _hosts(plan: Plan) -> str:
    hosts = plan.placement.shape.hosts * plan.mesh.slices
    return f"{hosts} host{'s' if hosts > 1 else ''}"


def _slices(plan: Plan) -> str:
    return f"{plan.mesh.slices} x " if plan.mesh.slices > 1 else ""


def _controller(plan: Plan) -> str:
    if plan.pathways is None:
        return "McJAX: a JAX process on every host"
    return "Pathways: one JAX process on a CPU node, the head, over all slices"


def _pathways(plan: Plan, pathways: Pathways) -> Iterator[str]:
    shape, slices = plan.placement.shape, plan.mesh.slices
    labels = ", ".join(f"{key}={value}" for key, value in pathways.head_node_selector.items())
    node = f"a node with {labels}" if labels else "any node without TPU"
    yield f"head: {HEAD_CORES} cores and {HEAD_GB} GB on {node}, with {pathways.proxy}"
    yield (
        f"workers: {shape.hosts * slices} of {shape.chips_per_host} chips, {slices} x {pathways.instance_type}, "
        f"with {pathways.server}"
    )
    yield f"scratch: {pathways.scratch}"


def _method(plan: Plan) -> str:
    lora, numbers = plan.method.lora, plan.hyperparameters
    kind = f"LoRA, rank {lora.rank}, alpha {lora.alpha:g}" if lora else "all weights"
    if lora and lora.quantization:
        kind += f" on a base model in {lora.quantization}"
    rate = f"learning rate {numbers.learning_rate:g}, {numbers.schedule}"
    options = "".join(f", {option}" for option in _options(plan.method))
    return f"{plan.method.type}{options}, {kind}; {numbers.optimizer}, {rate}"


def _options(method: MethodSpec) -> Iterator[str]:
    """Yields the method's options by the names of the API: ``label smoothing 0.1``."""
    for name, field in options_of(MethodType(method.type)).model_fields.items():
        value = getattr(method, name)
        if isinstance(value, float):
            words = re.sub(r"(?=[A-Z])", " ", str(field.alias)).lower()
            yield f"{words} {value:g}"
    if isinstance(method, PreferenceMethod):
        yield f"prompts up to {method.max_prompt_length} tokens"


def _model(plan: Plan) -> str:
    if plan.lineage is None:
        return _source(plan.model)
    return f"{_of_any_uid(plan.model.address)}, which FineTuneJob {plan.lineage['name']} exports"


def _of_any_uid(uri: str) -> str:
    """Returns a run folder's URI with a placeholder for the uid that the API server assigns."""
    return uri.replace(f"-{UNKNOWN_UID[:8]}", "-<uid>")


def _source(source: ModelSource) -> str:
    if source.hugging_face:
        return f"{source.hugging_face.repo} at {source.hugging_face.revision}"
    return source.address


def _dataset(source: DatasetSpec) -> str:
    where = f"{source.hugging_face.repo}, split {source.split}" if source.hugging_face else str(source.uri)
    weight = f", weight {source.weight:g}" if source.weight is not None else ""
    return f"{where} ({source.format}{weight})"


def _later(jobset: Object) -> list[str]:
    annotation = jobset["metadata"].get("annotations", {}).get(KNOWN_LATER_ANNOTATION, "")
    return [note for note in annotation.split("; ") if note]
