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
