"""Pushing an export to the Hub: one commit, private, resumable, and never an incomplete model."""

import json
from pathlib import Path

import pytest

from finetune_contract import DestinationSpec, ExitCode, HubDestinationSpec
from finetune_trainer.errors import StageError
from finetune_trainer.export.hub_upload import UploadFolder, push
from finetune_trainer.export.publish import write_manifest
from finetune_trainer.hub import repositories as downloads
from tests.doubles.hub import FakeHub

TOKEN = "hf_canary_writer"
REPO = "acme/support-bot"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> None:
    monkeypatch.setenv("HF_UPLOAD_TOKEN_0", TOKEN)
    monkeypatch.setattr(downloads, "_PAUSES", (0.0,))
    hub.writers[TOKEN] = frozenset({"acme"})


def destination(*, private: bool = True, repo: str = REPO) -> DestinationSpec:
    return DestinationSpec(
        path="spec.export.destinations[0].huggingFaceHub",
        hub=HubDestinationSpec(repo=repo, private=private, token_variable="HF_UPLOAD_TOKEN_0"),
    )


def export(folder: Path, **files: str) -> dict[str, UploadFolder]:
    """Writes the folders of a model and an adapter; underscores in the argument names represent dots."""
    parts = {}
    for name, kind, prefix in (("model", "HuggingFace", ""), ("adapter", "Adapter", "adapter/")):
        out = folder / name
        out.mkdir(parents=True)
        for key, content in ({"README_md": "# A model\n", "config_json": "{}"} | files).items():
            (out / key.replace("_", ".")).write_text(content)
        (out / "model.safetensors").write_bytes(name.encode() * 1000)
        write_manifest(out, kind)  # type: ignore[arg-type]
        parts[name] = UploadFolder(folder=out, kind=kind, prefix=prefix)  # type: ignore[arg-type]
    return parts


def test_everything_arrives_in_one_commit(hub: FakeHub, tmp_path: Path) -> None:
    pushed = push(export(tmp_path), destination(), "support-bot, step 20")
    files = hub.files(REPO)
    assert hub.is_private(REPO)
    assert files["model.safetensors"] == b"model" * 1000
    assert files["adapter/model.safetensors"] == b"adapter" * 1000
    assert {
        "manifest.json",
        "adapter/manifest.json",
        "README.md",
        "config.json",
        ".gitattributes",
    } <= files.keys()
    commit = pushed["model"].uri.partition("@")[2]
    assert pushed["model"].uri == f"hf://{REPO}@{commit}"
    assert hub.files(REPO, revision=commit) == files
    assert pushed["model"].digest != pushed["adapter"].digest
    assert sum("/commit/" in seen.path for seen in hub.seen) == 1
    told = {seen.authorization for seen in hub.seen if REPO in seen.path or seen.path == "/api/repos/create"}
    assert told == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("part", ["/preupload/", "/lfs/objects/batch", "/upload/", "/commit/"])
def test_an_upload_that_breaks_off_changes_nothing_that_anybody_sees(
    hub: FakeHub, tmp_path: Path, part: str
) -> None:
    push(export(tmp_path / "first"), destination(), "first")
    before = dict(hub.files(REPO))
    newer = export(tmp_path / "second", config_json='{"newer": true}')
    (newer["model"].folder / "model.safetensors").write_bytes(b"newer" * 1000)
    write_manifest(newer["model"].folder, "HuggingFace")
    hub.fail(403, part=part, times=1)
    with pytest.raises(StageError):
        push(newer, destination(), "second")
    assert hub.files(REPO) == before
    push(newer, destination(), "again")
    assert hub.files(REPO)["model.safetensors"] == b"newer" * 1000


def test_a_hub_that_is_down_for_a_moment_is_asked_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.fail(503, part="/api/repos/create", times=1)
    push(export(tmp_path), destination(), "patient")
    assert "manifest.json" in hub.files(REPO)


def test_a_commit_that_another_overtakes_is_made_on_top_of_it(hub: FakeHub, tmp_path: Path) -> None:
    """The hub answers 412 if another client commits while the large files are uploaded."""
    hub.fail(412, part="/commit/", times=1)
    push(export(tmp_path), destination(), "mine")
    assert "model.safetensors" in hub.files(REPO)
    assert len([seen for seen in hub.seen if "/commit/" in seen.path]) == 2


def test_what_an_earlier_export_had_and_this_one_has_not_goes(hub: FakeHub, tmp_path: Path) -> None:
    push(export(tmp_path / "first", chat_jinja="{{ x }}"), destination(), "first")
    both = hub.files(REPO)
    only_model = {"model": export(tmp_path / "second")["model"]}
    push(only_model, destination(), "second")
    gone = both.keys() - hub.files(REPO).keys()
    assert gone == {"chat.jinja", *(name for name in both if name.startswith("adapter/"))}


def test_other_peoples_files_are_never_touched(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(REPO, {"weights.gguf": b"theirs"}, private=True)
    with pytest.raises(StageError) as caught:
        push(export(tmp_path), destination(), "mine")
    assert caught.value.reason == "DestinationNotEmpty"
    assert hub.files(REPO) == {"weights.gguf": b"theirs"}


def test_a_model_that_is_to_be_private_never_lands_in_public(hub: FakeHub, tmp_path: Path) -> None:
    hub.push(REPO, {"README.md": "# public"})
    with pytest.raises(StageError) as caught:
        push(export(tmp_path), destination(), "mine")
    assert caught.value.reason == "HubRepositoryPublic"
    push(export(tmp_path / "again"), destination(private=False), "mine")
    assert "manifest.json" in hub.files(REPO)


@pytest.mark.parametrize(("token", "repo"), [("hf_nobody", REPO), (TOKEN, "others/bot"), ("", REPO)])
def test_a_token_that_may_not_write_is_the_users_to_mend(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, repo: str
) -> None:
    monkeypatch.setenv("HF_UPLOAD_TOKEN_0", token)
    with pytest.raises(StageError) as caught:
        push(export(tmp_path), destination(repo=repo), "mine")
    assert caught.value.code == ExitCode.PERMISSION_DENIED
    assert "hf_" not in json.dumps([str(caught.value), caught.value.actual])
    assert not [seen for seen in hub.seen if "/commit/" in seen.path]
