"""Formats the status of a job as one page, from the object alone. Pure: callers pass the current time."""

from collections.abc import Iterator
from datetime import datetime

from rich.text import Text

from finetune_operator.cli import text
from finetune_operator.cli.job_status import is_current, phase_of, status_of
from finetune_operator.cli.jobs.stage_view import stage_lines
from finetune_operator.cli.monthly_budget import budget_text
from finetune_operator.objects import Object

type Row = tuple[str, str, str]
"""Label, value and style. A row without a value is left out."""

_PHASES = {
    "Succeeded": "green",
    "Planned": "green",
    "Failed": "red",
    "Suspended": "yellow",
    "Recovering": "yellow",
}
_LABEL = 12


def status_lines(job: Object, now: datetime) -> list[Text]:
    """Returns the page that ``finetune status`` prints, one text per line. Durations and waits count until ``now``."""
    job = {key: text.plain(job.get(key) or {}) for key in ("metadata", "spec", "status")}
    status = status_of(job)
    overview = [*_head(job, status), Text(), *stage_lines(status, now)]
    details = [_line(*row) for row in _details(job, status, now) if row[1]]
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


def _line(label: str, value: str, style: str) -> Text:
    line = Text()
    line.append(f"{label:<{_LABEL}}", "dim")
    line.append(text.printable(value), style)
    return line


def _details(job: Object, status: Object, now: datetime) -> Iterator[Row]:
    waiting, expected = status.get("waiting") or {}, status.get("estimate") or {}
    resolved, curve = status.get("resolved") or {}, (status.get("progress") or {}).get("curve") or {}
    yield "Waiting", _once(waiting_text(status, now), waiting.get("message"), status), "yellow"
    if not waiting:  # That row states the problem already.
        problem = problem_text(status)
        yield "Problem", _once(problem, problem.partition(": ")[2], status), "yellow"
    yield "Attempts", attempts_text(status), ""
    yield "Speed", _speed(status.get("progress") or {}, resolved), ""
    if status.get("phase") not in {"Succeeded", "Failed"}:
        yield "Memory", _memory(resolved.get("memory") or {}), ""
        yield "Estimate", _estimate(expected), ""
        yield "Past runs", _past_runs(expected.get("pastRuns")), ""
    yield "Cost", _cost(status), ""
    yield "Budget", budget_text(status.get("monthlyBudget") or {}, now), ""
    if line := curve.get("sparkline"):
        yield "Curve", f"{line}  {curve.get('metric', '')}", ""
    yield from _evaluation(status.get("evaluation") or {})
    yield from _resolved(job, resolved)
    yield from _artifacts(status)
    yield from _failure(status)
    yield "Next", _next(job, status), ""


def waiting_text(status: Object, now: datetime) -> str:
    """Returns why and for how long the job has been waiting; empty if it is not waiting."""
    waiting = status.get("waiting") or {}
    if not waiting.get("reason"):
        return ""
    since = text.elapsed(waiting.get("since"), None, now)
    duration = f" for {text.duration(since.total_seconds())}" if since else ""
    return f"{waiting['reason']}{duration}: {waiting.get('message', '')}".rstrip(": ")


def _once(line: str, message: str | None, status: Object) -> str:
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


def _speed(progress: Object, resolved: Object) -> str:
    """Returns step time, trained tokens per second and chip, and MFU of the last steps, as far as they are known."""
    times, rate = progress.get("stepTimeMilliseconds") or {}, progress.get("tokensPerSecond")
    chips, mfu = (resolved.get("resources") or {}).get("chips"), progress.get("mfuPercent")
    parts = []
    if times.get("p50") and times.get("p95"):
        median, most = (text.step_time(times[name] / 1000) for name in ("p50", "p95"))
        parts.append(f"step {median} (p50), {most} (p95)")
    if rate and chips:
        parts.append(f"{text.count(float(rate) / chips)} trained tokens/s per chip")
    if mfu:
        parts.append(f"MFU {text.number(mfu, 1)} %")
    return ", ".join(parts)


def _memory(memory: Object) -> str:
    """Returns the estimated memory of training on each chip; empty if it is unknown."""
    quantities = [str(memory.get(f"{name}PerChip") or "") for name in ("estimated", "state", "limit")]
    if not (quantities[0] and quantities[2]):
        return ""
    sizes = [_bytes(each) for each in quantities]
    need, _, limit = (
        each if size is None else text.size(size) for each, size in zip(quantities, sizes, strict=True)
    )
    shown = f"{need} of {limit} on each chip ({memory.get('source', '')})"
    peak, held, most = sizes
    if peak is None or held is None or most is None:
        return shown
    return (
        f"{shown}: parameters and optimizer {text.size(held)}, gradients, activations and logits "
        f"{text.size(max(0, peak - held))}, headroom {text.size(max(0, most - peak))}"
    )


def _bytes(quantity: str) -> float | None:
    """Returns the size of a quantity in mebibytes, as the operator writes it; None for any other."""
    number = quantity.removesuffix("Mi")
    known = quantity.endswith("Mi") and number.isdecimal() and number.isascii()
    return float(number) * 2**20 if known else None


def _estimate(expected: Object) -> str:
    seconds = expected.get("durationSeconds")
    return ", ".join(_usage(expected, f"training {_range(seconds)}", "at most ")) if seconds else ""


