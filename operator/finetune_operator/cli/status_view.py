"""Formats the status of a job as one page, from the object alone. Pure: callers pass the current time."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.text import Text

from finetune_contract import Stage
from finetune_operator.cli import stage_progress, text
from finetune_operator.cli.monthly_budget import budget_text

type Object = Mapping[str, Any]

_MARKS = {
    "Pending": ("·", "dim"),
    "Running": ("▶", "cyan"),
    "Succeeded": ("✓", "green"),
    "Failed": ("✗", "red"),
    "Skipped": ("–", "dim"),
}
_PHASES = {
    "Succeeded": "green",
    "Planned": "green",
    "Failed": "red",
    "Suspended": "yellow",
    "Recovering": "yellow",
}
_SKIPPED = {
    "NotRequested": "not requested",
    "NotReached": "",
    "ProvidedCheckpoint": "given as a MaxText checkpoint",
}
_LABEL = 12
#: Final phases.
ENDED = frozenset({"Succeeded", "Planned", "Failed"})


def status_of(job: Object) -> Object:
    """Returns the job's status; empty if the operator has not observed any generation of the job."""
    status: Object = job.get("status") or {}
    return status if int(status.get("observedGeneration", -1)) >= 0 else {}


def phase_of(job: Object) -> str:
    return str(status_of(job).get("phase") or "Pending")


def is_current(job: Object) -> bool:
    """Whether the status is that of the job's current generation."""
    generation = int(job.get("metadata", {}).get("generation", 0))
    return int(status_of(job).get("observedGeneration", -1)) >= generation


def ended(job: Object) -> bool:
    """Whether the job has ended, and has not been edited since."""
    return is_current(job) and phase_of(job) in ENDED


def run_folder(job: Object) -> str:
    """Returns the run folder of a job that has had an attempt; empty if it has had none."""
    status = status_of(job)
    folder = (status.get("resolved") or {}).get("runFolder") or ""
    return text.one_line(folder) if (status.get("attempts") or {}).get("total") else ""


def status_lines(job: Object, now: datetime) -> list[Text]:
    """Returns the page that ``finetune status`` prints, one text per line. Durations and waits count until ``now``."""
    job = {key: text.plain(job.get(key) or {}) for key in ("metadata", "spec", "status")}
    status = status_of(job)
    overview = [*_head(job, status), Text(), *_stages(status, now)]
    details = [
        *_waiting(status, now),
        *_problems(status),
        *_attempts(status),
        *_expected(status),
        *_cost(status),
        *_monthly_budget(status, now),
        *_curve(status),
        *_evaluation(status),
        *_resolved(job, status),
        *_artifacts(status),
        *_failure(status),
        *_next(job, status),
    ]
    return [*overview, Text(), *details] if details else overview


def _head(job: Object, status: Object) -> Iterator[Text]:
    metadata = job.get("metadata", {})
    phase = phase_of(job)
    head = Text()
    head.append(str(metadata.get("name", "")), "bold")
    head.append(f"  {metadata.get('namespace', '')}  ", "dim")
    head.append(phase, f"bold {_PHASES.get(phase, 'cyan')}")
    yield head
    # An error before the first observation leaves a summary and no observed generation.
    if summary := (job.get("status") or {}).get("summary"):
        yield Text(text.printable(str(summary)))
    elif not status:
        yield Text("The operator has not observed this job yet.", "dim")
    elif not is_current(job):
        yield Text("The job was edited; the operator has not observed the edit yet.", "dim")


def _stages(status: Object, now: datetime) -> Iterator[Text]:
    known = {stage.get("name"): stage for stage in status.get("stages") or []}
    for name in Stage:
        stage = known.get(name) or {"name": name, "phase": "Pending"}
        phase = str(stage.get("phase") or "Pending")
        mark, style = _MARKS.get(phase, ("?", ""))
        line = Text()
        line.append(f"{mark} ", style)
        line.append(f"{name:<10}", "" if phase != "Pending" else "dim")
        spent = text.elapsed(stage.get("startTime"), stage.get("completionTime"), now)
        line.append(f"{text.duration(spent.total_seconds()) if spent else '':>12}  ", "dim")
        line.append(text.printable("  ".join(stage_notes(stage, status))))
        line.rstrip()
        yield line
        if (progress := stage_progress.running(stage)) and (doing := stage_progress.activity(progress, now)):
            yield Text(f"  {doing}", "dim")


def mark(phase: str) -> str:
    """Returns the symbol of a stage's phase."""
    return _MARKS.get(phase, ("?", ""))[0]


