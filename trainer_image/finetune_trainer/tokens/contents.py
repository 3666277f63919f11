"""Finds what does not belong into texts: special tokens, chat templates that are already rendered, and blanks."""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from finetune_trainer.tokens.chat import Message, Tokenizer
from finetune_trainer.tokens.example import Conversation, PlainText, TextPair
from finetune_trainer.tokens.notes import Note

#: For each token of a text, the positions of its first character and past its last one.
type Offsets = Sequence[tuple[int, int]]

#: Characters that show nothing: white space, controls, Unicode's Default_Ignorable_Code_Point, and Braille's blank.
_UNSEEN = (
    r"\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff"
)
#: What surrounds a thought, in contents and in what templates write for an empty one (Qwen3, Magistral, Kimi, Gemma 4,
#: gpt-oss).
_THOUGHT = (
    r"</?(?:think|thinking|thought|reasoning|seed:think)>|\[/?THINK\]|◁/?think▷|<\|channel>thought\b|<channel\|>"
    r"|<\|channel\|>\w+(?=<\|message\|>)"
)
#: Number of characters of a text that are searched: a rendered conversation begins with a marker.
_SEARCHED = 2048
#: What published chat templates write around a message: what the text must contain, and a pattern of the marker unless
#: that is the whole marker. Sources: the models' tokenizer_config.json or chat_template.jinja, the prompt formats of
#: Alpaca, Vicuna and HH-RLHF.
_MARKERS = (
    ("<|im_start|>", ""),  # ChatML: Qwen, Hermes, SmolLM, phi-4
    ("<|start_header_id|>", ""),  # Llama 3
    ("<|header_start|>", ""),  # Llama 4
    ("[INST]", ""),  # Llama 2, Mistral
    ("<<SYS>>", ""),  # Llama 2
    ("[SYSTEM_PROMPT]", ""),  # Mistral Small 3, Magistral
    ("<start_of_turn>", ""),  # Gemma to 3
    ("<|turn", r"<\|turn\|?>"),  # Gemma 4
    ("<|system|>", ""),  # Phi-3, Zephyr, GLM-4
    ("<|user|>", ""),  # Phi-3, Zephyr, TinyLlama, GLM-4, OLMo
    ("<|assistant|>", ""),
    ("<|prompter|>", ""),  # OpenAssistant
    ("<|USER|>", ""),  # StableLM Alpha
    ("<|im_user|>", ""),  # Kimi K2
    ("<|start|>", r"<\|start\|>(?:system|developer|user|assistant)"),  # gpt-oss
    ("<|start_of_role|>", ""),  # Granite
    ("<|START_OF_TURN_TOKEN|>", ""),  # Command R, Aya
    ("<｜", r"<｜(?:hy_)?User｜>"),  # DeepSeek and its distills, Hunyuan
    ("[|user|]", ""),  # EXAONE
    ("[|Human|]", ""),  # Baize
    ("<extra_id_1>", "<extra_id_1>User"),  # Nemotron 4
    ("<seed:bos>", "<seed:bos>(?:system|user)"),  # Seed-OSS
    ("]~b]", ""),  # MiniMax M2
    ("<reserved_106>", ""),  # Baichuan 2
    ("GPT4 Correct User:", ""),  # OpenChat
    ("### ", r"(?m:^### (?:Instruction|Human|User)\b ?:)"),  # Alpaca, Guanaco, SOLAR
    ("SSISTANT:", r"(?:^|\s)USER: (?s:.)*?\sASSISTANT:"),  # Vicuna
    ("\nAssistant:", r"(?m:^(?:Human|User): ?)(?s:.)*?\nAssistant:"),  # HH-RLHF and many base models' prompts
)
#: Patterns by a text that whatever they match contains. Most texts contain none of these.
_GROUPS = tuple(
    (shared, re.compile("|".join(pattern or re.escape(literal) for literal, pattern in group)).search)
    for shared, group in itertools.groupby(
        sorted(_MARKERS), key=lambda marker: marker[0][0] if marker[0][0] in "<[" else marker[0]
    )
)


