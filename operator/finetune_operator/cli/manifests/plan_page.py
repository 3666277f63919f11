"""A job's plan for a person: the page of ``finetune plan``."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from finetune_contract import DatasetSpec, MethodSpec, PreferenceMethod, Stage
from finetune_operator.api import MethodType, exact, options_of
from finetune_operator.cli.manifests.plan_facts import queues_of
from finetune_operator.cli.manifests.plan_report import PlanReport
from finetune_operator.cli.text import count, duration, money, plain, size
from finetune_operator.objects import Object
from finetune_operator.planning import Plan
from finetune_operator.planning.estimate.past_runs import DAYS
from finetune_operator.planning.estimate.training_memory import MEDIAN_ERROR, TrainingMemory
from finetune_operator.planning.stages import STAGES
from finetune_operator.rendering import KNOWN_LATER_ANNOTATION
from finetune_operator.rendering.memory import largest_piece
from finetune_operator.rendering.offline import UNKNOWN_UID
from finetune_operator.rendering.pathways import HEAD_CORES, HEAD_GB

#: Most slices that are listed.
_CONSIDERED = 12
#: Most lines of a chat template that are shown.
_TEMPLATE_LINES = 24


def page(report: PlanReport) -> Iterator[str]:
    """Yields the lines of a job's plan for a person."""
    plan, shape = report.plan, report.plan.placement.shape
    on_tpu = f"{_slices(plan)}{shape.name} {shape.topology}"
    yield f"{plan.job.name}, with profile {plan.profile_name}"
    yield ""
    for stage, jobset in zip(plan.stages, report.job.jobsets, strict=True):
        where = on_tpu if stage.on_tpu else "CPU"
        name = jobset["metadata"]["name"]
        yield f"  {stage.value:<10} {where:<{max(12, len(on_tpu))}} {name:<36} {STAGES[stage].description}"
    yield ""
    for label, values in _facts(report):
        for number, value in enumerate(values):
            yield f"{'' if number else label:<12} {value}"


def _facts(report: PlanReport) -> Iterator[tuple[str, Iterable[str]]]:
    """Yields labels and their lines; a label without a line is not shown."""
    plan = report.plan
    mesh, numbers, shape = plan.mesh, plan.hyperparameters, plan.placement.shape
    hosts = shape.hosts * mesh.slices
    chips = f"{plan.chips} chips of {_slices(plan)}{shape.accelerator} {shape.topology}"
    where = f"{hosts} host{'s' if hosts > 1 else ''}, {plan.placement.capacity}"
    yield "TPU", [f"{chips}, {where}", plan.placement.why]
    yield "Considered", _considered(report)
    yield "Controller", _controller(plan)
    queues = " · ".join(f"{name}: {queue}" for name, queue in queues_of(plan).items() if queue)
    yield "Queue", [queues] if queues else []
    yield "Mesh", [f"data {mesh.data} x fsdp {mesh.fsdp} x tensor {mesh.tensor}"]
    batch = (
        f"{numbers.global_batch_size} rows per step over {mesh.devices} devices, "
        f"up to {plan.data.max_seq_length} tokens each, padded to a width that the TPU's attention kernel accepts"
    )
    yield "Batch", [batch]
    yield "Length", [_length(report)]
    yield "Method", [_method(plan)]
    parameters = f", {count(report.model.parameters)} parameters" if report.model else ""
    by_name = ", as published; --model-config FILE for other sizes" if report.published else ""
    yield "Model", [_model(plan) + parameters + by_name]
    yield from (("Train on", [_dataset(source)]) for source in plan.data.train)
    yield from (("Validate on", [_dataset(source)]) for source in plan.data.validation)
    if split := plan.data.split_from_train:
        yield "Validate on", [f"{100 * split.fraction:g} % of the training rows, held back"]
    yield "Template", _template(plan)
    yield "Checkpoints", [_checkpoints(plan)]
    yield "Memory", [_memory(plan)]
    yield "Per chip", _memory_parts(report)
    yield "Host memory", [_host_memory(report)]
    yield "Disk", [_disk(report)]
    if smoke := plan.smoke:
        yield "Smoke test", [f"{smoke.steps} steps on {smoke.examples} rows of each source, within Preflight"]
    yield "Time", _time(report)
    yield "Past runs", _past(report)
    yield from _money(report)
    yield "Run folder", [_of_any_uid(plan.run_folder.uri)]
    yield "Cache", [f"{plan.cache.uri} ({plan.use_cache})"]
    yield "Image", [plan.image]
    yield "CPU image", [f"{plan.cpu_image} for Convert and Export"] if plan.cpu_image else []
    later = sorted({note for jobset in report.job.jobsets for note in _later(jobset)})
    yield "Known later", ["; ".join(later)] if later else []
    yield "Not checked", [report.job.remark] if report.job.remark else []
    yield "Unknown", map(": ".join, report.unknown)


