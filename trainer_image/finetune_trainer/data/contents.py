"""Finds what does not belong into texts and messages: special tokens, and chat templates that are already rendered."""

from finetune_trainer.data import notes
from finetune_trainer.data.chat import Tokenizer
from finetune_trainer.data.controls import ControlTokens
from finetune_trainer.data.rendered import holds_template
from finetune_trainer.data.schema import Conversation, PlainText, TextPair


class Contents:
    """Makes notes on the contents of examples.

    ``generation_prompt`` is what the model's chat template writes to request an answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        controls: ControlTokens,
        *,
        generation_prompt: str,
        train_on_prompt: bool,
    ) -> None:
        self._within = controls.within
        self._all = train_on_prompt
        self._bos, self._eos = tokenizer.bos_token or "", tokenizer.eos_token or ""
        #: Special tokens with which the model's own template opens a turn.
        self._markers = [
            text
            for text in controls.texts
            if text in generation_prompt and text not in (self._bos, self._eos)
        ]

    def of_conversation(self, example: Conversation) -> list[str]:
        """Returns notes on special tokens in what the messages and tools say."""
        said: set[bool] = set()
        for message, trained in zip(example.messages, example.trained, strict=True):
            if self._within(message["content"] if len(message) == 2 else message):
                said.add(trained)
        if example.tools and self._within(example.tools):
            said.add(False)
        return self._named(said)

    def of_pair(self, pair: TextPair, *, joined: bool) -> list[str]:
        """Returns notes on a prompt and its completion as texts.

        ``joined`` says that no template is applied, so that they may have the tokens that begin and end a text.
        """
        prompt, completion = pair.prompt, pair.completion
        if joined:
            prompt, completion = prompt.removeprefix(self._bos), self._without_eos(completion)
        said = {trained for trained, text in ((False, prompt), (True, completion)) if self._within(text)}
        if self._holds_template(pair.prompt) or self._holds_template(pair.completion):
            return [notes.RENDERED, *self._named(said - {False})]
        return self._named(said)

    def of_text(self, example: PlainText) -> list[str]:
        """Returns notes on a text."""
        if self._holds_template(example.text):
            return [notes.RENDERED]
        inner = self._without_eos(example.text.removeprefix(self._bos))
        return [notes.CONTROL_IN_TEXT] if self._within(inner) else []

    def _named(self, said: set[bool]) -> list[str]:
        if self._all and said:
            return [notes.CONTROL_TRAINED]
        return [notes.CONTROL_TRAINED] * (True in said) + [notes.CONTROL_IN_PROMPT] * (False in said)

    def _without_eos(self, text: str) -> str:
        return text.rstrip().removesuffix(self._eos)

    def _holds_template(self, text: str) -> bool:
        return holds_template(text) or any(marker in text for marker in self._markers)
