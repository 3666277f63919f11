"""Fetching model folders by address."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from finetune_contract import ExitCode, HubRef, ModelSource
from finetune_storage.google import GoogleStore
from finetune_trainer import families
from finetune_trainer.checkpoints.weights import Weights, open_weights, read_tensor
from finetune_trainer.errors import StageError
from finetune_trainer.hub.models import Values, fetch_model
from finetune_trainer.storage import RETRIES, open_store
from tests.doubles.hub import FakeHub
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.storage_proxy import between
from tests.trainer.stores import BUCKET


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors", "README.md"])
def test_config_and_weights_must_stay_as_preflight_found_them(tmp_path: Path, changed: str) -> None:
    folder = write_model(tmp_path / "model", TinyModelSpec())
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
    with pytest.raises(StageError, match="has changed since preflight checked it") as error:
        fetch_model(pinned, tmp_path, open_store(), weights=False)
    assert (error.value.code, error.value.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert error.value.where == "spec.model.uri"


@pytest.mark.parametrize("apart", [False, True], ids=["beside the weights", "in a folder of its own"])
@pytest.mark.parametrize(
    "changed", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
)
def test_a_tokenizer_in_a_folder_must_stay_as_preflight_found_it(
    tmp_path: Path, changed: str, apart: bool
) -> None:
    folder = write_model(tmp_path / "model", TinyModelSpec())
    words = write_model(tmp_path / "words", TinyModelSpec()) if apart else folder
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
    with pytest.raises(
        StageError, match=r"the tokenizer in file:.* has changed since preflight checked it"
    ) as error:
        fetch_model(pinned, tmp_path, open_store(), weights=False)
    assert (error.value.code, error.value.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert error.value.where == ("spec.model.tokenizer.uri" if apart else "spec.model.uri")


def test_the_same_model_with_another_tokenizer_is_converted_alike(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", TinyModelSpec())
    source = ModelSource(uri=f"file://{folder}")
    before = fetch_model(source, tmp_path, open_store(), weights=False)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    after = fetch_model(source, tmp_path, open_store(), weights=False)
    assert (before.revision, before.tokenizer_revision == after.tokenizer_revision) == (after.revision, False)


@pytest.mark.parametrize("values", ["All", "Foreign", "None"])
@pytest.mark.parametrize("removed", [False, True], ids=["replaced", "removed"])
def test_a_shard_that_changes_during_the_fetch_is_refused_by_name(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Values, removed: bool
) -> None:
    """Whether or not the version is pinned, the fetch returns the version that was listed, or fails."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    original, new = (write_model(tmp_path / str(seed), TinyModelSpec(shards=2, seed=seed)) for seed in (0, 1))
    uri, file = f"gs://{BUCKET}/{tmp_path.name}", "model-00002-of-00002.safetensors"
    store = open_store()
    store.upload_folder(original, uri)

    def changing[**P, R](read: Callable[P, R]) -> Callable[P, R]:
        def later(*args: P.args, **kwargs: P.kwargs) -> R:
            if f"{uri}/{file}" in args:
                writer = open_store()
                writer.delete(f"{uri}/{file}")
                if not removed:
                    writer.upload_file(new / file, f"{uri}/{file}")
            return read(*args, **kwargs)

        return later

    for name in ("download", "read_part"):
        monkeypatch.setattr(GoogleStore, name, changing(getattr(GoogleStore, name)))
    with pytest.raises(StageError) as caught:
        fetch_model(ModelSource(uri=uri), tmp_path / "copy", store, weights=True, values=values)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_DATA, "InputChanged")
    assert (caught.value.where, file in caught.value.what) == ("spec.model.uri", True)


