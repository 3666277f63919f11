"""A model in a bucket, with several weight files and image parts, through every stage."""

from pathlib import Path
from typing import Any

import pytest

from devcluster.gcs import client_environment
from finetune_contract import ConvertOutcome, ExportOutcome, Outcome, StageResult, TrainOutcome
from finetune_trainer import families
from finetune_trainer.checkpoints.weights import INDEX, open_weights, read_tensor
from finetune_trainer.storage import open_store
from tests.doubles.tiny_models import TinyModelSpec, write_model
from tests.trainer.requests import request
from tests.trainer.stages import Stages, result_of
from tests.trainer.storage_proxy import StorageProxy, between
from tests.trainer.stores import BUCKET

SPEC = TinyModelSpec(family="gemma3-multimodal", shards=3)
METHODS: dict[str, Any] = {"full": {}, "lora": {"lora": {"rank": 4, "alpha": 8.0}}}
SHORT = {"steps": 1}
#: Size limit of the exported weight files.
SHARD_BYTES = 80_000


class Chain:
    """Stages of one run, with a model in a bucket that they read through a proxy."""

    def __init__(self, stages: Stages, proxy: StorageProxy, original: Path, uri: str) -> None:
        self.original, self.uri, self.proxy = original, uri, proxy
        self._stages = stages
        self.converted = ""

    def run(self, stage: str, run: str, **changes: Any) -> StageResult:
        made = request(
            self._stages.root, stage, f"shards/{run}", model={"uri": self.uri}, hyperparameters=SHORT,
            evaluation={"prompts": [], "baseline": False}, checkpointing={"every_steps": 1},
            **{"converted": self.converted or None, **changes},
        )  # fmt: skip
        fault = ("shards_of", SHARD_BYTES) if stage == "Export" else ()
        running = self._stages.start(
            fault=fault, FINETUNE_REQUEST=made.to_json(), **client_environment(self.proxy.url)
        )
        running.wait()
        result = result_of(made)
        assert result is not None, running.log[-4000:]
        assert result.outcome is Outcome.SUCCEEDED, result.failure
        return result

    def weights_read(self) -> int:
        return sum(each.sent for each in self.proxy.contents(".safetensors?"))


@pytest.fixture(scope="module")
def chain(stages: Stages, server: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    original = write_model(tmp_path_factory.mktemp("shards") / "model", SPEC)
    uri = f"gs://{BUCKET}/shards/model"
    with pytest.MonkeyPatch.context() as patched, between(server) as proxy:
        patched.setenv("STORAGE_EMULATOR_HOST", server)
        open_store().upload_folder(original, uri)
        made = Chain(stages, proxy, original, uri)
        made.run("Preflight", "full")
        assert made.weights_read() == sum(map(head_size, original.glob("*.safetensors")))
        converted = made.run("Convert", "full").details
        assert isinstance(converted, ConvertOutcome)
        assert converted.manifest.export_proven
        made.converted = converted.manifest.items
        yield made


@pytest.fixture(scope="module")
def losses(chain: Chain) -> dict[str, float]:
    """Returns the final validation loss of a training with each method."""
    found = {}
    for name, method in METHODS.items():
        details = chain.run("Train", name, method=method).details
        assert isinstance(details, TrainOutcome)
        assert details.evaluation_loss is not None
        found[name] = details.evaluation_loss
    return found


def head_size(file: Path) -> int:
    """Bytes that preflight reads of a file of weights: its beginning, and its header."""
    return 512 + int.from_bytes(file.read_bytes()[:8], "little")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("method", "content", "most"),
    [("full", "Merged", 0.2), ("lora", "Adapter", 0.1), ("lora", "Merged", 1.0)],
    ids=["full", "adapter", "merged"],
)
def test_an_export_reads_of_the_source_what_it_writes_and_its_shards_are_a_model(
    chain: Chain, stages: Stages, losses: dict[str, float], method: str, content: str, most: float
) -> None:
    before = chain.weights_read()
    exported = chain.run(
        "Export", method, method=METHODS[method], train_step=1, export={"content": content}
    ).details
    assert isinstance(exported, ExportOutcome)
    assert chain.weights_read() - before <= most * size_of(chain.original)
    folder = Path(exported.artifacts[0].uri.removeprefix("file://"))
    if content == "Adapter":
        assert (folder / "adapter_model.safetensors").is_file()
        return
    assert (folder / INDEX).is_file()
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    plan = families.read(folder)
    weights, source = open_weights(folder, plan), open_weights(chain.original, plan)
    for name, tensor in source.foreign.items():
        assert read_tensor(weights.foreign[name]).tobytes() == read_tensor(tensor).tobytes()
    assert stages.evaluate(f"file://{folder}")["loss"] == pytest.approx(losses[method], rel=1e-3)
