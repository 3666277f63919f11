"""Speed, time and cost on the page of a report."""

from collections.abc import Iterator, Mapping

from finetune_operator.cli import text
from finetune_operator.pages.axis import number_text
from finetune_operator.pages.bars import Bar, bar_chart
from finetune_operator.pages.markup import Markup
from finetune_operator.report.model import Throughput, TimeAndCost


def speed(found: Throughput) -> Iterator[tuple[str, str]]:
    """Yields name and value of what is known of speed and memory."""
    if found.median_step_seconds is not None:
        slow = found.p95_step_seconds
        more = [f"95 % within {_seconds(slow)}"] if slow is not None else []
        more += [f"the slowest {_seconds(found.slowest_step_seconds)}"] if found.slowest_step_seconds else []
        yield "Step", ", ".join([f"{_seconds(found.median_step_seconds)} (median)", *more])
    if found.tokens_per_second is not None:
        yield "Trained tokens per second", number_text(found.tokens_per_second)
    if found.mfu is not None:
        yield "MFU", f"{number_text(100 * found.mfu)} % of the chips' published rate, in the last steps"
    if found.peak_memory_bytes is not None:
        yield "Peak memory", f"{text.size(found.peak_memory_bytes)} on one chip"
    if found.compilations is not None:
        yield "Compiled programs", f"{found.compilations:,}"


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else text.duration(seconds)


def costs(usage: TimeAndCost, *, ended: bool) -> Iterator[tuple[str, str]]:
    """Yields name and value of the totals. ``ended``: whether the job has ended."""
    if usage.cost:
        yield "Cost", money(usage.cost, usage.currency)
    if usage.chip_hours:
        yield "Chip hours", usage.chip_hours
    if usage.budget_remaining:
        yield "Budget left", usage.budget_remaining
    if usage.seconds is not None:
        yield f"From admission {'to the end' if ended else 'until this report'}", text.duration(usage.seconds)
    if usage.running_seconds is not None:
        yield "Of that, running", text.duration(usage.running_seconds)
    if usage.goodput_percent:
        yield (
            "Goodput",
            f"{usage.goodput_percent} % of the time that the training measured; saving is not among it",
        )


def money(amount: str, currency: str | None) -> str:
    """Formats an amount, which is a decimal."""
    return f"{amount} {currency}" if currency else amount


def time_chart(usage: TimeAndCost) -> Markup:
    """Returns the parts of the time as bars."""
    whole = sum(part.seconds for part in usage.parts)
    bars = [
        Bar(
            name=part.name,
            value=part.seconds,
            text=f"{text.duration(part.seconds)}, {100 * part.seconds / whole:.0f} %",
        )
        for part in usage.parts
    ]
    return bar_chart(bars, title="Where the time went")


def chips(usage: TimeAndCost) -> Iterator[Mapping[str, str]]:
    """Yields chip hours and cost of each part that has held chips, of the rest, and of all."""
    parts = [part for part in usage.parts if part.chip_hours is not None]
    if not parts or usage.chip_hours is None:
        return
    rows = [(part.name, part.chip_hours or 0.0, part.cost) for part in parts]
    rest = float(usage.chip_hours) - sum(hours for _, hours, _ in rows)
    if rest > 0:
        spent = None if usage.cost is None else float(usage.cost) - sum(cost or 0.0 for _, _, cost in rows)
        rows.append(("not divided: starts, saving, ends", rest, spent))
    for name, hours, cost in rows:
        yield {
            "name": name,
            "hours": number_text(hours),
            "cost": "–" if cost is None else money(number_text(max(0.0, cost)), usage.currency),
        }
    yield {
        "name": "all",
        "hours": usage.chip_hours,
        "cost": money(usage.cost, usage.currency) if usage.cost else "–",
    }