def _past_runs(past: Object | None) -> str:
    if not past:
        return ""
    time = ""
    if (seconds := past.get("durationSeconds")) and (middle := past.get("medianSeconds")) is not None:
        time = f"training {text.duration(middle)} ({_range(seconds)})"
    attempts, jobs = past.get("attempts", 0), past.get("jobs", 0)
    of = f"{attempts} attempt{'' if attempts == 1 else 's'} of {jobs} job{'' if jobs == 1 else 's'}"
    return f"{', '.join(_usage(past, time))}; by {of} of the same shape"


def _range(seconds: Object) -> str:
    return f"{text.duration(seconds['low'])} to {text.duration(seconds['high'])}"


def _usage(of: Object, time: str, limit: str = "") -> Iterator[str]:
    """Yields time, chip hours and cost of a training, as far as they are known."""
    if time:
        yield time
    if hours := of.get("chipHours"):
        yield f"{limit}{text.number(hours)} chip hours"
    if (cost := of.get("cost")) and cost != "0":
        yield f"cost {text.number(cost, 2)}"


def _cost(status: Object) -> str:
    """Returns the consumed chip hours and cost, and the goodput: the share of time that advanced the training."""
    cost, percent = status.get("cost") or {}, (status.get("goodput") or {}).get("percent")
    if not cost.get("chipHours"):
        return ""
    parts = [f"{text.number(cost['chipHours'])} chip hours"]
    if amount := cost.get("amount"):
        parts.append(f"{text.number(amount, 2)} {cost.get('currency') or ''}".rstrip())
    if left := cost.get("budgetRemaining"):
        parts.append(f"{text.number(left)} of the budget left")
    if percent:
        parts.append(f"goodput {percent} %")
    return ", ".join(parts)


#: Metric -> label. Other metrics are labeled with their name.
_METRIC_LABELS = {
    "loss": "Loss", "perplexity": "Perplexity", "reward_accuracy": "Preferred", "reward_margin": "Margin",
}  # fmt: skip


def _evaluation(evaluation: Object) -> Iterator[Row]:
    """Yields the metrics, preceded by those of the base model if it was evaluated, the gates and the samples' URI.

    The metrics of a dataset or benchmark are named ``<name>/<metric>``. A gate has no threshold if it is relative to a
    base model that was not evaluated.
    """
    baseline, result = evaluation.get("baseline") or {}, evaluation.get("result") or {}
    for name in result:
        before = f"{text.number(baseline[name])} → " if name in baseline else ""
        shown = f"{before}{text.number(result[name])}"
        if "/" in name:
            yield "Score", f"{name}  {shown}", ""
        else:
            yield _METRIC_LABELS.get(name, name), shown, ""
    for gate in evaluation.get("gates") or ():
        sign = "≥" if gate["op"] == "GreaterOrEqual" else "≤"
        condition = (
            f"{gate['metric']} {sign} {text.number(gate['threshold'])}"
            if "threshold" in gate
            else gate["metric"]
        )
        yield "Gate", f"{condition}: {'met' if gate['passed'] else 'not met'}", ""
    yield "Samples", str(evaluation.get("samplesURI") or ""), ""


def _resolved(job: Object, resolved: Object) -> Iterator[Row]:
    if model := resolved.get("model"):
        parameters = model.get("parameters")
        detail = f"  {text.count(float(parameters))} parameters" if parameters else ""
        made = model.get("fromJob") or {}
        by = f"  (produced by {made['name']} from {made['base']})" if made.get("base") else ""
        yield "Model", f"{model.get('source', '')}{detail}{by}", ""
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
        yield "Data", f"{dataset.get('name', '')}{held_back}  {', '.join(facts)}".rstrip(), ""
    if resources := resolved.get("resources"):
        shape = f"{resources.get('tpu', '')}  {resources.get('topology', '')}"
        hosts = resources.get("hosts")
        where = f", {hosts} host{'s' if hosts != 1 else ''}" if hosts else ""
        why = f"  ({resources['why']})" if resources.get("why") else ""
        yield "TPU", f"{shape}{where}, {resources.get('capacity', '')}{why}", ""
    yield "Run folder", str(resolved.get("runFolder") or ""), ""


def _artifacts(status: Object) -> Iterator[Row]:
    for artifact in status.get("artifacts") or []:
        model = artifact.get("type") in ("HuggingFace", "Adapter")
        facts = [str(artifact.get("type", ""))]
        if artifact.get("sizeBytes"):
            facts.append(text.size(float(artifact["sizeBytes"])))
        label = "Exported" if model else str(artifact.get("name") or "")
        yield label, f"{artifact.get('uri', '')}  {', '.join(facts)}", "bold green" if model else ""


def _failure(status: Object) -> Iterator[Row]:
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
    yield "Failure", _once(head, message, status), "red"
    yield "Fix", str(failure.get("suggestion") or ""), "green"
    yield "Log", str(failure.get("logsURI") or ""), ""


#: Reasons of an end that says itself what comes next, or that no edit of a copy would change.
_SAID = frozenset({"Cancelled", "GateNotMet", "DeadlineExceeded", "BudgetExhausted", "BudgetTooSmall"})


def _next(job: Object, status: Object) -> str:
    """Returns what to do where the cause may be in the spec, most of which cannot be edited."""
    failure = status.get("failure") or {}
    refused = failure.get("class") == "User" and failure.get("reason") not in _SAID
    waits = (status.get("waiting") or {}).get("reason") == "WaitingForInput"
    if not (refused or waits) or job["spec"].get("cancel"):
        return ""
    name = (job["metadata"] or {}).get("name", "NAME")
    otherwise = f"finetune retry {name}" if refused else "it continues by itself"
    return (
        f"to change model, data, method, hyperparameters or profile: finetune init --from {name} --output FILE; "
        f"after another correction: {otherwise}"
    )
