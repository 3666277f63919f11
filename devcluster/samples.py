"""Models and data that the demos and the end-to-end tests put into the object store, made on this machine."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from devcluster.fixtures.chat_data import WORDINGS, write_data
from devcluster.layout import ROOT, cache_dir

FIXTURES = ROOT / "devcluster" / "fixtures"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFolder:
    """A folder that is made once, kept in the cache, and uploaded to ``uri``."""

    title: str
    uri: str
    make: Callable[[Path], None]
    """Fills the given folder."""
    version: str = ""
    """Part of the folder's name in the cache; changed when ``make`` writes something else."""


def trainer_python() -> str:
    """The Python of the trainer's environment, which is created if it is missing."""
    done = subprocess.run(
        [ROOT / "trainer_image" / "install.sh"], check=True, stdout=subprocess.PIPE, text=True
    )
    return f"{done.stdout.splitlines()[-1]}/bin/python"


def _run(script: str, folder: Path) -> None:
    subprocess.run([trainer_python(), FIXTURES / script, folder], check=True)


def _tiny_model(folder: Path) -> None:
    _run("tiny_qwen3.py", folder)


def _capitals(folder: Path) -> None:
    write_data(folder, wordings=len(WORDINGS))


def _smollm2(folder: Path) -> None:
    subprocess.run([FIXTURES / "smollm2.sh", folder], check=True)


def _gsm8k(folder: Path) -> None:
    """Copies rows from the repository; see the license beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train.jsonl", "test.jsonl"):
        shutil.copyfile(ROOT / "examples" / "data" / "gsm8k" / name, folder / name)


TINY_MODEL = SampleFolder(title="a tiny Qwen3", uri="gs://ft-models.invalid/tiny-qwen3", make=_tiny_model)
CAPITALS = SampleFolder(
    title="questions about capitals", uri="gs://ft-data.invalid/capitals", make=_capitals, version="-2"
)
SMOLLM2 = SampleFolder(
    title="SmolLM2-135M-Instruct", uri="gs://ft-models.invalid/smollm2-135m-instruct", make=_smollm2
)
GSM8K = SampleFolder(title="short rows of GSM8K", uri="gs://ft-data.invalid/gsm8k-short", make=_gsm8k)


def folder_of(item: SampleFolder) -> Path:
    """The sample's folder in the cache, made if it is missing. Processes may make the same one at the same time."""
    folder = cache_dir() / "samples" / f"{item.uri.removeprefix('gs://').replace('/', '-')}{item.version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as unfinished:
            made = Path(unfinished) / "sample"
            item.make(made)
            try:
                made.rename(folder)
            except OSError:
                # A folder is renamed to an existing one only if that is empty: another process was faster.
                if not folder.exists():
                    raise
    return folder


def put(item: SampleFolder, endpoint: str, uri: str | None = None) -> None:
    """Uploads what the store at ``endpoint`` lacks, to ``uri`` or the sample's own."""
    store = client(endpoint)
    name, _, prefix = (uri or item.uri).removeprefix("gs://").partition("/")
    bucket = store.bucket(name)
    if not bucket.exists():
        bucket.create()
    there = {blob.name: blob.size for blob in store.list_blobs(bucket, prefix=f"{prefix}/")}
    folder = folder_of(item)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        key = f"{prefix}/{path.relative_to(folder)}"
        if there.get(key) != path.stat().st_size:
            bucket.blob(key).upload_from_filename(str(path))


def client(endpoint: str) -> storage.Client:
    """A client of the emulator, which requires no credentials."""
    anonymous = AnonymousCredentials()  # type: ignore[no-untyped-call]
    return storage.Client(project="local", credentials=anonymous, client_options={"api_endpoint": endpoint})


def read(uri: str, environment: Mapping[str, str]) -> bytes:
    """Content of one object."""
    name, _, key = uri.removeprefix("gs://").partition("/")
    content: bytes = client(environment["STORAGE_EMULATOR_HOST"]).bucket(name).blob(key).download_as_bytes()
    return content


def download(uri: str, folder: Path, endpoint: str) -> Path:
    """Downloads the objects below ``uri`` to files below ``folder``. Returns ``folder``."""
    bucket, _, prefix = uri.removeprefix("gs://").partition("/")
    for blob in client(endpoint).list_blobs(bucket, prefix=f"{prefix}/"):
        target = folder / blob.name.removeprefix(f"{prefix}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        blob.download_to_filename(target)
    return folder
