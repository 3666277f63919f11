"""The tokenizer and its chat template: where each is looked for, and that a template can do nothing but write text."""

import json
from pathlib import Path
from typing import Any

import pytest

from devcluster.fixtures.hub import Hub
from devcluster.fixtures.tiny_models import Spec, write_model
from finetune_contract import ExitCode, HubRef, ModelSource
from finetune_trainer.data.place import Place
from finetune_trainer.data.schema import Conversation
from finetune_trainer.data.template import Renderer
from finetune_trainer.errors import StageError
from finetune_trainer.models import fetch_model
from finetune_trainer.stages.context import load_tokenizer
from finetune_trainer.storage import open_store

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PLACE = Place(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1)


def marked(mark: str) -> str:
    """A template whose texts can be told apart."""
    return f"{{% for m in messages %}}<|im_start|>{mark} {{{{ m['content'] }}}}<|im_end|>{{% endfor %}}"


def model(tmp_path: Path, *, config: object = None, file: str | None = None) -> Path:
    """``config``: chat_template in tokenizer_config.json; ``file``: chat_template.jinja. None: not there."""
    folder = write_model(tmp_path / "model", Spec())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    if config is not None:
        settings["chat_template"] = config
    if file is not None:
        (folder / "chat_template.jinja").write_text(file)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def loaded(tmp_path: Path, source: ModelSource) -> Any:
    return load_tokenizer(fetch_model(source, tmp_path / "scratch", open_store(), weights=False))


def rendered(tokenizer: Any) -> str:
    example = Conversation(place=PLACE, messages=TURNS, trained=[False, True])
    text: str = tokenizer.decode(Renderer(tokenizer, train_on_prompt=False).tokens(example).ids)
    return text


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"config": marked("config")}, "config"),
        ({"file": marked("file")}, "file"),
        ({"config": marked("config"), "file": marked("file")}, "file"),
        ({"config": [{"name": "tool_use", "template": marked("tools")},
                     {"name": "default", "template": marked("default")}]}, "default"),
    ],
    ids=["tokenizer_config.json", "chat_template.jinja", "both", "several by name"],
)  # fmt: skip
def test_the_template_of_the_folder_is_used(tmp_path: Path, where: dict[str, Any], expected: str) -> None:
    folder = model(tmp_path, **where)
    text = rendered(loaded(tmp_path, ModelSource(uri=f"file://{folder}")))
    assert text == f"<|im_start|>{expected} a<|im_end|><|im_start|>{expected} b<|im_end|>"


def test_a_template_file_comes_from_the_hub_too(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path, file=marked("file"))
    hub.push("acme/tiny", {path.name: path.read_bytes() for path in folder.iterdir()})
    source = ModelSource(hugging_face=HubRef(repo="acme/tiny"))
    assert "file b" in rendered(loaded(tmp_path, source))


def test_a_tokenizer_of_its_own_brings_its_own_template(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path, config=marked("model's"))
    words = model(tmp_path / "other", config=marked("own"))
    files = {path.name: path.read_bytes() for path in words.iterdir() if path.name.startswith("token")}
    hub.push("acme/words", files)
    for tokenizer in (
        ModelSource(uri=f"file://{words}"),
        ModelSource(hugging_face=HubRef(repo="acme/words")),
    ):
        assert "own b" in rendered(loaded(tmp_path, ModelSource(uri=f"file://{folder}", tokenizer=tokenizer)))


def test_a_repository_without_a_tokenizer_is_told(hub: Hub, tmp_path: Path) -> None:
    folder = model(tmp_path)
    hub.push("acme/words", {"README.md": "nothing else"})
    source = ModelSource(
        uri=f"file://{folder}", tokenizer=ModelSource(hugging_face=HubRef(repo="acme/words"))
    )
    with pytest.raises(StageError) as caught:
        loaded(tmp_path, source)
    assert (caught.value.code, caught.value.reason) == (ExitCode.INPUT_MISSING, "TokenizerMissing")
    assert "acme/words" in caught.value.where


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(messages[0]) }}",
        "{{ cycler.__init__.__globals__.os.system('touch ' ~ messages[0]['content']) }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['__builtins__']['open']('/etc/hostname').read() }}",
        "{% include '/etc/hostname' %}",
        "{% import '/etc/hostname' as x %}",
    ],
    ids=["classes", "writing to the data", "running a program", "reading a file", "include", "import"],
)
def test_a_template_reaches_nothing_outside_of_itself(tmp_path: Path, template: str) -> None:
    tokenizer = loaded(tmp_path, ModelSource(uri=f"file://{model(tmp_path, file=template)}"))
    with pytest.raises(StageError, match="chat template refuses") as caught:
        rendered(tokenizer)
    assert caught.value.code == ExitCode.BAD_DATA


def test_the_program_of_a_tokenizer_is_never_run(tmp_path: Path) -> None:
    folder = model(tmp_path, file=marked("x"))
    ran = tmp_path / "ran"
    (folder / "words.py").write_text(f"open({str(ran)!r}, 'w')\n")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": ["words.Words", "words.Words"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    source = ModelSource(uri=f"file://{folder}")
    assert "x b" in rendered(loaded(tmp_path, source))  # tokenizer.json says it all
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StageError, match="never run") as caught:
        loaded(tmp_path, source)
    assert (caught.value.code, caught.value.reason) == (ExitCode.INPUT_MISSING, "TokenizerMissing")
    assert not ran.exists()