def stage_notes(stage: Object, status: Object) -> Iterator[str]:
    """Yields notes on one stage in addition to its phase and duration."""
    phase = stage.get("phase")
    cache = stage.get("cache") or {}
    if cache.get("result") == "Hit":
        saved = cache.get("savedSeconds")
        yield f"reused from the cache{f', saved {text.duration(float(saved))}' if saved else ''}"
    elif cache.get("missBecause"):
        yield f"cache miss: {'; '.join(map(str, cache['missBecause']))}"
    if (attempt := stage.get("attempt") or 1) > 1:
        yield f"attempt {attempt}"
    if stage.get("resumedFromStep"):
        yield f"resumed from step {stage['resumedFromStep']}"
    yield from stage_progress.counts(stage_progress.running(stage))
    if stage.get("name") == "Train" and phase in ("Running", "Succeeded", "Failed"):
        yield from progress_notes(status, running=phase == "Running")
    elif phase == "Skipped":
        yield _SKIPPED.get(str(stage.get("reason")), str(stage.get("reason") or ""))
    elif phase == "Failed" and stage.get("reason"):
        yield str(stage["reason"])


def progress_notes(status: Object, *, running: bool) -> Iterator[str]:
    """Yields the training's progress bar, steps, loss, speed and ETA."""
    progress = status.get("progress") or {}
    step, total = progress.get("step"), progress.get("totalSteps")
    if step is None or not total:
        return
    if running:
        yield text.bar(float(step), float(total))
    yield str(progress.get("stepText") or f"{step}/{total}")
    if (loss := text.metric(status, "loss")) is not None:
        yield f"loss {text.number(loss)}"
    if running and (speed := progress.get("tokensPerSecond")):
        yield f"{text.count(float(speed))} tokens/s"
    if running and (eta := progress.get("etaText")):
        yield f"{eta} left"


def _row(label: str, value: str, style: str = "") -> Text:
    line = Text()
    line.append(f"{label:<{_LABEL}}", "dim")
    line.append(text.printable(value), style)
    return line


def waiting_text(status: Object, now: datetime) -> str:
    """Returns why and for how long the job has been waiting; empty if it is not waiting."""
    waiting = status.get("waiting") or {}
    if not waiting.get("reason"):
        return ""
    since = text.elapsed(waiting.get("since"), None, now)
    duration = f" for {text.duration(since.total_seconds())}" if since else ""
    return f"{waiting['reason']}{duration}: {waiting.get('message', '')}".rstrip(": ")


def _waiting(status: Object, now: datetime) -> Iterator[Text]:
    if line := waiting_text(status, now):
        message = str((status.get("waiting") or {}).get("message", ""))
        yield _row("Waiting", _once(line, message, status), "yellow")


def _once(line: str, message: str, status: Object) -> str:
    """Returns ``line`` without the message if the summary already contains it."""
    if message and message in str(status.get("summary", "")):
        return line.replace(message, "").rstrip(": ")
    return line


def problem_text(status: Object) -> str:
    """Returns the first condition that blocks the job although it has not failed; empty if there is none."""
    if status.get("failure"):
        return ""
    for condition in status.get("conditions") or []:
        blocking = condition.get("type") in ("Valid", "DataReady", "MemoryFits", "ExportProven")
        if blocking and condition.get("status") == "False":
            return f"{condition.get('reason')}: {condition.get('message')}"
    return ""


def _problems(status: Object) -> Iterator[Text]:
    line = problem_text(status)
    # If the job waits, the line about waiting already states the problem.
    if line and not status.get("waiting"):
        reason, _, message = line.partition(": ")
        yield _row("Problem", _once(f"{reason}: {message}", message, status), "yellow")


def attempts_text(status: Object) -> str:
    """Returns the number of attempts and failures, ``2 (1 preemption)``; empty if there were no failures."""
    attempts = status.get("attempts") or {}
    parts = [
        f"{attempts[key]} {word}"
        for key, word in (
            ("preemption", "preemption"),
            ("infrastructure", "infrastructure"),
            ("user", "user error"),
        )
        if attempts.get(key)
    ]
    return f"{attempts.get('total')} ({', '.join(parts)})" if parts else ""


def _attempts(status: Object) -> Iterator[Text]:
    if line := attempts_text(status):
        yield _row("Attempts", line)


