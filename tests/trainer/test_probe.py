"""Preflight tests Export's destinations: it refuses those where Export would fail, and leaves no files behind."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from devcluster.fixtures.chat_data import write_data
from finetune_contract import DestinationSpec, ExitCode, ExportSpec, HubDestinationSpec
from finetune_storage.errors import StorageDenied
from finetune_storage.files import FileStore
from finetune_storage.google import GoogleStore
from finetune_trainer.errors import StageError
from finetune_trainer.export import probe
from finetune_trainer.export.hub_upload import why_not
from finetune_trainer.export.marker import UploadOwner
from finetune_trainer.export.publish import MARKER, PROBE, publish, write_manifest
from finetune_trainer.hub import repositories as downloads
from finetune_trainer.process.processes import Processes
from finetune_trainer.process.stopping import ImmediateStop
from finetune_trainer.stages import preflight
from finetune_trainer.stages.context import StageContext
from finetune_trainer.storage import RETRIES, Entry, StorageClient, open_store
from tests.doubles.hub import FakeHub
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request
from tests.trainer.stores import BUCKET, fake_gcs, program

OWNER = UploadOwner(job="team/bot", uid="1", run_folder="gs://artifacts/team/bot-1", attempt="1.0-a")
PATH = "spec.export.destinations[0]"
TOKEN, REPO = "hf_canary_writer", "acme/support-bot"


def to(uri: str, **changes: Any) -> ExportSpec:
    spec: dict[str, Any] = {"content": "Merged", "dtype": "BF16", **changes}
    return ExportSpec(**spec, destinations=[DestinationSpec(path=PATH, uri=uri)])


def to_hub(repo: str = REPO, *, private: bool = True) -> ExportSpec:
    hub = HubDestinationSpec(repo=repo, private=private, token_variable="HF_UPLOAD_TOKEN_0")
    place = DestinationSpec(path=f"{PATH}.huggingFaceHub", hub=hub)
    return ExportSpec(content="Merged", dtype="BF16", destinations=[place])


def refusal(spec: ExportSpec, store: StorageClient | None = None) -> StageError:
    with pytest.raises(StageError) as caught:
        probe.destinations(spec, store or open_store(), OWNER)
    assert PATH in caught.value.where
    assert caught.value.fix
    return caught.value


def tree(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# --- folders


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    built = program()
    if built is None:
        pytest.skip("fake-gcs-server is not built: make cluster-programs")
    with fake_gcs(built) as address:
        yield address


@pytest.fixture(params=["file", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/store"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("server"))
    return f"gs://{BUCKET}/{tmp_path.name}"


def exported(tmp_path: Path) -> Path:
    """Returns a model's folder with its manifest."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    write_manifest(model, "HuggingFace")
    return model


