"""Remarks on tokenizer, template, row counts and hyperparameters that are worth checking before training."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune_contract import DatasetDetails, DatasetReport, Leak, Remark, StageRequest
from finetune_trainer.data.examples import Examples
from finetune_trainer.data.messages import KEYS
from finetune_trainer.data.shapes import Format
from finetune_trainer.data.unread import ABOUT
from finetune_trainer.tokens.notes import ROOM, Note
from finetune_trainer.tokens.template import Renderer

#: Fraction of rows above which duplicate rows are worth a remark.
_MANY_EQUAL = 0.01
#: Fraction of rows above which some kinds of notes are a problem (:class:`.notes.Note`).
_MANY_NOTED = 0.05
#: Ratio of row width to sequence length above which the remark is a problem instead of a note.
_MUCH_WIDER = 1.25
#: Maximum number of names in a remark.
_NAMES = 8
#: Texts that are meant as a flag -> the flag to write.
_FLAGS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}


def of_tokenizer(tokenizer: Any, renderer: Renderer) -> Iterator[Remark]:
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    if eos is None:
        yield problem(
            "The tokenizer defines no end-of-sequence token: answers may never end when the model is used."
        )
    if pad is None:
        yield note(
            "The tokenizer defines no padding token. Training needs none, but some programs that use the exported "
            "model do."
        )
    elif pad == eos:
        yield note(
            "Padding and end of sequence are the same token. The mask here depends on positions, so ends are trained; "
            "programs that mask by the padding token would not learn to end."
        )
    if not tokenizer.chat_template:
        yield note(
            "The tokenizer has no chat template: prompts and completions are concatenated unchanged, and "
            "conversations cannot be trained. datasets.chatTemplate sets one."
        )
    elif not renderer.generation_prompt():
        yield note(
            "The chat template writes nothing before an assistant's turn (add_generation_prompt changes "
            "nothing): an answer begins right after the last message."
        )


def of_arguments(arguments: Mapping[str, Any]) -> Iterator[Remark]:
    """Yields remarks on arguments of the chat template that are texts but meant as true or false."""
    for name, value in arguments.items():
        if isinstance(value, str) and value.strip().lower() in _FLAGS:
            yield problem(
                f"datasets.chatTemplate.arguments.{name} is the text {value!r}, which most templates treat as neither "
                f"true nor false: write {_FLAGS[value.strip().lower()]}."
            )


def of_class(misreading: str | None) -> Iterator[Remark]:
    """Yields a remark if transformers would load the tokenizer with a class that produces other tokens.

    ``misreading`` is the class in tokenizer_config.json if its tokens differ from those of tokenizer.json, else None.
    """
    if misreading is not None:
        yield note(
            f"transformers loads this tokenizer as {misreading}, which produces other tokens than its tokenizer.json. "
            "Here tokenizer.json is used, and the exported tokenizer_config.json names PreTrainedTokenizerFast, which "
            "uses it too. A program that serves the base model from its own folder may produce other tokens."
        )


def of_ends(examples: Examples, ends: Sequence[int], max_length: int) -> Iterator[Remark]:
    """Yields a remark if no row ends its answers with a special token, except rows that are truncated.

    ``ends``: tokens with which the rows' answers end (:func:`.special_tokens.trained_ends`).
    """
    if not ends and (examples.lengths() < max_length).any():
        yield problem(
            "No trained turn ends with a token that ends an answer: the chat template ends turns with none. The "
            "tuned model may not stop."
        )


def of_counts(reports: Sequence[DatasetReport], leaks: Sequence[Leak]) -> Iterator[Remark]:
    """Yields remarks on rows that are dropped or duplicate, or in both training and validation data."""
    for report in reports:
        rows = max(1, report.rows)
        if report.dropped_rows:
            yield note(f"{report.name}: {report.dropped_rows:,} rows are dropped.")
        if report.duplicate_rows > _MANY_EQUAL * rows:
            yield note(
                f"{report.name}: {report.duplicate_rows:,} of {report.rows:,} rows are equal to an earlier one."
            )
        if report.epoch_sequences and report.sequences and report.epoch_sequences > 4 * report.sequences:
            times = report.epoch_sequences / report.sequences
            yield problem(f"{report.name}: its weight repeats every sequence {times:.1f} times in one epoch.")
    for leak in leaks:
        if leak.same_rows.count:
            yield problem(
                f"{leak.validation}: {leak.same_rows.count:,} rows are also in {leak.train}; its loss will be "
                "lower than on unseen data."
            )
        if leak.same_prompts.count:
            yield note(
                f"{leak.validation}: {leak.same_prompts.count:,} prompts are also in {leak.train} with other answers."
            )


def of_rows(described: Sequence[DatasetDetails]) -> Iterator[Remark]:
    """Yields remarks on rows that are not trained completely or not as written."""
    kinds = {str(kind): kind for kind in Note}
    for details in described:
        report = details.report
        for found in details.found:
            kind = kinds.get(found.kind)
            if kind is None or kind.level == "Count":
                continue
            many = found.count > _MANY_NOTED * report.rows
            room = ROOM if report.format.startswith(Format.PREFERENCE) else ""
            first = f"{report.name}: {found.count:,} of {report.rows:,} rows (the first: {found.first[0]})"
            text = f"{first}: {kind}. {kind.advice.format(room=room)}".rstrip()
            yield problem(text) if kind.level == "Problem" or (kind.level == "Many" and many) else note(text)


def of_unread(described: Sequence[DatasetDetails], ignored: Mapping[str, Sequence[str]]) -> Iterator[Remark]:
    """Yields remarks on texts that nothing reads, and on names to ignore that do not occur.

    ``ignored`` are the names that each dataset leaves out on purpose, by the dataset's name.
    """
    for details in described:
        name = details.report.name
        names = [value.name for value in details.unread if value.text and not value.ignored]
        keys = [each for each in names if each.startswith(KEYS)]
        texts = [each for each in names if each not in keys]
        more_than_texts = [text for text in texts if text.lower() not in ABOUT]
        if keys:
            yield note(
                f"{name}: nothing reads the texts of {_listed(keys)}, of which the chat template reads none. If one "
                "belongs to its turn, write it into the content."
            )
        if details.report.format == Format.TEXT and more_than_texts:
            yield problem(
                f"{name}: every row is trained as one text, and nothing reads {', '.join(more_than_texts[:_NAMES])}. "
                "If rows are prompts and answers, map them: columns: {prompt: …, completion: …}. If not, list these "
                "under columns.ignore."
            )
        elif texts:
            yield note(
                f"{name}: nothing reads the texts of {_listed(texts)}. If one of them belongs to the prompt or the "
                "answer, map it with columns."
            )
        numbers = [value.name for value in details.unread if not value.text and not value.ignored]
        if numbers := [number for number in numbers if number.lower() not in ABOUT]:
            yield note(
                f"{name}: nothing reads the values of {', '.join(numbers[:_NAMES])}, which are no texts. If one judges "
                "answers, remove the rows of bad ones."
            )
        if details.unread_more:
            yield note(f"{name}: {details.unread_more:,} values under further names are not read.")
        seen = {value.name for value in details.unread if value.ignored}
        if unseen := [column for column in ignored.get(name, ()) if column not in seen]:
            yield note(f"{name}: columns.ignore lists {', '.join(unseen)}, which does not occur.")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def of_width(request: StageRequest, width: int, context_length: int) -> Iterator[Remark]:
    """Yields a remark if rows are wider than the maximum sequence length.

    ``width`` is the width of rows and ``context_length`` the model's context length, both in tokens.
    """
    length = request.data.max_seq_length
    if width == length:
        return
    seen = (
        f"Rows are {width:,} tokens wide, because the TPU's attention kernel does not support {length:,}. Sequences "
        f"are still truncated at {length:,}"
    )
    if request.data.packing:
        yield note(f"{seen}, and packing fills the whole row.")
        return
    advice = f"; maxSeqLength {width:,} costs no more" if width <= context_length else ""
    text = f"{seen}, and the padding is computed too{advice}."
    yield problem(text) if width > _MUCH_WIDER * length else note(text)


def problem(text: str) -> Remark:
    return Remark(level="Problem", text=text)


def note(text: str) -> Remark:
    return Remark(level="Note", text=text)
