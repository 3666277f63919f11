"""The tokenizer and its chat template.

Where they are searched for, that tokenizer.json determines the tokens, and that a template can only produce text.
"""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer, models, normalizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from finetune_contract import ExitCode, HubRef, ModelSource
from finetune_trainer.checkpoints.folder import copy_files
from finetune_trainer.errors import StageError
from finetune_trainer.export.tokenizer import tokenizer_folder
from finetune_trainer.hub.models import LocalModel, fetch_model
from finetune_trainer.readers.row_location import RowLocation
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.example import Conversation
from finetune_trainer.tokens.template import Renderer
from finetune_trainer.tokens.tokenizer import load_tokenizer, misreading_class
from tests.doubles.hub import FakeHub
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.stores import BUCKET

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
PLACE = RowLocation(path="spec.datasets.train[0]", file="file:///a.jsonl", row=1)


def marked(mark: str) -> str:
    """Returns a template whose texts contain ``mark``."""
    return f"{{% for m in messages %}}<|im_start|>{mark} {{{{ m['content'] }}}}<|im_end|>{{% endfor %}}"


def model(tmp_path: Path, *, config: object = None, file: str | None = None) -> Path:
    """Writes a model with ``config`` as chat_template in tokenizer_config.json and ``file`` as chat_template.jinja.

    None: without that template.
    """
    folder = write_model(tmp_path / "model", TinyModelSpec())
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


def test_a_template_file_comes_from_the_hub_too(hub: FakeHub, tmp_path: Path) -> None:
    folder = model(tmp_path, file=marked("file"))
    hub.push("acme/tiny", {path.name: path.read_bytes() for path in folder.iterdir()})
    source = ModelSource(hugging_face=HubRef(repo="acme/tiny"))
    assert "file b" in rendered(loaded(tmp_path, source))


def test_a_tokenizer_of_its_own_brings_its_own_template(hub: FakeHub, tmp_path: Path) -> None:
    folder = model(tmp_path, config=marked("model's"))
    words = model(tmp_path / "other", config=marked("own"))
    files = {path.name: path.read_bytes() for path in words.iterdir() if path.name.startswith("token")}
    hub.push("acme/words", files)
    for tokenizer in (
        ModelSource(uri=f"file://{words}"),
        ModelSource(hugging_face=HubRef(repo="acme/words")),
    ):
        assert "own b" in rendered(loaded(tmp_path, ModelSource(uri=f"file://{folder}", tokenizer=tokenizer)))


def test_a_repository_without_a_tokenizer_is_reported(hub: FakeHub, tmp_path: Path) -> None:
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
    with pytest.raises(StageError, match="chat template rejects") as caught:
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
    assert "x b" in rendered(loaded(tmp_path, source))  # tokenizer.json is sufficient
    (folder / "tokenizer.json").unlink()
    with pytest.raises(StageError, match="never run") as caught:
        loaded(tmp_path, source)
    assert (caught.value.code, caught.value.reason) == (ExitCode.INPUT_MISSING, "TokenizerMissing")
    assert not ran.exists()


# --- tokenizer.json decides


TEXT = "Hello world, 12345 is a number.\n\n  def f(x):\n    return x  # h\u00e9llo \u4f60\u597d\nIt's DON'T\n"
CLASSES = [
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "GPT2TokenizerFast",
    "GemmaTokenizer",
    "Qwen2Tokenizer",
    "PreTrainedTokenizerFast",
    "SomebodysTokenizer",
]


def at(folder: Path) -> LocalModel:
    return LocalModel(path=folder, tokenizer_path=folder, source="s", tokenizer_source="s", revision="")


def bytewise(folder: Path, name: str | None, *, family: str = "llama", **settings: Any) -> Path:
    """Writes a byte-level tokenizer.json, and a tokenizer_config.json that names the class ``name``."""
    write_model(folder, TinyModelSpec(family=family))
    path = folder / "tokenizer_config.json"
    changed = {**json.loads(path.read_text()), "tokenizer_class": name, **settings}
    path.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))
    return folder


