"""Turns rendered text into tokens and a mask of those that are trained."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finetune_trainer.data import notes
from finetune_trainer.data.chat import Tokenizer
from finetune_trainer.data.controls import ControlTokens
from finetune_trainer.data.encoding import Encoded, Encoder
from finetune_trainer.data.turns import Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """An example as text. ``turns`` are its trained parts; None if all of it is trained except ``hidden``."""

    text: str
    turns: Sequence[Turn] | None
    hidden: Sequence[Turn] = ()
    begins: Sequence[int] = ()
    """Positions at which a prompt ends and a trained answer begins."""
    notes: Sequence[str] = ()
    dropped: str | None = None
    """Reason not to train the row; None if it may be trained."""
    framed: bool = False
    """Whether to add the tokenizer's first and last tokens, because no template has written them."""


class Masker:
    """Encodes rendered examples with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, controls: ControlTokens, encoder: Encoder) -> None:
        self._tokenizer, self._controls, self._encoder = tokenizer, controls, encoder
        self.adds_bos = _adds_bos(tokenizer)

    def many(
        self, rendered: Sequence[Rendered]
    ) -> Iterator[tuple[list[int], npt.NDArray[np.bool_], Sequence[str]]]:
        """Yields ids, mask and notes of each example."""
        encoded = self._encoder.many([each.text for each in rendered])
        for example, whole in zip(rendered, encoded, strict=True):
            yield self._masked(example, whole)

    def opened(self, ids: list[int]) -> list[int]:
        """Returns a text's tokens with one beginning-of-sequence token, if the tokenizer adds one."""
        bos = self._tokenizer.bos_token_id
        return [bos, *ids] if bos is not None and self.adds_bos and ids[:1] != [bos] else ids

    def _masked(
        self, rendered: Rendered, encoded: Encoded
    ) -> tuple[list[int], npt.NDArray[np.bool_], Sequence[str]]:
        said = list(rendered.notes)
        apart = self._encoder.apart(rendered.text, encoded, rendered.begins)
        if apart is not None:
            encoded = apart
            said.append(notes.MERGED)
        trained = np.full(len(encoded.ids), rendered.turns is None)
        for turn in rendered.turns or ():
            self._mark(trained, rendered.text, encoded, turn, True)
        for turn in rendered.hidden:
            self._mark(trained, rendered.text, encoded, turn, False)
        if not rendered.framed:
            return encoded.ids, trained, said
        ids = self.opened(encoded.ids)
        before = len(ids) - len(encoded.ids)
        eos, text = self._tokenizer.eos_token_id, rendered.text.rstrip()
        ended = eos is not None and text.endswith(self._tokenizer.eos_token or "")
        after_it = [eos] if eos is not None and not ended else []
        if ended or (self.adds_bos and not before):
            said.append(notes.OWN_ENDS)
        trained = np.concatenate([np.zeros(before, np.bool_), trained, np.ones(len(after_it), np.bool_)])
        if self.adds_bos:
            trained[0] = False
        return [*ids, *after_it], trained, said

    def _mark(
        self, trained: npt.NDArray[np.bool_], text: str, encoded: Encoded, turn: Turn, wanted: bool
    ) -> None:
        trained[(encoded.last > turn.begin) & (encoded.first < turn.end)] = wanted
        if not turn.alone:
            # If the closing tokens were not trained, the model would never learn to stop.
            trained[self._closing(text, encoded, turn)] = wanted

    def _closing(self, text: str, encoded: Encoded, turn: Turn) -> slice:
        """Returns the tokens that close the turn; empty if there are none.

        These are the first special token after the turn, further special tokens that belong to it, and whitespace that
        the template writes between the turn and them.
        """
        ids, first, last, special = encoded.ids, encoded.first, encoded.last, self._controls.ids
        start = end = int(first.searchsorted(turn.end))
        while (
            end < len(ids)
            and ids[end] not in special
            and last[end] <= turn.closed
            and not text[first[end] : last[end]].strip()
        ):
            end += 1
        closing = end
        # White space before a special token that strips it has no token: only the position tells what follows directly.
        while end < len(ids) and ids[end] in special and (first[end] == turn.end or last[end] <= turn.closed):
            end += 1
        return slice(start, end if end > closing else start)


def _adds_bos(tokenizer: Tokenizer) -> bool:
    bos = tokenizer.bos_token_id
    return bos is not None and bos in list(tokenizer("x", add_special_tokens=True)["input_ids"])[:1]
