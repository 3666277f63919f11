"""A dataset, prepared: found, checked, tokenized and laid out, with the counts that the report shows."""

import hashlib
import itertools
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune_contract import DatasetReport, DatasetSource, ExitCode
from finetune_trainer.data.layout import Rows, TokenFile, lay_out
from finetune_trainer.data.schema import Conversation, Example, Format, checked
from finetune_trainer.data.sources import open_source
from finetune_trainer.data.template import Renderer, Tokens
from finetune_trainer.errors import StageError
from finetune_trainer.storage import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    rows: Rows
    report: DatasetReport
    digest: str
    """sha256 over all tokens and masks: equal digests train and evaluate alike."""


def prepare(
    sources: list[DatasetSource],
    renderer: Renderer,
    store: Store,
    scratch: Path,
    *,
    max_length: int,
    packing: bool,
) -> Dataset:
    """Reads and tokenizes one dataset. Raises ``StageError`` 64, 65, 66, 69 or 77 with what to change."""
    if len(sources) != 1:
        raise StageError(
            ExitCode.BAD_REQUEST,
            "SeveralDatasets",
            "this version trains on one dataset",
            where=sources[1].path,
            saw=f"{len(sources)} datasets",
            expected="one",
            fix="Join the files under one glob.",
        )
    source = open_source(sources[0], store, scratch)
    found_format, examples = checked(source)
    tokens = TokenFile(scratch / f"{source.spec.name}-{uuid.uuid4().hex}.tokens")
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    digest = hashlib.sha256()
    chat = False
    for example in examples:
        counts["seen"] += 1
        chat = isinstance(example, Conversation)
        whole = renderer.tokens(example)
        kept = Tokens(ids=whole.ids[:max_length], trained=whole.trained[:max_length])
        if not kept.trained[1:].any():
            dropped[_why_dropped(whole)] += 1
            continue
        counts["truncated"] += len(kept) < len(whole)
        counts["tokens"] += len(kept)
        counts["trained"] += int(kept.trained[1:].sum())
        digest.update(kept.ids.tobytes() + kept.trained.tobytes())
        tokens.append(kept)
    if not len(tokens):
        raise StageError(
            ExitCode.BAD_DATA,
            "DatasetHasNothingToTrain",
            "no row has a token to train on",
            where=source.spec.path,
            saw=", ".join(f"{number} rows: {why}" for why, number in dropped.items()),
            expected="at least one assistant turn or completion within maxSeqLength",
            fix="Add assistant turns, or raise datasets.maxSeqLength.",
        )
    report = DatasetReport(
        path=source.spec.path,
        name=source.spec.name,
        uri=source.uri,
        revision=source.revision,
        format=_format_name(found_format, chat),
        rows=len(tokens),
        tokens=counts["tokens"],
        trained_tokens=counts["trained"],
        truncated_rows=counts["truncated"],
        dropped_rows=dropped.total(),
        drop_reasons=dict(dropped),
    )
    rows = lay_out(tokens, length=max_length, packing=packing)
    return Dataset(rows=rows, report=report, digest=digest.hexdigest())


def preview(sources: list[DatasetSource], store: Store, scratch: Path, *, rows: int) -> list[Example]:
    """The first examples, without reading further."""
    _, examples = checked(open_source(sources[0], store, scratch))
    return list(itertools.islice(examples, rows))


def read_all(source: DatasetSource, store: Store, scratch: Path) -> Iterator[Example]:
    """Every example of one source, checked."""
    yield from checked(open_source(source, store, scratch))[1]


def _why_dropped(tokens: Tokens) -> str:
    if not tokens.trained.any():
        return "no assistant turn"
    return "nothing to train within maxSeqLength"


def _format_name(found: Format, chat: bool) -> str:
    """``Messages``, ``PromptCompletion``, or ``PromptCompletion of messages``."""
    return f"{found} of messages" if found is Format.PROMPT_COMPLETION and chat else str(found)


def shown(tokens: Tokens, tokenizer: Any) -> dict[str, Any]:
    """An example as people read it: its text with the trained parts in ⟦⟧, and the counts."""
    pieces: list[str] = []
    start = 0
    for at in range(1, len(tokens) + 1):
        if at == len(tokens) or tokens.trained[at] != tokens.trained[start]:
            text = tokenizer.decode(tokens.ids[start:at].tolist())
            pieces.append(f"⟦{text}⟧" if tokens.trained[start] else text)
            start = at
    return {"text": "".join(pieces), "tokens": len(tokens), "trained": int(tokens.trained.sum())}
