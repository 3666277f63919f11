"""A comparison as text, by ``compare.txt.j2``, on a terminal of any width."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from finetune_operator.cli.results.compare_page import values_of
from finetune_operator.cli.results.wording import difference_text, reason_text, value_text, verdict_text
from finetune_operator.cli.text import one_line
from finetune_operator.results.comparison.model import Comparison, MetricComparison, Verdict
from finetune_operator.results.pages.document import BELOW, StyledText, render_text

_COLORS = defaultdict(
    lambda: "yellow",
    {Verdict.BETTER: "green", Verdict.WORSE: "red", Verdict.HIGHER: "cyan", Verdict.LOWER: "cyan"},
)
#: Spaces before the rest of a line that is too long, beyond those before the line, and columns that it has at least.
_HANGING, _NARROWEST = 2, 20


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Prints the comparison, wrapped to the width of a terminal; in a pipe, lines are as long as they are."""
    colors = console.is_terminal and console.color_system is not None and not console.no_color
    for parts in comparison_lines(comparison, colors=colors):
        for text in _wrapped(parts, console):
            console.print(text, soft_wrap=True)


def comparison_lines(comparison: Comparison, *, colors: bool) -> Iterator[Sequence[StyledText]]:
    """Yields the lines of the text. ``colors``: whether colors mark differences of answers; otherwise markers do."""
    return render_text(
        "compare.txt.j2",
        one_line,
        **values_of(comparison),
        bases_of=_bases,
        colors=colors,
        colors_of=_COLORS,
        difference=difference_text,
        reason=reason_text,
        verdict=verdict_text,
    )


def _bases(metric: MetricComparison) -> set[str]:
    """Returns the base models' means as shown: the same model gives slightly different ones on another slice."""
    return {value_text(each.baseline) for each in metric.values if each.baseline is not None}


def _wrapped(parts: Sequence[StyledText], console: Console) -> Iterator[Text]:
    """Yields a line; on a terminal that is too narrow the rest of it, indented, as further ones."""
    line, below = Text(), None
    for text, style in parts:
        if style == BELOW:
            below = line.cell_len
        else:
            line.append(text, style)
    if not console.is_terminal or line.cell_len <= console.width:
        yield line
        return
    indent = len(line.plain) - len(line.plain.lstrip(" "))
    further = indent + _HANGING if below is None else below
    inner = max(_NARROWEST, console.width - further)
    for number, part in enumerate(line[indent:].wrap(console, inner, overflow="fold")):
        part.rstrip()
        yield Text(" " * (further if number else indent)) + part
