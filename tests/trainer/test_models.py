"""Model folders by address."""

import json
from pathlib import Path

import pytest

from devcluster.fixtures.tiny_models import Spec, write_model
from finetune_contract import ExitCode, ModelSource
from finetune_trainer.errors import StageError
from finetune_trainer.models import fetch_model
from finetune_trainer.storage import open_store


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors", "README.md"])
def test_config_and_weights_must_stay_as_preflight_found_them(tmp_path: Path, changed: str) -> None:
    folder = write_model(tmp_path / "model", Spec())
    (folder / "README.md").write_text("A tiny model.")
    source = ModelSource(uri=f"file://{folder}")
    found = fetch_model(source, tmp_path, open_store(), weights=False).revision
    pinned = source.model_copy(update={"digest": found})
    if changed.endswith(".json"):
        settings = json.loads((folder / changed).read_text())
        (folder / changed).write_text(json.dumps(settings | {"rope_theta": 20_000}))
    else:
        content = (folder / changed).read_bytes()
        (folder / changed).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    if changed == "README.md":
        assert fetch_model(pinned, tmp_path, open_store(), weights=False).revision == found
        return
    with pytest.raises(StageError, match="is not what preflight checked") as error:
        fetch_model(pinned, tmp_path, open_store(), weights=False)
    assert (error.value.code, error.value.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert error.value.where == "model.uri"


@pytest.mark.parametrize("apart", [False, True], ids=["beside the weights", "in a folder of its own"])
@pytest.mark.parametrize(
    "changed", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
)
def test_a_tokenizer_in_a_folder_must_stay_as_preflight_found_it(
    tmp_path: Path, changed: str, apart: bool
) -> None:
    folder = write_model(tmp_path / "model", Spec())
    words = write_model(tmp_path / "words", Spec()) if apart else folder
    source = ModelSource(
        uri=f"file://{folder}", tokenizer=ModelSource(uri=f"file://{words}") if apart else None
    )
    found = fetch_model(source, tmp_path, open_store(), weights=False)
    assert found.tokenizer_revision is not None
    pin = {"tokenizer_digest": found.tokenizer_revision}
    if source.tokenizer is not None:
        pin = {"tokenizer": source.tokenizer.model_copy(update=pin)}  # type: ignore[dict-item]
    pinned = source.model_copy(update={"digest": found.revision, **pin})
    assert fetch_model(pinned, tmp_path, open_store(), weights=False) == found

    (words / changed).write_text((words / changed).read_text() + " ")
    if changed == "generation_config.json":
        assert fetch_model(pinned, tmp_path, open_store(), weights=False) == found
        return
    with pytest.raises(StageError, match=r"the tokenizer in file:.* is not what preflight checked") as error:
        fetch_model(pinned, tmp_path, open_store(), weights=False)
    assert (error.value.code, error.value.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert error.value.where == ("model.tokenizer.uri" if apart else "model.uri")


def test_the_same_model_with_another_tokenizer_is_converted_alike(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", Spec())
    source = ModelSource(uri=f"file://{folder}")
    before = fetch_model(source, tmp_path, open_store(), weights=False)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    after = fetch_model(source, tmp_path, open_store(), weights=False)
    assert (before.revision, before.tokenizer_revision == after.tokenizer_revision) == (after.revision, False)
