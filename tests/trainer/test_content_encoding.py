"""Objects that are stored compressed and declare it in their Content-Encoding, read by the real client."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from google.cloud.storage import Client

from finetune_contract import DatasetSpec, ExitCode, ModelSource
from finetune_storage import google
from finetune_storage.files import FileStore
from finetune_storage.google import GoogleStore
from finetune_trainer.data.prepare import read_all
from finetune_trainer.errors import StageError
from finetune_trainer.hub.models import fetch_model
from finetune_trainer.storage import RETRIES, StorageClient, content_encoding
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.stores import BUCKET

MIB = 2**20
ROWS = b"".join(
    json.dumps({"prompt": f"Capital of Peru, {number}?", "completion": "Lima."}).encode() + b"\n"
    for number in range(100_000)
)
Put = Callable[..., str]


@pytest.fixture
def client(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    monkeypatch.setattr(google, "_PIECE", MIB // 8)  # so that even compressed rows are downloaded in pieces
    with closing(Client()) as made:
        yield made


@pytest.fixture
def store(client: Client) -> Iterator[StorageClient]:
    with closing(GoogleStore(RETRIES)) as gcs:
        yield StorageClient(local=FileStore(), gcs=gcs)


@pytest.fixture
def put(client: Client, tmp_path: Path) -> Put:
    """Returns a function that stores bytes with a Content-Encoding and returns their address."""

    def upload(name: str, data: bytes, encoding: str | None) -> str:
        blob = client.bucket(BUCKET).blob(f"{tmp_path.name}/{name}")
        blob.content_encoding = encoding
        blob.upload_from_string(data, content_type="application/octet-stream")
        return f"gs://{BUCKET}/{blob.name}"

    return upload


def members(data: bytes) -> bytes:
    """Compresses in two parts, as parallel compressors write a file."""
    return gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])


#: The rows in gzip's format, which contains the time: two of them differ.
PACKED = gzip.compress(ROWS)
#: Name, stored bytes and Content-Encoding of an object, and its content.
READ: dict[str, tuple[str, bytes, str | None, bytes]] = {
    "gzip": ("a.jsonl", gzip.compress(ROWS), "gzip", ROWS),
    "gzip in two parts": ("a.jsonl", members(ROWS), "gzip", ROWS),
    "x-gzip": ("a.jsonl", gzip.compress(ROWS), "X-GZIP", ROWS),
    "a file that is packed itself": ("a.jsonl.gz", gzip.compress(PACKED), "gzip", PACKED),
    "a packed file's own encoding": ("a.jsonl.gz", PACKED, "gzip", PACKED),
    "declared, but not packed": ("a.jsonl", ROWS, "gzip", ROWS),
    "a character set": ("a.jsonl", ROWS, "utf-8", ROWS),
    "identity": ("a.jsonl", ROWS, "identity", ROWS),
    "none": ("a.jsonl", ROWS, None, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_an_object_is_read_as_its_content_encoding_says(
    case: str, store: StorageClient, put: Put, tmp_path: Path
) -> None:
    name, stored, encoding, content = READ[case]
    uri = put(name, stored, encoding)
    assert store.fetch_file(uri, tmp_path / name).read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    if not name.endswith(".gz"):
        assert store.read(uri) == content
        current = store.read_current(uri, limit=len(ROWS))
        assert current is not None
        assert current.content == content


@pytest.mark.parametrize(
    ("encoding", "stored", "reason"),
    [
        ("br", ROWS, "Content-Encoding: br"),
        ("zstd", ROWS, "Content-Encoding: zstd"),
        ("deflate", zlib.compress(ROWS), "Content-Encoding: deflate"),
        ("gzip, br", ROWS, "Content-Encoding: gzip, br"),
        ("gzip", gzip.compress(ROWS)[:-9], "gzip, Compressed file ended"),
        ("gzip", gzip.compress(ROWS)[:-8] + b"12345678", "gzip, CRC check failed"),
        ("gzip", gzip.compress(bytes(5 * MIB)), "more than"),
    ],
    ids=["br", "zstd", "deflate", "several", "truncated", "damaged", "too much"],
)
def test_an_object_that_cannot_be_unpacked_is_the_users_to_upload_again(
    encoding: str,
    stored: bytes,
    reason: str,
    store: StorageClient,
    put: Put,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(content_encoding, "_FREE", MIB)
    uri = put("a.jsonl", stored, encoding)
    for read in (lambda: store.fetch_file(uri, tmp_path / "a"), lambda: store.read(uri)):
        with pytest.raises(StageError) as caught:
            read()
        assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_DATA, "ContentEncodingUnreadable")
        assert caught.value.where == uri
        assert reason in caught.value.actual


def test_a_part_of_a_packed_object_is_refused(store: StorageClient, put: Put) -> None:
    packed, plain = put("a", gzip.compress(ROWS), "gzip"), put("b", ROWS, None)
    assert store.read_range(plain, 5, 9) == ROWS[5:9]
    with pytest.raises(StageError) as caught:
        store.read_range(packed, 0, 512)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_DATA, "ContentEncodingUnreadable")


def test_a_packed_dataset_has_the_rows_that_were_packed(
    store: StorageClient, put: Put, tmp_path: Path
) -> None:
    uri = put("a.jsonl", gzip.compress(ROWS[:1000].rpartition(b"\n")[0]), "gzip")
    source = DatasetSpec(path="spec.datasets.train[0]", name="a", uri=uri)
    assert len(list(read_all(source, store, tmp_path))) > 10


@pytest.mark.parametrize("packed", ["tokenizer.json", "config.json", "model.safetensors"])
def test_of_a_model_small_files_may_be_packed_and_weights_may_not(
    packed: str, store: StorageClient, put: Put, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", TinyModelSpec())
    uris = [
        put(path.name, gzip.compress(path.read_bytes()), "gzip")
        if path.name == packed
        else put(path.name, path.read_bytes(), None)
        for path in folder.iterdir()
    ]
    source = ModelSource(uri=uris[0].rpartition("/")[0])

    def fetch(**options: Any) -> Path:
        return fetch_model(source, tmp_path / str(options), store, **options).path

    if packed != "model.safetensors":
        assert (fetch(weights=True) / packed).read_bytes() == (folder / packed).read_bytes()
        return
    with pytest.raises(StageError) as caught:
        fetch(weights=False)
    assert (caught.value.code, caught.value.reason) == (ExitCode.BAD_DATA, "ContentEncodingUnreadable")
    assert caught.value.where == f"{source.uri}/{packed}"