def piecewise(folder: Path, **settings: Any) -> Path:
    """Writes a tokenizer.json like Llama 2's, which was converted from a SentencePiece model: pieces of text start with
    a space."""
    write_model(folder, TinyModelSpec(family="llama"))
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    named = ["<unk>", "<s>", "</s>"]
    everybyte = [f"<0x{value:02X}>" for value in range(256)]
    words = ["What is the capital of France? It is Paris. [INST] [/INST] 12345\n"] * 20
    inner.train_from_iterator(
        words, trainers.BpeTrainer(vocab_size=400, special_tokens=named + everybyte, show_progress=False)
    )
    content = json.loads(inner.to_str())
    content["added_tokens"] = [each for each in content["added_tokens"] if each["content"] in named]
    content["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "LlamaTokenizer", **settings})
    )
    return folder


def sentencepiece(
    folder: Path, family: str, name: str | None, *, prefix: bool = True, **settings: Any
) -> Path:
    """Writes a tokenizer that is a SentencePiece file alone, which writes a space before a text if ``prefix``."""
    write_model(folder, TinyModelSpec(family=family))  # type: ignore[arg-type]
    (folder / "tokenizer.json").unlink()
    with (folder / "tokenizer.model").open("wb") as file:
        SentencePieceTrainer.train(
            sentence_iterator=iter(
                ["Hello world, is the capital [INST] of France Paris? [/INST] 12345\n"] * 50
            ),
            model_writer=file,
            model_type="bpe",
            vocab_size=330,
            hard_vocab_limit=False,
            byte_fallback=True,
            add_dummy_prefix=prefix,
            remove_extra_whitespaces=False,
            normalization_rule_name="identity",
            minloglevel=2,
        )
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **settings}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(named if name is None else {**named, "tokenizer_class": name})
    )
    return folder


def as_the_file_says(folder: Path, text: str) -> tuple[list[int], str]:
    inner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = inner.encode(text, add_special_tokens=False).ids
    return ids, inner.decode(ids, skip_special_tokens=False)


def as_read(tokenizer: Any, text: str) -> tuple[list[int], str]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids, tokenizer.decode(ids)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "mistral"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_byte_level_tokenizer_json_is_used_whatever_class_is_named(
    tmp_path: Path, name: str, family: str
) -> None:
    folder = bytewise(tmp_path, name, family=family, legacy=True, add_bos_token=True, add_prefix_space=None)
    tokenizer = load_tokenizer(at(folder))
    assert as_read(tokenizer, TEXT) == as_the_file_says(folder, TEXT)
    assert as_read(tokenizer, TEXT)[1] == TEXT
    assert len(tokenizer) == len(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab())
    named = {each: tokenizer.special_tokens_map[each] for each in ("bos_token", "eos_token", "pad_token")}
    assert named == {"bos_token": "<bos>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    assert tokenizer.chat_template == (folder / "chat_template.jinja").read_text()


@pytest.mark.parametrize("legacy", [True, False, None])
def test_a_converted_sentencepiece_tokenizer_json_is_used_as_it_stands(
    tmp_path: Path, legacy: bool | None
) -> None:
    settings = {} if legacy is None else {"legacy": legacy}
    folder = piecewise(tmp_path, bos_token="<s>", eos_token="</s>", unk_token="<unk>", **settings)
    asked = "<s>[INST] What is it? [/INST] Paris. </s><s>[INST] 12345\nh\u00e9 [/INST] user</s>\n  two"
    assert as_read(load_tokenizer(at(folder)), asked) == as_the_file_says(folder, asked)


def test_special_tokens_that_only_the_class_names_are_kept_where_the_vocabulary_has_them(
    tmp_path: Path,
) -> None:
    pieces = load_tokenizer(at(piecewise(tmp_path / "pieces")))
    assert (pieces.bos_token, pieces.eos_token, pieces.unk_token) == ("<s>", "</s>", "<unk>")
    assert {1, 2} <= set(pieces.all_special_ids)
    folder = bytewise(tmp_path / "bytes", "LlamaTokenizer", bos_token=None, eos_token=None)
    unnamed = load_tokenizer(at(folder))
    assert (unnamed.bos_token, unnamed.eos_token) == (None, None)
    assert len(unnamed) == len(Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab())


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("processor", [True, False], ids=["a beginning", "none"])
def test_what_begins_a_text_is_what_tokenizer_json_puts_there(
    tmp_path: Path, processor: bool, family: str
) -> None:
    """As in transformers 5 for every class, the flag of tokenizer_config.json applies only without tokenizer.json."""
    folder = bytewise(tmp_path, "LlamaTokenizerFast", family=family, add_bos_token=not processor)
    if processor:
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        bos = next(each["id"] for each in content["added_tokens"] if each["content"] == "<bos>")
        first = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [first, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [bos], "tokens": ["<bos>"]}},
        }
        path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(at(folder))
    tokenizer.chat_template = None
    begins = Renderer(tokenizer, train_on_prompt=False).opened("a")[0] == tokenizer.bos_token_id
    assert begins == processor


