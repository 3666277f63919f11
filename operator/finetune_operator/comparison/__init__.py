"""Compares runs by the records in their run folders. Pure: no I/O, no clock, and a fixed seed."""

from finetune_operator.comparison.compare import MOST_RUNS, compared
from finetune_operator.comparison.errors import NotComparableError
from finetune_operator.comparison.json_lines import ParsedLines, parsed_lines
from finetune_operator.comparison.model import Comparison
from finetune_operator.comparison.records import RunRecords

__all__ = [
    "MOST_RUNS",
    "Comparison",
    "NotComparableError",
    "ParsedLines",
    "RunRecords",
    "compared",
    "parsed_lines",
]