def _considered(report: PlanReport) -> Iterator[str]:
    """Yields a line for each slice, if there is more than one."""
    offered = report.considered
    if len(offered) < 2:
        return
    for each in offered[:_CONSIDERED]:
        name = f"{each.shape.name} {each.shape.topology}" if each.shape else "no slice"
        price = "no price"
        if each.hourly_price is not None:
            price = f"{money(each.hourly_price)} {report.plan.currency}/h"
        memory = report.memory_on(each.shape)
        state = f"; {_state(memory)}" if memory else ""
        yield f"{name} ({each.flavor}, {each.capacity}, {price}): {each.why}{state}"
    if len(offered) > _CONSIDERED:
        yield f"and {len(offered) - _CONSIDERED} more; -o json lists all"


def _state(memory: TrainingMemory) -> str:
    usable = "an unknown size" if memory.usable is None else size(memory.usable)
    if memory.too_small or memory.parts is None:
        small = "too small, " if memory.too_small else ""
        return f"{small}parameters and optimizer state take {size(memory.state)} of {usable} a chip"
    small = "probably too small, " if memory.headroom is not None and memory.headroom < 0 else ""
    return f"{small}{size(memory.parts.peak)} of {usable} a chip by estimate"


def _length(report: PlanReport) -> str:
    plan, steps = report.plan, report.steps
    numbers = plan.hyperparameters
    if numbers.steps:
        return f"{numbers.steps} steps"
    epochs = f"{numbers.epochs:g} epoch{'' if numbers.epochs == 1 else 's'}"
    if steps is None:
        return f"{epochs}; Preflight counts the steps"
    most = "at most " if steps.at_most else ""
    read = " that maxExamples allows" if steps.rows != report.rows else ""
    fewer = ""
    if plan.data.packing:
        fewer = "; fewer where short rows are packed into one"
    elif steps.at_most:
        fewer = "; fewer if a source has more rows than its maxExamples"
    return f"{most}{steps.steps:,} steps, {epochs} of {steps.rows:,} rows{read}{fewer}"


def _memory_parts(report: PlanReport) -> Iterator[str]:
    memory = report.memory_on(report.plan.placement.shape)
    if memory is None:
        return
    each = "JAX device" if report.plan.mesh.devices > report.plan.chips else "chip"
    usable = "unknown memory" if memory.usable is None else size(memory.usable)
    state = f"parameters and optimizer {size(memory.state)}"
    if memory.too_small:
        yield f"{state}: more than the {usable} of a {each}"
    elif memory.parts is None:
        policy = report.plan.engine_overrides["remat_policy"]
        yield f"{state} of the {usable} of a {each}; the rest is not known with remat policy {policy}"
    else:
        names = {"reference": "reference model"}
        parts = asdict(memory.parts).items()
        known = ", ".join(f"{names.get(name, name)} {size(value)}" for name, value in parts if value)
        if memory.headroom is None:
            headroom = "headroom unknown"
        elif memory.headroom >= 0:
            headroom = f"headroom {size(memory.headroom)}"
        else:
            headroom = f"{size(-memory.headroom)} too much"
        yield f"{size(memory.parts.peak)} of the {usable} of a {each} at the peak, {headroom}: {known}"
        remat = f"remat policy {memory.remat}"
        if memory.remat == "offload":
            remat = "the layers' inputs in the host's memory"
        pieces = f", logits in {memory.pieces} pieces" if memory.pieces > 1 else ""
        yield f"with {remat}{pieces}; an estimate, in most cases within {MEDIAN_ERROR} % of the compiler"


