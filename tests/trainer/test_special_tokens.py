"""Special ids of tokenizer and model: published models pass, and ids without an embedding to train are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devcluster.fixtures.chat_data import write_data
from finetune_contract import ExitCode
from finetune_trainer import families
from finetune_trainer.checkpoints.declared_tokens import declared
from finetune_trainer.data.examples import TokenFile
from finetune_trainer.data.special_tokens import of_model, require_embeddings
from finetune_trainer.errors import StageError
from finetune_trainer.hub.models import LocalModel
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages import preflight
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import open_store
from finetune_trainer.tokens.encoding import TokenizedExample
from finetune_trainer.tokens.template import Renderer
from finetune_trainer.tokens.tokenizer import load_tokenizer
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())
IMAGE = "<image_soft_token>"


class Published:
    """The part of a tokenizer's interface that names its tokens."""

    def __init__(self, regular: int, added: range, **named: int) -> None:
        self._regular, self._added = regular, added
        for name in ("bos", "eos", "pad", "unk"):
            setattr(self, f"{name}_token_id", named.get(name))

    @property
    def added_tokens_decoder(self) -> dict[int, str]:
        return {index: f"<added {index}>" for index in self._added}

    def get_vocab(self) -> dict[str, int]:
        regular = {f"t{index}": index for index in range(self._regular)}
        return regular | {token: index for index, token in self.added_tokens_decoder.items()}


#: Regular tokens, added tokens and named tokens of published models.
TOKENIZERS: dict[str, Published] = {
    "Llama-3.2-1B-Instruct": Published(128_000, range(128_000, 128_256), bos=128_000, eos=128_009),
    "TinyLlama": Published(32_000, range(3), bos=1, eos=2, unk=0, pad=2),
    "Llama-2-7b": Published(32_000, range(3), bos=1, eos=2, unk=0),
    "Mistral-7B-v0.1": Published(32_000, range(3), bos=1, eos=2, unk=0),
    "Mistral-7B-v0.3": Published(32_768, range(771), bos=1, eos=2, unk=0),
    "Mistral-Nemo": Published(131_072, range(1000), bos=1, eos=2, unk=0),
    "Mixtral-8x7B-v0.1": Published(32_000, range(3), bos=1, eos=2, unk=0),
    "Qwen3-0.6B": Published(151_643, range(151_643, 151_669), eos=151_645, pad=151_643),
    "Qwen3-4B-2507": Published(151_643, range(151_643, 151_669), eos=151_645, pad=151_643),
    "Qwen3-30B-A3B": Published(151_643, range(151_643, 151_669), eos=151_645, pad=151_643),
    "gemma-2-2b-it": Published(256_000, range(249), bos=2, eos=1, pad=0, unk=3),
    "gemma-2-27b": Published(256_000, range(249), bos=2, eos=1, pad=0, unk=3),
    # the text model has no embedding for the token that stands for an image in the family's image models
    "gemma-3-1b-it": Published(262_144, range(262_144, 262_145), bos=2, eos=1, pad=0, unk=3),
    "gemma-3-4b-it": Published(262_144, range(262_144, 262_145), bos=2, eos=1, pad=0, unk=3),
    "gemma-3-27b-it": Published(262_144, range(262_144, 262_145), bos=2, eos=1, pad=0, unk=3),
    "SmolLM2-135M-Instruct": Published(49_152, range(17), bos=1, eos=2, pad=2, unk=0),
    "Qwen2.5-0.5B-Instruct": Published(151_643, range(151_643, 151_665), eos=151_645, pad=151_643),
    "Qwen2.5-Math-1.5B": Published(151_643, range(151_643, 151_665), eos=151_643, pad=151_643),
    "Qwen2.5-7B-Instruct": Published(151_643, range(151_643, 151_665), eos=151_645, pad=151_643),
    "Qwen2.5-72B-Instruct": Published(151_643, range(151_643, 151_665), eos=151_645, pad=151_643),
    "QwQ-32B": Published(151_643, range(151_643, 151_669), eos=151_645, pad=151_643),
    "DeepSeek-R1-Distill-Qwen-1.5B": Published(
        151_643, range(151_643, 151_665), bos=151_646, eos=151_643, pad=151_643
    ),
    "gemma-3-270m": Published(262_144, range(262_144, 262_145), bos=2, eos=1, pad=0, unk=3),
    "DeepSeek-V2-Lite": Published(100_000, range(100_000, 100_002), bos=100_000, eos=100_001, pad=100_001),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_model_is_refused(name: str) -> None:
    require_embeddings(TOKENIZERS[name], families.resolve(PUBLISHED[name]["config"]).vocab_size)


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (Published(32_000, range(3), bos=1, eos=2), "TokenizerTooLarge"),
        (Published(100, range(100, 32_000), bos=1, eos=2), None),
        (Published(100, range(90, 32_000), bos=1, eos=31_999), "SpecialTokenUnknown"),
        (Published(100, range(90, 32_000), bos=128, eos=2), "SpecialTokenUnknown"),
        (Published(100, range(90, 129), bos=1, eos=2, pad=128), None),
        (Published(100, range(90, 129)), None),
        (Published(128, range(0)), None),
    ],
    ids=[
        "another model's",
        "only added ones",
        "the end",
        "the beginning",
        "padding",
        "no names",
        "of equal size",
    ],
)
def test_what_training_would_use_has_an_embedding(tokenizer: Published, reason: str | None) -> None:
    if reason is None:
        require_embeddings(tokenizer, 128)
        return
    with pytest.raises(StageError) as caught:
        require_embeddings(tokenizer, 128)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, reason)
    assert "128" in caught.value.expected