def _expected(status: Object) -> Iterator[Text]:
    """Yields the estimated memory, duration and cost of training until the job has finished."""
    if status.get("phase") in {"Succeeded", "Failed"}:
        return
    if memory := (status.get("resolved") or {}).get("memory") or {}:
        need, limit = memory.get("estimatedPerChip"), memory.get("limitPerChip")
        if need and limit:
            by = memory.get("source", "")
            detail = _memory_parts(need, memory.get("statePerChip"), limit)
            yield _row("Memory", f"{_gibibytes(need)} of {_gibibytes(limit)} on each chip ({by}){detail}")
    expected = status.get("estimate") or {}
    if seconds := expected.get("durationSeconds"):
        low, high = text.duration(seconds["low"]), text.duration(seconds["high"])
        parts = [f"training {low} to {high}"]
        if hours := expected.get("chipHours"):
            parts.append(f"at most {text.number(hours)} chip hours")
        if (cost := expected.get("cost")) and cost != "0":
            parts.append(f"cost {text.number(cost, 2)}")
        yield _row("Estimate", ", ".join(parts))
    if past := expected.get("pastRuns"):
        yield _row("Past runs", _past_runs(past))


def _past_runs(past: Object) -> str:
    parts = []
    if (seconds := past.get("durationSeconds")) and (middle := past.get("medianSeconds")) is not None:
        low, high = text.duration(seconds["low"]), text.duration(seconds["high"])
        parts.append(f"training {text.duration(middle)} ({low} to {high})")
    if hours := past.get("chipHours"):
        parts.append(f"{text.number(hours)} chip hours")
    if (cost := past.get("cost")) and cost != "0":
        parts.append(f"cost {text.number(cost, 2)}")
    attempts, jobs = past.get("attempts", 0), past.get("jobs", 0)
    of = f"{attempts} attempt{'' if attempts == 1 else 's'} of {jobs} job{'' if jobs == 1 else 's'}"
    return f"{', '.join(parts)}; by {of} of the same shape"


def _memory_parts(need: str, state: str | None, limit: str) -> str:
    """Returns the parts of ``need`` and what is left of ``limit``, to follow on a text; empty if they are not known."""
    sizes = [_mebibytes(each or "") for each in (need, state, limit)]
    if None in sizes:
        return ""
    peak, held, most = (float(each or 0) * 2**20 for each in sizes)
    rest, headroom = text.size(max(0, peak - held)), text.size(max(0, most - peak))
    return (
        f": parameters and optimizer {text.size(held)}, gradients, activations and logits {rest}, "
        f"headroom {headroom}"
    )


def _gibibytes(quantity: str) -> str:
    """Formats a quantity in mebibytes, as the operator writes it; returns any other quantity unchanged."""
    size = _mebibytes(quantity)
    return quantity if size is None else text.size(float(size) * 2**20)


def _mebibytes(quantity: str) -> int | None:
    number = quantity.removesuffix("Mi")
    return int(number) if quantity.endswith("Mi") and number.isdecimal() and number.isascii() else None


def _cost(status: Object) -> Iterator[Text]:
    """Yields the consumed chip hours and cost, and the goodput: the share of time that advanced the training."""
    cost, percent = status.get("cost") or {}, (status.get("goodput") or {}).get("percent")
    if not cost.get("chipHours"):
        return
    parts = [f"{text.number(cost['chipHours'])} chip hours"]
    if amount := cost.get("amount"):
        parts.append(f"{text.number(amount, 2)} {cost.get('currency') or ''}".rstrip())
    if left := cost.get("budgetRemaining"):
        parts.append(f"{text.number(left)} of the budget left")
    if percent:
        parts.append(f"goodput {percent} %")
    yield _row("Cost", ", ".join(parts))


def _monthly_budget(status: Object, now: datetime) -> Iterator[Text]:
    if line := budget_text(status.get("monthlyBudget") or {}, now):
        yield _row("Budget", line)


def _curve(status: Object) -> Iterator[Text]:
    curve = (status.get("progress") or {}).get("curve") or {}
    if line := curve.get("sparkline"):
        yield _row("Curve", f"{line}  {curve.get('metric', '')}")


#: Metric -> label. Other metrics are labeled with their name.
_METRIC_LABELS = {
    "loss": "Loss", "perplexity": "Perplexity", "reward_accuracy": "Preferred", "reward_margin": "Margin",
}  # fmt: skip