def _time(report: PlanReport) -> Iterator[str]:
    if report.step_seconds is None:
        return
    step = f"at least {_seconds(report.step_seconds)} a step"
    if report.steps is not None and report.training_seconds is not None:
        total = f"at least {duration(report.training_seconds)}"
        if report.steps.at_most:
            step = f"{step}, {total} for all of them"
        else:
            step = f"{total} for {report.steps.steps:,} steps, {step}"
    yield f"{step}: the arithmetic at the chips' published rate; training alone"


def _past(report: PlanReport) -> Iterator[str]:
    past, total, plan = report.past, report.past_seconds, report.plan
    same = "with this model, method, length, batch and slice"
    if not report.reads_past:
        return
    if past is None:
        enough = " and enough steps" if report.steps is not None else ""
        yield f"none of the last {DAYS} days in the ledger {same}{enough}"
        return
    yield f"{_seconds(past.median)} a step ({_seconds(past.low)} to {_seconds(past.high)})"
    if total is not None and report.steps is not None:
        low, middle, high = map(duration, total)
        most = "at most " if report.steps.at_most else ""
        yield f"{middle} ({low} to {high}) for {most}{report.steps.steps:,} steps"
    price = plan.placement.chip_hour_price
    if total is not None and price is not None:
        low, middle, high = (f"{report.chip_hours(seconds) * price:,.2f}" for seconds in total)
        yield f"{middle} {plan.currency} ({low} to {high}): that time at the profile's chipHourPrice"
    attempts = f"{past.attempts} attempt{'' if past.attempts == 1 else 's'}"
    jobs = f"{past.jobs} job{'' if past.jobs == 1 else 's'}"
    made = f"{past.fewest_steps:,}"
    if past.most_steps != past.fewest_steps:
        made += f" to {past.most_steps:,}"
    yield f"median and range of {jobs} of {made} steps ({attempts}) {same} in the ledger, of the last {DAYS} days;"
    yield "a job's running time, with starts, compilation, checkpoints and repeated steps, is divided by its steps"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else duration(value)


def _money(report: PlanReport) -> Iterator[tuple[str, Sequence[str]]]:
    plan = report.plan
    if plan.placement.chip_hour_price is not None:
        price = exact(plan.placement.chip_hour_price)
        cost = f"{money(price * plan.chips)} {plan.currency} per hour"
        yield "Price", [f"{cost} ({plan.chips} chips x {money(price)})"]
        if report.training_seconds is not None and report.steps is not None:
            hours = report.chip_hours(report.training_seconds)
            least = f"{hours * plan.placement.chip_hour_price:,.2f} {plan.currency}"
            all_steps = " if all steps are needed" if report.steps.at_most else ""
            yield "Cost", [f"at least {least}{all_steps}: that time at the profile's chipHourPrice"]
    ceilings = ((plan.budget.chip_hours, "chip hours"), (plan.budget.cost, plan.currency))
    limits = [f"at most {each.most:.10g} {unit} ({each.path})" for each, unit in ceilings if each is not None]
    budget = [", ".join(limits)] if limits else []
    if report.monthly_chip_hours is not None:
        monthly = f"{report.monthly_chip_hours:.10g} chip hours in each month for all jobs of the namespace together"
        budget.append(f"{monthly} (constraints.chipHoursPerMonth)")
    yield "Budget", budget


def _checkpoints(plan: Plan) -> str:
    saved = plan.checkpointing
    every = f"every {saved.every_steps} steps" + (
        f" or {saved.every_seconds} s" if saved.every_seconds else ""
    )
    best = f" and the best {saved.keep_best}" if saved.keep_best else ""
    exported = "the best" if plan.exported_checkpoint == "Best" else "the last"
    return f"{every}; the last {saved.keep_last}{best} are kept, {exported} is exported"