class ControlTokens:
    """The special tokens of a tokenizer, those without a name included, which are often the markers of turns.

    An added token with which the chat template closes a turn is one even if it is not marked as special.
    """

    def __init__(self, tokenizer: Tokenizer, closing: str = "") -> None:
        """``closing`` is the text that the chat template writes after an answer."""
        added: Mapping[int, Any] = getattr(tokenizer, "added_tokens_decoder", {})
        closing = closing.strip()
        special = {
            index: token
            for index, token in added.items()
            if getattr(token, "special", False) or (str(token).strip() and closing.startswith(str(token)))
        }
        self.ids = frozenset(tokenizer.all_special_ids) | special.keys()
        strips = {index: (token.lstrip, token.rstrip) for index, token in special.items()}
        self._stripping = {index: sides for index, sides in strips.items() if any(sides)}
        alone = {str(token) for token in special.values() if token.single_word}
        texts = {*map(str, special.values()), *tokenizer.special_tokens_map.values()}
        written = sorted(text for text in texts if isinstance(text, str) and text.strip())
        self._blank = re.compile(rf"(?:[{_UNSEEN}]++|{_THOUGHT}|{_any_of(written)})*+")
        thought = re.compile(_THOUGHT)
        self.texts: Sequence[str] = [text for text in written if not thought.fullmatch(text)]
        """The tokens as text, without those that mark a thought."""
        lowers = _lowers(tokenizer) and any(token.normalized for token in special.values())
        # One pattern for each first character: a pattern that begins with a literal searches several times as fast.
        self._searches = [
            re.compile(_any_of([*group], alone), re.IGNORECASE if lowers else 0).search
            for _, group in itertools.groupby(self.texts, key=lambda text: text[0])
        ]

    def blank(self, text: str) -> bool:
        """Whether the text has nothing but special tokens, white space, other unseen characters and empty thoughts."""
        return self._blank.fullmatch(text) is not None

    def blank_message(self, message: Message) -> bool:
        """Whether the assistant's message is blank: neither text nor reasoning nor calls."""
        content = message.get("content")
        if isinstance(content, str) and not self.blank(content):
            return False
        return len(message) == 2 or all(
            self.blank(value) if isinstance(value, str) else not value
            for name, value in message.items()
            if name != "role"
        )

    def within(self, value: Any) -> bool:
        """Whether a text, or any text in a list or mapping, contains a special token that does not mark a thought."""
        if isinstance(value, str):
            return any(search(value) for search in self._searches)
        parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, Sequence) else ()
        return any(map(self.within, parts))

    def without_stripped(self, text: str, ids: Sequence[int], offsets: Offsets) -> Offsets:
        """Returns the offsets of the row's tokens without the white space that special tokens take from their sides.

        A token with lstrip or rstrip covers the white space beside it, which may belong to a turn.
        """
        numbers = [n for n, index in enumerate(ids) if index in self._stripping] if self._stripping else []
        if not numbers:
            return offsets
        bare = list(offsets)
        for number in numbers:
            left, right = self._stripping[ids[number]]
            first, past = bare[number]
            covered = text[first:past]
            if left:
                first += len(covered) - len(covered.lstrip())
            if right:
                past -= len(covered) - len(covered.rstrip())
            bare[number] = first, past
        return bare


#: Tokens that end answers of published models.
_ENDS = (
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eot|>",
    "<|end_of_turn|>",
    "<eoa>",
)
#: Placeholders of media, as LLaMA-Factory, ms-swift and LLaVA write them into prompts.
_PLACEHOLDER = re.compile(r"<(?:image|video|audio)>")
#: What templates write into messages of a role around functions and the results of calls (Hermes, Qwen, Nemotron …).
_WRITTEN = {"system": "<tools>", "tool": "<tool_response>"}


