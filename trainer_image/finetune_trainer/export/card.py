"""Renders the model card: description, training, data, evaluation and usage of the model."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Table = Mapping[str, str]
_FILES = """## Files

`manifest.json` lists every file with its size and SHA-256. It is written last: a folder without it is an unfinished
upload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """Facts for the model card that the stage provides. Tables keep their order; empty ones are omitted."""

    name: str
    base_model: str
    """Hub name or URI of the base model."""
    base_revision: str
    training: Table = field(default_factory=dict)
    data: Table = field(default_factory=dict)
    evaluation: Table = field(default_factory=dict)
    samples: Sequence[tuple[str, str]] = ()
    """Sample prompts with the model's answers."""


def licence_of(source: Path) -> str | None:
    """Returns the license in the front matter of the source's model card; None if it names none."""
    readme = source / "README.md"
    if not readme.is_file():
        return None
    front = re.match(r"---\n(.*?)\n---", readme.read_text(encoding="utf-8", errors="replace"), re.DOTALL)
    line = (
        re.search(r"^license:\s*['\"]?([A-Za-z0-9._-]+)['\"]?\s*$", front.group(1), re.MULTILINE)
        if front
        else None
    )
    return line.group(1) if line else None


def render(
    facts: CardFacts,
    *,
    licence: str | None,
    rank: int | None,
    dtype: str,
    stops: Mapping[int, str] | None = None,
) -> str:
    """Returns the content of README.md.

    ``licence`` is that of the base model. ``rank``: that of the adapter; None for a whole model. ``stops``: the tokens
    that end an answer, text by id.
    """
    adapter, on_hub = rank is not None, re.fullmatch(r"[\w.-]+/[\w.-]+", facts.base_model) is not None
    base = facts.base_model if on_hub else "BASE_MODEL"
    front = ["library_name: " + ("peft" if adapter else "transformers"), "pipeline_tag: text-generation"]
    if on_hub:
        front += [
            f"base_model: {facts.base_model}",
            f"base_model_relation: {'adapter' if adapter else 'finetune'}",
        ]
    if licence:
        front.append(f"license: {licence}")
    front += ["tags:", "- tpu", "- maxtext"]
    what = "A LoRA adapter for" if adapter else "A fine-tuned version of"
    parts = [
        "---\n" + "\n".join(front) + "\n---",
        f"# {facts.name}",
        f"{what} `{facts.base_model}` (revision `{facts.base_revision}`), weights in {dtype}.",
        _licence_text(licence),
        _table("Training", facts.training),
        _table("Data", facts.data),
        _table("Evaluation", facts.evaluation),
        _samples(facts.samples),
        _usage(base if adapter else None),
        _ends(stops or {}),
        _serving(facts.name, base, rank, stops or {}) if rank is not None else "",
        _FILES,
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def render_orbax(facts: CardFacts, *, dtype: str, settings: Sequence[str]) -> str:
    """Returns the content of README.md in the folder for MaxText."""
    return (
        f"# {facts.name}, for MaxText\n\nThe parameters of a fine-tuned `{facts.base_model}` in {dtype}, layers not "
        "scanned, written by Orbax. Load them with\n\n```\n"
        + "\n".join(["load_parameters_path=THIS FOLDER/items", "scan_layers=False", *settings])
        + f"\n```\n\n{_FILES}\n"
    )


def _licence_text(licence: str | None) -> str:
    if licence:
        return f"The base model's license is `{licence}`; it applies to this model too."
    return "The base model's folder states no license; its terms apply to this model too."


def _table(title: str, rows: Table) -> str:
    if not rows:
        return ""
    lines = [f"| {_cell(key)} | {_cell(value)} |" for key, value in rows.items()]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _samples(samples: Sequence[tuple[str, str]]) -> str:
    if not samples:
        return ""
    shown = [f"> {_cell(prompt)}\n\n{_fenced(answer.strip() or '(no answer)')}" for prompt, answer in samples]
    return "## Samples\n\nGreedy answers of this model.\n\n" + "\n\n".join(shown)


def _fenced(text: str) -> str:
    """The text as it is: an answer may be cut within a block of code, which would contain the rest of the card."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def _ends(stops: Mapping[int, str]) -> str:
    """The tokens that end an answer."""
    if not stops:
        return ""
    named = ", ".join(f"{index} (`{text}`)" if text else str(index) for index, text in stops.items())
    return (
        f"## Ends of answers\n\nAnswers end with a token of these: {named}. `generation_config.json` names them, which "
        "transformers and vLLM read from the folder of a model."
    )


def _serving(name: str, base: str, rank: int, stops: Mapping[int, str]) -> str:
    """How an adapter is served on the folder of its base model.

    vLLM accepts adapters up to rank 16 by default, and with ``--max-lora-rank`` up to a power of two, at most 512.
    """
    return (
        "## Serving\n\nThe base model's own folder may not name all ends of answers, so pass `generation_config.json`, "
        "tokenizer and chat template of this folder to the server, for example to vLLM:\n\n"
        f"```bash\nvllm serve {base} --enable-lora --max-lora-rank {max(8, 1 << (rank - 1).bit_length())} \\\n"
        f"  --lora-modules {name}=THIS_FOLDER --generation-config THIS_FOLDER --tokenizer THIS_FOLDER\n```\n\n"
        f'A request to another server passes the ids itself: `"stop_token_ids": {list(stops)}`. In transformers:\n\n'
        "```python\nfrom transformers import GenerationConfig\n"
        'model.generate(**inputs, generation_config=GenerationConfig.from_pretrained("THIS FOLDER"))\n```'
    )


def _usage(base: str | None) -> str:
    """How the folder is loaded; ``base`` is the base model of an adapter."""
    load = (
        'model = AutoModelForCausalLM.from_pretrained("THIS FOLDER")'
        if base is None
        else "from peft import PeftModel\n"
        f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "THIS FOLDER")'
    )
    return (
        "## Use\n\n```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"{load}\n"
        'tokenizer = AutoTokenizer.from_pretrained("THIS FOLDER")\n'
        'chat = [{"role": "user", "content": "Hello"}]\n'
        "inputs = tokenizer.apply_chat_template(\n"
        '    chat, add_generation_prompt=True, return_dict=True, return_tensors="pt")\n'
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=64)[0]))\n```"
    )
