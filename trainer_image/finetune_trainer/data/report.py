"""The data report: counts, and locations of rows that users should check before they spend TPU hours on the data.

It is also one HTML file without scripts or external resources, in which all text from the data is escaped.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from finetune_contract import Bucket, DataReport, DatasetDetails, DatasetReport, Leak, RowsFound, SampleRow
from finetune_trainer.data.dataset import REPEATED, Dataset, SourceSubset, repeated
from finetune_trainer.data.examples import Int64Array
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.notes import Note

_FIRST = 20
_SAMPLES = 3


def details(piece: SourceSubset, report: DatasetReport) -> DatasetDetails:
    """Returns the details of one source, or of the subset of it that is used."""
    index, chosen = piece.source.index, piece.chosen
    dropped = index.dropped_whole[index.dropped_whole >= 0]
    whole = np.concatenate([index.whole[chosen], dropped if piece.counts_dropped else []]).astype(np.int64)
    return DatasetDetails(
        report=report,
        longest=int(whole.max(initial=0)),
        p50=_percentile(whole, 50),
        p95=_percentile(whole, 95),
        histogram=histogram(whole),
        found=[found for found in _found(piece) if found.count],
        unread=index.unread_values() if piece.counts_dropped else [],
        unread_more=index.unread_more if piece.counts_dropped else 0,
    )


def histogram(lengths: Int64Array) -> list[Bucket]:
    """Returns counts of lengths in buckets that end at powers of two, without empty buckets at both ends."""
    if not len(lengths):
        return []
    exponents = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    counts = np.bincount(exponents)
    return [
        Bucket(up_to=2**exponent, rows=int(counts[exponent]))
        for exponent in range(int(exponents.min()), len(counts))
    ]


def _percentile(lengths: Int64Array, percent: int) -> int:
    return int(np.percentile(lengths, percent, method="higher")) if len(lengths) else 0


def _found(piece: SourceSubset) -> Iterator[RowsFound]:
    index, chosen = piece.source.index, piece.chosen
    for why, which in index.dropped().items() if piece.counts_dropped else ():
        yield _rows_found(f"dropped: {why}", index.said_places, which)
    yield _rows_found(f"dropped: {REPEATED}", index.places, piece.repeated)
    for what, which in index.noted(chosen).items():
        yield _rows_found(what, index.said_places, which)
    rows, contents = index.row_contents(chosen)
    yield _rows_found(Note.SPLIT, index.places, chosen[rows[np.diff(rows, append=len(chosen)) > 1]])
    yield _rows_found("equal to an earlier row", index.places, chosen[rows[repeated(contents)]])


def _rows_found(kind: str, places: Callable[[Int64Array], list[str]], which: Int64Array) -> RowsFound:
    return RowsFound(kind=kind, count=len(which), first=places(which[:_FIRST]))


def leaks(train: Dataset, validation: Sequence[Dataset]) -> list[Leak]:
    """Returns validation rows and prompts that also occur in the training data."""
    found = []
    for checked in validation:
        for piece in checked.pieces:
            index, chosen = piece.source.index, piece.chosen
            for trained in train.pieces:
                other, taken = trained.source.index, trained.chosen
                same = np.isin(index.content[chosen], other.content[taken])
                prompts = index.prompt[chosen]
                asked = np.isin(prompts, other.prompt[taken]) & (prompts != 0) & ~same
                if same.any() or asked.any():
                    found.append(
                        Leak(
                            validation=checked.name,
                            train=trained.source.spec.name,
                            same_rows=_rows_found("same row", index.places, chosen[same]),
                            same_prompts=_rows_found("same prompt", index.places, chosen[asked]),
                        )
                    )
    return found


def samples(piece: SourceSubset, tokenizer: Any) -> list[SampleRow]:
    taken = piece.chosen[:_SAMPLES]
    rows = []
    for number, place in zip(taken.tolist(), piece.source.index.places(taken), strict=True):
        tokens = piece.source.tokens.read(number)
        rows.append(
            SampleRow(
                dataset=piece.source.spec.name,
                row=place,
                tokens=len(tokens),
                trained=int(tokens.trained.sum()),
                pieces=pieces(tokens, tokenizer),
            )
        )
    return rows


def pieces(tokens: TokenizedExample, tokenizer: Any) -> list[tuple[bool, str]]:
    """Returns the text as consecutive pieces (trained, text)."""
    ends = [*(np.flatnonzero(np.diff(tokens.trained)) + 1).tolist(), len(tokens)]
    starts = [0, *ends[:-1]]
    return [
        (bool(tokens.trained[start]), tokenizer.decode(tokens.ids[start:end].tolist()))
        for start, end in zip(starts, ends, strict=True)
    ]


def render(found: DataReport) -> str:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["count"] = lambda number: f"{number:,}"
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    template = environment.from_string(
        files("finetune_trainer.data").joinpath("page.html.j2").read_text("utf-8")
    )
    text: str = template.render(found=found)
    return text


def samples_jsonl(found: DataReport) -> str:
    """Returns the rendered sample rows, one JSON object per line, with trained parts enclosed in ⟦⟧."""
    lines = [
        {
            "dataset": row.dataset,
            "row": row.row,
            "text": "".join(f"⟦{text}⟧" if trained else text for trained, text in row.pieces),
            "tokens": row.tokens,
            "trained": row.trained,
        }
        for row in found.samples
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
