"""Prepares one source: locates, checks and tokenizes it, or takes it from the cache."""

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from finetune_contract import DataCacheUse, DatasetSpec, ExitCode
from finetune_trainer.data.cache import DataCache, key_of, use_of
from finetune_trainer.data.examples import ExampleIndex, ExampleWriter, TokenFile
from finetune_trainer.data.schema import DatasetSchema, Unwanted, open_rows
from finetune_trainer.data.sources import LocatedSource, open_source
from finetune_trainer.data.unread import characters
from finetune_trainer.errors import StageError
from finetune_trainer.process.stage_progress import ignore
from finetune_trainer.storage import StorageClient
from finetune_trainer.storage.cache_entry import CacheMiss
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.example import Conversation, Example, PlainText
from finetune_trainer.tokens.notes import Note
from finetune_trainer.tokens.template import Renderer

#: Maximum number of rows that are tokenized together, and of characters of their texts. Tokenizer output takes about
#: 300 bytes per token until converted to arrays.
_AT_ONCE, _CHARACTERS = 512, 4 * 2**20

type _Read = tuple[Example, ...] | Unwanted


class Preprocessor(Protocol):
    """Turns the rows of a source into examples."""

    schema_class: ClassVar[type[DatasetSchema]]

    @property
    def renderer(self) -> Renderer: ...

    @property
    def read(self) -> Callable[[int], None]:
        """Is called with the number of rows that have been tokenized since the last call."""

    @property
    def lacks(self) -> str:
        """Error text for a source without a usable example."""

    @property
    def wanted(self) -> str: ...

    def identity(self) -> dict[str, str]:
        """Returns everything that determines how a row becomes an example, by name."""

    def write_row(self, example: Example, example_writer: ExampleWriter, *tokens: TokenizedExample) -> None:
        """Writes or drops a row. ``example`` is its first one; ``tokens`` are those of each of its examples."""


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
            digest=stored.manifest.digest, use=use_of(spec, key, stored.manifest),
        )  # fmt: skip
    started = time.monotonic()
    made = _made(source, preparer, scratch)
    path = made.tokens.path.with_suffix(".npz")
    made.index.save(path)
    manifest = cache.keep(
        key, made.tokens.path, path, missed=stored, form=made.format, digest=made.digest,
        seconds=time.monotonic() - started, now=datetime.now(UTC),
    )  # fmt: skip
    return replace(made, use=use_of(spec, key, manifest, stored))


def _made(source: LocatedSource, preparer: Preprocessor, scratch: Path) -> PreparedSource:
    example_writer = ExampleWriter(scratch / f"{source.spec.name}-{uuid.uuid4().hex}.tokens")
    try:
        form = _write_rows(source, preparer, example_writer)
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
    schema_class: ClassVar[type[DatasetSchema]] = DatasetSchema
    lacks: ClassVar[str] = "no row has a token to train on"
    wanted: ClassVar[str] = "at least one assistant turn or completion within maxSeqLength"

    def identity(self) -> dict[str, str]:
        return {"maxSeqLength": str(self.max_length), **self.renderer.identity()}

    def write_row(self, example: Example, example_writer: ExampleWriter, *tokens: TokenizedExample) -> None:
        (whole,) = tokens
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


def _write_rows(source: LocatedSource, preparer: Preprocessor, example_writer: ExampleWriter) -> str:
    """Writes all examples and returns the name of the rows' format. Raises ``StageError`` 64 or 65."""
    reads = preparer.renderer.chat.reads_key
    schema, rows = open_rows(source, partial(preparer.schema_class, reads=reads))
    for some in _together(map(schema.read, rows)):
        kept = []
        for row in some:
            if isinstance(row, Unwanted):
                example_writer.drop(row.place, 0, row.why)
            else:
                kept.append(row)
        tokens = iter(preparer.renderer.many([example for row in kept for example in row]))
        for row in kept:
            preparer.write_row(row[0], example_writer, *itertools.islice(tokens, len(row)))
        preparer.read(len(some))
    example_writer.unread(*schema.columns.unread.found())
    return schema.name


def _together(rows: Iterable[_Read]) -> Iterator[list[_Read]]:
    """Yields groups of up to ``_AT_ONCE`` rows, fewer if their texts are long."""
    group: list[_Read] = []
    held = 0
    for row in rows:
        size = 0 if isinstance(row, Unwanted) else characters([_texts_of(example) for example in row])
        if group and (len(group) == _AT_ONCE or held + size > _CHARACTERS):
            yield group
            group, held = [], 0
        group.append(row)
        held += size
    if group:
        yield group


def _texts_of(example: Example) -> object:
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


def read_all(
    source: DatasetSpec,
    store: StorageClient,
    scratch: Path,
    schema_class: type[DatasetSchema] = DatasetSchema,
) -> Iterator[Example]:
    """Yields the first example of every row of one source, checked, without rows that the dataset excludes."""
    schema, rows = open_rows(open_source(source, store, scratch), schema_class)
    yield from (read[0] for read in map(schema.read, rows) if not isinstance(read, Unwanted))


def _nothing_to_train(spec: DatasetSpec, preparer: Preprocessor, index: ExampleIndex) -> StageError:
    seen = [f"{len(which)} rows: {why}" for why, which in index.dropped().items()]
    return StageError(
        ExitCode.BAD_DATA, "DatasetHasNothingToTrain", preparer.lacks,
        where=spec.path, actual=", ".join(seen) or "no rows", expected=preparer.wanted,
        fix="Correct the data, or raise datasets.maxSeqLength.",
    )  # fmt: skip
