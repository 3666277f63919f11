"""Packages torch, transformers, huggingface_hub and peft with the calls that answers need.

Of their behavior they have what the tests observe. Each call is appended to ``calls.jsonl`` beside the packages. The
answer is "answer to <prompt>".
"""

import json
from pathlib import Path
from typing import Any

_TORCH = """
class no_grad:
    def __enter__(self): pass
    def __exit__(self, *_): pass

class cuda:
    @staticmethod
    def is_available(): return False
"""
_TRANSFORMERS = """
import json, os, pathlib, sys

__version__ = "5.12.1"
CALLS = pathlib.Path(__file__).parents[1] / "calls.jsonl"
print("noise that a library prints")

def record(what, folder, **options):
    with CALLS.open("a") as stream:
        stream.write(json.dumps({"what": what, "folder": str(folder), "cwd": os.getcwd(),
                                 "offline": os.environ.get("HF_HUB_OFFLINE"), **options}) + "\\n")

class Ids:
    def __init__(self, values): self.values = values
    @property
    def shape(self): return (1, len(self.values))

class Rows:
    def __init__(self, values): self.values = values
    def __getitem__(self, key): return self.values[key[1]]

class Batch(dict):
    def to(self, device): return self

class Model:
    config = {"model_type": "fake"}
    def to(self, device): return self
    def eval(self): return self
    def generate(self, input_ids, max_new_tokens, **sampling):
        record("generate", "", max_new_tokens=max_new_tokens, sampling=sampling)
        MODE
        answer = "answer to " + "".join(input_ids.values)
        return Rows([*input_ids.values, *answer[:max_new_tokens]])

class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(folder, **options):
        record("model", folder, **options)
        return Model()

class Tokenizer:
    chat_template = "{{ messages }}"
    def apply_chat_template(self, turns, add_generation_prompt, return_tensors, return_dict, **variables):
        now = variables.pop("strftime_now", None)
        record("template", "", variables=variables, today=now and now("%d %b %Y"))
        assert add_generation_prompt and return_dict and return_tensors == "pt"
        return Batch(input_ids=Ids([turn["role"] + ":" + turn["content"] for turn in turns]))
    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return ANSWER

class AutoTokenizer:
    @staticmethod
    def from_pretrained(folder, trust_remote_code, config):
        record("tokenizer", folder, trust_remote_code=trust_remote_code)
        return Tokenizer()
"""
_PEFT = """
from transformers import record

class LoraConfig:
    def __init__(self, **settings): self.settings = settings

class PeftModel:
    @staticmethod
    def from_pretrained(model, folder, config):
        record("adapter", folder, settings=config.settings)
        return model
"""
_HUB = """
import pathlib
from transformers import record

def snapshot_download(repository, revision, allow_patterns):
    record("snapshot", repository, revision=revision, patterns=allow_patterns)
    folder = pathlib.Path(__file__).parents[1] / "hub" / repository
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return str(folder)
"""


class FakeTransformers:
    """The packages, installed in a folder for PYTHONPATH."""

    def __init__(
        self, folder: Path, *, peft: bool = True, generate: str = "pass", empty: bool = False
    ) -> None:
        """``generate`` is a statement that runs before an answer is returned; ``empty``: the answer has no text."""
        self.folder = folder
        packages = {
            "torch": _TORCH,
            "transformers": _TRANSFORMERS.replace("MODE", generate).replace(
                "ANSWER", '""' if empty else '"".join(ids)'
            ),
            "huggingface_hub": _HUB,
        }
        for name, code in (packages | ({"peft": _PEFT} if peft else {})).items():
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text(code)

    def base(self, repository: str) -> Path:
        """The folder to which the files of a repository are fetched."""
        return self.folder / "hub" / repository

    def calls(self, what: str) -> list[dict[str, Any]]:
        """The recorded calls of one kind."""
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [call for call in map(json.loads, lines) if call["what"] == what]