def publish_half(
    model: Path, uri: str, store: StorageClient, owner: UploadOwner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts an upload that is killed between its marker and its first file."""
    with monkeypatch.context() as cut_off:
        cut_off.setattr(StorageClient, "upload_folder", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            publish(model, uri, "HuggingFace", store, owner)


def test_a_destination_that_can_be_written_is_as_it_was_before(root: str, tmp_path: Path) -> None:
    before, store = tree(tmp_path), open_store()
    probe.destinations(to(f"{root}/new/model"), store, OWNER)
    assert tree(tmp_path) == before
    assert list(store.entries(root)) == []


def test_an_earlier_export_and_one_that_was_cut_off_are_no_obstacle(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, store = exported(tmp_path), open_store()
    publish(model, f"{root}/whole", "HuggingFace", store, OWNER)
    publish_half(model, f"{root}/half", store, OWNER, monkeypatch)
    assert store.exists(f"{root}/half/{MARKER}")
    store.write(f"{root}/half/config.json", "…")
    before = sorted(entry.uri for entry in store.entries(root))
    for name in ("whole", "half"):
        probe.destinations(to(f"{root}/{name}"), store, OWNER)
    assert sorted(entry.uri for entry in store.entries(root)) == before


def test_a_destination_that_another_job_uploads_to_is_refused_with_that_job(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, store = exported(tmp_path), open_store()
    other = OWNER.model_copy(update={"job": "team/other", "run_folder": "gs://artifacts/team/other-2"})
    publish_half(model, root, store, other, monkeypatch)
    error = refusal(to(root), store)
    assert (error.code, error.reason) == (ExitCode.BAD_REQUEST, "DestinationInUse")
    assert "team/other" in error.actual
    assert f"delete {root}/{MARKER}" in error.fix
    store.delete(f"{root}/{MARKER}")
    probe.destinations(to(root), store, OWNER)


def test_what_export_would_refuse_to_write_over_is_refused_in_its_words(root: str, tmp_path: Path) -> None:
    store = open_store()
    store.write(f"{root}/thesis.pdf", "mine")
    error = refusal(to(root), store)
    assert (error.code, error.reason) == (ExitCode.BAD_REQUEST, "DestinationNotEmpty")
    assert "thesis.pdf" in error.actual
    model = exported(tmp_path)
    with pytest.raises(StageError) as later:
        publish(model, root, "HuggingFace", store, OWNER)
    assert (error.what, error.fix) == (later.value.what, later.value.fix)
    assert [entry.uri for entry in store.entries(root)] == [f"{root}/thesis.pdf"]


@pytest.mark.parametrize(
    ("changes", "place"),
    [({"content": "Both"}, "adapter"), ({"orbax": True}, "orbax")],
    ids=["adapter", "orbax"],
)
def test_every_folder_of_an_export_is_checked(
    root: str, tmp_path: Path, changes: dict[str, Any], place: str
) -> None:
    model, store = exported(tmp_path), open_store()
    publish(model, root, "HuggingFace", store, OWNER)
    store.write(f"{root}/{place}/thesis.pdf", "mine")
    assert refusal(to(root, **changes), store).reason == "DestinationNotEmpty"


def test_a_bucket_that_is_not_there_is_an_input_that_is_missing(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    error = refusal(to("gs://no-such-bucket/exports"))
    assert (error.code, error.reason) == (ExitCode.INPUT_MISSING, "DestinationMissing")
    assert "gs://no-such-bucket/exports" in error.actual


def test_another_jobs_probe_does_not_make_a_folder_another_owners(root: str) -> None:
    store = open_store()
    store.write(f"{root}/{PROBE}of-another-job", "")
    probe.destinations(to(root), store, OWNER)
    assert [entry.uri for entry in store.entries(root)] == [f"{root}/{PROBE}of-another-job"]


class Denying(FileStore):
    """An account that lacks one permission."""

    def __init__(self, right: str) -> None:
        super().__init__()
        self._right = right

    def _need(self, right: str, uri: str) -> None:
        if right == self._right:
            raise StorageDenied(uri, f"403 does not have storage.objects.{right} access")

    def entries(self, uri: str) -> Iterator[Entry]:
        self._need("list", uri)
        return super().entries(uri)

    def create(self, uri: str, content: bytes, content_type: str = "") -> bool:
        self._need("create", uri)
        return super().create(uri, content, content_type)

    def delete(self, uri: str) -> None:
        self._need("delete", uri)
        super().delete(uri)


@pytest.mark.parametrize("right", ["list", "create", "delete"])
def test_a_right_that_is_missing_is_named_and_nothing_is_left(right: str, tmp_path: Path) -> None:
    store = StorageClient(local=Denying(right), gcs=GoogleStore(RETRIES))
    error = refusal(to(f"file://{tmp_path}/out/model"), store)
    assert error.code is ExitCode.PERMISSION_DENIED
    assert f"storage.objects.{right}" in error.actual
    assert tree(tmp_path) == []


class DeniedBucket(GoogleStore):
    def entries(self, uri: str) -> Iterator[Entry]:
        raise StorageDenied(uri, "403")


def test_for_a_bucket_the_fix_names_role_account_and_place() -> None:
    store = StorageClient(local=FileStore(), gcs=DeniedBucket(RETRIES))
    fix = refusal(to("gs://models/team-a/bot"), store).fix
    for word in ("serviceAccounts.cpu", "roles/storage.objectUser", "gs://models/team-a/bot"):
        assert word in fix


class WritesOnce(FileStore):
    """A bucket with a retention policy: new objects cannot be deleted for a while."""

    def delete(self, uri: str) -> None:
        if Path(uri.removeprefix("file://")).exists():
            raise StorageDenied(uri, "403 retentionPolicyNotMet")


def test_what_could_not_be_removed_again_is_named(tmp_path: Path) -> None:
    error = refusal(to(f"file://{tmp_path}/out"), StorageClient(local=WritesOnce(), gcs=GoogleStore(RETRIES)))
    (left,) = (tmp_path / "out").iterdir()
    assert left.name in error.what
    assert "retentionPolicyNotMet" in error.actual


@pytest.mark.parametrize("below", ["", "/model"])
def test_a_file_where_the_folder_should_be_is_named(below: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    error = refusal(to(f"file://{tmp_path}/out{below}"))
    assert error.code is ExitCode.BAD_REQUEST
    assert f"{tmp_path}/out" in error.actual
    assert (tmp_path / "out").read_text() == "a file"


def test_a_folder_that_the_user_may_not_write_is_not_a_fault_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", read_only)
    assert refusal(to(f"file://{tmp_path}/out/model")).code is ExitCode.PERMISSION_DENIED


# --- the hub


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch, hub: FakeHub) -> FakeHub:
    monkeypatch.setenv("HF_UPLOAD_TOKEN_0", TOKEN)
    monkeypatch.setattr(downloads, "_PAUSES", (0.0,))
    hub.writers[TOKEN] = frozenset({"acme"})
    return hub


def unchanged(hub: FakeHub) -> bool:
    return {seen.method for seen in hub.seen} <= {"GET", "HEAD"}


@pytest.mark.parametrize("there", [False, True], ids=["new", "an earlier export's"])
def test_a_repository_that_the_token_may_write_passes_and_nothing_is_made(
    writer: FakeHub, there: bool
) -> None:
    if there:
        writer.push(REPO, {"README.md": "#"}, private=True)
    probe.destinations(to_hub(), open_store(), OWNER)
    assert unchanged(writer)


@pytest.mark.parametrize("repo", [REPO, "others/bot"], ids=["organization", "stranger's"])
@pytest.mark.parametrize("there", [False, True], ids=["new", "existing"])
@pytest.mark.parametrize("token", ["hf_unknown", "hf_reader", "hf_member", "hf_scoped", ""])
def test_a_token_without_the_right_is_named_by_its_secret(
    writer: FakeHub, monkeypatch: pytest.MonkeyPatch, token: str, there: bool, repo: str
) -> None:
    monkeypatch.setenv("HF_UPLOAD_TOKEN_0", token)
    writer.tokens["hf_reader"] = frozenset({repo})
    writer.read_only["hf_member"] = frozenset({"acme", "others"})
    writer.fine_grained["hf_scoped"] = {
        "acme": frozenset({"repo.content.read"}),
        "acme/other": frozenset({"repo.write"}),
    }
    if there:
        writer.push(repo, {"README.md": "#"})
    error = refusal(to_hub(repo, private=False))
    assert (error.code, error.reason) == (ExitCode.PERMISSION_DENIED, "HubAccessDenied")
    assert repo in str(error)
    assert "tokenSecretRef" in error.fix
    assert "hf_" not in str(error)
    assert unchanged(writer)


@pytest.mark.parametrize("entity", ["acme", REPO])
def test_a_fine_grained_token_for_the_place_passes(
    writer: FakeHub, monkeypatch: pytest.MonkeyPatch, entity: str
) -> None:
    monkeypatch.setenv("HF_UPLOAD_TOKEN_0", "hf_scoped")
    writer.fine_grained["hf_scoped"] = {entity: frozenset({"repo.write"})}
    probe.destinations(to_hub(), open_store(), OWNER)
    writer.push(REPO, {"README.md": "#"}, private=True)
    probe.destinations(to_hub(), open_store(), OWNER)


def test_a_name_without_a_namespace_is_the_tokens_own(writer: FakeHub) -> None:
    probe.destinations(to_hub("bot"), open_store(), OWNER)
    writer.push("another-user/bot", {"README.md": "#"})
    writer.writers[TOKEN] = frozenset({"another-user"})
    assert refusal(to_hub("bot")).reason == "HubRepositoryPublic"


def test_a_public_repository_is_refused_where_a_private_one_is_asked_for(writer: FakeHub) -> None:
    writer.push(REPO, {"README.md": "#"})
    assert refusal(to_hub()).reason == "HubRepositoryPublic"
    probe.destinations(to_hub(private=False), open_store(), OWNER)


def test_a_repository_with_other_files_is_refused(writer: FakeHub) -> None:
    writer.push(REPO, {"weights.gguf": b"theirs"}, private=True)
    assert refusal(to_hub()).reason == "DestinationNotEmpty"


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_mirror_that_does_not_say_what_a_token_may_do_is_believed(writer: FakeHub, status: int) -> None:
    writer.fail(status, part="/api/whoami-v2")
    writer.fail(status, part="/auth-check")
    probe.destinations(to_hub(), open_store(), OWNER)
    writer.push(REPO, {"README.md": "#"}, private=True)
    probe.destinations(to_hub(), open_store(), OWNER)


def test_a_hub_that_is_down_is_not_the_users_fault(writer: FakeHub) -> None:
    writer.fail(503)
    with pytest.raises(StageError) as caught:
        probe.destinations(to_hub(), open_store(), OWNER)
    assert caught.value.code is ExitCode.UNAVAILABLE


@pytest.mark.parametrize(
    "who",
    [None, [], {}, {"auth": "x"}, {"name": 3, "orgs": {}}, {"auth": {"accessToken": {"role": "fineGrained"}}},
     {"auth": {"accessToken": {"role": "god"}}, "name": "Acme"},
     {"auth": {"type": "oauth"}, "name": "me", "orgs": [{"name": "ACME", "roleInOrg": "contributor"}]}],
)  # fmt: skip
def test_an_answer_that_does_not_tell_is_no_refusal(who: Any) -> None:
    assert why_not(who, REPO) == ""


# --- in preflight


def test_preflight_tries_the_destinations_before_it_reads_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "models/qwen3", TinyModelSpec())
    write_data(tmp_path / "data", train=12, evaluation=4)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.pdf").write_text("mine")
    context = StageContext(
        request=request(
            tmp_path, "Preflight", export={"destinations": [{"path": PATH, "uri": f"file://{tmp_path}/out"}]}
        ),
        store=open_store(),
        processes=Processes(count=1, index=0),
        stopper=ImmediateStop(),
        scratch=tmp_path,
    )
    read: list[Callable[..., Any]] = []
    monkeypatch.setattr("finetune_trainer.stages.data_check.check", read.append)
    with pytest.raises(StageError, match="contains files"):
        preflight.run(context)
    assert not read
