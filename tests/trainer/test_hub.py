"""Repositories on the hub: what is fetched, at which commit, and how each refusal is reported.

The library is the real one. It sends requests to a fake hub (``tests.doubles.hub``), or reads a cache that a test
has written by hand."""

import time
from pathlib import Path

import pytest
from huggingface_hub import constants

from finetune_contract import ExitCode, HubRef, ModelSource
from finetune_trainer import families
from finetune_trainer.errors import StageError
from finetune_trainer.hub import repositories
from finetune_trainer.hub.models import LocalModel, fetch_model
from finetune_trainer.storage import open_store
from tests.doubles.hub import FakeHub
from tests.doubles.tiny_models import TinyModelSpec, write_model

REPO = "acme/tiny"
TOKEN = "hf_canary0123456789"


def tiny(tmp_path: Path, **spec: object) -> dict[str, bytes]:
    folder = write_model(tmp_path / "written", TinyModelSpec(**spec))  # type: ignore[arg-type]  # the caller's fields
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")}


def source(revision: str = "main", repo: str = REPO) -> ModelSource:
    return ModelSource(hugging_face=HubRef(repo=repo, revision=revision))


def fetched(tmp_path: Path, model: ModelSource, *, weights: bool = True) -> LocalModel:
    return fetch_model(model, tmp_path / "scratch", open_store(), weights=weights)


def refusal(tmp_path: Path, model: ModelSource) -> StageError:
    with pytest.raises(StageError) as caught:
        fetched(tmp_path, model, weights=False)
    return caught.value


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replaces the pauses between retries, and returns their lengths."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


# --- what is fetched --------------------------------------------------------------------------------------------------