def _evaluation(status: Object) -> Iterator[Text]:
    """Yields the metrics, preceded by those of the base model if it was evaluated, the gates and the samples' URI.

    The metrics of a dataset or benchmark are named ``<name>/<metric>``. A gate has no threshold if it is relative to a
    base model that was not evaluated.
    """
    evaluation = status.get("evaluation") or {}
    baseline, result = evaluation.get("baseline") or {}, evaluation.get("result") or {}
    for name in result:
        before = f"{text.number(baseline[name])} → " if name in baseline else ""
        shown = f"{before}{text.number(result[name])}"
        if "/" in name:
            yield _row("Score", f"{name}  {shown}")
        else:
            yield _row(_METRIC_LABELS.get(name, name), shown)
    for gate in evaluation.get("gates") or ():
        sign = "≥" if gate["op"] == "GreaterOrEqual" else "≤"
        condition = (
            f"{gate['metric']} {sign} {text.number(gate['threshold'])}"
            if "threshold" in gate
            else gate["metric"]
        )
        yield _row("Gate", f"{condition}: {'met' if gate['passed'] else 'not met'}")
    if uri := evaluation.get("samplesURI"):
        yield _row("Samples", str(uri))


def _resolved(job: Object, status: Object) -> Iterator[Text]:
    resolved = status.get("resolved") or {}
    if model := resolved.get("model"):
        parameters = model.get("parameters")
        detail = f"  {text.count(float(parameters))} parameters" if parameters else ""
        made = model.get("fromJob") or {}
        by = f"  (produced by {made['name']} from {made['base']})" if made.get("base") else ""
        yield _row("Model", f"{model.get('source', '')}{detail}{by}")
    split = (job["spec"].get("datasets") or {}).get("splitFromTrain")
    seen = set()
    for dataset in resolved.get("datasets") or []:
        # A source whose rows are split is listed twice: what trains, and what is held back.
        held_back = ", held back" if split and dataset.get("name") in seen else ""
        seen.add(dataset.get("name"))
        facts = [f"{text.count(float(dataset[key]))} {key}" for key in ("rows", "tokens") if dataset.get(key)]
        if dataset.get("droppedRows"):
            facts.append(f"{dataset['droppedRows']} dropped")
        if float(dataset.get("truncatedPercent") or 0) > 0:
            facts.append(f"{dataset['truncatedPercent']} % truncated")
        yield _row("Data", f"{dataset.get('name', '')}{held_back}  {', '.join(facts)}".rstrip())
    if resources := resolved.get("resources"):
        shape = f"{resources.get('tpu', '')}  {resources.get('topology', '')}"
        hosts = resources.get("hosts")
        where = f", {hosts} host{'s' if hosts != 1 else ''}" if hosts else ""
        why = f"  ({resources['why']})" if resources.get("why") else ""
        yield _row("TPU", f"{shape}{where}, {resources.get('capacity', '')}{why}")
    if uri := resolved.get("runFolder"):
        yield _row("Run folder", str(uri))


def _artifacts(status: Object) -> Iterator[Text]:
    for artifact in status.get("artifacts") or []:
        model = artifact.get("type") in ("HuggingFace", "Adapter")
        facts = [str(artifact.get("type", ""))]
        if artifact.get("sizeBytes"):
            facts.append(text.size(float(artifact["sizeBytes"])))
        label = "Exported" if model else str(artifact.get("name") or "")
        yield _row(label, f"{artifact.get('uri', '')}  {', '.join(facts)}", "bold green" if model else "")


def _failure(status: Object) -> Iterator[Text]:
    failure = status.get("failure") or {}
    if not failure:
        return
    where = [str(failure["stage"])] if failure.get("stage") else []
    if failure.get("attempt"):
        where.append(f"attempt {failure['attempt']}")
    message = str(failure.get("message", ""))
    head = (
        f"{failure.get('reason', 'Failed')} ({', '.join([*where, str(failure.get('class', ''))])}): {message}"
    )
    yield _row("Failure", _once(head, message, status), "red")
    if failure.get("suggestion"):
        yield _row("Fix", str(failure["suggestion"]), "green")
    if failure.get("logsURI"):
        yield _row("Log", str(failure["logsURI"]))


#: Reasons of an end that says itself what comes next, or that no edit of a copy would change.
_SAID = frozenset({"Cancelled", "GateNotMet", "DeadlineExceeded", "BudgetExhausted", "BudgetTooSmall"})


def _next(job: Object, status: Object) -> Iterator[Text]:
    """Yields what to do where the cause may be in the spec, most of which cannot be edited."""
    failure = status.get("failure") or {}
    refused = failure.get("class") == "User" and failure.get("reason") not in _SAID
    waits = (status.get("waiting") or {}).get("reason") == "WaitingForInput"
    if not (refused or waits) or job["spec"].get("cancel"):
        return
    name = (job["metadata"] or {}).get("name", "NAME")
    otherwise = f"finetune retry {name}" if refused else "it continues by itself"
    yield _row(
        "Next",
        f"to change model, data, method, hyperparameters or profile: finetune init --from {name} --output FILE; "
        f"after another correction: {otherwise}",
    )