def test_qwen3s_tokenizer_is_what_its_own_class_makes_of_it(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("maxtext")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (package,) = spec.submodule_search_locations
    write_model(tmp_path, TinyModelSpec())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(package) / "assets/tokenizers/qwen3-tokenizer" / name, tmp_path)
    tokenizer = load_tokenizer(at(tmp_path))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert as_read(tokenizer, TEXT) == as_read(theirs, TEXT) == as_the_file_says(tmp_path, TEXT)
    assert tokenizer.special_tokens_map == theirs.special_tokens_map
    assert sorted(tokenizer.all_special_ids) == sorted(theirs.all_special_ids)
    assert len(tokenizer) == len(theirs)
    assert misreading_class(at(tmp_path), tokenizer) is None


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_exported_tokenizer_is_read_by_transformers_as_it_was_trained(tmp_path: Path, family: str) -> None:
    folder = bytewise(tmp_path / "model", "LlamaTokenizerFast", family=family)
    tokenizer = load_tokenizer(at(folder))
    assert misreading_class(at(folder), tokenizer) == "LlamaTokenizer"
    assert as_read(AutoTokenizer.from_pretrained(folder), TEXT) != as_read(tokenizer, TEXT)
    exported = tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export")
    shutil.copy(folder / "config.json", exported)
    loaded = AutoTokenizer.from_pretrained(exported)
    assert as_read(loaded, TEXT) == as_read(tokenizer, TEXT)
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert loaded.chat_template == tokenizer.chat_template
    assert (exported / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    generic = PreTrainedTokenizerFast(tokenizer_file=str(exported / "tokenizer.json"))
    assert as_read(generic, TEXT)[0] == as_read(tokenizer, TEXT)[0]


def test_an_exported_tokenizer_of_its_own_is_read_right_beside_the_models_config(tmp_path: Path) -> None:
    """The class that transformers chooses also depends on the config.json in the same folder."""
    folder = bytewise(tmp_path / "words", None)
    (folder / "config.json").unlink()
    beside = write_model(tmp_path / "model", TinyModelSpec(family="llama"))
    model = LocalModel(path=beside, tokenizer_path=folder, source="s", tokenizer_source="t", revision="")
    tokenizer = load_tokenizer(model)
    exported = tokenizer_folder(model, tokenizer, None, tmp_path / "export")
    together = Path(shutil.copytree(exported, tmp_path / "together"))
    shutil.copy(beside / "config.json", together)
    assert as_read(AutoTokenizer.from_pretrained(together), TEXT) == as_read(tokenizer, TEXT)


def test_an_exported_tokenizer_names_what_only_its_class_has_named(tmp_path: Path) -> None:
    folder = piecewise(tmp_path / "model")
    tokenizer = load_tokenizer(at(folder))
    exported = tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export")
    shutil.copy(folder / "config.json", exported)
    loaded = AutoTokenizer.from_pretrained(exported)
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    assert (loaded.bos_token, loaded.eos_token) == ("<s>", "</s>")


def test_a_tokenizer_that_transformers_reads_alike_is_exported_unchanged(tmp_path: Path) -> None:
    folder = bytewise(tmp_path / "model", "PreTrainedTokenizerFast")
    tokenizer = load_tokenizer(at(folder))
    assert tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export") == folder


@pytest.mark.parametrize("settings", [{}, {"legacy": False}, {"legacy": True}], ids=str)
def test_a_sentencepiece_tokenizer_is_exported_with_the_tokens_of_the_training(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Of the SentencePiece file alone, transformers 4 makes other tokens: behind special tokens, and of two spaces."""
    folder = sentencepiece(tmp_path / "model", "llama", "LlamaTokenizer", **settings)
    tokenizer = load_tokenizer(at(folder))
    exported = tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export")
    asked = "<s>[INST] What  is it? [/INST] Paris </s><s>[INST]   12345\n</s>two"
    assert as_the_file_says(exported, asked) == as_read(tokenizer, asked)
    again = AutoTokenizer.from_pretrained(exported)
    assert as_read(again, asked) == as_read(tokenizer, asked)
    assert again.special_tokens_map == tokenizer.special_tokens_map
    assert (exported / "tokenizer.model").read_bytes() == (folder / "tokenizer.model").read_bytes()


@pytest.mark.parametrize(
    ("family", "name", "prefix"),
    [("mistral", "LlamaTokenizer", True), ("llama", None, True), ("gemma2", "GemmaTokenizer", True)],
)
def test_a_sentencepiece_file_that_transformers_misreads_is_refused(
    tmp_path: Path, family: str, name: str | None, prefix: bool
) -> None:
    folder = sentencepiece(tmp_path, family, name, prefix=prefix)
    with pytest.raises(StageError, match="as SentencePiece does") as caught:
        load_tokenizer(at(folder))
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "TokenizerNotFast")
    assert "tokenizer.json" in str(caught.value)


def test_a_sentencepiece_file_without_a_space_before_a_text_is_gemmas(tmp_path: Path) -> None:
    load_tokenizer(at(sentencepiece(tmp_path, "gemma2", "GemmaTokenizer", prefix=False)))


def test_a_class_that_needs_another_package_is_refused(tmp_path: Path) -> None:
    folder = bytewise(tmp_path, "MistralCommonBackend")
    with pytest.raises(StageError, match="mistral-common") as caught:
        load_tokenizer(at(folder))
    assert (caught.value.code, caught.value.reason) == (ExitCode.INPUT_MISSING, "TokenizerMissing")


# --- what transformers 5 writes


def as_transformers_5_writes(folder: Path, **settings: Any) -> Path:
    """Saves the tokenizer of a tiny model anew, with further settings."""
    write_model(folder, TinyModelSpec())
    tokenizer = AutoTokenizer.from_pretrained(folder, **settings)
    for path in (*folder.glob("tokenizer*"), folder / "chat_template.jinja"):
        path.unlink()
    tokenizer.save_pretrained(folder)
    return folder


LISTED = {"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]}
NAMED = {"extra_special_tokens": {"image_token": "<|im_start|>"}}


@pytest.mark.parametrize("settings", [{}, LISTED, NAMED, {**NAMED, "pad_token": "<eos>"}], ids=str)
def test_an_exported_tokenizer_has_only_settings_that_transformers_4_reads(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """transformers 4 knows no class of that name, and requires an object for extra_special_tokens."""
    folder = as_transformers_5_writes(tmp_path / "model", **settings)
    written = json.loads((folder / "tokenizer_config.json").read_text())
    assert written["tokenizer_class"] == "TokenizersBackend"
    tokenizer = load_tokenizer(at(folder))
    exported = tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export")
    found = json.loads((exported / "tokenizer_config.json").read_text())
    assert found["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert found.get("additional_special_tokens") == (
        LISTED["extra_special_tokens"] if settings is LISTED else None
    )
    assert found.get("extra_special_tokens") == (NAMED["extra_special_tokens"] if "extra_special_tokens" in settings and settings is not LISTED else None)  # fmt: skip
    assert "model_specific_special_tokens" not in found
    again = AutoTokenizer.from_pretrained(exported)
    assert as_read(again, TEXT) == as_read(tokenizer, TEXT)
    assert again.special_tokens_map == tokenizer.special_tokens_map
    assert sorted(again.all_special_ids) == sorted(tokenizer.all_special_ids)
    assert again.chat_template == tokenizer.chat_template


def test_special_tokens_that_transformers_4_reads_from_their_own_file_are_a_list_it_knows(
    tmp_path: Path,
) -> None:
    folder = bytewise(tmp_path / "model", "PreTrainedTokenizerFast")
    own = {"additional_special_tokens": ["<a>"], "extra_special_tokens": ["<b>", "<a>"], "eos_token": "</s>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(own))
    exported = tokenizer_folder(at(folder), load_tokenizer(at(folder)), None, tmp_path / "export")
    assert json.loads((exported / "special_tokens_map.json").read_text()) == {
        "additional_special_tokens": ["<a>", "<b>"],
        "eos_token": "</s>",
    }
    assert (exported / "tokenizer_config.json").read_bytes() == (
        folder / "tokenizer_config.json"
    ).read_bytes()


def test_both_kinds_of_special_tokens_that_transformers_5_writes_are_exported(tmp_path: Path) -> None:
    """Gemma 3's processor reads image_token from the tokenizer."""
    folder = bytewise(
        tmp_path / "model",
        "TokenizersBackend",
        extra_special_tokens=["<|im_end|>"],
        model_specific_special_tokens={"image_token": "<|im_start|>"},
    )
    tokenizer = load_tokenizer(at(folder))
    exported = tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export")
    found = json.loads((exported / "tokenizer_config.json").read_text())
    assert found["additional_special_tokens"] == ["<|im_end|>"]
    assert found["extra_special_tokens"] == {"image_token": "<|im_start|>"}
    assert "model_specific_special_tokens" not in found
    assert AutoTokenizer.from_pretrained(exported).special_tokens_map == tokenizer.special_tokens_map


@pytest.mark.parametrize("name", ["PythonBackend", "Qwen3_5Tokenizer", "OwnTokenizer", "", None])
def test_a_class_that_not_all_programs_have_is_exported_as_the_generic_one(tmp_path: Path, name: str) -> None:
    """None can load the publisher's own, whose program is not exported, and of an adapter's folder one without a name."""
    folder = bytewise(tmp_path / "model", "PreTrainedTokenizerFast")
    tokenizer = load_tokenizer(at(folder))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    code = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"tokenizer_class": name, "auto_map": code})
    )
    exported = tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export")
    found = json.loads((exported / "tokenizer_config.json").read_text())
    assert found["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert "auto_map" not in found


# --- added tokens


@pytest.mark.parametrize("own", ["<|im_end|>", "<eos>"])
@pytest.mark.parametrize("after", ["", "\n", "<eos>\n", "\n\nand more"])
def test_an_added_token_that_closes_turns_is_trained_whether_or_not_it_is_marked_as_special(
    tmp_path: Path, after: str, own: str
) -> None:
    """As axolotl's ``tokens`` and ``add_tokens`` of transformers add it. Other added tokens remain text."""
    template = f"{{% for m in messages %}}<|im_start|>{{{{ m['content'] }}}}<|im_end|>{after}{{% endfor %}}"
    folder = bytewise(tmp_path, "PreTrainedTokenizerFast", eos_token=own)
    (folder / "chat_template.jinja").write_text(template)
    renderers = []
    for special in (True, False):
        content = json.loads((folder / "tokenizer.json").read_text())
        for token in content["added_tokens"]:
            token["special"] = special or not token["content"].startswith("<|im_")
        (folder / "tokenizer.json").write_text(json.dumps(content))
        renderers.append(Renderer(load_tokenizer(at(folder)), train_on_prompt=False))
    example = Conversation(place=PLACE, messages=TURNS, trained=[False, True])
    marked, plain = (renderer.tokens(example) for renderer in renderers)
    assert plain.trained.tolist() == marked.trained.tolist()
    assert renderers[0].end_ids() == renderers[1].end_ids()
    assert len(renderers[0].special_ids - renderers[1].special_ids) == 1


# --- several chat templates, and byte order marks


@pytest.mark.parametrize("place", ["file", "gs", "hub"])
def test_templates_beside_the_main_one_are_read_from_everywhere_and_exported(
    tmp_path: Path, place: str, server: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path, file=marked("main"))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text(marked("tools"))
    if place == "file":
        source = ModelSource(uri=f"file://{folder}")
    elif place == "gs":
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
        source = ModelSource(uri=f"gs://{BUCKET}/{tmp_path.name}")
        open_store().upload_folder(folder, str(source.uri))
    else:
        hub.push(
            "acme/tiny",
            {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in folder.rglob("*")
                if path.is_file()
            },
        )
        source = ModelSource(hugging_face=HubRef(repo="acme/tiny"))
    found = fetch_model(source, tmp_path / "scratch", open_store(), weights=False)
    tokenizer = load_tokenizer(found)
    assert tokenizer.chat_template == {"default": marked("main"), "tool_use": marked("tools")}
    out = tmp_path / "out"
    out.mkdir()
    copy_files(out, found.path, tokenizer_folder(found, tokenizer, None, tmp_path / "export"))
    assert AutoTokenizer.from_pretrained(out).chat_template == tokenizer.chat_template


def test_a_template_beside_the_main_one_is_part_of_the_tokenizer(tmp_path: Path) -> None:
    folder = model(tmp_path, file=marked("main"))
    (folder / "additional_chat_templates").mkdir()
    source = ModelSource(uri=f"file://{folder}")
    revisions = set()
    for mark in ("one", "two"):
        (folder / "additional_chat_templates/tool_use.jinja").write_text(marked(mark))
        revisions.add(fetch_model(source, tmp_path, open_store(), weights=False).tokenizer_revision)
    assert len(revisions) == 2


def test_the_template_of_a_job_replaces_all_templates_in_the_export(tmp_path: Path) -> None:
    folder = model(tmp_path, file=marked("main"))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/tool_use.jinja").write_text(marked("tools"))
    tokenizer = load_tokenizer(at(folder))
    exported = tokenizer_folder(at(folder), tokenizer, "\ufeff" + marked("job"), tmp_path / "export")
    shutil.copy(folder / "config.json", exported)
    assert AutoTokenizer.from_pretrained(exported).chat_template == marked("job")


@pytest.mark.parametrize("place", ["file", "config", "named", "additional"])
def test_a_byte_order_mark_of_a_template_is_in_no_prompt_and_in_no_export(tmp_path: Path, place: str) -> None:
    text = "\ufeff" + marked("main")
    named = [{"name": "default", "template": text}, {"name": "tool_use", "template": text}]
    folder = model(
        tmp_path,
        file=text if place in ("file", "additional") else None,
        config={"config": text, "named": named}.get(place),
    )
    if place == "additional":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/rag.jinja").write_text(text)
    tokenizer = load_tokenizer(at(folder))
    assert "\ufeff" not in str(tokenizer.chat_template)
    assert rendered(tokenizer).startswith("<|im_start|>")
    exported = tokenizer_folder(at(folder), tokenizer, None, tmp_path / "export")
    shutil.copy(folder / "config.json", exported)
    assert AutoTokenizer.from_pretrained(exported).chat_template == tokenizer.chat_template