def test_a_branch_a_tag_and_a_commit_are_settled_to_the_commit(hub: FakeHub, tmp_path: Path) -> None:
    files = tiny(tmp_path)
    first = hub.push(REPO, files)
    tagged = hub.push(REPO, {**files, "README.md": "tagged"}, to="v1.0")
    second = hub.push(REPO, {**files, "README.md": "later"})
    wanted = {"main": second, "v1.0": tagged, first: first}
    for revision, commit in wanted.items():
        model = fetched(tmp_path, source(revision))
        identity = model.identity(families.read(model.path))
        assert (identity.source, identity.revision) == (REPO, commit), revision
    assert (model.path / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_what_was_pinned_is_what_later_stages_get_when_the_branch_has_moved(
    hub: FakeHub, tmp_path: Path
) -> None:
    files = tiny(tmp_path)
    pinned = hub.push(REPO, files)
    assert fetched(tmp_path, source(), weights=False).revision == pinned
    hub.push(REPO, {**files, "model.safetensors": b"of another day", "README.md": "changed"})
    model = fetched(tmp_path, source(pinned))
    assert model.revision == pinned
    assert (model.path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert fetched(tmp_path, source(), weights=False).revision != pinned


def test_only_what_is_needed_is_fetched(hub: FakeHub, tmp_path: Path) -> None:
    files = tiny(tmp_path, shards=2)
    others = {
        "pytorch_model.bin": b"x", "model-q4.gguf": b"x", "original/consolidated.00.pth": b"x", "onnx/model.onnx": b"x",
        "original/params.json": "{}", "consolidated.safetensors": b"x", "training_args.bin": b"x",
    }  # fmt: skip
    hub.push(REPO, {**files, **others})
    fetched(tmp_path, source(), weights=False)
    small = hub.requested_files(REPO)
    assert not any(name.endswith(".safetensors") for name in small)
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= small
    fetched(tmp_path, source())
    assert hub.requested_files(REPO) - small == {name for name in files if name.endswith(".safetensors")}
    assert not hub.requested_files(REPO) & set(others)


def test_a_download_leaves_one_line_in_the_log_and_no_bars(
    hub: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    commit = hub.push(REPO, tiny(tmp_path))
    with caplog.at_level("INFO", logger="finetune_trainer"):
        fetched(tmp_path, source(), weights=False)
    assert [record.message for record in caplog.records] == [f"{REPO}@{commit[:12]}: fetching 5 of 6 files"]
    assert capfd.readouterr().err == ""


def test_a_listing_of_several_pages_is_read_whole(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(REPO, {**tiny(tmp_path), **{f"runs/{number:03}.txt": "x" for number in range(120)}})
    found = repositories.find(HubRef(repo=REPO), "model", "model.huggingFace")
    assert sum(name.startswith("runs/") for name in found.files) == 120
    assert "tokenizer.json" in found.files


def test_a_tokenizer_of_its_own_repository_is_fetched_and_pinned(hub: FakeHub, tmp_path: Path) -> None:
    files = tiny(tmp_path)
    hub.push(REPO, {name: data for name, data in files.items() if not name.startswith("token")})
    commit = hub.push("acme/words", {name: data for name, data in files.items() if name.startswith("token")})
    model = fetched(
        tmp_path, source().model_copy(update={"tokenizer": source(repo="acme/words")}), weights=False
    )
    assert (model.tokenizer_path / "tokenizer.json").read_bytes() == files["tokenizer.json"]
    assert model.identity(families.read(model.path)).tokenizer_revision == commit


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_repository_that_is_not_there_is_reported_with_its_name(hub: FakeHub, tmp_path: Path) -> None:
    error = refusal(tmp_path, source(repo="acme/tinny"))
    assert (error.code, error.reason) == (ExitCode.INPUT_MISSING, "HubRepositoryMissing")
    assert "acme/tinny" in str(error)
    assert "model.huggingFace" in error.where
    assert hub.address in error.expected


def test_a_revision_that_is_not_there_is_reported_with_those_that_are(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(REPO, tiny(tmp_path))
    hub.push(REPO, {"config.json": "{}"}, to="v2")
    error = refusal(tmp_path, source("v3"))
    assert (error.code, error.reason) == (ExitCode.INPUT_MISSING, "HubRevisionMissing")
    assert "revision v3" in error.actual
    assert "main, v2" in error.expected


def test_a_commit_that_is_not_there_is_reported(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(REPO, tiny(tmp_path))
    assert refusal(tmp_path, source("0" * 40)).reason == "HubRevisionMissing"


def test_a_private_repository_looks_like_none_and_the_secret_is_named(hub: FakeHub, tmp_path: Path) -> None:
    # without a token, the hub does not reveal which of the two is true
    hub.push(REPO, tiny(tmp_path), private=True)
    error = refusal(tmp_path, source())
    assert (error.code, error.reason) == (ExitCode.INPUT_MISSING, "HubRepositoryMissing")
    assert "or it is private" in str(error)
    assert "without a token" in error.actual
    assert "huggingFaceTokenSecretRef" in error.fix


def test_a_gated_repository_is_reported_with_where_to_accept_its_terms(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(REPO, tiny(tmp_path), gated="manual")
    hub.tokens = {TOKEN: frozenset()}
    for token in ("", TOKEN):
        monkeypatch.setenv("HF_TOKEN", token)
        error = refusal(tmp_path, source())
        assert (error.code, error.reason) == (ExitCode.PERMISSION_DENIED, "HubAccessDenied")
        assert f"{hub.address}/{REPO}" in error.fix
        assert "huggingFaceTokenSecretRef" in error.fix


def test_a_token_that_the_hub_does_not_know_is_reported(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(REPO, tiny(tmp_path))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    error = refusal(tmp_path, source())
    assert (error.code, error.reason) == (ExitCode.PERMISSION_DENIED, "HubAccessDenied")
    assert "Invalid credentials" in error.actual
    assert TOKEN not in str(error)


def test_a_token_opens_private_and_gated_and_goes_to_the_hub_alone(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tiny(tmp_path)
    hub.push(REPO, files, private=True)
    hub.push("acme/gated", files, gated="auto")
    hub.tokens = {TOKEN: frozenset({REPO, "acme/gated"})}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for repo in (REPO, "acme/gated"):
        assert (fetched(tmp_path, source(repo=repo)).path / "model.safetensors").is_file()
    elsewhere = [seen for seen in hub.seen if seen.host.startswith("localhost")]
    assert elsewhere  # large files are on another host
    assert {seen.authorization for seen in elsewhere} == {None}
    assert {seen.authorization for seen in hub.seen if seen not in elsewhere} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("files", "reason", "actual"),
    [
        ({"README.md": "x"}, "ConfigMissing", "README.md"),
        ({"config.json": "{}", "pytorch_model.bin": b"x"}, "WeightsMissing", "pytorch_model.bin"),
        ({"config.json": "{}", "tiny-q4.gguf": b"x"}, "WeightsMissing", "tiny-q4.gguf"),
        ({"config.json": "{}", "original/model.safetensors": b"x"}, "WeightsMissing", "original/"),
    ],
)
def test_what_is_no_model_in_safetensors_is_refused_before_anything_is_fetched(
    hub: FakeHub, tmp_path: Path, files: dict[str, str], reason: str, actual: str
) -> None:
    hub.push(REPO, files)
    error = refusal(tmp_path, source())
    assert (error.code, error.reason) == (ExitCode.INPUT_MISSING, reason)
    assert actual in error.actual
    assert error.fix
    assert hub.requested_files(REPO) == set()


def test_an_index_that_names_a_file_that_is_not_there_is_refused_in_preflight(
    hub: FakeHub, tmp_path: Path
) -> None:
    files = tiny(tmp_path, shards=2)
    gone = max(name for name in files if name.endswith(".safetensors"))
    hub.push(REPO, {name: data for name, data in files.items() if name != gone})
    error = refusal(tmp_path, source())
    assert (error.code, error.reason) == (ExitCode.INPUT_MISSING, "WeightsMissing")
    assert gone in error.fix


# --- a hub that does not answer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_fails_is_asked_again_and_then_named(
    hub: FakeHub, tmp_path: Path, hasty: list[float], status: int
) -> None:
    hub.push(REPO, tiny(tmp_path))
    hub.fail(status)
    error = refusal(tmp_path, source())
    assert (error.code, error.reason) == (ExitCode.UNAVAILABLE, "HubUnavailable")
    assert f"{status} from {hub.address}" in error.actual
    assert len(hasty) == 3


def test_a_hub_that_recovers_is_not_noticed(hub: FakeHub, tmp_path: Path, hasty: list[float]) -> None:
    commit = hub.push(REPO, tiny(tmp_path))
    hub.fail(429, times=1, headers={"Retry-After": "7"})
    hub.fail(503, times=1, part="/tree/")
    hub.fail(502, times=1, part="/resolve/")
    assert fetched(tmp_path, source()).revision == commit
    assert hasty[0] == 7


def test_a_hub_that_is_not_there_is_reported(
    hub: FakeHub, tmp_path: Path, hasty: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeHub() as gone:
        nowhere = gone.address
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    error = refusal(tmp_path, source())
    assert (error.code, error.reason) == (ExitCode.UNAVAILABLE, "HubUnavailable")
    assert nowhere in error.actual
    assert hasty


@pytest.mark.parametrize("status", [403, 503])
def test_a_branch_is_never_taken_from_the_cache_while_the_hub_is_asked(
    hub: FakeHub, tmp_path: Path, hasty: list[float], status: int
) -> None:
    commit = hub.push(REPO, tiny(tmp_path))
    fetched(tmp_path, source())
    hub.fail(status)
    assert refusal(tmp_path, source()).reason in ("HubAccessDenied", "HubUnavailable")
    # the contents of a commit cannot change, so the cache is sufficient
    assert fetched(tmp_path, source(commit)).revision == commit


# --- without a network ------------------------------------------------------------------------------------------------


def cached(cache: Path, files: dict[str, bytes], commit: str = "c0ffee" + "0" * 34) -> str:
    """Writes a cache as every release of the library does: blobs by content, names as links, branches as files."""
    folder = cache / f"models--{REPO.replace('/', '--')}"
    for name, data in files.items():
        blob = folder / "blobs" / f"{len(data)}-{name.replace('/', '-')}"
        link = folder / "snapshots" / commit / name
        for path in (blob, link):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to(blob)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    return commit


def test_a_filled_cache_is_enough_and_the_network_is_left_alone(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tiny(tmp_path)
    commit = cached(tmp_path / "hub", files)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision in ("main", commit):
        model = fetched(tmp_path, source(revision))
        assert model.revision == commit
        assert (model.path / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert hub.seen == []


def test_a_cache_that_lacks_the_weights_is_reported_without_a_network(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.push(REPO, tiny(tmp_path))
    fetched(tmp_path, source(), weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetched(tmp_path, source(commit), weights=False).revision == commit
    for model in (source(commit), source("v9")):
        with pytest.raises(StageError, match="the Hub is disabled") as caught:
            fetched(tmp_path, model)
        assert (caught.value.code, caught.value.reason) == (ExitCode.INPUT_MISSING, "HubCacheMiss")