# --- whole preflights of a small model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "models/qwen3", TinyModelSpec())
    write_data(tmp_path / "data", train=12, evaluation=4)
    return tmp_path


def edit(file: Path, **changes: Any) -> None:
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({k: v for k, v in (found | changes).items() if v is not None}))


def tokens_of(folder: Path) -> int:
    return (
        max(json.loads((folder / "models/qwen3/tokenizer.json").read_text())["model"]["vocab"].values()) + 1
    )


def without_room(folder: Path) -> Path:
    """Makes the tokenizer fill the vocabulary and have one added token beyond it, as in Gemma 3 1B."""
    size, path = tokens_of(folder), folder / "models/qwen3/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": size, "content": IMAGE, **flags})
    path.write_text(json.dumps(tokenizer))
    edit(folder / "models/qwen3/config.json", vocab_size=size)
    return folder


def context(folder: Path, stage: str = "Preflight", **changes: Any) -> StageContext:
    return StageContext(
        request=request(folder, stage, **changes),
        store=open_store(),
        processes=Processes(count=1, index=0),
        stopper=ImmediateStop(),
        scratch=folder,
    )


def remarks(folder: Path, **changes: Any) -> list[tuple[str, str]]:
    made = context(folder, **changes)
    preflight.run(made)
    report = json.loads(made.store.read(made.folder.data_report))
    return [(each["level"], each["text"]) for each in report.get("remarks", [])]


def about(folder: Path, word: str) -> list[str]:
    return [level for level, text in remarks(folder) if word in text]


def test_a_token_that_no_row_holds_needs_no_embedding(folder: Path) -> None:
    assert about(without_room(folder), IMAGE) == ["Note"]


