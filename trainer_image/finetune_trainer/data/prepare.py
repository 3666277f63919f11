"""Prepares one source: locates, checks and tokenizes it, or takes it from the cache."""

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from finetune_contract import DataCacheUse, DatasetSpec, ExitCode
from finetune_trainer.cache_entry import CacheMiss
from finetune_trainer.data.cache import DataCache, hit_of, key_of, miss_of
from finetune_trainer.data.examples import ExampleIndex, ExampleWriter, Int64Array, TokenFile
from finetune_trainer.data.schema import DatasetSchema, Unwanted, open_rows
from finetune_trainer.data.shapes import Format
from finetune_trainer.data.sources import LocatedSource, open_source
from finetune_trainer.data.tokenize_batches import tokenize_batches
from finetune_trainer.errors import StageError
from finetune_trainer.stage_progress import ignore
from finetune_trainer.storage import StorageClient
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.example import Conversation, Example, PlainText
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer

#: Maximum number of examples in memory at a time.
_AT_ONCE = 512


class Preprocessor(Protocol):
    """Turns the rows of a source into examples."""

    @property
    def lacks(self) -> str:
        """Error text for a source without a usable example."""

    @property
    def wanted(self) -> str: ...

    def identity(self) -> dict[str, str]:
        """Returns everything that determines how a row becomes an example, by name."""

    def write(self, source: LocatedSource, example_writer: ExampleWriter) -> str:
        """Writes all examples and returns the name of the rows' format. Raises ``StageError`` 64 or 65."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSource:
    """All usable examples of one source."""

    spec: DatasetSpec
    uri: str
    revision: str
    format: str
    tokens: TokenFile
    index: ExampleIndex
    digest: str
    """SHA-256 of all tokens and masks. Equal digests mean equal training."""
    use: DataCacheUse | None
    """Report of the cache's use; None if no cache was used."""

    def __len__(self) -> int:
        return len(self.tokens)


def prepare(
    spec: DatasetSpec,
    preparer: Preprocessor,
    store: StorageClient,
    scratch: Path,
    *,
    cache: DataCache | None = None,
) -> PreparedSource:
    """Reads and tokenizes one source, or takes it from ``cache``.

    Raises ``StageError`` 64, 65, 66, 69 or 77, which says what to change.
    """
    source = open_source(spec, store, scratch)
    if cache is None:
        return _made(source, preparer, scratch)
    key = key_of(spec, source.revision, preparer.identity())
    stored = cache.find(key)
    if not isinstance(stored, CacheMiss):
        index = ExampleIndex.load(stored.index)
        return PreparedSource(
            spec=spec, uri=source.uri, revision=source.revision, format=stored.manifest.format,
            tokens=TokenFile(stored.tokens, written=index.ends), index=index,
            digest=stored.manifest.digest, use=hit_of(spec, stored),
        )  # fmt: skip
    started = time.monotonic()
    made = _made(source, preparer, scratch)
    path = made.tokens.path.with_suffix(".npz")
    made.index.save(path)
    manifest = cache.keep(
        key, made.tokens.path, path, missed=stored, form=made.format, digest=made.digest,
        seconds=time.monotonic() - started, now=datetime.now(UTC),
    )  # fmt: skip
    return replace(made, use=miss_of(spec, key, stored, manifest))


