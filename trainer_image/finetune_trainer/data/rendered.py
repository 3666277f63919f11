"""Recognizes texts that already contain a rendered chat template, of whatever model."""

import itertools
import re

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
_SEARCHES = tuple((literal, re.compile(pattern).search if pattern else None) for literal, pattern in _MARKERS)
#: The same by a text that all of a group's literals contain. Most texts contain none of these.
_GROUPS = tuple(
    (shared, tuple(group))
    for shared, group in itertools.groupby(
        sorted(_SEARCHES, key=lambda marker: marker[0]),
        key=lambda marker: marker[0][0] if marker[0][0] in "<[" else marker[0],
    )
)


def holds_template(text: str) -> bool:
    """Whether the beginning of the text contains what a chat template writes around a message."""
    begin = text[:_SEARCHED]
    return any(
        literal in begin and (search is None or search(begin))
        for shared, group in _GROUPS
        if shared in begin
        for literal, search in group
    )
