"""What about tokenizer, template, counts and learning rate is worth a look before training."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from finetune_contract import DatasetReport, Hyperparameters, Leak, MethodSpec, Remark
from finetune_trainer.data.examples import Examples
from finetune_trainer.data.template import Renderer

#: Shares of rows above which a count is worth a remark.
_MANY_CUT, _MANY_EQUAL = 0.05, 0.01
_LOOKED_AT = 32
#: Learning rates that published recipes for AdamW use: with all weights trained, and with LoRA. Small models take
#: higher ones.
_USUAL_TEXTS, _USUAL_TEXTS_LORA = (1e-6, 1e-4), (1e-5, 1e-3)
_USUAL_PAIRS, _USUAL_PAIRS_LORA = (1e-8, 1e-5), (1e-7, 1e-4)
_SMALL_MODEL = 100_000_000
#: A template may write a line's end after the token that closes a turn.
_CLOSING = 3


def of_tokenizer(tokenizer: Any, renderer: Renderer) -> Iterator[Remark]:
    """Special tokens and the chat template."""
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    if eos is None:
        yield _problem(
            "The tokenizer names no end of sequence: answers may never end when the model is used."
        )
    if pad is None:
        yield _note(
            "The tokenizer names no padding token. Nothing is padded with one here; some programs that use the "
            "exported model want one."
        )
    elif pad == eos:
        yield _note(
            "Padding and end of sequence are one token. The mask here goes by position, so ends are trained; "
            "programs that mask by the padding token would not learn to end."
        )
    if not tokenizer.chat_template:
        yield _note(
            "The tokenizer has no chat template: prompts and completions are joined as they stand, and "
            "conversations cannot be trained. datasets.chatTemplate sets one."
        )
    elif not renderer.generation_prompt():
        yield _note(
            "The chat template writes nothing to ask for an assistant's turn (add_generation_prompt changes "
            "nothing): an answer begins right after the last message."
        )


def of_ends(examples: Examples, ends: frozenset[int], max_length: int) -> Iterator[Remark]:
    """Whether what is trained teaches to stop: looks at the first rows that are not cut."""
    looked = [examples.read(number) for number in range(min(_LOOKED_AT, len(examples)))]
    last = [each.ids[each.trained][-_CLOSING:] for each in looked if len(each) < max_length]
    if last and not any(np.isin(ids, list(ends)).any() for ids in last):
        yield _problem(
            "No trained turn ends with a token that ends an answer: the chat template closes turns with none. The "
            "tuned model may not stop."
        )


def of_counts(reports: Sequence[DatasetReport], leaks: Sequence[Leak]) -> Iterator[Remark]:
    """Rows that are cut, dropped, equal, or seen in training and in validation."""
    for report in reports:
        rows = max(1, report.rows)
        if report.truncated_rows > _MANY_CUT * rows:
            yield _problem(
                f"{report.name}: {report.truncated_rows:,} of {report.rows:,} rows are cut to maxSeqLength; "
                "their ends are not trained."
            )
        if report.dropped_rows:
            yield _note(f"{report.name}: {report.dropped_rows:,} rows are dropped.")
        if report.duplicate_rows > _MANY_EQUAL * rows:
            yield _note(
                f"{report.name}: {report.duplicate_rows:,} of {report.rows:,} rows equal an earlier one."
            )
        if report.epoch_sequences and report.sequences and report.epoch_sequences > 4 * report.sequences:
            times = report.epoch_sequences / report.sequences
            yield _problem(f"{report.name}: its weight shows every sequence {times:.1f} times in one epoch.")
    for leak in leaks:
        if leak.same_rows.count:
            yield _problem(
                f"{leak.validation}: {leak.same_rows.count:,} rows stand in {leak.train}, too; its loss will look "
                "better than the model is."
            )
        if leak.same_prompts.count:
            yield _note(
                f"{leak.validation}: {leak.same_prompts.count:,} prompts stand in {leak.train} with other answers."
            )


def of_learning_rate(method: MethodSpec, chosen: Hyperparameters, parameters: int) -> Iterator[Remark]:
    """Whether the learning rate is one that such trainings are known to work with. ``parameters``: of the model."""
    if chosen.optimizer != "AdamW" or parameters < _SMALL_MODEL:
        return
    pairs = method.max_prompt_length is not None
    if method.lora is None:
        lowest, highest = _USUAL_PAIRS if pairs else _USUAL_TEXTS
    else:
        lowest, highest = _USUAL_PAIRS_LORA if pairs else _USUAL_TEXTS_LORA
    if lowest <= chosen.learning_rate <= highest:
        return
    kind = f"{method.type} {'with LoRA' if method.lora else 'of all weights'}"
    effect = "may forget or diverge" if chosen.learning_rate > highest else "may hardly learn"
    yield _problem(
        f"The learning rate, {chosen.learning_rate:g}, is outside of what is usual for {kind} ({lowest:g} to "
        f"{highest:g}): the model {effect}."
    )


def _problem(text: str) -> Remark:
    return Remark(level="Problem", text=text)


def _note(text: str) -> Remark:
    return Remark(level="Note", text=text)