def _made(source: LocatedSource, preparer: Preprocessor, scratch: Path) -> PreparedSource:
    example_writer = ExampleWriter(scratch / f"{source.spec.name}-{uuid.uuid4().hex}.tokens")
    try:
        form = preparer.write(source, example_writer)
    finally:
        example_writer.tokens.finish()
    tokens, index, digest = example_writer.finish()
    if not len(tokens):
        raise _nothing_to_train(source.spec, preparer, index)
    return PreparedSource(
        spec=source.spec, uri=source.uri, revision=source.revision, format=form,
        tokens=tokens, index=index, digest=digest, use=None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPreprocessor:
    """Turns conversations, prompts with completions, or texts into examples of at most ``max_length`` tokens."""

    renderer: Renderer
    max_length: int
    read: Callable[[int], None] = ignore
    """Is called with the number of rows that have been tokenized since the last call."""
    lacks: ClassVar[str] = "no row has a token to train on"
    wanted: ClassVar[str] = "at least one assistant turn or completion within maxSeqLength"

    def identity(self) -> dict[str, str]:
        return {"maxSeqLength": str(self.max_length), **self.renderer.identity()}

    def write(self, source: LocatedSource, example_writer: ExampleWriter) -> str:
        schema, rows = open_rows(source, partial(DatasetSchema, reads=self.renderer.chat.reads))
        chat = False
        for read in tokenize_batches(map(schema.example, rows), _AT_ONCE, _texts):
            some: list[Example] = []
            for example in read:
                if isinstance(example, Unwanted):
                    example_writer.drop(example.place, 0, example.why)
                else:
                    some.append(example)
            for example, whole in zip(some, self.renderer.many(some), strict=True):
                self._write(example, whole, example_writer)
            chat = chat or any(isinstance(example, Conversation) for example in some)
            self.read(len(read))
        example_writer.unread(*schema.columns.unread.found())
        of_messages = " of messages" if chat and schema.format is not Format.MESSAGES else ""
        return f"{schema.columns.shape}{of_messages}"

    def _write(self, example: Example, whole: TokenizedExample, example_writer: ExampleWriter) -> None:
        place, why = example.place, whole.dropped
        kept, said = self._cut(whole)
        if why is None and isinstance(example, PlainText) and len(kept) < len(whole):
            for part in windows(whole, self.max_length):
                example_writer.keep(place, part, len(part))
            example_writer.note(place, whole.notes)
            return
        if why is None and not kept.trained[1:].any():
            why = "nothing to train within maxSeqLength" if whole.trained.any() else "no turn to train"
        if why is None and len(kept) < len(whole) and self.renderer.blank(kept.ids[kept.trained]):
            why = "nothing to train within maxSeqLength"
        if why is not None:
            example_writer.drop(place, len(whole), why)
            return
        example_writer.keep(place, kept, len(whole))
        example_writer.note(place, said)

    def _cut(self, whole: TokenizedExample) -> tuple[TokenizedExample, Sequence[str]]:
        """Returns the first tokens of a row, and the notes on it."""
        if len(whole) <= self.max_length:
            return whole, whole.notes
        kept, lost = whole.trained[: self.max_length], whole.trained[self.max_length :]
        if kept[-1] and lost[0]:
            what = Note.CUT_IN_ANSWER
        else:
            what = Note.CUT_AFTER_ANSWER if lost.any() else Note.CUT_UNTRAINED
        return TokenizedExample(ids=whole.ids[: self.max_length], trained=kept), (*whole.notes, what)


def _texts(example: Example | Unwanted) -> object:
    if isinstance(example, Unwanted):
        return ""
    if isinstance(example, PlainText):
        return example.text
    if isinstance(example, Conversation):
        return example.messages, example.tools
    return example.prompt, example.completion


def windows(tokens: TokenizedExample, length: int) -> list[TokenizedExample]:
    """Splits the tokens into consecutive sequences of at most ``length``.

    A final sequence of a single token would predict nothing, so it takes over a token from the sequence before.
    """
    starts = [*range(0, len(tokens), length), len(tokens)]
    if starts[-1] - starts[-2] == 1 and length > 2:
        starts[-2] -= 1
    return [
        TokenizedExample(ids=tokens.ids[first:past], trained=tokens.trained[first:past])
        for first, past in itertools.pairwise(starts)
    ]


def read_all(source: DatasetSpec, store: StorageClient, scratch: Path) -> Iterator[Example]:
    """Yields every example of one source, checked, without rows that the dataset excludes."""
    schema, rows = open_rows(open_source(source, store, scratch), DatasetSchema)
    yield from (example for example in map(schema.example, rows) if not isinstance(example, Unwanted))


def _nothing_to_train(spec: DatasetSpec, preparer: Preprocessor, index: ExampleIndex) -> StageError:
    seen = [f"{count(index, number)} rows: {why}" for number, why in enumerate(index.reasons)]
    return StageError(
        ExitCode.BAD_DATA, "DatasetHasNothingToTrain", preparer.lacks,
        where=spec.path, actual=", ".join(seen) or "no rows", expected=preparer.wanted,
        fix="Correct the data, or raise datasets.maxSeqLength.",
    )  # fmt: skip


def count(index: ExampleIndex, reason: int) -> int:
    """Returns the number of rows dropped for this reason."""
    which: Int64Array = index.dropped_why
    return int((which == reason).sum())