@pytest.mark.parametrize("values", ["All", "None"])
def test_objects_of_a_bucket_are_written_nowhere_but_into_the_scratch_folder(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Values
) -> None:
    """A key with two slashes would be an absolute path below the folder's address."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    store, uri = open_store(), f"gs://{BUCKET}/{tmp_path.name}"
    store.upload_folder(write_model(tmp_path / "model", TinyModelSpec()), uri)
    victim = tmp_path / "outside" / "usercustomize.py"
    names = (str(victim), "../outside/x.safetensors", "below/config.json")
    store.write(
        f"{uri}/model.safetensors.index.json", json.dumps({"weight_map": dict.fromkeys("ab", names[0])})
    )
    bucket = GoogleStore(RETRIES).client.bucket(BUCKET)
    for name in names:
        bucket.blob(f"{tmp_path.name}/{name}").upload_from_string("code")
    with pytest.raises(StageError, match="the index names a file outside of the folder") as caught:
        fetch_model(ModelSource(uri=uri), tmp_path / "copy", store, weights=True, values=values)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_REQUEST, "WeightsMismatch")
    store.delete(f"{uri}/model.safetensors.index.json")
    found = fetch_model(ModelSource(uri=uri), tmp_path / "whole", store, weights=True, values=values)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "copy", "whole"}
    assert not (found.path / "below").exists()


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors", "README.md"])
def test_a_folder_that_is_read_in_place_can_be_compared_again(tmp_path: Path, changed: str) -> None:
    folder = write_model(tmp_path / "model", TinyModelSpec())
    (folder / "README.md").write_text("A tiny model.")
    found = fetch_model(ModelSource(uri=f"file://{folder}"), tmp_path, open_store(), weights=True)
    found.require_unchanged()
    before = (folder / changed).stat()
    (folder / changed).write_bytes((folder / changed).read_bytes())
    os.utime(folder / changed, ns=(before.st_atime_ns, before.st_mtime_ns + 10**6))
    if changed == "README.md":
        found.require_unchanged()
        return
    with pytest.raises(StageError, match=f"{changed} was replaced") as caught:
        found.require_unchanged()
    assert caught.value.reason == "InputChanged"


#: Contains image parts, all of which are in one of the files.
SHARDED = TinyModelSpec(
    family="gemma3-multimodal", shards=3, layers=6, hidden=128, intermediate=1024, vocab=1024
)


def require_parts(folder: Path, original: Path, values: Values) -> Weights:
    """Checks that all tensors have headers and that the tensors in use have values."""
    weights = open_weights(folder, families.read(folder))
    whole = open_weights(original, families.read(original))
    assert {name: (each.shape, each.dtype) for name, each in weights.text.items()} == {
        name: (each.shape, each.dtype) for name, each in whole.text.items()
    }
    assert weights.foreign
    for name, tensor in weights.foreign.items():
        if values == "Foreign":
            assert read_tensor(tensor).tobytes() == read_tensor(whole.foreign[name]).tobytes()
    return weights


@pytest.mark.parametrize("values", ["Foreign", "None"])
def test_of_weights_in_a_bucket_the_values_that_are_wanted_are_read(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Values
) -> None:
    original = write_model(tmp_path / "model", SHARDED)
    size = sum(path.stat().st_size for path in original.glob("*.safetensors"))
    uri = f"gs://{BUCKET}/{tmp_path.name}"
    with between(server) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        monkeypatch.setattr("finetune_trainer.checkpoints.sparse_files._FIRST", 1000)
        store = open_store()
        store.upload_folder(original, uri)
        found = fetch_model(ModelSource(uri=uri), tmp_path / "copy", store, weights=True, values=values)
        require_parts(found.path, original, values)
        assert sum(each.sent for each in proxy.contents(".safetensors?")) < 0.02 * size
        assert sum(path.stat().st_blocks * 512 for path in found.path.glob("*.safetensors")) < 0.1 * size
        assert (
            open_weights(
                fetch_model(ModelSource(uri=uri), tmp_path / "whole", store, weights=True).path,
                families.read(original),
            )
            .read("model.norm.weight")
            .any()
        )


@pytest.mark.parametrize("values", ["Foreign", "None"])
def test_of_weights_on_the_hub_the_files_with_values_that_are_wanted_are_fetched(
    hub: FakeHub, tmp_path: Path, values: Values
) -> None:
    original = write_model(tmp_path / "model", SHARDED)
    files = {path.name: path.read_bytes() for path in original.iterdir()}
    foreign = {
        tensor.file.name for tensor in open_weights(original, families.read(original)).foreign.values()
    }
    assert len(foreign) < SHARDED.shards
    hub.push("team/sharded", files)
    before = hub.sent
    source = ModelSource(hugging_face=HubRef(repo="team/sharded", revision="main"))
    found = fetch_model(source, tmp_path / "scratch", open_store(), weights=True, values=values)
    require_parts(found.path, original, values)
    headers = SHARDED.shards * 100_001
    wanted = {name for name in files if not name.endswith(".safetensors")} | (
        foreign if values == "Foreign" else set()
    )
    assert hub.sent - before < sum(len(files[name]) for name in wanted) + headers + 20_000


@pytest.mark.parametrize("values", ["All", "Foreign", "None"])
def test_a_header_that_is_nested_too_deeply_is_that_of_a_broken_file(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: Values
) -> None:
    original = write_model(tmp_path / "model", TinyModelSpec())
    header = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    (original / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    uri = f"gs://{BUCKET}/{tmp_path.name}"
    open_store().upload_folder(original, uri)
    found = fetch_model(ModelSource(uri=uri), tmp_path / "copy", open_store(), weights=True, values=values)
    with pytest.raises(StageError, match="the file is incomplete"):
        open_weights(found.path, families.read(found.path), where=uri)


@pytest.mark.parametrize(
    "length", [4, 100, 5000, -10], ids=["no length", "no header", "no values", "cut short"]
)
def test_a_truncated_file_is_reported_whatever_is_read_of_it(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    original = write_model(tmp_path / "model", TinyModelSpec(shards=2))
    file = "model-00002-of-00002.safetensors"
    (original / file).write_bytes((original / file).read_bytes()[:length])
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    uri = f"gs://{BUCKET}/{tmp_path.name}"
    open_store().upload_folder(original, uri)
    for values in ("All", "Foreign", "None"):
        found = fetch_model(
            ModelSource(uri=uri), tmp_path / values, open_store(), weights=True, values=values
        )
        with pytest.raises(StageError, match="the file is incomplete") as caught:
            open_weights(found.path, families.read(found.path), where=uri)
        assert (caught.value.code, caught.value.where) == (ExitCode.BAD_REQUEST, f"{uri}/{file}")
        assert "Upload" in caught.value.fix
