"""What preflight found in the data (``preflight/data.json``; ``data.html`` shows the same)."""

from typing import Literal

from finetune_contract.base import Record, Version
from finetune_contract.result import BenchmarkReport, DataCacheUse, DatasetReport


class Bucket(Record):
    """Rows of more than the bucket's before and of at most ``up_to`` tokens, before anything is cut."""

    up_to: int
    rows: int


class RowsFound(Record):
    """Rows of one kind: how many, and where the first ones stand."""

    kind: str
    count: int
    first: list[str] = []
    """At most 20, as ``row 41``, or ``b.jsonl row 2`` where there are several files."""


class DatasetDetails(Record):
    report: DatasetReport
    longest: int = 0
    """Tokens, before anything is cut."""
    p50: int = 0
    p95: int = 0
    histogram: list[Bucket] = []
    found: list[RowsFound] = []
    """Cut, dropped (by reason), equal to an earlier row."""


class Leak(Record):
    """Validation rows that stand in the training data, too."""

    validation: str
    train: str
    same_rows: RowsFound
    same_prompts: RowsFound
    """Other answers to the same prompt."""


class SampleRow(Record):
    """One row as it is trained: its text in pieces, and whether each counts towards the loss."""

    dataset: str
    row: str
    tokens: int
    trained: int
    pieces: list[tuple[bool, str]]


class Remark(Record):
    """Something worth a look. ``Problem``: it very likely makes the result worse."""

    level: Literal["Problem", "Note"]
    text: str


class DataReport(Record):
    version: Version = 1
    job: str
    max_seq_length: int
    packing: bool
    checked: Literal["Full", "Sample", "Off"]
    epochs: float | None = None
    """What was asked for; None: steps were."""
    steps: int
    global_batch_size: int
    epoch_sequences: int | None = None
    """Sequences that one epoch shows."""
    epochs_shown: float | None = None
    """What the steps come to."""
    remarks: list[Remark] = []
    train: list[DatasetDetails] = []
    validation: list[DatasetDetails] = []
    evaluation: list[DatasetDetails] = []
    """Of evaluation.datasets."""
    benchmarks: list[BenchmarkReport] = []
    leaks: list[Leak] = []
    samples: list[SampleRow] = []
    prepared: list[DataCacheUse] = []