class Contents:
    """Makes notes on the contents of examples.

    ``generation_prompt`` is what the model's chat template writes to request an answer.
    """

    def __init__(
        self, tokenizer: Tokenizer, controls: ControlTokens, generation_prompt: str, train_on_prompt: bool
    ) -> None:
        self._within, self._all = controls.within, train_on_prompt
        template = str(tokenizer.chat_template)
        self._written = {role: tag for role, tag in _WRITTEN.items() if tag in template}
        self._bos, self._eos = tokenizer.bos_token or "", tokenizer.eos_token or ""
        ends = {self._bos, self._eos}
        #: Special tokens with which the model's own template opens a turn.
        self._markers = [text for text in controls.texts if text in generation_prompt and text not in ends]

    def of_conversation(self, example: Conversation) -> list[str]:
        """Returns notes on what the messages and tools say: special tokens, placeholders, and a prompt without text."""
        said = {
            trained
            for message, trained in zip(example.messages, example.trained, strict=True)
            if self._within(message["content"] if len(message) == 2 else message)
        }
        asked = [message["content"] for message in example.messages if message["role"] == "user"]
        last = example.messages[-1]["content"]
        more = [*_of_prompts(asked), *_of_answer(last)]
        if self._written and self._tools_twice(example):
            more.append(Note.TOOLS_TWICE)
        if any(map(holds_template, asked[:1])) or self._ends_otherwise(last):
            return [Note.RENDERED, *self._named(said - {False}), *more]
        return [*self._named(said | {False} if self._within(example.tools or ()) else said), *more]

    def _tools_twice(self, example: Conversation) -> bool:
        """Whether a content has what the template writes there, too; tools only if it receives them."""
        return any(
            (tag := self._written.get(message["role"])) is not None
            and tag in message["content"]
            and (example.tools or message["role"] == "tool")
            for message in example.messages
        )

    def of_pair(self, pair: TextPair, *, joined: bool) -> list[str]:
        """Returns notes on a prompt and its completion as texts.

        ``joined`` says that no template is applied, so that they may have the tokens that begin and end a text.
        """
        prompt, completion = pair.prompt, pair.completion
        more = [*_of_prompts([prompt]), *_of_answer(completion)]
        if joined:
            prompt, completion = prompt.removeprefix(self._bos), self._without_eos(completion)
        said = {trained for trained, text in ((False, prompt), (True, completion)) if self._within(text)}
        if self._holds_template(pair.prompt) or self._holds_template(pair.completion):
            return [Note.RENDERED, *self._named(said - {False}), *more]
        return [*self._named(said), *more]

    def of_text(self, example: PlainText) -> list[str]:
        if self._holds_template(example.text):
            return [Note.RENDERED]
        inner = self._without_eos(example.text.removeprefix(self._bos))
        return [Note.CONTROL_IN_TEXT] if self._within(inner) else []

    def _named(self, said: set[bool]) -> list[str]:
        if self._all and said:
            return [Note.CONTROL_TRAINED]
        kinds = {True: Note.CONTROL_TRAINED, False: Note.CONTROL_IN_PROMPT}
        return [kind for trained, kind in kinds.items() if trained in said]

    def _without_eos(self, text: str) -> str:
        return text.rstrip().removesuffix(self._eos)

    def _holds_template(self, text: str) -> bool:
        marked = any(marker in text for marker in self._markers)
        return marked or holds_template(text) or self._ends_otherwise(text)

    def _ends_otherwise(self, text: str) -> bool:
        """Whether a text ends with a token that ends answers of other models, and is text to this one."""
        return text.rstrip().endswith(_ENDS) and not self._within(text)


def _of_prompts(prompts: Sequence[str]) -> Iterator[str]:
    if not all(map(str.strip, prompts)):
        yield Note.BLANK_PROMPT
    if any("<" in prompt and _PLACEHOLDER.search(prompt) for prompt in prompts):
        yield Note.PLACEHOLDER


def _of_answer(answer: str) -> Iterator[str]:
    if answer.lstrip().startswith("<think>") and "</think>" not in answer:
        yield Note.OPEN_THOUGHT


def holds_template(text: str) -> bool:
    """Whether the beginning of the text contains what a chat template writes around a message."""
    begin = text[:_SEARCHED]
    return any(shared in begin and search(begin) for shared, search in _GROUPS)


def _any_of(texts: Sequence[str], alone: Collection[str] = ()) -> str:
    """Returns a pattern for any of the sorted texts; those in ``alone`` only with no letter or digit beside them.

    It is grouped by their first two characters, so that few are tried at a position.
    """
    patterns = []
    for begin, group in itertools.groupby(texts, key=lambda text: text[:2]):
        rests = []
        # A longer text first, because it may begin with a shorter one.
        for text in sorted(group, key=len, reverse=True):
            pattern = re.escape(text[2:])
            beside = rf"(?<!\w(?s:.{{{len(begin)}}})){pattern}(?!\w)"
            rests.append(beside if text in alone else pattern)
        patterns.append(f"{re.escape(begin)}(?:{'|'.join(rests)})")
    return "|".join(patterns) or r"(?!)"


def _lowers(tokenizer: Tokenizer) -> bool:
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("A") == "a"