def _host_memory(report: PlanReport) -> str:
    most, pool = largest_piece(report.plan), report.plan.cpu_pool
    need = (
        "Convert and Export need memory for the model's largest piece (a tensor, in most models the embeddings, or one "
        "projection of all experts of a layer)"
    )
    if most is None:
        need += ", which Preflight reads"
    else:
        limit = f"cpuPool.maxMemory {pool.max_memory}"
        need += f"; {limit} is enough for one of {most / 1e9:.2f} billion parameters, and Preflight checks it"
    return _by_stage({each.stage: each.memory_gib for each in report.cpu}, need)


def _disk(report: PlanReport) -> str:
    most = report.plan.cpu_pool.max_ephemeral_storage
    need = "Convert and Export need scratch space for weights and the exported model"
    if most is None:
        need += ", whose sizes Preflight reads"
    else:
        limit = f"cpuPool.maxEphemeralStorage {most}"
        need += f"; {limit} is the most that each may request, and Preflight checks it"
    return _by_stage({each.stage: each.disk_gib for each in report.cpu}, need)


def _by_stage(sizes: Mapping[Stage, int | None], otherwise: str) -> str:
    """Returns the GiB of each stage if all are known."""
    if None in sizes.values():
        return otherwise
    return ", ".join(f"{stage} {size} GiB" for stage, size in sizes.items())


def _memory(plan: Plan) -> str:
    if plan.memory is None:
        return "not checked (preflight.memory: Off)"
    if plan.memory.source == "Analytic":
        return "Preflight adds up the sizes of parameters and optimizer state before a slice is claimed"
    return "Preflight compiles the train step and all other programs of the job for the slice, before one is claimed"


def _slices(plan: Plan) -> str:
    return f"{plan.mesh.slices} x " if plan.mesh.slices > 1 else ""


def _controller(plan: Plan) -> Iterator[str]:
    pathways = plan.pathways
    if pathways is None:
        yield "McJAX: a JAX process on every host"
        return
    yield "Pathways: one JAX process on a CPU node, the head, over all slices"
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
    for name, info in options_of(MethodType(method.type)).model_fields.items():
        value = getattr(method, name)
        if isinstance(value, float):
            words = re.sub(r"(?=[A-Z])", " ", str(info.alias)).lower()
            yield f"{words} {value:g}"
    if isinstance(method, PreferenceMethod):
        yield f"prompts up to {method.max_prompt_length} tokens"


def _model(plan: Plan) -> str:
    if plan.lineage is not None:
        return f"{_of_any_uid(plan.model.address)}, which FineTuneJob {plan.lineage['name']} exports"
    hub = plan.model.hugging_face
    return f"{hub.repo} at {hub.revision}" if hub else plan.model.address


def _of_any_uid(uri: str) -> str:
    """Returns a run folder's URI with a placeholder for the uid that the API server assigns."""
    return uri.replace(f"-{UNKNOWN_UID[:8]}", "-<uid>")


def _dataset(source: DatasetSpec) -> str:
    where = f"{source.hugging_face.repo}, split {source.split}" if source.hugging_face else str(source.uri)
    weight = f", weight {source.weight:g}" if source.weight is not None else ""
    return f"{where} ({source.format}{weight})"


def _template(plan: Plan) -> Iterator[str]:
    """Yields the lines of the job's own chat template, with what JSON became."""
    lines = (plan.data.chat_template or "").splitlines()
    yield from map(str, map(plain, lines[:_TEMPLATE_LINES]))
    if len(lines) > _TEMPLATE_LINES:
        yield f"and {len(lines) - _TEMPLATE_LINES} more lines; -o json has all"


def _later(jobset: Object) -> list[str]:
    annotation = jobset["metadata"].get("annotations", {}).get(KNOWN_LATER_ANNOTATION, "")
    return [note for note in annotation.split("; ") if note]
