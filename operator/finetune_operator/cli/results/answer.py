"""Answers one prompt with transformers. A program of its own: it runs under any Python that has transformers.

It reads a question, a JSON object, from standard input:

    folder          a model in Hugging Face format, or a LoRA adapter
    prompt          the user's turn
    maxNewTokens    limit of the answer
    temperature     0: greedy
    base            the base model of an adapter, a repository or a folder; null: the folder is a whole model
    revision        commit of the base model's repository; null: the newest
    adapter         the settings of the adapter, as PEFT's LoraConfig takes them
    arguments       variables of the chat template, by name
    date            day that the chat template prints as the current one, as 2026-11-21; null: today

and prints one JSON object to standard output, with ``answer`` or ``error``. No code of a model is ever executed, and
weights are read from safetensors alone. What could lead a library out of the folder is refused.
"""

from __future__ import annotations

import sys

# Its own folder comes first, where modules have the names of others: tensorboard, for example.
if __name__ == "__main__":
    sys.path.pop(0)

import inspect
import json
import os
import signal
from collections.abc import Container, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

MODEL_CONFIG, ADAPTER_CONFIG, _INDEX = "config.json", "adapter_config.json", "model.safetensors.index.json"
#: What is fetched of a base model; the adapter has the tokenizer. The adapter's configuration makes it refused.
_FILES_OF_A_BASE = [MODEL_CONFIG, ADAPTER_CONFIG, _INDEX, "generation_config.json", "model*.safetensors"]


def fetched(base: str, revision: str | None) -> Path:
    """Returns the folder with a base model: ``base`` itself, or where the files of that repository are."""
    if Path(base).is_dir():
        return Path(base)
    import huggingface_hub

    return Path(huggingface_hub.snapshot_download(base, revision=revision, allow_patterns=_FILES_OF_A_BASE))


def require_plain(folder: Path) -> None:
    """Raises ValueError unless transformers finds in the folder a whole model, and nothing that leads out of it.

    It would follow an adapter's configuration to any folder and repository, an index to weights of any name, and a
    setting of the model to a repository with code of its own ("kernels").
    """
    if (folder / ADAPTER_CONFIG).exists():
        raise ValueError(f"the model has an {ADAPTER_CONFIG}, and is not loaded")
    settings = json.loads((folder / MODEL_CONFIG).read_bytes())
    if (found := next(_implementations(settings), None)) is not None:
        raise ValueError(f"{MODEL_CONFIG}: {found} chooses code outside the model, which is not loaded")
    if (folder / _INDEX).exists():
        for name in set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values()):
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ValueError(
                    f"{_INDEX} names {ascii(name)[:80]}, which is no file of weights in the folder"
                )


def _implementations(settings: Any) -> Iterator[str]:
    """Yields the keys, at any depth, whose value names a repository's implementation of a part of the model."""
    if isinstance(settings, list):
        for each in settings:
            yield from _implementations(each)
    elif isinstance(settings, dict):
        for key, value in settings.items():
            if "_implementation" in key and "/" in json.dumps(value):
                yield key
            yield from _implementations(value)


def answer(question: dict[str, Any]) -> str:
    """Returns the model's answer, without special tokens."""
    folder, base = question["folder"], question["base"]
    whole_model = fetched(base, question["revision"]) if base is not None else Path(folder)
    require_plain(whole_model)
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True}
    if int(transformers.__version__.split(".")[0]) < 5:
        options["torch_dtype"] = "auto"  # later versions use the precision of the file by default
    model = transformers.AutoModelForCausalLM.from_pretrained(str(whole_model), **options)
    if base is not None:
        import peft

        settings = peft.LoraConfig(task_type="CAUSAL_LM", inference_mode=True, **question["adapter"])
        model = peft.PeftModel.from_pretrained(model, folder, config=settings)
    model = model.to(device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, config=model.config
    )
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": question["prompt"]}]
        asked = tokenizer.apply_chat_template(
            turns,
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
            **template_variables(question, inspect.signature(tokenizer.apply_chat_template).parameters),
        )
    else:
        asked = tokenizer(question["prompt"], return_tensors="pt")
    asked = asked.to(device)
    temperature = question["temperature"]
    sampling: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature}
        if temperature
        else {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    )
    stops = {} if base is None else _stop_ids(Path(folder))
    with torch.no_grad():
        whole = model.generate(**asked, max_new_tokens=question["maxNewTokens"], **sampling, **stops)
    return str(tokenizer.decode(whole[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)).strip()


def _stop_ids(adapter: Path) -> dict[str, Any]:
    """Returns the tokens that end an answer, if the adapter's folder names them: the base may not stop there."""
    path = adapter / "generation_config.json"
    found = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
    return {} if found is None else {"eos_token_id": found}


def template_variables(question: dict[str, Any], own: Container[str]) -> dict[str, Any]:
    """Returns the variables of the chat template that training has set. ``own`` are names that are none."""
    variables = {name: each for name, each in question["arguments"].items() if name not in own}
    if question["date"] is not None:
        midnight = datetime.fromisoformat(question["date"]).replace(tzinfo=timezone.utc)  # noqa: UP017  Python 3.10
        variables["strftime_now"] = midnight.strftime
    return variables


def main() -> None:
    # Ctrl-C ends the program without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # What libraries print goes to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        question = json.loads(sys.stdin.buffer.read())
        try:
            answered = {"answer": answer(question)}
        except Exception as error:  # noqa: BLE001  reported in one line by the command
            text = str(error).strip().splitlines()
            answered = {"error": f"{type(error).__name__}: {text[0] if text else ''}"}
        json.dump(answered, output)


if __name__ == "__main__":
    main()
