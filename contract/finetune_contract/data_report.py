"""The report on the data that preflight writes (``preflight/data.json``; ``data.html`` presents the same)."""

from typing import Literal

from finetune_contract.base import Record, Version
from finetune_contract.result import BenchmarkReport, DataCacheUse, DatasetReport


class Bucket(Record):
    """Histogram bucket of row lengths in tokens before truncation.

    Counts rows longer than the previous bucket's ``up_to`` and of at most its own ``up_to`` tokens.
    """

    up_to: int
    rows: int


class RowsFound(Record):
    """Number and first locations of the rows of one kind."""

    kind: str
    count: int
    first: list[str] = []
    """Locations of at most 20 rows: ``row 41``, or ``b.jsonl row 2`` if the source has several files."""


class UnreadValue(Record):
    """Values of a source that nothing reads: a column, a key of messages, or a kind of content parts."""

    name: str
    """Name of the column, or path below it, such as ``messages[].name``."""
    count: int
    """Number of rows, messages or parts that have a value that is neither null nor empty."""
    text: bool
    """Whether any of the values is text."""
    ignored: bool = False
    """Whether the job lists the name in ``columns.ignore``."""
    example: str
    """The first of the values, at most 200 characters."""


class DatasetDetails(Record):
    """One dataset with the distribution of its row lengths and its notable rows."""

    report: DatasetReport
    longest: int = 0
    """Length of the longest row in tokens before truncation; ``p50`` and ``p95`` are percentiles of the same."""
    p50: int = 0
    p95: int = 0
    histogram: list[Bucket] = []
    found: list[RowsFound] = []
    """Truncated rows, dropped rows by reason, and rows equal to an earlier one."""
    unread: list[UnreadValue] = []
    """What the source contains and nothing reads, at most 50 names."""
    unread_more: int = 0
    """Number of values under further names."""


class Leak(Record):
    """Validation rows that also occur in the training data."""

    validation: str
    train: str
    same_rows: RowsFound
    same_prompts: RowsFound
    """Rows with the same prompt and a different answer."""


class SampleRow(Record):
    """One row as it is trained on: pieces of text, each with whether it counts towards the loss."""

    dataset: str
    row: str
    tokens: int
    trained: int
    pieces: list[tuple[bool, str]]


class Remark(Record):
    """A finding to review. A ``Problem`` very likely degrades the result."""

    level: Literal["Problem", "Note"]
    text: str


class DataReport(Record):
    version: Version = 3
    job: str
    max_seq_length: int
    packing: bool
    checked: Literal["Full", "Sample", "Off"]
    epochs: float | None = None
    """Requested number of epochs. None if the job specifies steps."""
    steps: int
    global_batch_size: int
    epoch_sequences: int | None = None
    """Number of sequences in one epoch."""
    epochs_shown: float | None = None
    """Number of epochs that ``steps`` correspond to."""
    end_ids: list[int] | None = None
    """Tokens with which the answers of the training rows end, those of most answers first. None if no row was read."""
    remarks: list[Remark] = []
    train: list[DatasetDetails] = []
    validation: list[DatasetDetails] = []
    evaluation: list[DatasetDetails] = []
    """The datasets of ``evaluation.datasets``."""
    benchmarks: list[BenchmarkReport] = []
    leaks: list[Leak] = []
    samples: list[SampleRow] = []
    prepared: list[DataCacheUse] = []