@pytest.mark.parametrize("stage", ["Preflight", "Train"])
def test_a_row_that_holds_it_is_named(folder: Path, stage: str) -> None:
    """This also holds if preflight has read no row; the engine would use another token's embedding."""
    file = without_room(folder) / "data/train.jsonl"
    row = {"messages": [{"role": "user", "content": f"a {IMAGE}"}, {"role": "assistant", "content": "b"}]}
    with file.open("a") as lines:
        lines.write(json.dumps(row) + "\n")
    made = context(folder, stage, use_cache="Off")
    made.plan(made.model(weights=False))
    with pytest.raises(StageError) as caught:
        made.training_data()
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_DATA, "TokenUnknown")
    assert caught.value.where == "spec.datasets.train[0], row 13"
    assert caught.value.actual == f"{IMAGE} (id {tokens_of(folder)})"


def test_a_prompt_that_holds_it_is_named_before_the_evaluation(folder: Path) -> None:
    asked = {"prompts": ["Hello.", f"Describe {IMAGE}"], "max_new_tokens": 4}
    with pytest.raises(StageError) as caught:
        preflight.run(context(without_room(folder), evaluation=asked))
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "TokenUnknown")
    assert caught.value.where == "spec.evaluation.prompts[1]"
    assert caught.value.actual == f"{IMAGE} (id {tokens_of(folder)})"


def test_the_untouched_model_gives_no_remark_about_ids(folder: Path) -> None:
    assert not [text for _, text in remarks(folder) if "token" in text]


def test_a_class_that_makes_other_tokens_than_tokenizer_json_is_a_note(folder: Path) -> None:
    edit(folder / "models/qwen3/tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    assert about(folder, "loads this tokenizer as LlamaTokenizer") == ["Note"]


def test_answers_that_end_otherwise_than_the_model_stops_are_a_note_on_the_export(folder: Path) -> None:
    """An example is a base model trained on chats, whose generation_config.json has only the end of a document."""
    edit(folder / "models/qwen3/generation_config.json", eos_token_id=4)
    said = [(level, text) for level, text in remarks(folder) if "Answers are trained to end" in text]
    ((level, text),) = said
    assert level == "Note"
    assert "to end with <|im_end|> (3), and the base model's files stop at <eos> (4): the exported" in text


def test_rows_that_do_not_end_as_the_template_does_are_judged_by_their_own_end(folder: Path) -> None:
    """An example is a template whose marks leave the token out that closes a turn: training teaches no end."""
    edit(folder / "models/qwen3/generation_config.json", eos_token_id=4)
    (folder / "models/qwen3/chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{% generation %}"
        "{{ m['content'] }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert about(folder, "Answers are trained to end") == []


@pytest.mark.parametrize(
    "method", [{}, {"train_on_prompt": True}, {"type": "DPO"}, {"type": "ORPO"}], ids=str
)
def test_every_method_counts_the_ends_of_its_answers(folder: Path, method: dict[str, Any]) -> None:
    if "type" in method:
        write_data(folder / "data", train=12, evaluation=4, form="preference")
    made = context(folder, method=method)
    assert made.trained_ends(made.training_data()) == [load_eos(folder)]


@pytest.mark.parametrize("generation", [[0, 3], [3], 3], ids=["several", "one in a list", "one"])
def test_an_end_among_several_is_no_problem(folder: Path, generation: Any) -> None:
    eos = load_eos(folder)
    wanted = [eos if each == 3 else each for each in generation] if isinstance(generation, list) else eos
    edit(folder / "models/qwen3/generation_config.json", eos_token_id=wanted)
    assert about(folder, "Answers are trained to end") == []


def load_eos(folder: Path) -> int:
    path = folder / "models/qwen3"
    model = LocalModel(path=path, tokenizer_path=path, source="", tokenizer_source="", revision="")
    found: int = load_tokenizer(model).eos_token_id
    return found


@pytest.mark.parametrize("name", ["bos", "eos", "pad"])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_an_id_beyond_the_vocabulary_in_the_models_files_is_a_problem(
    folder: Path, file: str, name: str
) -> None:
    edit(folder / "models/qwen3" / file, **{f"{name}_token_id": 10**6})
    assert about(folder, f"{file}: {name}_token_id is 1000000") == ["Problem"]


@pytest.mark.parametrize(
    "value",
    [None, -1, "2", True, 2.0, [], [None, "x", [1]], {}],
    ids=["absent", "minus one", "text", "flag", "float", "none", "junk", "object"],
)
def test_what_is_no_id_is_not_compared(folder: Path, value: Any) -> None:
    for file in ("config.json", "generation_config.json"):
        path = folder / "models/qwen3" / file
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {f"{name}_token_id": value for name in ("bos", "eos", "pad")}))
    assert [*declared(folder / "models/qwen3").values()] == [{"bos": [], "eos": [], "pad": []}] * 2


