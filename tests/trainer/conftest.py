"""Fixtures of the trainer's tests, which run in the trainer's environment (tests/run trainer)."""

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from devcluster.fixtures.chat_data import write_data
from tests.doubles.hub import FakeHub
from tests.trainer.models import qwen3
from tests.trainer.stages import Stages, serve
from tests.trainer.stores import BUCKET, fake_gcs, program

# before anything imports JAX
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(os.environ.get("FINETUNE_CACHE", "~/.cache/finetune-tpu")).expanduser() / "jax"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# Before anything imports huggingface_hub: all tests use one fake hub, in this process. A test that requests something
# by mistake gets a 404; no token or cache of this machine is used.
_HUB = FakeHub()
_HOME = tempfile.mkdtemp(prefix="finetune-hub-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
    del os.environ[name]
os.environ.update({"HF_ENDPOINT": _HUB.address, "HF_HOME": _HOME, "HF_HUB_DISABLE_XET": "1"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """The fake hub, empty, and a cache of the test's own."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield _HUB
    _HUB.clear()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of an object store."""
    built = program()
    if built is None:
        pytest.skip("fake-gcs-server is not built: make cluster-programs")
    with fake_gcs(built) as address:
        yield address


@pytest.fixture(params=["file", "gs"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Address of an empty folder, in both kinds of storage."""
    if request.param == "file":
        return f"file://{tmp_path}/store"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("server"))
    return f"gs://{BUCKET}/{tmp_path.name}"


@pytest.fixture(scope="session")
def libtpu() -> Path:
    """The TPU compiler's library, from an environment of its own."""
    install = Path(__file__).parents[2] / "trainer_image/install.sh"
    venv = subprocess.run([install, "tpu"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    (library,) = Path(venv).glob("lib/*/site-packages/libtpu/libtpu.so")
    return library


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    """Shared by all tests: importing MaxText takes longer than most of them."""
    root = tmp_path_factory.mktemp("stages")
    (root / "models").mkdir()
    qwen3(root / "models")
    write_data(root / "data")
    with serve(root) as running:
        yield running


@pytest.fixture(scope="session")
def converted(stages: Stages) -> str:
    """Address of the converted Qwen3."""
    result = stages.run("Convert", "conversion")
    assert result.details is not None, result.failure
    assert result.details.kind == "Convert"
    assert result.details.manifest.export_proven
    return result.details.manifest.items