@pytest.mark.parametrize("content", ["{", "[]", "3", "\xff"])
def test_a_generation_config_that_cannot_be_read_says_nothing(folder: Path, content: str) -> None:
    (folder / "models/qwen3/generation_config.json").write_bytes(content.encode("latin-1"))
    assert [*declared(folder / "models/qwen3")] == ["config.json"]


def test_of_an_image_and_text_model_the_text_models_ids_count(tmp_path: Path) -> None:
    config = {"eos_token_id": [1, 106], "text_config": {"bos_token_id": 2, "eos_token_id": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert declared(tmp_path) == {"config.json": {"bos": [2], "eos": [1, 106], "pad": []}}


def test_a_tokenizer_that_begins_otherwise_is_a_note(folder: Path) -> None:
    edit(folder / "models/qwen3/config.json", bos_token_id=7)
    assert about(folder, "bos_token is") == ["Note"]


def test_a_template_that_takes_no_plain_pair_is_no_error(folder: Path) -> None:
    path = folder / "models/qwen3"
    model = LocalModel(path=path, tokenizer_path=path, source="", tokenizer_source="", revision="")
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = "{{ raise_exception('a system message first') }}"
    renderer = Renderer(tokenizer, train_on_prompt=False)
    assert list(of_model(tokenizer, renderer, path, 512)) == []


SYSTEM_FIRST = (
    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('a system message first') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def system_first(folder: Path) -> Path:
    """Writes a template that requires a system message, and rows that each have one."""
    (folder / "models/qwen3/chat_template.jinja").write_text(SYSTEM_FIRST)
    for name in ("train", "eval"):
        rows = [
            {"messages": [{"role": "system", "content": "You are Acme's bot."},
                          {"role": "user", "content": f"{name} {number}"},
                          {"role": "assistant", "content": f"a {number}"}]}
            for number in range(12)
        ]  # fmt: skip
        (folder / f"data/{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_a_template_that_wants_a_system_message_which_every_row_has_is_taken(system_first: Path) -> None:
    asked = {"prompts": [], "max_new_tokens": 4}
    assert not [
        text for _, text in remarks(system_first, evaluation=asked) if "answer" in text or "turn" in text
    ]
    made = context(system_first)
    ends = {made.tokenizer.convert_ids_to_tokens(each) for each in made.renderer.end_ids()}
    assert ends == {"<|im_end|>"}
    assert made.renderer.generation_prompt() == "<|im_start|>assistant\n"


def test_a_prompt_that_the_template_refuses_is_named_before_training(system_first: Path) -> None:
    with pytest.raises(StageError, match="a system message first") as caught:
        preflight.run(context(system_first, evaluation={"prompts": ["Hello."], "max_new_tokens": 4}))
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "PromptRefused")


def test_the_first_example_beyond_a_limit_is_found_among_trained_and_other_tokens(tmp_path: Path) -> None:
    for trained in (False, True):
        file = TokenFile(tmp_path / f"{trained}.tokens")
        for ids in ([1, 2], [3], [4, 9, 5], [8]):
            file.append(TokenizedExample(ids=np.asarray(ids, np.int32), trained=np.full(len(ids), trained)))
        assert [file.first_from(limit) for limit in (10, 9, 8, 5, 0)] == [None, 2, 2, 2, 0]
